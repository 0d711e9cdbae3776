//! Reads the parameters of a call: exactly what a tool's schema allows, or nothing.
//!
//! Must not know where a path leads.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::shortened;
use marshal_model::limits::{
    CLIENT_FILE_BYTES, CLIENT_PATH_BYTES, TOOL_OPTION_BYTES, TOOL_OPTIONS, TOOL_TEXT_BYTES,
};
use marshal_model::{EngineCall, EngineTool, StepStatus, TextEdit};

#[derive(Deserialize)]
struct Params<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Write {
    path: String,
    content: String,
    base: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    path: String,
    old_text: String,
    new_text: String,
    #[serde(default)]
    replace_all: bool,
    base: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    path: String,
    line: Option<u64>,
    limit: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskArguments {
    question: String,
    options: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(alias = "item")]
    step: String,
    status: String,
}

/// Reads `tools/call`.
pub(super) fn read(params: Option<&RawValue>, tools: &[EngineTool]) -> Result<EngineCall, String> {
    let params = params
        .and_then(|raw| serde_json::from_str::<Params<'_>>(raw.get()).ok())
        .ok_or("tools/call needs name (a string) and arguments (an object)")?;
    let tool = EngineTool::parse(&params.name).filter(|tool| tools.contains(tool));
    let tool = tool.ok_or_else(|| format!("unknown tool: {:?}", shortened(&params.name)))?;
    let raw = params.arguments.map_or("{}", RawValue::get);
    match tool {
        EngineTool::WriteFile => {
            let Write {
                path,
                content,
                base,
            } = parse_arguments(tool, raw)?;
            path_fits(&path)?;
            fits("content", &content, CLIENT_FILE_BYTES)?;
            Ok(EngineCall::Write {
                path,
                content,
                base,
            })
        }
        EngineTool::EditFile => {
            let of: Edit = parse_arguments(tool, raw)?;
            path_fits(&of.path)?;
            fits("old_text", &of.old_text, CLIENT_FILE_BYTES)?;
            fits("new_text", &of.new_text, CLIENT_FILE_BYTES)?;
            if of.old_text.is_empty() {
                return Err("old_text is empty: give the text to replace".to_owned());
            }
            let edit = TextEdit {
                old: of.old_text,
                new: of.new_text,
                replace_all: of.replace_all,
            };
            Ok(EngineCall::Edit {
                path: of.path,
                edit,
                base: of.base,
            })
        }
        EngineTool::ReadFile => {
            let Read { path, line, limit } = parse_arguments(tool, raw)?;
            path_fits(&path)?;
            let line = line.unwrap_or(1);
            if line == 0 || limit == Some(0) {
                return Err("line and limit count from 1".to_owned());
            }
            Ok(EngineCall::Read { path, line, limit })
        }
        EngineTool::AskPerson => {
            let AskArguments { question, options } = parse_arguments(tool, raw)?;
            let options = options.unwrap_or_default();
            if question.trim().is_empty() {
                return Err("question is empty".to_owned());
            }
            fits("question", &question, TOOL_TEXT_BYTES)?;
            if options.len() > TOOL_OPTIONS {
                return Err(format!("at most {TOOL_OPTIONS} options are allowed"));
            }
            for option in &options {
                fits("an option", option, TOOL_OPTION_BYTES)?;
            }
            Ok(EngineCall::Ask { question, options })
        }
        EngineTool::PlanStep => {
            let Step { step, status } = parse_arguments(tool, raw)?;
            fits("step", &step, TOOL_TEXT_BYTES)?;
            if step.trim().is_empty() {
                return Err("step is empty".to_owned());
            }
            let status = StepStatus::parse(&status)
                .ok_or("status must be one of: pending, running, done, blocked")?;
            Ok(EngineCall::Step { step, status })
        }
    }
}

/// `tools/list` has one page.
pub(super) fn reject_cursor(params: Option<&RawValue>) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Page {
        cursor: Option<String>,
    }
    let Some(raw) = params else { return Ok(()) };
    let page: Page = serde_json::from_str(raw.get())
        .map_err(|_| "the parameters of tools/list must be an object".to_owned())?;
    match page.cursor {
        None => Ok(()),
        Some(_) => Err("unknown cursor: tools/list has only one page".to_owned()),
    }
}

fn parse_arguments<T: DeserializeOwned>(tool: EngineTool, raw: &str) -> Result<T, String> {
    // serde's message names the member; its position in the text is of no use to a model.
    serde_json::from_str(raw).map_err(|error| {
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        format!(
            "the arguments of {tool} are not valid: {}",
            shortened(message)
        )
    })
}

fn path_fits(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("path is empty".to_owned());
    }
    fits("path", path, CLIENT_PATH_BYTES)
}

fn fits(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    Err(format!(
        "{what} is longer than {most} bytes ({} bytes)",
        text.len()
    ))
}
