//! A Claude Code host's messages, which are closed: an unknown member is an error.
//!
//! Must not know the order of messages.

use serde_json::Value;

use crate::script_agent::AgentDialect;
use crate::script_agent::form::text;

/// Checks a value against a form.
pub(super) fn check(form: &str, value: &Value) -> Result<(), String> {
    AgentDialect::Claude.templates().check(form, value)
}

/// Parses one line without its newline.
pub(super) fn parse_message(line: &[u8]) -> Result<Value, String> {
    let line = std::str::from_utf8(line).map_err(|_| "a line is not UTF-8".to_owned())?;
    if !line.trim_start().starts_with('{') {
        return Err("a line is no JSON object".to_owned());
    }
    let message = serde_json::from_str(line).map_err(|error| error.to_string());
    let message = message.and_then(|message: Value| {
        if count_colons(line) != count_members(&message) {
            return Err("a member occurs twice".to_owned());
        }
        check_message(&message).map(|()| message)
    });
    message.map_err(|error| format!("a line is no message here: {error}"))
}

/// The number of members that a line writes; a [`Value`] keeps only the last one of each name.
fn count_colons(line: &str) -> usize {
    let (mut colons, mut is_text, mut bytes) = (0, false, line.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b':' if !is_text => colons += 1,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
    colons
}

fn count_members(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            members.len() + members.values().map(count_members).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count_members).sum(),
        _ => 0,
    }
}

fn check_message(message: &Value) -> Result<(), String> {
    let kind = text(message, "type");
    check(kind, message)?;
    let inner = match kind {
        "control_request" => &message["request"],
        "control_response" => &message["response"],
        _ if message["message"]["content"].is_string() => return Ok(()),
        _ => return check("blocks", &message["message"]["content"]),
    };
    check(&format!("{kind}.{}", text(inner, "subtype")), inner)
}

/// The texts of a prompt, concatenated.
pub(super) fn prompt_text(message: &Value) -> String {
    match &message["message"]["content"] {
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().map(|block| text(block, "text")).collect();
            texts.join("\n")
        }
        content => content.as_str().unwrap_or_default().to_owned(),
    }
}

/// The hook before every tool, which is the only one supported here.
pub(super) fn tool_hook(request: &Value) -> Result<Option<String>, &'static str> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let hooks = list(&request["hooks"]["PreToolUse"]);
    let Some(hook) = hooks.first() else {
        return Ok(None);
    };
    match list(&hook["hookCallbackIds"]).as_slice() {
        [id] if hooks.len() == 1 && hook["matcher"].is_null() => Ok(id.as_str().map(str::to_owned)),
        _ => Err("there is one hook at most here, without a matcher"),
    }
}

/// Checks the host's answer about a call, and returns whether it allows it.
pub(super) fn check_answer(answer: &Value) -> Result<bool, String> {
    let is_allowed = answer["behavior"] == "allow";
    let form = if is_allowed { "allow" } else { "deny" };
    check(form, answer)?;
    if is_allowed || answer["behavior"] == "deny" {
        return Ok(is_allowed);
    }
    Err("it neither allows nor denies".to_owned())
}

/// The decision of a hook, and its reason. `None` if the hook decides nothing, so that the program's
/// own rules apply.
pub(super) fn hook_decision(reply: &Value) -> Result<Option<(&str, &str)>, String> {
    check("hook", reply)?;
    let output = &reply["hookSpecificOutput"];
    if output.is_null() {
        return Ok(None);
    }
    if output["hookEventName"] != "PreToolUse" {
        return Err("the hook answers about something else than a tool's use".to_owned());
    }
    let reason = text(output, "permissionDecisionReason");
    Ok(Some((text(output, "permissionDecision"), reason)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_host_says_is_read_and_nothing_else() {
        for line in [
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize"}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize","hooks":{"PreToolUse":[{"matcher":null,"hookCallbackIds":["m"]}]}}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize","hooks":{"PreToolUse":[{"matcher":null,"hookCallbackIds":["m"],"onFailure":"block"}]}}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"interrupt"}}"#,
            r#"{"type":"control_response","response":{"subtype":"error","request_id":"r-1","error":"no"}}"#,
            r#"{"type":"user","message":{"role":"user","content":"a"},"parent_tool_use_id":null,"session_id":""}"#,
            r#"{"type":"user","message":{"role":"user","content":"a: \":\\"}}"#,
        ] {
            assert!(parse_message(line.as_bytes()).is_ok(), "{line}");
        }
        for line in [
            "",
            "hello",
            "[]",
            r#"{"type":"user"}"#,
            r#"{"type":"prompt","text":"a"}"#,
            r#"{"type":"user","message":{"role":"assistant","content":"a"}}"#,
            r#"{"type":"user","message":{"role":"user","content":[{"type":"image"}]}}"#,
            r#"{"type":"user","message":{"role":"user","content":"a"},"more":1}"#,
            r#"{"type":"user","type":"user","message":{"role":"user","content":"a"}}"#,
            r#"{"type":"user","message":{"role":"user","content":"a:\":","content":"b"}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize","hooks":{"PreToolUse":[{"matcher":null,"hookCallbackIds":["m"],"onFailure":"later"}]}}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"rewind"}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"interrupt","turn":1}}"#,
            r#"{"type":"control_request","request":{"subtype":"interrupt"}}"#,
        ] {
            assert!(parse_message(line.as_bytes()).is_err(), "{line}");
        }
        let blocks = r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}}"#;
        let message = parse_message(blocks.as_bytes()).unwrap();
        assert_eq!(prompt_text(&message), "a\nb");
    }

    #[test]
    fn an_answer_says_one_of_what_there_is() {
        let verdict = |text: &str| {
            let answer: Value = serde_json::from_str(text).unwrap();
            check_answer(&answer)
        };
        assert!(verdict(r#"{"behavior":"allow","updatedInput":{}}"#).is_ok());
        assert!(verdict(r#"{"behavior":"deny","message":"no"}"#).is_ok());
        for wrong in [
            r#"{"behavior":"allow"}"#,
            r#"{"behavior":"allow","updatedInput":{},"updatedPermissions":[]}"#,
            r#"{"behavior":"deny"}"#,
            r#"{"behavior":"ask","message":"?"}"#,
        ] {
            assert!(verdict(wrong).is_err(), "{wrong}");
        }
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(hook_decision(&json!({})), Ok(None));
        let ask_reply = r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"ask","permissionDecisionReason":"so"}}"#;
        assert_eq!(hook_decision(&parse(ask_reply)), Ok(Some(("ask", "so"))));
        for (from, to) in [("PreToolUse", "Stop"), ("ask", "maybe")] {
            assert!(hook_decision(&parse(&ask_reply.replace(from, to))).is_err());
        }
    }
}
