//! What makes a JSON object a message of JSON-RPC 2.0.
//!
//! Must not know any method.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::jsonrpc::{RequestId, present};
use marshal_wire::json::JsonString;

/// A message of the client.
#[derive(Debug)]
pub(super) enum Message<'a> {
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
    /// An answer.
    Reply,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<JsonString<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<JsonString<'a>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The line as text, if it is JSON at all.
pub(super) fn text(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok()?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    Some(text)
}

/// Reads a message.
pub(super) fn read(text: &str) -> Result<Message<'_>, &'static str> {
    let envelope: Envelope<'_> =
        serde_json::from_str(text).map_err(|_| "this is not a JSON-RPC 2.0 message")?;
    if envelope.jsonrpc.is_none_or(|version| version.0 != "2.0") {
        return Err("a message needs \"jsonrpc\": \"2.0\"");
    }
    let params = envelope.params;
    match (envelope.method, envelope.id) {
        (Some(method), None) => Ok(Message::Notification {
            method: method.0,
            params,
        }),
        (Some(method), Some(id)) => Ok(Message::Request {
            id: RequestId::read(id)
                .ok_or("the id of a request must be a short string or an integer")?,
            method: method.0,
            params,
        }),
        (None, _) if envelope.result.is_some() || envelope.error.is_some() => Ok(Message::Reply),
        (None, _) => Err("a message needs a method, a result or an error"),
    }
}

/// The id of the request that is cancelled.
pub(super) fn parse_cancelled_id(params: &RawValue) -> Option<RequestId> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        request_id: &'a RawValue,
    }
    let params: Params<'_> = serde_json::from_str(params.get()).ok()?;
    RequestId::read(params.request_id)
}

/// The member of `_meta` that names the version of a request.
pub(super) const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` that has what its client can do.
pub(super) const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// What a request says of itself.
#[derive(Debug, Default)]
pub(super) struct RequestMeta {
    pub(super) version: Option<String>,
    pub(super) has_capabilities: bool,
}

/// Reads `_meta`; what is not there or of another type counts as absent.
pub(super) fn request_meta(params: &RawValue) -> RequestMeta {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "_meta")]
        meta: serde_json::Map<String, serde_json::Value>,
    }
    let Ok(Params { meta }) = serde_json::from_str(params.get()) else {
        return RequestMeta::default();
    };
    let version = meta.get(VERSION_KEY).and_then(serde_json::Value::as_str);
    RequestMeta {
        version: version.map(str::to_owned),
        has_capabilities: meta
            .get(CAPABILITIES_KEY)
            .is_some_and(serde_json::Value::is_object),
    }
}
