//! A Codex client's messages: JSON-RPC without its `jsonrpc`, with typed and closed parameters.
//!
//! Must not know the order of messages.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::script_agent::rpc::Frame;

/// Parses one line without its newline.
pub(super) fn parse_frame(line: &[u8]) -> Result<Frame<Value>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Message {
        id: Option<Value>,
        method: Option<String>,
        #[serde(default)]
        params: Value,
        result: Option<Value>,
        error: Option<Value>,
    }
    let message: Value =
        serde_json::from_slice(line).map_err(|error| format!("a line is no JSON: {error}"))?;
    if !message.is_object() {
        return Err("a line is no JSON object".to_owned());
    }
    if message.get("id").is_some_and(Value::is_null) {
        return Err("an id is a number or a text".to_owned());
    }
    let message: Message = serde_json::from_value(message)
        .map_err(|error| format!("a line is no message here: {error}"))?;
    let is_reply = message.result.is_some() || message.error.is_some();
    let id = message.id;
    if id
        .as_ref()
        .is_some_and(|id| !id.is_u64() && !id.is_string())
    {
        return Err("an id is a number or a text".to_owned());
    }
    let (params, result) = (message.params, message.result);
    match (id, message.method) {
        (Some(id), Some(method)) if !is_reply => Ok(Frame::Request { id, method, params }),
        (None, Some(method)) if !is_reply => Ok(Frame::Notification { method, params }),
        (id @ Some(_), None) if result.is_some() != message.error.is_some() => {
            Ok(Frame::Reply { id, result })
        }
        _ => Err("a line is no request, no notification and no reply".to_owned()),
    }
}

/// Parses parameters.
pub(super) fn params<T: DeserializeOwned>(params: Value) -> Result<T, String> {
    serde_json::from_value(params).map_err(|error| error.to_string())
}

/// The parameters of `initialize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Initialize {
    pub(super) client_info: ClientInfo,
    #[serde(default)]
    pub(super) capabilities: Capabilities,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ClientInfo {
    pub(super) name: String,
    pub(super) version: String,
    #[serde(default, rename = "title")]
    _title: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Capabilities {
    #[serde(default)]
    pub(super) opt_out_notification_methods: Vec<String>,
}

/// The parameters of `account/read`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AccountParams {
    pub(super) refresh_token: bool,
}

/// When the agent requests an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ApprovalPolicy {
    Untrusted,
    OnRequest,
    Never,
}

/// Who answers approval requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reviewer {
    User,
}

/// The mode of the program's own sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Sandbox {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

impl Sandbox {
    /// The word in a reply.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "readOnly",
            Self::WorkspaceWrite => "workspaceWrite",
            Self::DangerFullAccess => "dangerFullAccess",
        }
    }
}

/// The parameters of `thread/start` and `thread/resume`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ThreadParams {
    pub(super) thread_id: Option<String>,
    pub(super) cwd: String,
    pub(super) approval_policy: ApprovalPolicy,
    pub(super) approvals_reviewer: Reviewer,
    pub(super) sandbox: Sandbox,
    pub(super) model: Option<String>,
    pub(super) exclude_turns: Option<bool>,
    #[serde(default)]
    pub(super) config: Overrides,
}

/// A thread's additional configuration: tool servers, which are accepted and not used.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Overrides {
    #[serde(rename = "mcp_servers")]
    servers: BTreeMap<String, Server>,
}

/// A tool server: a program, or an address.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    command: Option<String>,
    args: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default, rename = "tool_timeout_sec")]
    _timeout: Option<u64>,
    url: Option<String>,
}

impl Overrides {
    /// Whether each server is of exactly one kind, and complete.
    pub(super) fn is_valid(&self) -> bool {
        self.servers.values().all(|server| {
            let is_program = server.command.is_some() && server.args.is_some();
            let is_bare = server.command.is_none() && server.args.is_none();
            match server.url {
                None => is_program,
                Some(_) => is_bare && server.env.is_empty(),
            }
        })
    }
}

/// The parameters of `turn/start`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TurnStart {
    pub(super) thread_id: String,
    pub(super) approval_policy: ApprovalPolicy,
    #[serde(rename = "approvalsReviewer")]
    _approvals_reviewer: Reviewer,
    pub(super) input: Vec<Input>,
}

/// A part of a prompt.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Input {
    Text { text: String },
}

/// The parameters of `turn/interrupt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Interrupt {
    pub(super) thread_id: String,
    pub(super) turn_id: String,
}

/// The answer to an approval request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalReply {
    pub(super) decision: Decision,
}

/// The decision in an approval's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Decision {
    Accept,
    AcceptForSession,
    Decline,
    Cancel,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_a_request_a_notification_or_a_reply() {
        let request = parse_frame(br#"{"id":1,"method":"m","params":{"a":1}}"#).unwrap();
        let expect = Frame::Request {
            id: json!(1),
            method: "m".to_owned(),
            params: json!({"a": 1}),
        };
        assert_eq!(request, expect);
        assert!(matches!(
            parse_frame(br#"{"method":"initialized"}"#),
            Ok(Frame::Notification { .. })
        ));
        assert!(matches!(
            parse_frame(br#"{"id":0,"result":{}}"#),
            Ok(Frame::Reply {
                result: Some(_),
                ..
            })
        ));
        for line in [
            "",
            "hello",
            "[]",
            "{}",
            r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#,
            r#"{"id":null,"method":"m"}"#,
            r#"{"id":1.5,"method":"m"}"#,
            r#"{"id":1,"method":"m","result":{}}"#,
            r#"{"result":{}}"#,
            r#"{"id":1}"#,
        ] {
            assert!(parse_frame(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn parameters_are_closed() {
        let thread = json!({"cwd": "/a", "approvalPolicy": "untrusted", "approvalsReviewer": "user", "sandbox": "danger-full-access"});
        let read = |value: Value| params::<ThreadParams>(value);
        assert_eq!(
            read(thread.clone()).unwrap().sandbox.as_str(),
            "dangerFullAccess"
        );
        for (member, wrong) in [
            ("sandbox", json!("none")),
            ("approvalPolicy", json!("always")),
            ("approvalsReviewer", json!("guardian")),
            ("more", json!(1)),
            ("config", json!({"model": "m"})),
        ] {
            let mut thread = thread.clone();
            thread[member] = wrong;
            assert!(read(thread).is_err(), "{member}");
        }
        let mut thread = thread.clone();
        thread["config"] = json!({"mcp_servers": {
            "a": {"command": "a", "args": [], "tool_timeout_sec": 1},
            "b": {"url": "http://b"},
        }});
        assert!(read(thread.clone()).unwrap().config.is_valid());
        for odd in [
            json!({"url": "http://b", "command": "c", "args": []}),
            json!({"command": "c"}),
            json!({}),
        ] {
            thread["config"] = json!({"mcp_servers": {"a": odd}});
            assert!(!read(thread.clone()).unwrap().config.is_valid());
        }
        assert!(params::<ApprovalReply>(json!({"decision": "decline"})).is_ok());
        assert!(params::<ApprovalReply>(json!({"decision": "approved"})).is_err());
        let image = json!({"threadId": "t", "approvalPolicy": "untrusted", "approvalsReviewer": "user", "input": [{"type": "image"}]});
        assert!(params::<TurnStart>(image).is_err());
    }
}
