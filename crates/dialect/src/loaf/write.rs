//! What we write in loaf's RPC: requests, and the one answer to requests of the agent.
//!
//! Must not know when it may be written. Source: loaf's page "RPC mode", protocol 1.0.0. Each
//! message is one line. U+2028 and U+2029 are escaped, because some readers treat them as the end
//! of a line.

use serde::Serialize;
use serde_json::value::RawValue;

use marshal_model::UntrustedText;

/// Our protocol version.
pub(super) const VERSION: &str = "1.0.0";

/// JSON-RPC's error code of an unsupported method.
const METHOD_NOT_FOUND: i32 = -32601;

#[derive(Serialize)]
struct RpcRequest<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

/// An object without members.
#[derive(Serialize)]
struct Nothing {}

/// Writes `rpc.handshake`. It makes an agent of another version say so.
pub(super) fn handshake(id: u64, version: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        client_name: &'static str,
        client_version: &'static str,
        protocol_version: &'a str,
        strict: bool,
    }
    let params = Params {
        client_name: "marshal",
        client_version: env!("CARGO_PKG_VERSION"),
        protocol_version: version,
        strict: true,
    };
    request(id, "rpc.handshake", params)
}

/// Writes `session.create`.
pub(super) fn create(id: u64) -> Vec<u8> {
    request(id, "session.create", Nothing {})
}

/// Writes a request that has only the session.
pub(super) fn of_session(id: u64, method: &str, session: &UntrustedText) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        session_id: &'a str,
    }
    let session_id = session.raw();
    request(id, method, Params { session_id })
}

/// Writes `session.send` or `session.steer`. A prompt must not be queued behind another.
pub(super) fn text(id: u64, method: &str, session: &UntrustedText, text: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        session_id: &'a str,
        text: &'a str,
    }
    let session_id = session.raw();
    request(id, method, Params { session_id, text })
}

/// Writes `command.execute`.
pub(super) fn command(id: u64, session: &UntrustedText, raw_command: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        session_id: &'a str,
        raw_command: &'a str,
    }
    let params = Params {
        session_id: session.raw(),
        raw_command,
    };
    request(id, "command.execute", params)
}

/// Writes `model.list`.
pub(super) fn models(id: u64) -> Vec<u8> {
    request(id, "model.list", Nothing {})
}

/// Writes `model.select`.
pub(super) fn select(
    id: u64,
    session: &UntrustedText,
    model: &str,
    provider: &str,
    thinking: &str,
) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        model_id: &'a str,
        provider: &'a str,
        thinking_level: &'a str,
        session_id: &'a str,
    }
    let params = Params {
        model_id: model,
        provider,
        thinking_level: thinking,
        session_id: session.raw(),
    };
    request(id, "model.select", params)
}

/// Writes `system.ping`.
pub(super) fn ping(id: u64) -> Vec<u8> {
    request(id, "system.ping", Nothing {})
}

/// Writes `system.shutdown`.
pub(super) fn shutdown(id: u64) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params {
        reason: &'static str,
    }
    let reason = "the supervisor is done with it";
    request(id, "system.shutdown", Params { reason })
}

/// Writes that a request of the agent is not supported; the id is JSON.
pub(super) fn not_served(id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Reply<'a> {
        jsonrpc: &'static str,
        id: Option<&'a RawValue>,
        error: Body,
    }
    #[derive(Serialize)]
    struct Body {
        code: i32,
        message: &'static str,
    }
    line(&Reply {
        jsonrpc: "2.0",
        id: serde_json::from_str(id).ok(),
        error: Body {
            code: METHOD_NOT_FOUND,
            message: "method not found",
        },
    })
}

fn request(id: u64, method: &str, params: impl Serialize) -> Vec<u8> {
    line(&RpcRequest {
        jsonrpc: "2.0",
        id,
        method,
        params,
    })
}

/// A message as one line. These structs have only strings and numbers, so writing cannot fail.
fn line(message: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_string(message).unwrap_or_default();
    if text.contains(['\u{2028}', '\u{2029}']) {
        // They can only stand inside of strings.
        text = text.replace('\u{2028}', "\\u2028");
        text = text.replace('\u{2029}', "\\u2029");
    }
    text.push('\n');
    text.into_bytes()
}
