//! A permission request for a tool of a tool server: which server, which tool, which arguments.
//!
//! Must not know each protocol's form of it, nor what is granted.

use serde_json::Value;

use super::{acp, claude, codex};
use marshal_config::DialectName;
use marshal_model::PermissionRequest;

/// A tool of a tool server for which an agent requests permission.
#[derive(Debug, Clone, PartialEq)]
pub struct McpToolCall {
    /// The tool's name, including its server.
    pub tool: String,
    /// The arguments of the call.
    pub arguments: Value,
}

/// The tool of that server for which permission is requested in that dialect.
#[must_use]
pub fn parse_mcp_tool_call(
    name: DialectName,
    request: &PermissionRequest,
    server: &str,
) -> Option<McpToolCall> {
    match name {
        DialectName::Acp => acp::parse_mcp_tool_call(request, server),
        DialectName::Claude => claude::parse_mcp_tool_call(request, server),
        DialectName::Codex => codex::parse_mcp_tool_call(request, server),
        DialectName::Custom
        | DialectName::Loaf
        | DialectName::Scaiflux
        | DialectName::Skillpilot => None,
    }
}
