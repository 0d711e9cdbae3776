//! Settings of `codex app-server`: when it asks, its model, and its own sandbox.
//!
//! Must not know messages. The keys are the pool's: `mode` is the approval policy.

use super::acp::{AcpSettings, DenialFeedback, McpTransport, ServerKind};
use super::error::quote;
use super::table::{Diagnostics, Place};
use super::types::{DialectName, Launcher, Pool};
use marshal_model::string_enum;

string_enum!(
    /// Codex' approval policies. Its policy `never` is missing on purpose: it would run whatever
    /// its model says.
    ApprovalPolicy {
        /// It asks for every command and every write.
        Untrusted = "untrusted",
        /// It asks where its model or one of its own rules requires it.
        OnRequest = "on-request",
    }
);

/// Settings of Codex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodexSettings {
    /// Codex' approval policy.
    pub approval_policy: ApprovalPolicy,
    /// The model of every thread; `None` means the one in its own configuration.
    pub model: Option<String>,
    /// Whether it runs in a sandbox of marshal, inside of which its own sandbox cannot start.
    pub has_sandbox: bool,
    /// Whether it gets the reason of a denial with its next prompt.
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
    /// The settings of a session, from the pool's keys.
    #[must_use]
    pub fn from_acp(wants: &AcpSettings, launcher: Launcher) -> Self {
        let mode = wants.mode.as_deref();
        Self {
            approval_policy: mode
                .and_then(ApprovalPolicy::parse)
                .unwrap_or(ApprovalPolicy::Untrusted),
            model: wants.model.clone(),
            has_sandbox: launcher.has_sandbox(),
            reports_denials: wants.report_denials == DenialFeedback::NextPrompt,
        }
    }
}

/// Checks what Codex accepts: a mode that is an approval policy that asks, and tool servers that it
/// can name and reach. The places are those of the mode and of the servers.
pub(super) fn check_consistency(
    diagnostics: &Diagnostics,
    pool: &Pool,
    mode: Option<&Place>,
    servers: Option<&Place>,
) {
    if pool.dialect != DialectName::Codex {
        return;
    }
    if let Some(place) = servers {
        check_mcp_servers(diagnostics, pool, place);
    }
    let (Some(mode), Some(place)) = (&pool.acp.mode, mode) else {
        return;
    };
    if ApprovalPolicy::parse(mode).is_none() {
        let message = format!(
            "the mode of an agent that speaks codex is its approval policy: expected \"untrusted\" or \"on-request\", found {}",
            quote(mode)
        );
        let help = "with \"untrusted\", the default, it asks for everything that it would run";
        diagnostics.report(place, message, Some(help.to_owned()));
    }
}

/// Checks whether Codex accepts the tool servers.
fn check_mcp_servers(diagnostics: &Diagnostics, pool: &Pool, place: &Place) {
    for server in &pool.acp.mcp_servers {
        let name = quote(&server.name);
        if server.name.contains('.') {
            let message = format!(
                "an agent that speaks codex takes no dot in a tool server's name, found {name}"
            );
            diagnostics.report(place, message, Some("use - or _".to_owned()));
        }
        if let McpTransport::Route { kind, .. } = &server.transport
            && *kind == ServerKind::Sse
        {
            let message = format!(
                "an agent that speaks codex cannot use tool servers of type sse, and {name} is one"
            );
            let help = "set type = \"http\", or start it as a program";
            diagnostics.report(place, message, Some(help.to_owned()));
        }
    }
}
