//! A permission request that is for a tool of a tool server: of which server, for which tool, with what.
//!
//! Must not know how each protocol says so, nor what is granted.

use serde_json::Value;

use super::{acp, claude, codex};
use crate::config::DialectName;
use crate::model::Ask;

/// A tool of a tool server for which an agent asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    /// The tool's name with its server.
    pub tool: String,
    /// What it is to be called with.
    pub arguments: Value,
}

/// The tool of that server for which a permission is asked in that dialect.
#[must_use]
pub fn served(name: DialectName, ask: &Ask, server: &str) -> Option<Served> {
    match name {
        DialectName::Acp => acp::served(ask, server),
        DialectName::Claude => claude::served(ask, server),
        DialectName::Codex => codex::served(ask, server),
        DialectName::Custom
        | DialectName::Loaf
        | DialectName::Scaiflux
        | DialectName::Skillpilot => None,
    }
}
