//! Parses the messages of an editor: the JSON-RPC envelope and the parameters of the supported
//! methods.
//!
//! Must not know how a message is handled.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny};
use serde_json::value::RawValue;

use serde_json::Value;

use super::session_state::ClientCapabilities;
use super::{RpcError, permission};
use marshal_fleet::ApproverReply;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{SessionId, Setting, SettingValue, UntrustedText};
use marshal_wire::json::{self, BadFrame};

/// The id of an editor's request, as JSON text; the reply carries the same text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// Returns the JSON text.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.0
    }

    /// Accepts an integer or a string of bounded length; other JSON values have no unambiguous
    /// text.
    fn read(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let is_number = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
        let is_text = text.starts_with('"') && text.len() <= limits::FOREIGN_ID_BYTES;
        (is_number || is_text).then(|| Self(text.to_owned()))
    }
}

/// One message of an editor.
#[derive(Debug)]
pub enum Incoming {
    /// A request, which expects a reply.
    Request {
        /// The id for the reply.
        id: RequestId,
        /// The method's name.
        method: String,
        /// The parameters, not yet parsed.
        params: Params,
    },
    /// A notification, which expects no reply.
    Notification {
        /// The method's name.
        method: String,
        /// The parameters, not yet parsed.
        params: Params,
    },
    /// The reply to a request of the supervisor; `outcome` is `None` for an error.
    Reply {
        /// The request's id; `None` if it cannot be one of the supervisor's requests.
        id: Option<u64>,
        /// The `result` member; `None` for an error.
        outcome: Option<Box<RawValue>>,
    },
}

/// The parameters of a message, not yet parsed.
#[derive(Debug)]
pub struct Params(Option<Box<RawValue>>);

impl Params {
    /// Parses the parameters.
    ///
    /// # Errors
    /// [`RpcError::INVALID_PARAMS`]
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let text = self.0.as_ref().map_or("{}", |raw| raw.get());
        serde_json::from_str(text).map_err(|error| {
            RpcError::invalid_params(format!(
                "invalid parameters: {}",
                escape_for_display(&error.to_string(), 300)
            ))
        })
    }
}

/// Why a line is not a valid message, with the id for the error reply.
#[derive(Debug)]
pub struct InvalidMessage {
    /// The request's id; `None` if it cannot be read.
    pub id: Option<RequestId>,
    /// The error to reply with.
    pub error: RpcError,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    error: Option<IgnoredAny>,
}

fn present<'de: 'a, 'a, D: Deserializer<'de>>(reader: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(reader).map(Some)
}

/// Reads one line.
///
/// # Errors
/// [`InvalidMessage`] with what to answer.
pub fn read(line: &[u8]) -> Result<Incoming, InvalidMessage> {
    let refuse = |code, message: &str| InvalidMessage {
        id: None,
        error: RpcError::new(code, message),
    };
    let object = json::expect_object(line).map_err(|bad| match bad {
        BadFrame::NotObject => refuse(
            RpcError::INVALID_REQUEST,
            "the line is not a request: send one object per line, and no batches",
        ),
        _ => refuse(RpcError::PARSE_ERROR, "the line is not JSON in UTF-8"),
    })?;
    let envelope: Envelope<'_> = serde_json::from_str(object).map_err(|error| {
        if error.is_data() {
            refuse(RpcError::INVALID_REQUEST, "the line is not a request")
        } else {
            refuse(RpcError::PARSE_ERROR, "the line is not JSON")
        }
    })?;
    let params = Params(envelope.params.map(ToOwned::to_owned));
    match (envelope.method, envelope.id) {
        (Some(method), Some(id)) if id.get() != "null" => match RequestId::read(id) {
            Some(id) => Ok(Incoming::Request { id, method, params }),
            None => Err(refuse(
                RpcError::INVALID_REQUEST,
                "the id of a request must be an integer or a string",
            )),
        },
        (Some(method), _) => Ok(Incoming::Notification { method, params }),
        (None, id) if envelope.result.is_some() || envelope.error.is_some() => {
            let outcome = envelope.result.filter(|_| envelope.error.is_none());
            Ok(Incoming::Reply {
                id: id.and_then(|id| id.get().parse().ok()),
                outcome: outcome.map(ToOwned::to_owned),
            })
        }
        (None, id) => Err(InvalidMessage {
            id: id.and_then(RequestId::read),
            error: RpcError::new(
                RpcError::INVALID_REQUEST,
                "the line has neither a method nor a result",
            ),
        }),
    }
}

