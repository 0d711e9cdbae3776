//! What a pool wants of `codex app-server`: when it asks, its model, and how strict its own sandbox
//! is.
//!
//! Must not know messages. The keys are the pool's: `mode` is the approval policy.

use super::acp::{AcpSettings, DenialFeedback, McpTransport, ServerKind};
use super::error::quote;
use super::table::{Diagnostics, Place};
use super::types::{DialectName, Launcher, Pool};
use marshal_model::string_enum;

string_enum!(
    /// When it asks, in its own words. It has one more, `never`, which is none of these: it would
    /// run whatever its model says.
    ApprovalPolicy {
        /// For whatever would run or be written.
        Untrusted = "untrusted",
        /// For what its model, or a rule of its own, says that it must ask for.
        OnRequest = "on-request",
    }
);

/// What a pool wants of Codex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodexSettings {
    /// When it asks.
    pub approval_policy: ApprovalPolicy,
    /// The model of every thread; `None`: the one that its own configuration names.
    pub model: Option<String>,
    /// There are walls around it, inside of which its own sandbox does not start.
    pub has_sandbox: bool,
    /// It hears before its next prompt why it was denied.
    pub reports_denials: bool,
}

impl Default for CodexSettings {
    fn default() -> Self {
        Self {
            approval_policy: ApprovalPolicy::Untrusted,
            model: None,
            has_sandbox: true,
            reports_denials: true,
        }
    }
}

impl CodexSettings {
    /// What a session of a pool wants, by what its keys set every session to.
    #[must_use]
    pub fn from_acp(wants: &AcpSettings, launcher: Launcher) -> Self {
        let mode = wants.mode.as_deref();
        Self {
            approval_policy: mode
                .and_then(ApprovalPolicy::from_word)
                .unwrap_or(ApprovalPolicy::Untrusted),
            model: wants.model.clone(),
            has_sandbox: launcher.has_sandbox(),
            reports_denials: wants.report_denials == DenialFeedback::NextPrompt,
        }
    }
}

/// What Codex takes: a mode that is a permission request policy that asks, tool servers that it can name and
/// reach. The places are those of the mode and of the servers.
pub(super) fn check_consistency(
    ledger: &Diagnostics,
    pool: &Pool,
    mode: Option<&Place>,
    servers: Option<&Place>,
) {
    if pool.dialect != DialectName::Codex {
        return;
    }
    if let Some(place) = servers {
        check_mcp_servers(ledger, pool, place);
    }
    let (Some(mode), Some(place)) = (&pool.acp.mode, mode) else {
        return;
    };
    if ApprovalPolicy::from_word(mode).is_none() {
        let message = format!(
            "the mode of an agent that speaks codex is its approval policy: expected \"untrusted\" or \"on-request\", found {}",
            quote(mode)
        );
        let help = "with \"untrusted\", the default, it asks for everything that it would run";
        ledger.report(place, message, Some(help.to_owned()));
    }
}

/// Whether Codex takes the tool servers.
fn check_mcp_servers(ledger: &Diagnostics, pool: &Pool, place: &Place) {
    for server in &pool.acp.mcp_servers {
        let name = quote(&server.name);
        if server.name.contains('.') {
            let message = format!(
                "an agent that speaks codex takes no dot in a tool server's name, found {name}"
            );
            ledger.report(place, message, Some("use - or _".to_owned()));
        }
        if let McpTransport::Route { kind, .. } = &server.transport
            && *kind == ServerKind::Sse
        {
            let message = format!(
                "an agent that speaks codex reaches no tool servers by sse, and {name} is one"
            );
            let help = "set type = \"http\", or start it as a program";
            ledger.report(place, message, Some(help.to_owned()));
        }
    }
}
