//! Writes the messages to an editor: replies, errors, requests and notifications, one line each.
//!
//! Must not know when they are sent.

use serde::Serialize;
use serde_json::value::RawValue;

use super::incoming::RequestId;
use super::update::Update;
use super::{RpcError, VERSION};

#[derive(Serialize)]
struct Reply<'a, T> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    result: T,
}

#[derive(Serialize)]
struct ErrorReply<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: i32,
    message: &'a str,
}

#[derive(Serialize)]
struct RpcRequest<'a, T> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: T,
}

/// Serialization cannot fail: the structs have no maps with keys that are not strings.
fn write(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns the id unchanged. It was parsed as JSON, so it is valid JSON.
fn raw(id: Option<&RequestId>) -> Box<RawValue> {
    let text = id.map_or("null", RequestId::json).to_owned();
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Writes a reply.
#[must_use]
pub fn reply(id: &RequestId, result: &impl Serialize) -> String {
    write(&Reply {
        jsonrpc: "2.0",
        id: &raw(Some(id)),
        result,
    })
}

/// Writes an error reply; without an id it refers to no request.
#[must_use]
pub fn error_reply(id: Option<&RequestId>, error: &RpcError) -> String {
    write(&ErrorReply {
        jsonrpc: "2.0",
        id: &raw(id),
        error: ErrorBody {
            code: error.code,
            message: &error.message,
        },
    })
}

/// Writes a request of the supervisor.
#[must_use]
pub fn request(id: u64, method: &str, params: &impl Serialize) -> String {
    write(&RpcRequest {
        jsonrpc: "2.0",
        id: Some(id),
        method,
        params,
    })
}

/// Writes a `session/update` notification.
#[must_use]
pub fn session_update(session: &str, update: &Update<'_>) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        update: &'a Update<'a>,
    }
    write(&RpcRequest {
        jsonrpc: "2.0",
        id: None,
        method: "session/update",
        params: Params {
            session_id: session,
            update,
        },
    })
}

/// Writes the reply to `initialize`: always our version, whatever version the editor requests.
#[must_use]
pub fn initialize_reply(id: &RequestId) -> String {
    let result = serde_json::json!({
        "protocolVersion": VERSION,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": {"image": false, "audio": false, "embeddedContext": true},
            "mcpCapabilities": {"http": false, "sse": false},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {}},
        },
        "agentInfo": {
            "name": "marshal",
            "title": "marshal",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "authMethods": [],
    });
    reply(id, &result)
}