/// Parameters of `session/new`, `session/load` and `session/resume`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenParams {
    session_id: Option<String>,
    cwd: Option<String>,
    #[serde(default)]
    mcp_servers: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    additional_directories: Option<Vec<String>>,
}

impl OpenParams {
    /// Returns the directory that the editor works in.
    ///
    /// # Errors
    /// [`RpcError::INVALID_PARAMS`] for parameters that are not supported.
    pub fn directory(&self) -> Result<PathBuf, RpcError> {
        let cwd = self.cwd.as_deref();
        let cwd = cwd.ok_or_else(|| RpcError::invalid_params("cwd is missing"))?;
        if !Path::new(cwd).is_absolute() {
            return Err(RpcError::invalid_params("cwd must be an absolute path"));
        }
        if self
            .mcp_servers
            .as_ref()
            .is_some_and(|list| !list.is_empty())
        {
            return Err(RpcError::invalid_params(
                "mcpServers of the editor are not passed into the sandbox; leave the list empty",
            ));
        }
        Ok(PathBuf::from(cwd))
    }

    /// Returns the further directories that the editor works in.
    ///
    /// # Errors
    /// [`RpcError::INVALID_PARAMS`] for too many, and for paths that are not absolute.
    pub fn additional_directories(&self) -> Result<&[String], RpcError> {
        let all = self.additional_directories.as_deref().unwrap_or_default();
        let most = limits::EDITOR_DIRECTORIES;
        if all.len() > most {
            let message = format!("at most {most} additionalDirectories are allowed");
            return Err(RpcError::invalid_params(message));
        }
        if all.iter().any(|path| !Path::new(path).is_absolute()) {
            return Err(RpcError::invalid_params(
                "additionalDirectories must be absolute paths",
            ));
        }
        Ok(all)
    }

    /// Returns the id of the session to open.
    ///
    /// # Errors
    /// [`RpcError::INVALID_PARAMS`] without an id, [`RpcError::RESOURCE_NOT_FOUND`] for an invalid
    /// one.
    pub fn session(&self) -> Result<SessionId, RpcError> {
        let id = self
            .session_id
            .as_deref()
            .ok_or_else(|| RpcError::invalid_params("sessionId is missing"))?;
        SessionId::new(id).map_err(|_| RpcError::session_not_found(id))
    }
}

/// Parameters of `session/list`.
#[derive(Debug, Deserialize)]
pub struct ListParams {
    /// Lists only the sessions of this directory.
    pub cwd: Option<String>,
    /// The cursor that the previous page returned.
    pub cursor: Option<String>,
}

/// Parameters of methods that take only a session id.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionParams {
    /// The session's id.
    pub session_id: String,
}

/// Parameters of `session/prompt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptParams {
    /// The session's id.
    pub session_id: String,
    /// The blocks of the prompt.
    pub prompt: Vec<Block>,
}

/// A block of a prompt.
#[derive(Debug, Deserialize)]
pub struct Block {
    /// The type: `text`, `resource_link` or `resource`; others are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` block.
    pub text: Option<String>,
    /// The target of a `resource_link` block.
    pub uri: Option<String>,
    /// The name in a `resource_link` block.
    pub name: Option<String>,
    /// The content of a `resource` block.
    pub resource: Option<Resource>,
}

