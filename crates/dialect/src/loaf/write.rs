//! What we write in loaf's RPC: requests.
//!
//! Must not know when it may be written. Source: loaf's page "RPC mode", protocol 1.0.0.

use serde::Serialize;

use crate::jsonrpc::{Nothing, VERSIONED as RPC};
use marshal_model::UntrustedText;

/// Our protocol version.
pub(super) const VERSION: &str = "1.0.0";

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
    RPC.request(id, "rpc.handshake", params)
}

/// Writes `session.create`.
pub(super) fn create(id: u64) -> Vec<u8> {
    RPC.request(id, "session.create", Nothing {})
}

/// Writes a request that has only the session.
pub(super) fn of_session(id: u64, method: &str, session: &UntrustedText) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        session_id: &'a str,
    }
    let session_id = session.raw();
    RPC.request(id, method, Params { session_id })
}

/// Writes `session.send` or `session.steer`. A prompt must not be queued behind another.
pub(super) fn text(id: u64, method: &str, session: &UntrustedText, text: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        session_id: &'a str,
        text: &'a str,
    }
    let session_id = session.raw();
    RPC.request(id, method, Params { session_id, text })
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
    RPC.request(id, "command.execute", params)
}

/// Writes `model.list`.
pub(super) fn models(id: u64) -> Vec<u8> {
    RPC.request(id, "model.list", Nothing {})
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
    RPC.request(id, "model.select", params)
}

/// Writes `system.ping`.
pub(super) fn ping(id: u64) -> Vec<u8> {
    RPC.request(id, "system.ping", Nothing {})
}

/// Writes `system.shutdown`.
pub(super) fn shutdown(id: u64) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params {
        reason: &'static str,
    }
    let reason = "the supervisor is done with it";
    RPC.request(id, "system.shutdown", Params { reason })
}
