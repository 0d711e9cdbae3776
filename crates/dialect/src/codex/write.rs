//! What we write to `codex app-server`: requests, one notification, and answers.
//!
//! Must not know when it may be written. It is JSON-RPC without `jsonrpc`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::OpenParams;
use crate::jsonrpc::{Nothing, UNVERSIONED as RPC};
use marshal_config::{CodexSettings, McpServer, McpTransport};
use marshal_model::{ENGINE_SERVER, UntrustedText};

/// Notifications that we do not use, and that may be long or frequent.
const OPTED_OUT_NOTIFICATIONS: &[&str] = &[
    "account/rateLimits/updated",
    "item/commandExecution/terminalInteraction",
    "item/fileChange/outputDelta",
    "item/fileChange/patchUpdated",
    "mcpServer/startupStatus/updated",
    "remoteControl/status/changed",
    "skills/changed",
    "thread/started",
    "thread/status/changed",
    "turn/diff/updated",
];

/// Whether a notification is one of those. An agent may send it all the same.
pub(super) fn is_opted_out(method: &str) -> bool {
    OPTED_OUT_NOTIFICATIONS.contains(&method)
}

/// Writes `initialize`. It offers no client capabilities and opts into none.
pub(super) fn initialize(id: u64) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        client_info: Info,
        capabilities: Capabilities,
    }
    #[derive(Serialize)]
    struct Info {
        name: &'static str,
        version: &'static str,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Capabilities {
        opt_out_notification_methods: &'static [&'static str],
    }
    let params = Params {
        client_info: Info {
            name: "marshal",
            version: env!("CARGO_PKG_VERSION"),
        },
        capabilities: Capabilities {
            opt_out_notification_methods: OPTED_OUT_NOTIFICATIONS,
        },
    };
    RPC.request(id, "initialize", params)
}

/// Writes `initialized`.
pub(super) fn initialized() -> Vec<u8> {
    RPC.notification("initialized", None::<Nothing>)
}

/// Writes `account/read`, which needs no network access.
pub(super) fn account(id: u64) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        refresh_token: bool,
    }
    let params = Params {
        refresh_token: false,
    };
    RPC.request(id, "account/read", params)
}

/// Writes a request that no version supports. Its error reply shows that the agent is alive.
pub(super) fn ping(id: u64) -> Vec<u8> {
    RPC.request(id, "$/ping", Nothing {})
}

/// The settings of a thread, new or resumed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    cwd: &'a str,
    approval_policy: &'static str,
    approvals_reviewer: &'static str,
    sandbox: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exclude_turns: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<Overrides<'a>>,
}

/// A thread's settings beside the agent's own configuration.
#[derive(Serialize)]
struct Overrides<'a> {
    mcp_servers: BTreeMap<&'a str, Server<'a>>,
}

/// A tool server.
#[derive(Serialize)]
#[serde(untagged)]
enum Server<'a> {
    Program {
        command: &'a str,
        args: &'a [String],
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        env: &'a BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_timeout_sec: Option<u64>,
    },
    Url {
        url: String,
    },
}

/// How long the agent may wait for a call of our tools: a person may have to answer.
const TOOL_SECONDS: u64 = 7 * 24 * 60 * 60;

/// The servers of a pool; `routes` has the base URL of each route.
fn servers<'a>(opening: &'a OpenParams) -> Option<Overrides<'a>> {
    let server = |server: &'a McpServer| {
        let value = match &server.transport {
            McpTransport::Program { command, args, env } => Server::Program {
                command,
                args,
                env,
                tool_timeout_sec: (server.name == ENGINE_SERVER).then_some(TOOL_SECONDS),
            },
            McpTransport::Route { route, path, .. } => {
                let base = opening.routes.get(route).map_or("", String::as_str);
                let url = format!("{base}{path}");
                Server::Url { url }
            }
        };
        (server.name.as_str(), value)
    };
    let servers = &opening.acp.mcp_servers;
    (!servers.is_empty()).then(|| Overrides {
        mcp_servers: servers.iter().map(server).collect(),
    })
}

