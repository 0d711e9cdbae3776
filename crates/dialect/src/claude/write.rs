//! What we write to Claude Code, and the arguments of its command.
//!
//! Must not know when it may be written. Each message is one line. In our texts U+2028 and U+2029
//! are escaped, because some readers treat them as the end of a line. The input of an allowed tool
//! goes back byte for byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::{OpenParams, json_line};
use marshal_config::{McpServer, McpTransport};
use marshal_model::ids::is_safe_token;
use marshal_model::{ENGINE_SERVER, PermissionResponse, UntrustedText};

/// The name of our hook.
pub(super) const HOOK: &str = "marshal";
/// Why our hook makes the agent ask, as the agent repeats it in its request.
pub(super) const HOOK_REASON: &str = "every call is asked for";

/// Makes the program speak this protocol, and ask us. Hooks in settings are switched off: a hook of
/// a workspace could answer a permission request before we do, and run commands that nobody was
/// asked about. Our hook is not among them.
const ARGUMENTS: [&str; 11] = [
    "--print",
    "--input-format",
    "stream-json",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--permission-prompt-tool",
    "stdio",
    SETTINGS,
    r#"{"disableAllHooks":true}"#,
];

/// The option that only we may pass: the last one takes precedence.
pub(crate) const SETTINGS: &str = "--settings";

/// The arguments after those of the pool's command.
pub(crate) fn extra_arguments(opening: &OpenParams) -> Vec<String> {
    let mut words: Vec<String> = ARGUMENTS.map(str::to_owned).into();
    let (option, id) = match &opening.resume {
        Some(id) => ("--resume", id.raw()),
        None => ("--session-id", opening.fresh_id.as_str()),
    };
    // A value that is not an id could be read as an option of the program.
    if is_safe_token(id) {
        words.extend([option.to_owned(), id.to_owned()]);
    }
    let servers = servers(&opening.acp.mcp_servers, &opening.routes);
    if !servers.is_empty() {
        let config = json!({ "mcpServers": servers }).to_string();
        words.extend(["--mcp-config".to_owned(), config]);
    }
    words
}

fn servers(servers: &[McpServer], routes: &BTreeMap<String, String>) -> Map<String, Value> {
    let server = |server: &McpServer| {
        let value = match &server.transport {
            McpTransport::Program { command, args, env } => {
                let mut value =
                    json!({ "type": "stdio", "command": command, "args": args, "env": env });
                if server.name == ENGINE_SERVER {
                    // Otherwise its model would have to search for the tools first.
                    value["alwaysLoad"] = true.into();
                }
                value
            }
            McpTransport::Route { kind, route, path } => {
                let base = routes.get(route).map_or("", String::as_str);
                json!({ "type": kind.as_str(), "url": format!("{base}{path}") })
            }
        };
        (server.name.clone(), value)
    };
    servers.iter().map(server).collect()
}

fn request(id: &str, request: &Value) -> Vec<u8> {
    json_line::encode(&json!({ "type": "control_request", "request_id": id, "request": request }))
}

/// The first message: it makes the agent call our hook before every tool.
pub(super) fn initialize(id: &str) -> Vec<u8> {
    // If the agent does not understand our answer, it runs nothing.
    let hook = json!([{ "matcher": null, "hookCallbackIds": [HOOK], "onFailure": "block" }]);
    request(
        id,
        &json!({ "subtype": "initialize", "hooks": { "PreToolUse": hook } }),
    )
}

pub(super) fn set_mode(id: &str, mode: &str) -> Vec<u8> {
    request(
        id,
        &json!({ "subtype": "set_permission_mode", "mode": mode }),
    )
}

pub(super) fn set_model(id: &str, model: &str) -> Vec<u8> {
    request(id, &json!({ "subtype": "set_model", "model": model }))
}

pub(super) fn interrupt(id: &str) -> Vec<u8> {
    request(id, &json!({ "subtype": "interrupt" }))
}

/// A prompt, under an id of ours if there is one.
pub(super) fn prompt(text: &UntrustedText, uuid: Option<&str>) -> Vec<u8> {
    let mut message = json!({
        "type": "user",
        "message": { "role": "user", "content": [{ "type": "text", "text": text.raw() }] },
        "parent_tool_use_id": null,
        "session_id": "",
    });
    if let (Some(message), Some(uuid)) = (message.as_object_mut(), uuid) {
        message.insert("uuid".to_owned(), uuid.into());
    }
    json_line::encode(&message)
}

fn response(id: &str, response: &Value) -> Vec<u8> {
    let inner = json!({ "subtype": "success", "request_id": id, "response": response });
    json_line::encode(&json!({ "type": "control_response", "response": inner }))
}

/// Allows a call, with the input that was evaluated, byte for byte.
pub(super) fn allow(id: &str, input: &RawValue) -> Vec<u8> {
    let id = json_line::escape_separators(Value::from(id).to_string());
    let mut line = format!(
        r#"{{"type":"control_response","response":{{"subtype":"success","request_id":{id},"response":{{"behavior":"allow","updatedInput":{}}}}}}}"#,
        input.get()
    );
    line.push('\n');
    line.into_bytes()
}

/// Denies a call; the model gets the reason.
pub(super) fn deny(id: &str, reason: &str) -> Vec<u8> {
    let reason = if reason.is_empty() { "denied" } else { reason };
    response(id, &json!({ "behavior": "deny", "message": reason }))
}

/// An answer to a permission request.
pub(super) fn answer(id: &str, input: Option<&RawValue>, answer: &PermissionResponse) -> Vec<u8> {
    match (answer, input) {
        (PermissionResponse::Allow, Some(input)) => allow(id, input),
        (PermissionResponse::Allow, None) => deny(id, "the call is too large to be evaluated"),
        (PermissionResponse::Deny(reason), _) => deny(id, reason),
    }
}

/// Our hook's answer: ask.
pub(super) fn hook_asks(id: &str) -> Vec<u8> {
    let output = json!({
        "hookEventName": "PreToolUse",
        "permissionDecision": "ask",
        "permissionDecisionReason": HOOK_REASON,
    });
    response(id, &json!({ "hookSpecificOutput": output }))
}

/// Our hook's answer to an unreadable call.
pub(super) fn hook_denies(id: &str) -> Vec<u8> {
    let output = json!({
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "the host cannot read which tool this is",
    });
    response(id, &json!({ "hookSpecificOutput": output }))
}

/// Our hook's answer where the agent's own rules decide: empty.
pub(super) fn hook_says_nothing(id: &str) -> Vec<u8> {
    response(id, &json!({}))
}

/// Rejects an unsupported request.
pub(super) fn error(id: &str, why: &str) -> Vec<u8> {
    let inner = json!({ "subtype": "error", "request_id": id, "error": why });
    json_line::encode(&json!({ "type": "control_response", "response": inner }))
}
