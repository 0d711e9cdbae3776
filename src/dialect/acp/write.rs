//! What we say in ACP: five requests, one notification, and answers.
//!
//! Must not know when it may be said. Source: Agent Client Protocol, schema version 1. Each is one
//! line; U+2028 and U+2029 are escaped, because some readers take them for the end of a line.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::model::{ClientOffers, Foreign};

/// The version that we speak, as JSON writes it.
pub(super) const VERSION: &str = "1";

/// Error codes of JSON-RPC and of ACP that we use.
pub(super) const METHOD_NOT_FOUND: i32 = -32601;
pub(super) const INVALID_PARAMS: i32 = -32602;
pub(super) const REQUEST_CANCELLED: i32 = -32800;

#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct Reply<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Answered<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody<'a>>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: i32,
    message: &'a str,
}

#[derive(Serialize)]
struct Answered<'a> {
    outcome: Outcome<'a>,
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Outcome<'a> {
    Selected {
        #[serde(rename = "optionId")]
        option: &'a str,
    },
    Cancelled,
}

/// Writes `initialize`. Unless its pool says otherwise, we offer the agent neither files nor
/// terminals: what it does, it does by itself.
pub(super) fn initialize(id: u64, offers: ClientOffers) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        protocol_version: u16,
        client_capabilities: Capabilities,
        client_info: Info,
    }
    #[derive(Serialize)]
    struct Capabilities {
        fs: Files,
        terminal: bool,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Files {
        read_text_file: bool,
        write_text_file: bool,
    }
    #[derive(Serialize)]
    struct Info {
        name: &'static str,
        version: &'static str,
    }
    let params = Params {
        protocol_version: 1,
        client_capabilities: Capabilities {
            fs: Files {
                read_text_file: offers.read,
                write_text_file: offers.write,
            },
            terminal: offers.terminal,
        },
        client_info: Info {
            name: "marshal",
            version: env!("CARGO_PKG_VERSION"),
        },
    };
    request(id, "initialize", params)
}

/// Writes `session/new`.
pub(super) fn new_session(id: u64, cwd: &str) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        cwd: &'a str,
        mcp_servers: [(); 0],
    }
    let mcp_servers = [];
    request(id, "session/new", Params { cwd, mcp_servers })
}

/// Writes `session/load` or `session/resume`, which take the same.
pub(super) fn old_session(id: u64, method: &str, session: &Foreign, cwd: &str) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        cwd: &'a str,
        mcp_servers: [(); 0],
    }
    let params = Params {
        session_id: session.raw(),
        cwd,
        mcp_servers: [],
    };
    request(id, method, params)
}

/// Writes `session/list`.
pub(super) fn list_sessions(id: u64, cursor: Option<&str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<&'a str>,
    }
    request(id, "session/list", Params { cursor })
}

/// Writes `session/prompt`: one block of text.
pub(super) fn prompt(id: u64, session: &Foreign, text: &Foreign) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        prompt: [Block<'a>; 1],
    }
    #[derive(Serialize)]
    struct Block<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        text: &'a str,
    }
    let params = Params {
        session_id: session.raw(),
        prompt: [Block {
            kind: "text",
            text: text.raw(),
        }],
    };
    request(id, "session/prompt", params)
}

/// Writes `session/cancel`, which is a notification: as a request agents refuse it.
pub(super) fn cancel(session: &Foreign) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
    }
    line(&Call {
        jsonrpc: "2.0",
        id: None,
        method: "session/cancel",
        params: Params {
            session_id: session.raw(),
        },
    })
}

/// Answers a permission request with one of its options, or, without one, as cancelled.
pub(super) fn permission(id: &str, option: Option<&str>) -> Vec<u8> {
    let outcome = option.map_or(Outcome::Cancelled, |option| Outcome::Selected { option });
    reply(id, Some(Answered { outcome }), None)
}

/// Answers a request with an error.
pub(super) fn error(id: &str, code: i32, message: &str) -> Vec<u8> {
    reply(id, None, Some(ErrorBody { code, message }))
}

fn reply(id: &str, result: Option<Answered<'_>>, error: Option<ErrorBody<'_>>) -> Vec<u8> {
    // Ids were read from JSON and are canonical JSON again.
    let Ok(id) = serde_json::from_str::<&RawValue>(id) else {
        return Vec::new();
    };
    line(&Reply {
        jsonrpc: "2.0",
        id,
        result,
        error,
    })
}

fn request(id: u64, method: &str, params: impl Serialize) -> Vec<u8> {
    line(&Call {
        jsonrpc: "2.0",
        id: Some(id),
        method,
        params,
    })
}

/// A message as one line. These structs have only strings and numbers, so writing cannot fail.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_string(message).unwrap_or_default();
    if text.contains(['\u{2028}', '\u{2029}']) {
        // They can only stand inside of strings.
        text = text.replace('\u{2028}', "\\u2028");
        text = text.replace('\u{2029}', "\\u2029");
    }
    text.push('\n');
    text.into_bytes()
}
