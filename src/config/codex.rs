//! What a pool wants of `codex app-server`: when it asks, its model, and how strict its own sandbox
//! is.
//!
//! Must not know messages. The keys are the pool's: `mode` is the approval policy.

use super::acp::{Acp, Reach, ServerKind, TellDenials};
use super::error::quoted;
use super::table::{Ledger, Place};
use super::types::{DialectName, Launcher, Pool};
use crate::model::words;

words!(
    /// When it asks, in its own words. It has one more, `never`, which is none of these: it would
    /// run whatever its model says.
    Approvals {
        /// For whatever would run or be written.
        Untrusted = "untrusted",
        /// For what its model, or a rule of its own, says that it must ask for.
        OnRequest = "on-request",
    }
);

/// What a pool wants of Codex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codex {
    /// When it asks.
    pub approvals: Approvals,
    /// The model of every thread; `None`: the one that its own configuration names.
    pub model: Option<String>,
    /// There are walls around it, inside of which its own sandbox does not start.
    pub has_walls: bool,
    /// It hears before its next prompt why it was denied.
    pub tells_denials: bool,
}

impl Default for Codex {
    fn default() -> Self {
        Self {
            approvals: Approvals::Untrusted,
            model: None,
            has_walls: true,
            tells_denials: true,
        }
    }
}

impl Codex {
    /// What a session of a pool wants, by what its keys set every session to.
    #[must_use]
    pub fn of(wants: &Acp, launcher: Launcher) -> Self {
        let mode = wants.mode.as_deref();
        Self {
            approvals: mode
                .and_then(Approvals::from_word)
                .unwrap_or(Approvals::Untrusted),
            model: wants.model.clone(),
            has_walls: launcher.has_walls(),
            tells_denials: wants.tell_denials == TellDenials::NextPrompt,
        }
    }
}

/// What Codex takes: a mode that is an approval policy that asks, tool servers that it can name and
/// reach. The places are those of the mode and of the servers.
pub(super) fn agree(ledger: &Ledger, pool: &Pool, mode: Option<&Place>, servers: Option<&Place>) {
    if pool.dialect != DialectName::Codex {
        return;
    }
    if let Some(place) = servers {
        can_be_had(ledger, pool, place);
    }
    let (Some(mode), Some(place)) = (&pool.acp.mode, mode) else {
        return;
    };
    if Approvals::from_word(mode).is_none() {
        let message = format!(
            "the mode of an agent that speaks codex is its approval policy: expected \"untrusted\" or \"on-request\", found {}",
            quoted(mode)
        );
        let help = "with \"untrusted\", the default, it asks for everything that it would run";
        ledger.fault(place, message, Some(help.to_owned()));
    }
}

/// Whether Codex takes the tool servers.
fn can_be_had(ledger: &Ledger, pool: &Pool, place: &Place) {
    for server in &pool.acp.mcp_servers {
        let name = quoted(&server.name);
        if server.name.contains('.') {
            let message = format!(
                "an agent that speaks codex takes no dot in a tool server's name, found {name}"
            );
            ledger.fault(place, message, Some("use - or _".to_owned()));
        }
        if let Reach::Route { kind, .. } = &server.reach
            && *kind == ServerKind::Sse
        {
            let message = format!(
                "an agent that speaks codex reaches no tool servers by sse, and {name} is one"
            );
            let help = "set type = \"http\", or start it as a program";
            ledger.fault(place, message, Some(help.to_owned()));
        }
    }
}
