//! What makes a JSON object a message of JSON-RPC 2.0: a request, a notification or a reply.
//!
//! Must not know any method. Reading is lenient (`jsonrpc` may be missing, unknown members are
//! ignored). But a duplicate member makes the shape bad, and so does an id that is neither an
//! integer nor a string: no answer of ours could name it without doubt.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::value::RawValue;

use crate::lenient::parse_object;
use marshal_model::limits;
use marshal_model::{ErrorOrigin, Event, UntrustedText};
use marshal_wire::json::{BadFrame, JsonString};

/// A message of the agent.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// A request, which needs an answer.
    Request {
        id: RequestId,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// A notification, which needs none.
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// The answer to a request of ours; `id` is `None` if it names none that could be ours.
    Reply {
        id: Option<u64>,
        outcome: Outcome<'a>,
    },
}

/// The result of a request of ours, or the error.
pub(crate) type Outcome<'a> = Result<&'a RawValue, ErrorReply>;

/// The id of an agent's request as canonical JSON: `1` and `"1"` are two ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(String);

impl RequestId {
    /// The id's JSON text.
    pub(crate) fn json(&self) -> &str {
        &self.0
    }

    /// Reads the id from a JSON value. A string is written anew, so that two spellings of one id
    /// are the same id. An id longer than [`limits::FOREIGN_ID_BYTES`] is rejected, because no
    /// answer repeats it.
    pub(crate) fn read(raw: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Id {
            Signed(i64),
            Unsigned(u64),
            Text(String),
        }
        let id = match serde_json::from_str(raw.get()).ok()? {
            Id::Signed(n) => n.to_string(),
            Id::Unsigned(n) => n.to_string(),
            Id::Text(text) => serde_json::to_string(&text).ok()?,
        };
        (id.len() <= limits::FOREIGN_ID_BYTES).then_some(Self(id))
    }
}

/// An error reply of the agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorReply {
    /// The code as JSON text; empty if there is none.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The member `data`, as JSON text.
    pub(crate) data: Option<String>,
}

impl ErrorReply {
    /// Whether it, as the reply to the first request, is about the protocol's version.
    pub(crate) fn is_about_version(&self) -> bool {
        let message = self.message.to_lowercase();
        let data = self.data.as_deref().unwrap_or_default();
        message.contains("version") || message.contains("protocol") || data.contains("supported")
    }

    /// The error in one sentence.
    pub(crate) fn describe(&self) -> String {
        let data = self.data.as_deref().map(UntrustedText::from);
        let data = data.map_or_else(String::new, |data| {
            format!(" ({})", data.escape_for_display(200))
        });
        format!("{}{data}", self.describe_without_data())
    }

    /// The same, but for its data.
    pub(crate) fn describe_without_data(&self) -> String {
        let code = UntrustedText::from(self.code.as_str()).escape_for_display(40);
        let message = UntrustedText::from(self.message.as_str()).escape_for_display(300);
        format!("the agent reported error {code}: {message}")
    }

    /// The event that reports it.
    pub(crate) fn into_event(self) -> Event {
        Event::AgentError {
            code: self.code.into(),
            message: self.message.into(),
            origin: ErrorOrigin::Unknown,
        }
    }

    /// Reads an error of any shape. Unreadable parts are skipped.
    fn read(raw: &RawValue) -> Self {
        #[derive(Deserialize)]
        struct Shape<'a> {
            #[serde(borrow)]
            code: Option<&'a RawValue>,
            #[serde(borrow)]
            message: Option<&'a RawValue>,
            #[serde(borrow)]
            data: Option<&'a RawValue>,
        }
        let Some(shape) = parse_object::<Shape<'_>>(raw) else {
            return Self {
                message: raw.get().to_owned(),
                ..Self::default()
            };
        };
        let text = |raw: &RawValue| {
            serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
        };
        Self {
            code: shape
                .code
                .map(|code| code.get().to_owned())
                .unwrap_or_default(),
            message: shape.message.map(text).unwrap_or_default(),
            data: shape.data.map(|data| data.get().to_owned()),
        }
    }
}

