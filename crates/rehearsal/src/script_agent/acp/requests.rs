//! The client's messages: one JSON-RPC 2.0 message a line.
//!
//! Owns the classification of a line and the reading of parameters. Must not know the handling of
//! messages.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::messages::RpcError;
use super::{ALWAYS, ONCE, REJECT};

/// One message of the client.
#[derive(Debug, PartialEq)]
pub(in crate::script_agent) enum Frame {
    Request {
        id: Value,
        method: String,
        params: Params,
    },
    Notification {
        method: String,
        params: Params,
    },
    /// A reply. A reply without an id answers nothing.
    Reply {
        id: Option<Value>,
        /// `None` for an error reply.
        result: Option<Value>,
    },
}

/// Parses a line without its newline. An error is answered without an id.
pub(in crate::script_agent) fn parse_frame(line: &[u8]) -> Result<Frame, RpcError> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| RpcError::parse(format!("no JSON: {error}")))?;
    let Value::Object(mut message) = value else {
        return Err(RpcError::invalid_request("a message is one JSON object"));
    };
    if message.get("jsonrpc") != Some(&Value::from("2.0")) {
        return Err(RpcError::invalid_request("`jsonrpc` is \"2.0\""));
    }
    let id = message.remove("id");
    match message.remove("method") {
        Some(Value::String(method)) => {
            let params = Params::from_value(message.remove("params"))?;
            Ok(match id {
                Some(id) => Frame::Request { id, method, params },
                None => Frame::Notification { method, params },
            })
        }
        Some(_) => Err(RpcError::invalid_request("`method` is a text")),
        None if message.contains_key("result") || message.contains_key("error") => {
            Ok(Frame::Reply {
                id,
                result: message.remove("result"),
            })
        }
        None => Err(RpcError::invalid_request(
            "a message has a `method`, a `result` or an `error`",
        )),
    }
}

/// The parameters of a request or a notification.
#[derive(Debug, PartialEq)]
pub(in crate::script_agent) struct Params(Map<String, Value>);

impl Params {
    fn from_value(value: Option<Value>) -> Result<Self, RpcError> {
        match value {
            None | Some(Value::Null) => Ok(Self(Map::new())),
            Some(Value::Object(map)) => Ok(Self(map)),
            Some(_) => Err(RpcError::invalid_request("`params` is an object")),
        }
    }

    pub(in crate::script_agent) fn text(&self, key: &str) -> Result<&str, RpcError> {
        self.optional_text(key)?
            .ok_or_else(|| RpcError::invalid_params(format!("`{key}` is missing")))
    }

    /// A value of any type.
    pub(in crate::script_agent) fn value(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    pub(in crate::script_agent) fn optional_text(
        &self,
        key: &str,
    ) -> Result<Option<&str>, RpcError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(RpcError::invalid_params(format!("`{key}` is a text"))),
        }
    }

    /// The version in `initialize`: a 16-bit number, as in the schema.
    pub(in crate::script_agent) fn version(&self) -> Result<u16, RpcError> {
        self.0
            .get("protocolVersion")
            .and_then(Value::as_u64)
            .and_then(|version| u16::try_from(version).ok())
            .ok_or_else(|| RpcError::invalid_params("`protocolVersion` is a number up to 65535"))
    }

    /// The working directory of a session.
    pub(in crate::script_agent) fn cwd(&self) -> Result<PathBuf, RpcError> {
        let cwd = PathBuf::from(self.text("cwd")?);
        if !cwd.is_absolute() {
            return Err(RpcError::invalid_params("`cwd` is an absolute path"));
        }
        Ok(cwd)
    }

    /// The list of tool servers, which every new or loaded session must have.
    pub(in crate::script_agent) fn servers(&self) -> Result<&[Value], RpcError> {
        match self.0.get("mcpServers") {
            Some(Value::Array(servers)) => Ok(servers),
            _ => Err(RpcError::invalid_params("`mcpServers` is a list")),
        }
    }

    /// The text of a prompt: its text blocks, concatenated. Links are not read.
    pub(in crate::script_agent) fn prompt(&self) -> Result<String, RpcError> {
        let Some(Value::Array(blocks)) = self.0.get("prompt") else {
            return Err(RpcError::invalid_params("`prompt` is a list"));
        };
        let mut lines = Vec::new();
        for block in blocks {
            match block["type"].as_str() {
                Some("text") => lines.push(
                    block["text"]
                        .as_str()
                        .ok_or_else(|| RpcError::invalid_params("a text block has a `text`"))?,
                ),
                Some("resource_link") => {}
                Some("resource") => lines.push(
                    block["resource"]["text"]
                        .as_str()
                        .ok_or_else(|| RpcError::invalid_params("a resource has a `text` here"))?,
                ),
                _ => {
                    return Err(RpcError::invalid_params(
                        "a prompt's blocks are `text`, `resource` and `resource_link`",
                    ));
                }
            }
        }
        Ok(lines.join("\n"))
    }
}

