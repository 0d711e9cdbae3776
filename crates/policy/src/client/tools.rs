//! Evaluates a call of one of the supervisor's own tools: by the file that it is about, and by
//! rules that name the tool.
//!
//! Owns how the two are combined: the more severe one counts, and a rule that names the tool allows
//! nothing that the file's rules do not allow.

use super::{ClientDecision, decide_file, denied_by_rule};
use crate::evaluation_context::EvaluationContext;
use crate::path::FsContext;
use crate::request::{Facts, Part, PolicyDecision, ReadTarget, Request};
use crate::{Policy, evaluate};
use marshal_model::{DecidedBy, Decision, ENGINE_SERVER, EngineRequest, EngineTool, UntrustedText};

/// The rule name in the decision about a question to a person.
const ASKS: &str = "engine_tools.ask_person";

/// The rule name in the decision about a permission to call one of our tools.
const ANNOUNCED_RULE: &str = "engine_tools.announced";

/// Arguments that rules do not see.
const TEXTS: [&str; 3] = ["content", "old_text", "new_text"];

/// Evaluates a call. For a call that is about no file the place is empty.
pub(super) fn decide_engine_tool(
    policy: &Policy,
    engine_request: &EngineRequest,
    at: &FsContext<'_>,
    occasion: &EvaluationContext<'_>,
) -> ClientDecision {
    let by_file = match (engine_request.tool, &engine_request.path) {
        (EngineTool::WriteFile, Some(path)) => {
            decide_file(policy, path, (at, occasion), |paths| Request::Write {
                paths,
            })?
        }
        (EngineTool::EditFile, Some(path)) => {
            let edited = decide_file(policy, path, (at, occasion), |paths| Request::Edit {
                paths,
            })?;
            // An error message would reveal whether a text is in a file, so editing also needs the
            // right to read.
            let read = decide_file(policy, path, (at, occasion), read_request)?;
            if read.0.decision > edited.0.decision {
                read
            } else {
                edited
            }
        }
        (EngineTool::ReadFile, Some(path)) => {
            decide_file(policy, path, (at, occasion), read_request)?
        }
        (EngineTool::AskPerson, None) => (ask_person_decision(engine_request), String::new()),
        (EngineTool::PlanStep, None) => (allow_decision(), String::new()),
        (tool, _) => {
            let why = format!("the recorded call of {tool} is not valid");
            return Err(denied_by_rule("malformed", &[], why).into());
        }
    };
    let mut arguments = engine_request.arguments.clone();
    if let Some(members) = arguments.as_object_mut() {
        // A file's new content is not a path, whatever it looks like, and long ones are not
        // recorded.
        members.retain(|name, _| !TEXTS.contains(&name.as_str()));
    }
    let request = Request::Mcp {
        server: UntrustedText::from(ENGINE_SERVER),
        name: UntrustedText::from(engine_request.tool.as_str()),
        arguments,
    };
    let named = evaluate::evaluate_tool_rules(policy, &request, at, occasion);
    let (policy_decision, place) = by_file;
    if named.rules.is_empty() || named.decision <= policy_decision.decision {
        return Ok((policy_decision, place));
    }
    Ok((named, place))
}

/// The decision about a permission that an agent requests before it calls one of our tools. The
/// call itself comes to us, and is evaluated then.
#[must_use]
pub fn allow_announced_tool(tool: EngineTool) -> PolicyDecision {
    PolicyDecision {
        rules: vec![ANNOUNCED_RULE.to_owned()],
        reason: format!(
            "the call of {} is evaluated when it arrives",
            tool.record_name()
        ),
        ..allow_decision()
    }
}

fn read_request(paths: Vec<String>) -> Request {
    Request::Read {
        targets: paths.into_iter().map(ReadTarget::Path).collect(),
    }
}

/// A person is asked, even if the rules allow it.
fn ask_person_decision(request: &EngineRequest) -> PolicyDecision {
    let text = |name: &str| request.arguments.get(name).cloned().unwrap_or_default();
    let mut words = vec![UntrustedText::from("question:")];
    words.extend(text("question").as_str().map(UntrustedText::from));
    let options = text("options");
    for option in options.as_array().into_iter().flatten() {
        words.push(UntrustedText::from("option:"));
        words.extend(option.as_str().map(UntrustedText::from));
    }
    PolicyDecision {
        decision: Decision::Ask,
        rules: vec![ASKS.to_owned()],
        reason: "the agent asks a person".to_owned(),
        facts: Facts {
            parts: vec![Part {
                env: Vec::new(),
                words,
                redirects: Vec::new(),
                decision: Decision::Ask,
                rules: vec![ASKS.to_owned()],
            }],
            ..Facts::default()
        },
        ..allow_decision()
    }
}

/// It changes only the session's reported status.
fn allow_decision() -> PolicyDecision {
    PolicyDecision {
        decision: Decision::Allow,
        rules: Vec::new(),
        reason: String::new(),
        decided_by: DecidedBy::Policy,
        facts: Facts::default(),
        dry_run_decision: None,
        rule_uses: Vec::new(),
    }
}
