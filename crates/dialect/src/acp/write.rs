//! What we write in ACP: requests, two notifications, and answers.
//!
//! Must not know when it may be written. Source: Agent Client Protocol, schema version 1.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::jsonrpc::{Nothing, VERSIONED as RPC};
use marshal_config::{McpServer, McpTransport, OptionValue, PermissionReply};
use marshal_model::{ClientCapabilities, UntrustedText};

/// Our protocol version, as JSON.
pub(super) const VERSION: &str = "1";

/// ACP's error code of a cancelled request.
const REQUEST_CANCELLED: i32 = -32800;

#[derive(Serialize)]
struct PermissionResponse<'a> {
    outcome: Outcome<'a>,
}

/// An answer, in one of two forms that differ in the member names.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(rename = "outcome", skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(rename = "optionId", skip_serializing_if = "Option::is_none")]
    option: Option<&'a str>,
}

/// Writes `initialize`. Unless the pool says otherwise, we offer neither files nor terminals: the
/// agent accesses both by itself.
pub(super) fn initialize(id: u64, offers: ClientCapabilities) -> Vec<u8> {
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
        session: Session,
        #[serde(skip_serializing_if = "Option::is_none")]
        elicitation: Option<Elicitation>,
    }
    /// The ways to ask a person that we support.
    #[derive(Serialize)]
    struct Elicitation {
        form: Nothing,
        url: Nothing,
    }
    /// Our handling of session options: an empty object announces that we support them.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Session {
        config_options: Switches,
        notices: Nothing,
        compaction: Nothing,
    }
    #[derive(Serialize)]
    struct Switches {
        boolean: Nothing,
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
            session: Session {
                config_options: Switches {
                    boolean: Nothing {},
                },
                notices: Nothing {},
                compaction: Nothing {},
            },
            elicitation: offers.elicitation.then_some(Elicitation {
                form: Nothing {},
                url: Nothing {},
            }),
        },
        client_info: Info {
            name: "marshal",
            version: env!("CARGO_PKG_VERSION"),
        },
    };
    RPC.request(id, "initialize", params)
}

/// Writes `authenticate`.
pub(super) fn authenticate(id: u64, method: &str) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        method_id: &'a str,
    }
    RPC.request(id, "authenticate", Params { method_id: method })
}

/// Writes `logout`.
pub(super) fn logout(id: u64) -> Vec<u8> {
    RPC.request(id, "logout", Nothing {})
}

/// Writes a request that no agent supports. Its error reply shows that the agent is alive.
pub(super) fn ping(id: u64) -> Vec<u8> {
    RPC.request(id, "$/ping", Nothing {})
}

/// Tool servers in the protocol's form. A server behind a route has no credential here: the route
/// adds it outside the sandbox.
#[derive(Debug, Serialize)]
pub(super) struct Server<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<Vec<Pair<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<[(); 0]>,
}

#[derive(Debug, Serialize)]
struct Pair<'a> {
    name: &'a str,
    value: &'a str,
}

/// The servers of a pool; `routes` has the base URL of each route.
pub(super) fn servers<'a>(
    servers: &'a [McpServer],
    routes: &BTreeMap<String, String>,
) -> Vec<Server<'a>> {
    let server = |server: &'a McpServer| {
        let bare = Server {
            kind: None,
            name: &server.name,
            command: None,
            args: None,
            env: None,
            url: None,
            headers: None,
        };
        match &server.transport {
            McpTransport::Program { command, args, env } => Server {
                command: Some(command),
                args: Some(args),
                env: Some(
                    env.iter()
                        .map(|(name, value)| Pair { name, value })
                        .collect(),
                ),
                ..bare
            },
            McpTransport::Route { kind, route, path } => {
                let base = routes.get(route).map(String::as_str).unwrap_or_default();
                Server {
                    kind: Some(kind.as_str()),
                    url: Some(format!("{}{path}", base.trim_end_matches('/'))),
                    headers: Some([]),
                    ..bare
                }
            }
        }
    };
    servers.iter().map(server).collect()
}

/// Writes `session/new`.
pub(super) fn new_session(id: u64, cwd: &str, servers: &[Server<'_>]) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        cwd: &'a str,
        mcp_servers: &'a [Server<'a>],
    }
    let mcp_servers = servers;
    RPC.request(id, "session/new", Params { cwd, mcp_servers })
}

/// Writes `session/load` or `session/resume`, which take the same.
pub(super) fn old_session(
    id: u64,
    method: &str,
    session: &UntrustedText,
    cwd: &str,
    servers: &[Server<'_>],
) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        cwd: &'a str,
        mcp_servers: &'a [Server<'a>],
    }
    let params = Params {
        session_id: session.raw(),
        cwd,
        mcp_servers: servers,
    };
    RPC.request(id, method, params)
}

/// Writes `session/close`.
pub(super) fn close(id: u64, session: &UntrustedText) -> Vec<u8> {
    RPC.request(id, "session/close", SessionParams::new(session))
}