/// The client's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::script_agent) enum PermissionChoice {
    Once,
    Always,
    Reject,
    /// The client cancelled the request.
    Cancelled,
    /// Not an answer of this protocol.
    Invalid,
}

/// Parses the result of a permission request.
pub(in crate::script_agent) fn parse_choice(result: Option<&Value>) -> PermissionChoice {
    let Some(outcome) = result.and_then(|result| result.get("outcome")) else {
        return PermissionChoice::Invalid;
    };
    match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
        (Some("cancelled"), _) => PermissionChoice::Cancelled,
        (Some("selected"), Some(ONCE)) => PermissionChoice::Once,
        (Some("selected"), Some(ALWAYS)) => PermissionChoice::Always,
        (Some("selected"), Some(REJECT)) => PermissionChoice::Reject,
        _ => PermissionChoice::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code(line: &str) -> i32 {
        parse_frame(line.as_bytes()).unwrap_err().code
    }

    fn params(value: Value) -> Params {
        Params::from_value(Some(value)).unwrap()
    }

    #[test]
    fn a_line_is_a_request_a_notification_or_a_reply() {
        for id in [json!(1), json!("a"), json!(null), json!(1.5)] {
            let line = json!({"jsonrpc": "2.0", "id": id, "method": "m"}).to_string();
            let Frame::Request { id: read, .. } = parse_frame(line.as_bytes()).unwrap() else {
                panic!("{line}")
            };
            assert_eq!(read, id);
        }
        assert!(matches!(
            parse_frame(br#"{"jsonrpc":"2.0","method":"m","params":null}"#),
            Ok(Frame::Notification { .. })
        ));
        assert_eq!(
            parse_frame(br#"{"jsonrpc":"2.0","id":0,"result":{}}"#),
            Ok(Frame::Reply {
                id: Some(0.into()),
                result: Some(json!({}))
            })
        );
        assert_eq!(
            parse_frame(br#"{"jsonrpc":"2.0","error":{"code":1}}"#),
            Ok(Frame::Reply {
                id: None,
                result: None
            })
        );
    }

    #[test]
    fn everything_else_has_the_code_of_its_fault() {
        for line in ["", "hello", "{\"jsonrpc\":\"2.0\"", "{} {}"] {
            assert_eq!(code(line), -32700, "{line}");
        }
        for line in [
            "[]",
            "1",
            "{}",
            r#"{"method":"m"}"#,
            r#"{"jsonrpc":"1.0","method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":2}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#,
        ] {
            assert_eq!(code(line), -32600, "{line}");
        }
    }

    #[test]
    fn parameters_are_read_as_the_schema_has_them() {
        assert_eq!(params(json!({"protocolVersion": 2})).version(), Ok(2));
        for wrong in [json!("1"), json!(-1), json!(65536), json!(1.5), json!(null)] {
            assert!(params(json!({"protocolVersion": wrong})).version().is_err());
        }
        assert!(params(json!({"cwd": "/a"})).cwd().is_ok());
        assert!(params(json!({"cwd": "a"})).cwd().is_err());
        assert!(params(json!({})).cwd().is_err());
        assert!(params(json!({})).servers().is_err());
        let prompt = json!([
            {"type": "text", "text": "say a"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "text", "text": "say b"},
        ]);
        assert_eq!(
            params(json!({"prompt": prompt})).prompt(),
            Ok("say a\nsay b".to_owned())
        );
        for wrong in [json!("say"), json!([{"type": "image"}]), json!([1])] {
            assert!(params(json!({"prompt": wrong})).prompt().is_err());
        }
    }

    #[test]
    fn only_the_protocols_own_form_chooses() {
        for (outcome, expect) in [
            (
                json!({"outcome": "selected", "optionId": ONCE}),
                PermissionChoice::Once,
            ),
            (
                json!({"outcome": "selected", "optionId": ALWAYS}),
                PermissionChoice::Always,
            ),
            (
                json!({"outcome": "selected", "optionId": REJECT}),
                PermissionChoice::Reject,
            ),
            (json!({"outcome": "cancelled"}), PermissionChoice::Cancelled),
            (json!({"outcome": "selected"}), PermissionChoice::Invalid),
            (
                json!({"outcome": "selected", "optionId": "allow"}),
                PermissionChoice::Invalid,
            ),
            (
                json!({"kind": "allowed", "optionId": ONCE}),
                PermissionChoice::Invalid,
            ),
            (json!("cancelled"), PermissionChoice::Invalid),
        ] {
            assert_eq!(parse_choice(Some(&json!({"outcome": outcome}))), expect);
        }
        assert_eq!(parse_choice(None), PermissionChoice::Invalid);
    }
}
