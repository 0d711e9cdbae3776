//! What we write: requests, notifications, and answers to the agent's requests.
//!
//! Must not know when it may be written.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::json_line;

/// The error code of an unsupported method.
const METHOD_NOT_FOUND: i32 = -32601;
/// The error code of parameters that cannot be read.
pub(crate) const INVALID_PARAMS: i32 = -32602;

/// Writes messages that name the version.
pub(crate) const VERSIONED: Writer = Writer {
    jsonrpc: Some("2.0"),
};
/// Writes messages that do not.
pub(crate) const UNVERSIONED: Writer = Writer { jsonrpc: None };

/// An object without members.
#[derive(Debug, Serialize)]
pub(crate) struct Nothing {}

/// Writes the messages of a protocol, each as one line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    jsonrpc: Option<&'static str>,
}

#[derive(Serialize)]
struct Call<'a, P> {
    #[serde(skip_serializing_if = "Option::is_none")]
    jsonrpc: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

#[derive(Serialize)]
struct Reply<'a, R> {
    #[serde(skip_serializing_if = "Option::is_none")]
    jsonrpc: Option<&'static str>,
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody<'a>>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: i32,
    message: &'a str,
}

impl Writer {
    /// Writes a request of ours.
    pub(crate) fn request(self, id: u64, method: &str, params: impl Serialize) -> Vec<u8> {
        self.call(Some(id), method, Some(params))
    }

    /// Writes a notification.
    pub(crate) fn notification(self, method: &str, params: Option<impl Serialize>) -> Vec<u8> {
        self.call(None, method, params)
    }

    fn call(self, id: Option<u64>, method: &str, params: Option<impl Serialize>) -> Vec<u8> {
        json_line::encode(&Call {
            jsonrpc: self.jsonrpc,
            id,
            method,
            params,
        })
    }

    /// Answers a request of the agent; `id` is JSON.
    pub(crate) fn result(self, id: &str, result: impl Serialize) -> Vec<u8> {
        self.reply(id, Some(result), None)
    }

    /// Answers a request of the agent with an error.
    pub(crate) fn error(self, id: &str, code: i32, message: &str) -> Vec<u8> {
        self.reply(id, None::<Nothing>, Some(ErrorBody { code, message }))
    }

    /// Answers that a request of the agent is not supported.
    pub(crate) fn method_not_found(self, id: &str) -> Vec<u8> {
        self.error(id, METHOD_NOT_FOUND, "method not found")
    }

    fn reply(
        self,
        id: &str,
        result: Option<impl Serialize>,
        error: Option<ErrorBody<'_>>,
    ) -> Vec<u8> {
        // Ids were read from JSON and are canonical JSON again.
        let Ok(id) = serde_json::from_str(id) else {
            return Vec::new();
        };
        json_line::encode(&Reply {
            jsonrpc: self.jsonrpc,
            id,
            result,
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Params {
        text: &'static str,
    }

    const PARAMS: Params = Params { text: "a\u{2028}" };

    #[test]
    fn messages_differ_only_in_the_version() {
        let write = |rpc: Writer| {
            [
                rpc.request(7, "m", PARAMS),
                rpc.request(7, "m", Nothing {}),
                rpc.notification("n", Some(PARAMS)),
                rpc.notification("n", None::<Nothing>),
                rpc.result("\"r\"", PARAMS),
                rpc.error("1", INVALID_PARAMS, "no"),
                rpc.method_not_found("1"),
            ]
            .map(|line| String::from_utf8(line).unwrap())
        };
        let bodies = [
            r#""id":7,"method":"m","params":{"text":"a\u2028"}"#,
            r#""id":7,"method":"m","params":{}"#,
            r#""method":"n","params":{"text":"a\u2028"}"#,
            r#""method":"n""#,
            r#""id":"r","result":{"text":"a\u2028"}"#,
            r#""id":1,"error":{"code":-32602,"message":"no"}"#,
            r#""id":1,"error":{"code":-32601,"message":"method not found"}"#,
        ];
        assert_eq!(
            write(VERSIONED),
            bodies.map(|body| format!("{{\"jsonrpc\":\"2.0\",{body}}}\n"))
        );
        assert_eq!(
            write(UNVERSIONED),
            bodies.map(|body| format!("{{{body}}}\n"))
        );
    }
}