/// An embedded resource.
#[derive(Debug, Deserialize)]
pub struct Resource {
    /// The resource's URI.
    pub uri: String,
    /// The content; `None` for a binary resource.
    pub text: Option<String>,
}

/// Reads the editor's capabilities from `initialize`. Unreadable ones count as unsupported.
#[must_use]
pub fn client_capabilities(params: &Params) -> ClientCapabilities {
    let read: Value = params.read().unwrap_or_default();
    let session = &read["clientCapabilities"]["session"];
    let has = |of: &Value| of.is_object() || *of == Value::Bool(true);
    ClientCapabilities {
        switches: has(&session["configOptions"]["boolean"]),
        notices: has(&session["notices"]),
        compaction: has(&session["compaction"]),
    }
}

/// Parameters of `session/set_mode`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetMode {
    /// The session's id.
    pub session_id: String,
    mode_id: String,
}

/// Parameters of `session/set_config_option`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetOption {
    /// The session's id.
    pub session_id: String,
    config_id: String,
    value: Value,
}

/// Checks that an id or a value is not empty and not too long.
fn short(what: &str, text: &str) -> Result<String, RpcError> {
    if text.is_empty() || text.len() > limits::FOREIGN_ID_BYTES {
        let most = limits::FOREIGN_ID_BYTES;
        return Err(RpcError::invalid_params(format!(
            "{what} must have 1 to {most} bytes"
        )));
    }
    Ok(text.to_owned())
}

impl SetMode {
    /// Returns the setting to change.
    ///
    /// # Errors
    /// [`RpcError::INVALID_PARAMS`]
    pub fn setting(&self) -> Result<Setting, RpcError> {
        Ok(Setting::Mode(short("modeId", &self.mode_id)?))
    }
}

impl SetOption {
    /// Returns the setting to change.
    ///
    /// # Errors
    /// [`RpcError::INVALID_PARAMS`]
    pub fn setting(&self) -> Result<Setting, RpcError> {
        let id = short("configId", &self.config_id)?;
        let value = match &self.value {
            Value::Bool(on) => SettingValue::Switch(*on),
            Value::String(value) => SettingValue::Choice(short("value", value)?),
            _ => {
                return Err(RpcError::invalid_params(
                    "value must be a string, true or false",
                ));
            }
        };
        Ok(Setting::Option { id, value })
    }
}