/// The members of a message. A member that is `null` counts as present.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<JsonString<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Reads a member that counts as present even if it is `null`.
pub(crate) fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(reader).map(Some)
}

/// Reads a message.
///
/// # Errors
/// [`BadFrame::Json`] or [`BadFrame::Shape`].
pub(crate) fn read(object: &str) -> Result<Message<'_>, BadFrame> {
    let envelope: Envelope<'_> = serde_json::from_str(object)?;
    let Envelope {
        id,
        method,
        params,
        result,
        error,
    } = envelope;
    if let Some(method) = method {
        let method = method.0;
        return Ok(match id {
            Some(raw) if raw.get() != "null" => Message::Request {
                id: RequestId::read(raw).ok_or(BadFrame::Shape)?,
                method,
                params,
            },
            _ => Message::Notification { method, params },
        });
    }
    let id = id.and_then(|raw| raw.get().parse().ok());
    match (error, result) {
        (Some(error), _) => Ok(Message::Reply {
            id,
            outcome: Err(ErrorReply::read(error)),
        }),
        (None, Some(result)) => Ok(Message::Reply {
            id,
            outcome: Ok(result),
        }),
        (None, None) => Err(BadFrame::Shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(line: &str) -> String {
        match read(line) {
            Ok(Message::Request { id, .. }) => id.0,
            other => format!("{other:?}"),
        }
    }

    /// A message in short, or why the line is none.
    fn summary(line: &str) -> String {
        let raw = |raw: Option<&RawValue>| raw.map_or("-", RawValue::get).to_owned();
        match read(line) {
            Ok(Message::Request { id, method, params }) => {
                format!("request {} {method} {}", id.json(), raw(params))
            }
            Ok(Message::Notification { method, params }) => {
                format!("notification {method} {}", raw(params))
            }
            Ok(Message::Reply { id, outcome }) => {
                let id = id.map_or_else(|| "-".to_owned(), |id| id.to_string());
                match outcome {
                    Ok(result) => format!("result {id} {}", result.get()),
                    Err(error) => format!("error {id} {} {}", error.code, error.message),
                }
            }
            Err(bad) => bad.as_str().to_owned(),
        }
    }

    #[test]
    fn the_members_decide_what_a_message_is_with_and_without_the_version() {
        for (members, wanted) in [
            (
                r#""id":1,"method":"m","params":{"a":1}"#,
                r#"request 1 m {"a":1}"#,
            ),
            (r#""id":"a","method":"m""#, r#"request "a" m -"#),
            (r#""method":"m","params":[1, 2]"#, "notification m [1, 2]"),
            (r#""method":"m","params":null"#, "notification m null"),
            (r#""id":null,"method":"m""#, "notification m -"),
            (r#""method":"a\u002fb""#, "notification a/b -"),
            // A method counts before a result or an error.
            (r#""id":1,"method":"m","result":1"#, "request 1 m -"),
            (r#""method":"m","error":{}"#, "notification m -"),
            // One that is `null` is none.
            (r#""id":1,"method":null,"result":1"#, "result 1 1"),
            (r#""id":7,"result":{"a":1}"#, r#"result 7 {"a":1}"#),
            (r#""id":-7,"result":true"#, "result - true"),
            (r#""id":[],"result":null"#, "result - null"),
            (
                r#""id":7,"error":{"code":-1,"message":"no"}"#,
                "error 7 -1 no",
            ),
            (
                r#""id":7,"error":{"code":"x"},"result":1"#,
                "error 7 \"x\" ",
            ),
            (r#""id":7,"error":["a"]"#, r#"error 7  ["a"]"#),
            (
                r#""more":{"method":1},"more":2,"method":"m""#,
                "notification m -",
            ),
            (r#""id":7"#, "bad_shape"),
            (r#""id":7,"error":null"#, "bad_shape"),
            (r#""method":1"#, "bad_shape"),
            (r#""method":"m","method":"m""#, "bad_shape"),
            (r#""method":"m","params":1,"params":1"#, "bad_shape"),
            (r#""id":{},"method":"m""#, "bad_shape"),
            (r#""method":"m","#, "bad_json"),
            (r#""method":"m"}, {"#, "bad_json"),
        ] {
            for version in ["", r#""jsonrpc":"2.0","#, r#""jsonrpc":1,"jsonrpc":2,"#] {
                let line = format!("{{{version}{members}}}");
                assert_eq!(summary(&line), wanted, "{line}");
            }
        }
    }

    #[test]
    fn an_error_is_described_in_one_sentence() {
        for (error, brief, data) in [
            ("{}", "the agent reported error : ", ""),
            (
                r#"{"code":-1,"message":"a\nb","data":{"c":1}}"#,
                r"the agent reported error -1: a\nb",
                r#" ({"c":1})"#,
            ),
            (r#"{"message":[1]}"#, "the agent reported error : [1]", ""),
            (r#""no""#, r#"the agent reported error : "no""#, ""),
        ] {
            let line = format!("{{\"id\":1,\"error\":{error}}}");
            let Ok(Message::Reply { outcome, .. }) = read(&line) else {
                panic!("{line}");
            };
            let error = outcome.unwrap_err();
            assert_eq!(error.describe_without_data(), brief);
            assert_eq!(error.describe(), format!("{brief}{data}"));
        }
    }

    #[test]
    fn ids_of_two_types_are_two_ids_and_two_spellings_are_one() {
        assert_eq!(id(r#"{"id":1,"method":"m"}"#), "1");
        assert_eq!(id(r#"{"id":"1","method":"m"}"#), "\"1\"");
        assert_eq!(id(r#"{"id":"\u0031","method":"m"}"#), "\"1\"");
        assert_eq!(id(r#"{"id":-7,"method":"m"}"#), "-7");
        assert_eq!(
            id(r#"{"id":18446744073709551615,"method":"m"}"#),
            u64::MAX.to_string()
        );
    }

    #[test]
    fn an_id_that_cannot_be_named_is_a_bad_shape_and_a_null_one_is_none() {
        let long = format!("\"{}\"", "x".repeat(limits::FOREIGN_ID_BYTES));
        for bad in ["1.5", "true", "[]", "{}", "1e99", &long] {
            let line = format!("{{\"id\":{bad},\"method\":\"m\"}}");
            assert!(matches!(read(&line), Err(BadFrame::Shape)), "{line}");
        }
        for line in [r#"{"id":null,"method":"m"}"#, r#"{"method":"m"}"#] {
            assert!(matches!(read(line), Ok(Message::Notification { .. })));
        }
    }

    #[test]
    fn a_reply_has_a_result_or_an_error_and_perhaps_an_id() {
        let reply = |line: &str| match read(line) {
            Ok(Message::Reply { id, outcome }) => (
                id,
                outcome.map(|raw| raw.get().to_owned()).map_err(|e| e.code),
            ),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(
            reply(r#"{"id":3,"result":null}"#),
            (Some(3), Ok("null".into()))
        );
        assert_eq!(reply(r#"{"id":"3","result":{}}"#), (None, Ok("{}".into())));
        assert_eq!(
            reply(r#"{"error":{"code":-32700}}"#),
            (None, Err("-32700".into()))
        );
        assert_eq!(
            reply(r#"{"id":null,"error":"x"}"#),
            (None, Err(String::new()))
        );
        assert_eq!(
            reply(r#"{"id":1,"error":null,"result":1}"#),
            (Some(1), Ok("1".into()))
        );
        assert!(matches!(read("{}"), Err(BadFrame::Shape)));
        assert!(matches!(
            read(r#"{"id":1,"id":1,"result":1}"#),
            Err(BadFrame::Shape)
        ));
    }
}
