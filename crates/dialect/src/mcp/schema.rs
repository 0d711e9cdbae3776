//! The server's description of itself and of its tools.
//!
//! Must not know how a call is read; a test compares the schemas with that.

use serde_json::{Value, json};

use super::{Era, STATELESS_VERSION};
use marshal_model::limits::{CLIENT_FILE_BYTES, TOOL_OPTIONS};
use marshal_model::{ENGINE_SERVER, EngineTool, StepStatus};

const INSTRUCTIONS: &str = "Tools of the supervisor that runs this session. Its policy decides about each call; an error result says why, and what to do instead.";

/// How long a client may keep what the server says of itself and of its tools, in milliseconds:
/// neither changes while a child lives.
const FRESH_MS: u64 = 3_600_000;

/// The server's name and version.
pub(super) fn server_info() -> Value {
    json!({"name": ENGINE_SERVER, "version": env!("CARGO_PKG_VERSION")})
}

/// The answer to `initialize`.
pub(super) fn initialize_result(version: &str) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
    })
}

/// The answer to `server/discover`.
pub(super) fn discover_result() -> Value {
    json!({
        "supportedVersions": [STATELESS_VERSION],
        "capabilities": {"tools": {}},
        "instructions": INSTRUCTIONS,
        "ttlMs": FRESH_MS,
        "cacheScope": "private",
    })
}

/// The answer to `tools/list`.
pub(super) fn list(tools: &[EngineTool], era: Era) -> Value {
    let tools: Vec<Value> = tools.iter().copied().map(tool).collect();
    match era {
        Era::Handshake => json!({ "tools": tools }),
        Era::Stateless => json!({
            "tools": tools,
            "ttlMs": FRESH_MS,
            "cacheScope": "private",
        }),
    }
}

fn tool(tool: EngineTool) -> Value {
    let (description, properties, required) = match tool {
        EngineTool::WriteFile => (
            format!(
                "Replaces a text file of the workspace, or creates one in an existing directory. The text is on disk when the call returns. At most {CLIENT_FILE_BYTES} bytes."
            ),
            json!({
                "path": path(),
                "content": {"type": "string", "description": "The file's whole new text"},
                "base": base(),
            }),
            json!(["path", "content"]),
        ),
        EngineTool::EditFile => (
            "Replaces an exact text in a file of the workspace. The text must occur in the file exactly once, unless replace_all is true. The change is on disk when the call returns.".to_owned(),
            json!({
                "path": path(),
                "old_text": {"type": "string", "minLength": 1, "description": "The text as it is in the file, including white space"},
                "new_text": {"type": "string", "description": "The replacement text"},
                "replace_all": {"type": "boolean", "description": "Replace every occurrence", "default": false},
                "base": base(),
            }),
            json!(["path", "old_text", "new_text"]),
        ),
        EngineTool::ReadFile => (
            format!(
                "Returns lines of a text file of the workspace, at most {CLIENT_FILE_BYTES} bytes."
            ),
            json!({
                "path": path(),
                "line": {"type": "integer", "minimum": 1, "description": "The first line to return; default: line 1"},
                "limit": {"type": "integer", "minimum": 1, "description": "The maximum number of lines; default: all"},
            }),
            json!(["path"]),
        ),
        EngineTool::AskPerson => (
            "Asks a person a question and returns the answer. The answer may take a long time. Ask only what only a person can decide.".to_owned(),
            json!({
                "question": {"type": "string", "minLength": 1, "description": "One question, with the context needed to answer it"},
                "options": {"type": "array", "maxItems": TOOL_OPTIONS, "items": {"type": "string"}, "description": "Answers to choose from; the person may give another answer"},
            }),
            json!(["question"]),
        ),
        EngineTool::PlanStep => {
            let words: Vec<&str> = StepStatus::ALL.iter().map(|item| item.as_str()).collect();
            (
                "Reports the status of a plan step to the people who watch the session.".to_owned(),
                json!({
                    "step": {"type": "string", "minLength": 1, "description": "The step, as the plan names it"},
                    "status": {"type": "string", "enum": words},
                }),
                json!(["step", "status"]),
            )
        }
    };
    json!({
        "name": tool.as_str(),
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
    json!({"type": "integer", "minimum": 0, "description": "Only where files have versions: the version that this change is based on; 0 if the file must not exist yet; default: the last version that this session saw. If the file has another version now, nothing is written: read it again"})
}

fn path() -> Value {
    json!({"type": "string", "minLength": 1, "description": "The file's absolute path, as the agent sees it"})
}
