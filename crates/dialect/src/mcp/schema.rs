//! What the server says of itself and of its tools.
//!
//! Must not know how a call is read; a test holds the schemas against that.

use serde_json::{Value, json};

use marshal_model::limits::{CLIENT_FILE_BYTES, TOOL_OPTIONS};
use marshal_model::{EngineTool, StepStatus};

/// The answer to `initialize`.
pub(super) fn initialize_result(version: &str, name: &str) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": name, "version": env!("CARGO_PKG_VERSION")},
        "instructions": "Tools of the supervisor that runs this session. Each call is judged by its policy; a result that is an error says why, and what to do instead.",
    })
}

/// The answer to `tools/list`.
pub(super) fn list(tools: &[EngineTool]) -> Value {
    let tools: Vec<Value> = tools.iter().copied().map(tool).collect();
    json!({ "tools": tools })
}

fn tool(tool: EngineTool) -> Value {
    let (description, properties, required) = match tool {
        EngineTool::WriteFile => (
            format!(
                "Replaces a text file of the workspace, or makes one in a directory that is there. The text is on the disk when this answers. At most {CLIENT_FILE_BYTES} bytes."
            ),
            json!({
                "path": path(),
                "content": {"type": "string", "description": "The file's whole text from then on"},
                "base": base(),
            }),
            json!(["path", "content"]),
        ),
        EngineTool::EditFile => (
            "Changes an exact text of a file of the workspace. The text must stand in the file exactly once, unless replace_all is true. The change is on the disk when this answers.".to_owned(),
            json!({
                "path": path(),
                "old_text": {"type": "string", "minLength": 1, "description": "The text as it stands in the file, white space included"},
                "new_text": {"type": "string", "description": "The text that takes its place"},
                "replace_all": {"type": "boolean", "description": "Change it wherever it stands", "default": false},
                "base": base(),
            }),
            json!(["path", "old_text", "new_text"]),
        ),
        EngineTool::ReadFile => (
            format!(
                "Gives lines of a text file of the workspace, at most {CLIENT_FILE_BYTES} bytes of them."
            ),
            json!({
                "path": path(),
                "line": {"type": "integer", "minimum": 1, "description": "The first line wanted; without it the first one"},
                "limit": {"type": "integer", "minimum": 1, "description": "The most lines wanted; without it all"},
            }),
            json!(["path"]),
        ),
        EngineTool::AskPerson => (
            "Asks a person a question and gives their answer. It may take long until somebody answers. Ask only what nobody but a person can decide.".to_owned(),
            json!({
                "question": {"type": "string", "minLength": 1, "description": "One question, with what is needed to answer it"},
                "options": {"type": "array", "maxItems": TOOL_OPTIONS, "items": {"type": "string"}, "description": "Answers to choose from; the person may say something else"},
            }),
            json!(["question"]),
        ),
        EngineTool::PlanStep => {
            let words: Vec<&str> = StepStatus::ALL.iter().map(|of| of.word()).collect();
            (
                "Says how a step of the plan stands, for whoever watches the session.".to_owned(),
                json!({
                    "step": {"type": "string", "minLength": 1, "description": "The step, in the plan's words"},
                    "status": {"type": "string", "enum": words},
                }),
                json!(["step", "status"]),
            )
        }
    };
    json!({
        "name": tool.word(),
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        },
    })
}

fn base() -> Value {
    json!({"type": "integer", "minimum": 0, "description": "Only where files have versions: the version that this was made from, 0 if the file must not be there yet. Without it what this session saw last. If the file is at another version by now, nothing is written: read it again"})
}

fn path() -> Value {
    json!({"type": "string", "minLength": 1, "description": "The file's absolute path, as it is seen here"})
}
