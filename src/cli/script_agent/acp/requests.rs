//! What the agent reads: one JSON-RPC 2.0 message a line.
//!
//! Owns what kind of message a line is, and the reading of parameters. Must not know what is done
//! about them.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::messages::Fault;
use super::{ALWAYS, ONCE, REJECT};

/// One message of the client.
#[derive(Debug, PartialEq)]
pub(in crate::cli::script_agent) enum Frame {
    Request {
        id: Value,
        method: String,
        params: Params,
    },
    Notification {
        method: String,
        params: Params,
    },
    /// A reply; without an id it answers nothing.
    Reply {
        id: Option<Value>,
        /// `None`: an error.
        result: Option<Value>,
    },
}

/// Reads a line, without its newline. An error is answered without an id.
pub(in crate::cli::script_agent) fn read(line: &[u8]) -> Result<Frame, Fault> {
    let value: Value =
        serde_json::from_slice(line).map_err(|error| Fault::parse(format!("no JSON: {error}")))?;
    let Value::Object(mut message) = value else {
        return Err(Fault::invalid_request("a message is one JSON object"));
    };
    if message.get("jsonrpc") != Some(&Value::from("2.0")) {
        return Err(Fault::invalid_request("`jsonrpc` is \"2.0\""));
    }
    let id = message.remove("id");
    match message.remove("method") {
        Some(Value::String(method)) => {
            let params = Params::of(message.remove("params"))?;
            Ok(match id {
                Some(id) => Frame::Request { id, method, params },
                None => Frame::Notification { method, params },
            })
        }
        Some(_) => Err(Fault::invalid_request("`method` is a text")),
        None if message.contains_key("result") || message.contains_key("error") => {
            Ok(Frame::Reply {
                id,
                result: message.remove("result"),
            })
        }
        None => Err(Fault::invalid_request(
            "a message has a `method`, a `result` or an `error`",
        )),
    }
}

/// The parameters of a request or a notification.
#[derive(Debug, PartialEq)]
pub(in crate::cli::script_agent) struct Params(Map<String, Value>);

impl Params {
    fn of(value: Option<Value>) -> Result<Self, Fault> {
        match value {
            None | Some(Value::Null) => Ok(Self(Map::new())),
            Some(Value::Object(map)) => Ok(Self(map)),
            Some(_) => Err(Fault::invalid_request("`params` is an object")),
        }
    }

    pub(in crate::cli::script_agent) fn text(&self, key: &str) -> Result<&str, Fault> {
        self.optional_text(key)?
            .ok_or_else(|| Fault::invalid_params(format!("`{key}` is missing")))
    }

    /// A value of any type.
    pub(in crate::cli::script_agent) fn value(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    pub(in crate::cli::script_agent) fn optional_text(
        &self,
        key: &str,
    ) -> Result<Option<&str>, Fault> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Fault::invalid_params(format!("`{key}` is a text"))),
        }
    }

    /// The version of `initialize`: a 16-bit number, as the schema has it.
    pub(in crate::cli::script_agent) fn version(&self) -> Result<u16, Fault> {
        self.0
            .get("protocolVersion")
            .and_then(Value::as_u64)
            .and_then(|version| u16::try_from(version).ok())
            .ok_or_else(|| Fault::invalid_params("`protocolVersion` is a number up to 65535"))
    }

    /// The directory of a session.
    pub(in crate::cli::script_agent) fn cwd(&self) -> Result<PathBuf, Fault> {
        let cwd = PathBuf::from(self.text("cwd")?);
        if !cwd.is_absolute() {
            return Err(Fault::invalid_params("`cwd` is an absolute path"));
        }
        Ok(cwd)
    }

    /// The tool servers that are listed, as every new or loaded session must.
    pub(in crate::cli::script_agent) fn servers(&self) -> Result<&[Value], Fault> {
        match self.0.get("mcpServers") {
            Some(Value::Array(servers)) => Ok(servers),
            _ => Err(Fault::invalid_params("`mcpServers` is a list")),
        }
    }

    /// The text of a prompt: its text blocks, one after the other. What a link leads to is not
    /// read.
    pub(in crate::cli::script_agent) fn prompt(&self) -> Result<String, Fault> {
        let Some(Value::Array(blocks)) = self.0.get("prompt") else {
            return Err(Fault::invalid_params("`prompt` is a list"));
        };
        let mut lines = Vec::new();
        for block in blocks {
            match block["type"].as_str() {
                Some("text") => lines.push(
                    block["text"]
                        .as_str()
                        .ok_or_else(|| Fault::invalid_params("a text block has a `text`"))?,
                ),
                Some("resource_link") => {}
                Some("resource") => lines.push(
                    block["resource"]["text"]
                        .as_str()
                        .ok_or_else(|| Fault::invalid_params("a resource has a `text` here"))?,
                ),
                _ => {
                    return Err(Fault::invalid_params(
                        "a prompt's blocks are `text`, `resource` and `resource_link`",
                    ));
                }
            }
        }
        Ok(lines.join("\n"))
    }
}

/// What a client chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli::script_agent) enum Chosen {
    Once,
    Always,
    Reject,
    /// The client cancelled the request.
    Cancelled,
    /// No answer that this protocol knows.
    Unreadable,
}

/// Reads the result of a permission request.
pub(in crate::cli::script_agent) fn chosen(result: Option<&Value>) -> Chosen {
    let Some(outcome) = result.and_then(|result| result.get("outcome")) else {
        return Chosen::Unreadable;
    };
    match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
        (Some("cancelled"), _) => Chosen::Cancelled,
        (Some("selected"), Some(ONCE)) => Chosen::Once,
        (Some("selected"), Some(ALWAYS)) => Chosen::Always,
        (Some("selected"), Some(REJECT)) => Chosen::Reject,
        _ => Chosen::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code(line: &str) -> i32 {
        read(line.as_bytes()).unwrap_err().code
    }

    fn params(value: Value) -> Params {
        Params::of(Some(value)).unwrap()
    }

    #[test]
    fn a_line_is_a_request_a_notification_or_a_reply() {
        for id in [json!(1), json!("a"), json!(null), json!(1.5)] {
            let line = json!({"jsonrpc": "2.0", "id": id, "method": "m"}).to_string();
            let Frame::Request { id: read, .. } = read(line.as_bytes()).unwrap() else {
                panic!("{line}")
            };
            assert_eq!(read, id);
        }
        assert!(matches!(
            read(br#"{"jsonrpc":"2.0","method":"m","params":null}"#),
            Ok(Frame::Notification { .. })
        ));
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","id":0,"result":{}}"#),
            Ok(Frame::Reply {
                id: Some(0.into()),
                result: Some(json!({}))
            })
        );
        assert_eq!(
            read(br#"{"jsonrpc":"2.0","error":{"code":1}}"#),
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
                Chosen::Once,
            ),
            (
                json!({"outcome": "selected", "optionId": ALWAYS}),
                Chosen::Always,
            ),
            (
                json!({"outcome": "selected", "optionId": REJECT}),
                Chosen::Reject,
            ),
            (json!({"outcome": "cancelled"}), Chosen::Cancelled),
            (json!({"outcome": "selected"}), Chosen::Unreadable),
            (
                json!({"outcome": "selected", "optionId": "allow"}),
                Chosen::Unreadable,
            ),
            (
                json!({"kind": "allowed", "optionId": ONCE}),
                Chosen::Unreadable,
            ),
            (json!("cancelled"), Chosen::Unreadable),
        ] {
            assert_eq!(chosen(Some(&json!({"outcome": outcome}))), expect);
        }
        assert_eq!(chosen(None), Chosen::Unreadable);
    }
}