/// Who answers the agent's requests: we do, not a model of its own.
pub(super) const REVIEWER: &str = "user";

/// The agent's own sandbox mode: inside our sandbox its own would not start.
pub(super) const fn sandbox(has_sandbox: bool) -> &'static str {
    if has_sandbox {
        "danger-full-access"
    } else {
        "workspace-write"
    }
}

impl<'a> ThreadParams<'a> {
    fn new(opening: &'a OpenParams) -> Self {
        let wants = &opening.codex;
        Self {
            thread_id: None,
            cwd: &opening.workspace,
            approval_policy: wants.approval_policy.as_str(),
            approvals_reviewer: REVIEWER,
            sandbox: sandbox(wants.has_sandbox),
            model: wants.model.as_deref(),
            exclude_turns: None,
            config: servers(opening),
        }
    }
}

/// Writes `thread/start`.
pub(super) fn start(id: u64, opening: &OpenParams) -> Vec<u8> {
    RPC.request(id, "thread/start", ThreadParams::new(opening))
}

/// Writes `thread/resume`. The history is not replayed.
pub(super) fn resume(id: u64, thread: &UntrustedText, opening: &OpenParams) -> Vec<u8> {
    let params = ThreadParams {
        thread_id: Some(thread.raw()),
        exclude_turns: Some(true),
        ..ThreadParams::new(opening)
    };
    RPC.request(id, "thread/resume", params)
}

/// Writes `turn/start`. The approval policy is sent with every turn, so that no event since the
/// thread began can have changed it.
pub(super) fn turn(
    id: u64,
    thread: &UntrustedText,
    texts: &[&str],
    wants: &CodexSettings,
) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        thread_id: &'a str,
        approval_policy: &'static str,
        approvals_reviewer: &'static str,
        input: Vec<Text<'a>>,
    }
    #[derive(Serialize)]
    struct Text<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        text: &'a str,
    }
    let params = Params {
        thread_id: thread.raw(),
        approval_policy: wants.approval_policy.as_str(),
        approvals_reviewer: REVIEWER,
        input: texts
            .iter()
            .map(|text| Text { kind: "text", text })
            .collect(),
    };
    RPC.request(id, "turn/start", params)
}

/// Writes `turn/interrupt`.
pub(super) fn interrupt(id: u64, thread: &UntrustedText, turn: &str) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        thread_id: &'a str,
        turn_id: &'a str,
    }
    let params = Params {
        thread_id: thread.raw(),
        turn_id: turn,
    };
    RPC.request(id, "turn/interrupt", params)
}

/// Answers an approval with one word.
pub(super) fn approval_decision(id: &str, decision: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Decided<'a> {
        decision: &'a str,
    }
    RPC.result(id, Decided { decision })
}

/// Denies an approval of the older form, which has a field for the reason.
pub(super) fn approval_denial(id: &str, reason: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Decided<'a> {
        decision: Denied<'a>,
    }
    #[derive(Serialize)]
    struct Denied<'a> {
        denied: Rejection<'a>,
    }
    #[derive(Serialize)]
    struct Rejection<'a> {
        rejection: &'a str,
    }
    let denied = Rejection { rejection: reason };
    RPC.result(
        id,
        Decided {
            decision: Denied { denied },
        },
    )
}

/// Grants none of the requested permissions.
pub(super) fn empty_permissions(id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Granted {
        permissions: Nothing,
        scope: &'static str,
    }
    let granted = Granted {
        permissions: Nothing {},
        scope: "turn",
    };
    RPC.result(id, granted)
}

/// Answers a tool server's request to a person with an action and no content.
pub(super) fn elicitation_response(id: &str, action: &'static str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Acted {
        action: &'static str,
    }
    RPC.result(id, Acted { action })
}

/// Accepts one tool call, and no later one.
pub(super) fn elicitation_acceptance(id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Accepted {
        action: &'static str,
        content: Nothing,
    }
    let content = Nothing {};
    let action = "accept";
    RPC.result(id, Accepted { action, content })
}