/// Returns the decision in the reply to a permission request; an error reply (`None`) is one too.
#[must_use]
pub fn parse_permission_answer(outcome: Option<&RawValue>) -> ApproverReply {
    #[derive(Deserialize)]
    struct Reply {
        outcome: Outcome,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outcome {
        outcome: String,
        option_id: Option<String>,
    }
    let reply = outcome.and_then(|outcome| serde_json::from_str::<Reply>(outcome.get()).ok());
    let Some(Reply { outcome }) = reply else {
        return ApproverReply::NoAnswer;
    };
    match (outcome.outcome.as_str(), outcome.option_id.as_deref()) {
        ("cancelled", _) => ApproverReply::Cancelled,
        ("selected", Some(permission::ALLOW)) => ApproverReply::Allow,
        ("selected", Some(permission::REJECT)) => ApproverReply::Reject,
        _ => ApproverReply::NoAnswer,
    }
}

/// Returns the title of a conversation: the first line of its first prompt.
#[must_use]
pub fn session_title(first_prompt: &UntrustedText) -> Option<String> {
    let line = first_prompt
        .raw()
        .lines()
        .find(|line| !line.trim().is_empty())?;
    Some(escape_for_display(line.trim(), 80))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: &str) -> i32 {
        read(line.as_bytes()).expect_err(line).error.code
    }

    #[test]
    fn what_is_no_message_is_answered_with_the_code_for_it() {
        for line in ["", "x", "{", "\"a", "{\"id\":1,}"] {
            assert_eq!(code(line), RpcError::PARSE_ERROR, "{line}");
        }
        for line in [
            "[]",
            "[{\"id\":1,\"method\":\"initialize\"}]",
            "7",
            "{}",
            "{\"id\":1}",
            "{\"id\":1.5,\"method\":\"m\"}",
            "{\"id\":{},\"method\":\"m\"}",
            "{\"id\":1,\"method\":7}",
        ] {
            assert_eq!(code(line), RpcError::INVALID_REQUEST, "{line}");
        }
        let error = read(b"\xff{}").expect_err("no UTF-8");
        assert_eq!(error.error.code, RpcError::PARSE_ERROR);
    }

    #[test]
    fn requests_notifications_and_replies_are_told_apart() {
        let request = read(b"{\"id\":\"a\",\"method\":\"m\",\"params\":{}}").expect("request");
        assert!(matches!(request, Incoming::Request { id, .. } if id.json() == "\"a\""));
        for line in ["{\"method\":\"m\"}", "{\"id\":null,\"method\":\"m\"}"] {
            let read = read(line.as_bytes()).expect(line);
            assert!(matches!(read, Incoming::Notification { .. }), "{line}");
        }
        let reply = read(b"{\"id\":3,\"result\":null}").expect("reply");
        let Incoming::Reply { id, outcome } = reply else {
            panic!("a reply");
        };
        assert_eq!((id, outcome.is_some()), (Some(3), true));
        let error = read(b"{\"id\":3,\"error\":{\"code\":1}}").expect("reply");
        assert!(matches!(error, Incoming::Reply { outcome: None, .. }));
    }

    #[test]
    fn only_what_was_offered_is_an_answer() {
        let of = |text: &str| {
            let raw = RawValue::from_string(text.to_owned()).expect("JSON");
            parse_permission_answer(Some(&raw))
        };
        let selected = |id: &str| {
            of(&format!(
                r#"{{"outcome":{{"outcome":"selected","optionId":"{id}"}}}}"#
            ))
        };
        assert_eq!(selected("allow"), ApproverReply::Allow);
        assert_eq!(selected("reject"), ApproverReply::Reject);
        assert_eq!(selected("allow_always"), ApproverReply::NoAnswer);
        for cancelled in [
            r#"{"outcome":{"outcome":"cancelled"}}"#,
            r#"{"outcome":{"outcome":"cancelled","optionId":"allow"}}"#,
        ] {
            assert_eq!(of(cancelled), ApproverReply::Cancelled, "{cancelled}");
        }
        for nothing in [
            r#"{"outcome":{"outcome":"selected"}}"#,
            r#"{"outcome":"selected"}"#,
            "{}",
            "null",
            "7",
        ] {
            assert_eq!(of(nothing), ApproverReply::NoAnswer, "{nothing}");
        }
        assert_eq!(parse_permission_answer(None), ApproverReply::NoAnswer);
    }

    #[test]
    fn what_would_have_to_be_passed_into_the_sandbox_is_refused() {
        let open = |text: &str| {
            let open: OpenParams = serde_json::from_str(text).expect(text);
            let additional = open.additional_directories().map(<[_]>::len);
            open.directory().and_then(|path| Ok((path, additional?)))
        };
        assert_eq!(
            open(r#"{"cwd":"/srv/p","mcpServers":[],"additionalDirectories":["/srv/p/a"]}"#),
            Ok((PathBuf::from("/srv/p"), 1))
        );
        for (text, part) in [
            (r#"{"cwd":"p"}"#, "absolute"),
            ("{}", "missing"),
            (r#"{"cwd":"/p","mcpServers":[{"name":"x"}]}"#, "mcpServers"),
            (r#"{"cwd":"/p","additionalDirectories":["x"]}"#, "absolute"),
        ] {
            let error = open(text).expect_err(text);
            assert_eq!(error.code, RpcError::INVALID_PARAMS);
            assert!(error.message.contains(part), "{text}: {error}");
        }
    }
}