/// Writes `session/set_mode`.
pub(super) fn set_mode(id: u64, session: &UntrustedText, mode: &str) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        mode_id: &'a str,
    }
    let params = Params {
        session_id: session.raw(),
        mode_id: mode,
    };
    RPC.request(id, "session/set_mode", params)
}

/// Writes `session/set_model`, which was removed from the protocol but which older agents have.
pub(super) fn set_model(id: u64, session: &UntrustedText, model: &str) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        model_id: &'a str,
    }
    let params = Params {
        session_id: session.raw(),
        model_id: model,
    };
    RPC.request(id, "session/set_model", params)
}

/// Writes `session/set_config_option`.
pub(super) fn set_option(
    id: u64,
    session: &UntrustedText,
    option: &str,
    value: &OptionValue,
) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a, V> {
        session_id: &'a str,
        config_id: &'a str,
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        kind: Option<&'static str>,
        value: V,
    }
    const METHOD: &str = "session/set_config_option";
    let (session_id, config_id) = (session.raw(), option);
    match value {
        OptionValue::Choice(value) => RPC.request(
            id,
            METHOD,
            Params {
                session_id,
                config_id,
                kind: None,
                value,
            },
        ),
        OptionValue::Switch(value) => RPC.request(
            id,
            METHOD,
            Params {
                session_id,
                config_id,
                kind: Some("boolean"),
                value,
            },
        ),
    }
}

/// Writes `session/list`.
pub(super) fn list_sessions(id: u64, cursor: Option<&str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Params<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<&'a str>,
    }
    RPC.request(id, "session/list", Params { cursor })
}

/// A block of a prompt.
#[derive(Debug, Serialize)]
pub(super) struct Block<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<Resource<'a>>,
}

#[derive(Debug, Serialize)]
struct Resource<'a> {
    uri: String,
    text: &'a str,
}

impl<'a> Block<'a> {
    const fn bare(kind: &'static str) -> Self {
        Self {
            kind,
            text: None,
            uri: None,
            name: None,
            resource: None,
        }
    }

    /// A text block.
    pub(super) fn text(text: &'a str) -> Self {
        Self {
            text: Some(text),
            ..Self::bare("text")
        }
    }

    /// A link to a file.
    pub(super) fn link(path: &'a str) -> Self {
        Self {
            uri: Some(file_uri(path)),
            name: Some(path.rsplit('/').next().unwrap_or(path)),
            ..Self::bare("resource_link")
        }
    }

    /// A file with its text.
    pub(super) fn file(path: &str, text: &'a str) -> Self {
        Self {
            resource: Some(Resource {
                uri: file_uri(path),
                text,
            }),
            ..Self::bare("resource")
        }
    }
}

/// A `file:` URI (RFC 8089), with every reserved byte escaped (RFC 3986).
fn file_uri(path: &str) -> String {
    let mut uri = String::from("file://");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

/// Writes `session/prompt`.
pub(super) fn prompt(id: u64, session: &UntrustedText, blocks: &[Block<'_>]) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        prompt: &'a [Block<'a>],
    }
    let params = Params {
        session_id: session.raw(),
        prompt: blocks,
    };
    RPC.request(id, "session/prompt", params)
}

/// Parameters with nothing but a session.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionParams<'a> {
    session_id: &'a str,
}

impl<'a> SessionParams<'a> {
    fn new(session: &'a UntrustedText) -> Self {
        Self {
            session_id: session.raw(),
        }
    }
}

/// Writes `session/cancel`, a notification: agents reject it as a request.
pub(super) fn cancel(session: &UntrustedText) -> Vec<u8> {
    RPC.notification("session/cancel", Some(SessionParams::new(session)))
}

/// Writes `$/cancel_request` for a request of ours that is no longer awaited.
pub(super) fn cancel_request(id: u64) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        request_id: u64,
    }
    RPC.notification("$/cancel_request", Some(Params { request_id: id }))
}

/// Allows a request by one of its options.
pub(super) fn allow(form: PermissionReply, id: &str, option: &str) -> Vec<u8> {
    permission_response(form, id, ["selected", "allowed"], Some(option))
}

/// Denies a request by one of its options.
pub(super) fn deny(form: PermissionReply, id: &str, option: &str) -> Vec<u8> {
    permission_response(form, id, ["selected", "rejected"], Some(option))
}

/// Answers that the request's turn was cancelled.
pub(super) fn cancel_permission(form: PermissionReply, id: &str) -> Vec<u8> {
    permission_response(form, id, ["cancelled", "cancelled"], None)
}

/// Writes an answer in the given form.
fn permission_response(
    form: PermissionReply,
    id: &str,
    [acp, scarf]: [&'static str; 2],
    option: Option<&str>,
) -> Vec<u8> {
    let outcome = match form {
        PermissionReply::Acp => Outcome {
            outcome: Some(acp),
            kind: None,
            option,
        },
        PermissionReply::Scarf => Outcome {
            outcome: None,
            kind: Some(scarf),
            option,
        },
    };
    RPC.result(id, PermissionResponse { outcome })
}

/// Answers that a request was cancelled.
pub(super) fn cancellation(id: &str) -> Vec<u8> {
    RPC.error(id, REQUEST_CANCELLED, "the request was cancelled")
}
