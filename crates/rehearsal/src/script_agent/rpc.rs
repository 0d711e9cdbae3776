//! JSON-RPC: what its messages have in common in the protocols that use it.
//!
//! Owns the classification of a line, the reading of parameters, errors and replies. Must not know
//! any method.

use std::io;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::agent::{Agent, Halt};
use super::pipes::Line;
use super::template::fields;
use marshal_model::UntrustedText;
use marshal_model::limits::LINE_BYTES;

/// One message of the client.
#[derive(Debug, PartialEq)]
pub(super) enum Frame<P = Params> {
    Request {
        id: Value,
        method: String,
        params: P,
    },
    Notification {
        method: String,
        params: P,
    },
    /// A reply. A reply without an id answers nothing.
    Reply {
        id: Option<Value>,
        /// `None` for an error reply.
        result: Option<Value>,
    },
}

/// Parses a line without its newline. An error is answered without an id.
pub(super) fn parse_frame(line: &[u8]) -> Result<Frame, RpcError> {
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
            let result = message.remove("result");
            Ok(Frame::Reply { id, result })
        }
        None => Err(RpcError::invalid_request(
            "a message has a `method`, a `result` or an `error`",
        )),
    }
}

/// The parameters of a request or a notification.
#[derive(Debug, PartialEq)]
pub(super) struct Params(Map<String, Value>);

impl Params {
    pub(super) fn from_value(value: Option<Value>) -> Result<Self, RpcError> {
        match value {
            None | Some(Value::Null) => Ok(Self(Map::new())),
            Some(Value::Object(map)) => Ok(Self(map)),
            Some(_) => Err(RpcError::invalid_request("`params` is an object")),
        }
    }

    /// A value of any type.
    pub(super) fn value(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, RpcError> {
        self.optional_text(key)?
            .ok_or_else(|| RpcError::invalid_params(format!("`{key}` is missing")))
    }

    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&str>, RpcError> {
        match self.value(key) {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text)),
            _ => Err(RpcError::invalid_params(format!("`{key}` is a text"))),
        }
    }
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RpcError {
    pub(super) code: i32,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

impl RpcError {
    pub(super) fn new(code: i32, message: impl Into<String>, data: Option<Value>) -> Self {
        let message = message.into();
        Self {
            code,
            message,
            data,
        }
    }

    pub(super) fn parse(message: impl Into<String>) -> Self {
        Self::new(-32700, message, None)
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message, None)
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message, None)
    }
}

/// Why a request gets no result now.
#[derive(Debug)]
pub(super) enum Refusal {
    Error(RpcError),
    /// An error that no correct client causes, in a protocol where it ends the agent.
    Fatal(String),
    Halt(Halt),
}

impl From<RpcError> for Refusal {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

impl From<Halt> for Refusal {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Halt(error.into())
    }
}

/// The outcome of a request: a result now, or `None` if its reply was sent or comes later.
pub(super) type Reply = Result<Option<Value>, Refusal>;

impl Agent {
    /// The message of a line; a malformed line gets an error reply without an id.
    pub(super) fn read_frame(&mut self, line: Line) -> Result<Option<Frame>, Halt> {
        let frame = match line {
            Line::Whole(bytes) => parse_frame(&bytes),
            Line::TooLong => Err(RpcError::parse(too_long())),
        };
        match frame {
            Ok(frame) => Ok(Some(frame)),
            Err(error) => {
                self.log_to_ledger("malformed", || json!({"message": error.message}))?;
                self.send_error(&Value::Null, &error)?;
                Ok(None)
            }
        }
    }

    /// Sends the reply to a request.
    pub(super) fn send_reply(
        &mut self,
        id: &Value,
        method: &str,
        reply: Reply,
    ) -> Result<(), Halt> {
        match reply {
            Ok(None) => Ok(()),
            Ok(Some(result)) => self.send("result", fields![id, result]),
            Err(Refusal::Error(error)) => self.send_error(id, &error),
            Err(Refusal::Fatal(why)) => {
                self.send_error(id, &RpcError::invalid_params(why.as_str()))?;
                self.fail_protocol(format!("{method}: {why}"))
            }
            Err(Refusal::Halt(halt)) => Err(halt),
        }
    }

    /// Sends an error reply.
    pub(super) fn send_error(&mut self, id: &Value, error: &RpcError) -> Result<(), Halt> {
        self.log(format_args!("refused: {}", error.message));
        self.send("error", fields![id, error])
    }
}

/// Why a line beyond the limit is no message.
pub(super) fn too_long() -> String {
    format!("a line is longer than {LINE_BYTES} bytes")
}

/// A foreign text in a message for people, short and without control characters.
pub(super) fn shorten(text: impl Into<String>) -> String {
    UntrustedText::new(text.into()).escape_for_display(60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: &str) -> i32 {
        parse_frame(line.as_bytes()).unwrap_err().code
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
}
