//! A Codex client's messages: JSON-RPC without its `jsonrpc`, with closed parameters.
//!
//! Must not know the order of messages.

use serde::Deserialize;
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

/// Whether each tool server of a thread is of exactly one kind, a program or an address, and
/// complete. Tool servers are accepted and not used.
pub(super) fn has_valid_servers(thread: &Value) -> bool {
    let servers = thread["config"]["mcp_servers"].as_object();
    servers.into_iter().flatten().all(|(_, server)| {
        let (command, args) = (!server["command"].is_null(), !server["args"].is_null());
        let has_env = server["env"].as_object().is_some_and(|env| !env.is_empty());
        if server["url"].is_null() {
            command && args
        } else {
            !command && !args && !has_env
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::script_agent::AgentDialect;

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
        let check = |name: &str, value: &Value| AgentDialect::Codex.templates().check(name, value);
        assert_eq!(check("thread/start", &thread), Ok(()));
        for (member, wrong) in [
            ("sandbox", json!("none")),
            ("approvalPolicy", json!("always")),
            ("approvalsReviewer", json!("guardian")),
            ("more", json!(1)),
            ("config", json!({"model": "m"})),
        ] {
            let mut thread = thread.clone();
            thread[member] = wrong;
            assert!(check("thread/start", &thread).is_err(), "{member}");
        }
        let mut thread = thread.clone();
        thread["config"] = json!({"mcp_servers": {
            "a": {"command": "a", "args": [], "tool_timeout_sec": 1},
            "b": {"url": "http://b"},
        }});
        assert_eq!(check("thread/start", &thread), Ok(()));
        assert!(has_valid_servers(&thread));
        for odd in [
            json!({"url": "http://b", "command": "c", "args": []}),
            json!({"command": "c"}),
            json!({}),
        ] {
            thread["config"] = json!({"mcp_servers": {"a": odd}});
            assert_eq!(check("thread/start", &thread), Ok(()));
            assert!(!has_valid_servers(&thread));
        }
        assert!(check("approval", &json!({"decision": "decline"})).is_ok());
        assert!(check("approval", &json!({"decision": "approved"})).is_err());
        let image = json!({"threadId": "t", "approvalPolicy": "untrusted", "approvalsReviewer": "user", "input": [{"type": "image"}]});
        assert!(check("turn/start", &image).is_err());
    }
}
