//! A permission request that is for a tool of a tool server: of which server, for which tool, with what.
//!
//! Must not know how each protocol says so, nor what is granted.

use serde_json::Value;

use super::{acp, claude, codex};
use marshal_config::DialectName;
use marshal_model::PermissionRequest;

/// A tool of a tool server for which an agent asks.
#[derive(Debug, Clone, PartialEq)]
pub struct McpToolCall {
    /// The tool's name with its server.
    pub tool: String,
    /// What it is to be called with.
    pub arguments: Value,
}

/// The tool of that server for which a permission is asked in that dialect.
#[must_use]
pub fn parse_mcp_tool_call(
    name: DialectName,
    ask: &PermissionRequest,
    server: &str,
) -> Option<McpToolCall> {
    match name {
        DialectName::Acp => acp::parse_mcp_tool_call(ask, server),
        DialectName::Claude => claude::parse_mcp_tool_call(ask, server),
        DialectName::Codex => codex::parse_mcp_tool_call(ask, server),
        DialectName::Custom
        | DialectName::Loaf
        | DialectName::Scaiflux
        | DialectName::Skillpilot => None,
    }
}
