//! A Claude Code host's messages, typed and closed: an unknown member is an error.
//!
//! Must not know the order of messages.

use serde::Deserialize;
use serde_json::Value;

/// One message of the host.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Inbound {
    User {
        message: UserMessage,
        parent_tool_use_id: Option<Value>,
        #[serde(default)]
        session_id: String,
        uuid: Option<String>,
    },
    ControlRequest {
        request_id: String,
        request: ControlRequest,
    },
    ControlResponse {
        response: Reply,
    },
}

/// A prompt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserMessage {
    role: Role,
    content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Block {
    Text { text: String },
}

impl UserMessage {
    /// Its texts, concatenated.
    pub(super) fn text(self) -> String {
        let Role::User = self.role;
        match self.content {
            Content::Text(text) => text,
            Content::Blocks(blocks) => {
                let texts = blocks.into_iter().map(|Block::Text { text }| text);
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

/// A control request of the host.
#[derive(Debug, Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ControlRequest {
    Initialize { hooks: Option<Hooks> },
    SetPermissionMode { mode: String },
    SetModel { model: Option<String> },
    // Empty braces, not a unit variant: only these reject unknown fields.
    Interrupt {},
}

/// The hooks of the host, by event.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hooks {
    #[serde(rename = "PreToolUse", default)]
    before_tools: Vec<Hook>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    matcher: Option<String>,
    #[serde(rename = "hookCallbackIds")]
    ids: Vec<String>,
    #[serde(rename = "onFailure")]
    _on_failure: Option<OnFailure>,
}

/// The fate of a call whose hook fails. Here, hooks do not fail.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnFailure {
    Continue,
    Block,
}

impl Hooks {
    /// The hook before every tool, which is the only one supported here.
    pub(super) fn tool_hook(self) -> Result<Option<String>, &'static str> {
        let mut hooks = self.before_tools.into_iter();
        let Some(hook) = hooks.next() else {
            return Ok(None);
        };
        let mut ids = hook.ids.into_iter();
        match (hook.matcher, ids.next(), ids.next(), hooks.next()) {
            (None, Some(id), None, None) => Ok(Some(id)),
            _ => Err("there is one hook at most here, without a matcher"),
        }
    }
}

/// The answer to a request of the agent.
#[derive(Debug, Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Reply {
    Success { request_id: String, response: Value },
    Error { request_id: String, error: String },
}

/// The host's decision about a call.
#[derive(Debug, Deserialize)]
#[serde(tag = "behavior", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum PermissionReply {
    Allow {
        #[serde(rename = "updatedInput")]
        input: Value,
    },
    Deny {
        message: String,
    },
}

/// The output of the host's hook.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct HookReply {
    hook_specific_output: Option<HookOutput>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HookOutput {
    hook_event_name: String,
    permission_decision: Decision,
    #[serde(default)]
    permission_decision_reason: String,
}

/// The decision of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Decision {
    Allow,
    Deny,
    Ask,
}

impl HookReply {
    /// `None` if the hook decides nothing, so that the program's own rules apply.
    pub(super) fn decision(self) -> Result<Option<(Decision, String)>, &'static str> {
        let Some(output) = self.hook_specific_output else {
            return Ok(None);
        };
        if output.hook_event_name != "PreToolUse" {
            return Err("the hook answers about something else than a tool's use");
        }
        Ok(Some((
            output.permission_decision,
            output.permission_decision_reason,
        )))
    }
}

/// Parses one line without its newline.
pub(super) fn parse_message(line: &[u8]) -> Result<Inbound, String> {
    let text = std::str::from_utf8(line).map_err(|_| "a line is not UTF-8".to_owned())?;
    // Tagged enums of serde also accept an array whose first element is the tag.
    if !text.trim_start().starts_with('{') {
        return Err("a line is no JSON object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| format!("a line is no message here: {error}"))
}

/// Parses a part of a message.
pub(super) fn parse<T: serde::de::DeserializeOwned>(part: Value) -> Result<T, String> {
    serde_json::from_value(part).map_err(|error| error.to_string())
}

/// The id of a request that is otherwise malformed.
pub(super) fn request_id(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Id {
        request_id: String,
    }
    serde_json::from_slice::<Id>(line)
        .ok()
        .map(|id| id.request_id)
}

#[cfg(test)]
mod tests {
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
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"initialize","hooks":{"PreToolUse":[{"matcher":null,"hookCallbackIds":["m"],"onFailure":"later"}]}}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"rewind"}}"#,
            r#"{"type":"control_request","request_id":"1","request":{"subtype":"interrupt","turn":1}}"#,
            r#"{"type":"control_request","request":{"subtype":"interrupt"}}"#,
        ] {
            assert!(parse_message(line.as_bytes()).is_err(), "{line}");
        }
        let blocks = r#"{"type":"user","message":{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}}"#;
        let Ok(Inbound::User { message, .. }) = parse_message(blocks.as_bytes()) else {
            panic!("{blocks}")
        };
        assert_eq!(message.text(), "a\nb");
    }

    #[test]
    fn an_answer_says_one_of_what_there_is() {
        let verdict = |text: &str| serde_json::from_str::<PermissionReply>(text);
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
        let decision_of =
            |text: &str| serde_json::from_str::<HookReply>(text).map(HookReply::decision);
        assert!(matches!(decision_of("{}"), Ok(Ok(None))));
        let ask_reply = r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"ask","permissionDecisionReason":"so"}}"#;
        assert_eq!(
            decision_of(ask_reply).unwrap(),
            Ok(Some((Decision::Ask, "so".to_owned())))
        );
        assert!(matches!(
            decision_of(&ask_reply.replace("PreToolUse", "Stop")),
            Ok(Err(_))
        ));
        assert!(decision_of(&ask_reply.replace("ask", "maybe")).is_err());
    }
}
