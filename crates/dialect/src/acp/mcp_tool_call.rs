//! Recognizes a permission request for a tool of a tool server: which server, which tool, and which
//! arguments.
//!
//! The protocol does not define this, so every adapter has its own form. A form that is not listed
//! here is a request for an unknown tool. Must not know what is granted.
//!
//! Tests with the agents themselves: `tests/drills/agents/engine_tools.rs`.

use serde::Deserialize;
use serde_json::Value;

use crate::mcp_tool_call::McpToolCall;
use marshal_model::{PermissionRequest, UntrustedText};

/// The kind that every agent gives a call of such a tool.
const KIND: &str = "other";

/// The members of a call that are displayed. Nobody would check any other member.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolRequestInput {
    title: Option<String>,
    #[serde(rename = "rawInput")]
    raw: Option<Value>,
    shown_content: Option<Vec<Value>>,
}

/// The tool of that server for which a permission is requested.
#[must_use]
pub(crate) fn parse_mcp_tool_call(
    request: &PermissionRequest,
    server: &str,
) -> Option<McpToolCall> {
    if request.tool.raw() != KIND {
        return None;
    }
    let shown: ToolRequestInput = serde_json::from_str(request.input.get()).ok()?;
    let id = request.tool_id.as_ref()?.raw();
    let claimed = request.claims.title.as_ref().map(UntrustedText::raw);
    let title = shown.title.as_deref().or(claimed)?;
    match (shown.raw, shown.shown_content.as_deref()) {
        (Some(raw), None) => parse_codex_approval(&raw, id, server)
            .or_else(|| parse_claude_title(title, raw, server, claimed)),
        (None, Some([content])) => parse_gemini_text(title, content, id, server),
        _ => None,
    }
}

/// Claude's adapter: the title is the tool name that the model calls, and the input is the model's.
fn parse_claude_title(
    title: &str,
    raw: Value,
    server: &str,
    claimed: Option<&str>,
) -> Option<McpToolCall> {
    if claimed.is_some_and(|claimed| claimed != title) || !raw.is_object() {
        return None;
    }
    let tool = title.strip_prefix("mcp__")?.strip_prefix(server)?;
    Some(McpToolCall {
        tool: tool.strip_prefix("__")?.to_owned(),
        arguments: raw,
    })
}

/// Codex's adapter: a form that must be accepted, with everything in it.
fn parse_codex_approval(raw: &Value, id: &str, server: &str) -> Option<McpToolCall> {
    let text = |at: &str| raw.pointer(at).and_then(Value::as_str);
    let is_it = text("/server_name") == Some(server)
        && text("/request/_meta/codex_approval_kind") == Some("mcp_tool_call")
        && text("/id")?.strip_prefix("mcp_tool_call_approval_") == Some(id);
    let before = format!("Allow the {server} MCP server to run tool \"");
    let tool = text("/request/message")?.strip_prefix(before.as_str())?;
    let arguments = raw.pointer("/request/_meta/tool_params")?;
    is_it.then_some(McpToolCall {
        tool: tool.strip_suffix("\"?")?.to_owned(),
        arguments: arguments.clone(),
    })
}

/// Gemini CLI: the title names both, the call's id begins with both, and its only text is the
/// input.
fn parse_gemini_text(title: &str, content: &Value, id: &str, server: &str) -> Option<McpToolCall> {
    let behind = format!(" ({server} MCP Server)");
    let tool = title.strip_suffix(behind.as_str())?;
    let begins = format!("mcp_{server}_{tool}__");
    let text = content.pointer("/content/text").and_then(Value::as_str)?;
    id.starts_with(&begins).then_some(McpToolCall {
        tool: tool.to_owned(),
        arguments: serde_json::from_str(text).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use marshal_model::{AgentClaims, PermissionRequestKey};

    fn request(id: &str, title: &str, input: &Value) -> PermissionRequest {
        PermissionRequest {
            key: PermissionRequestKey {
                id: "0".to_owned(),
                serial: 1,
            },
            tool_id: Some(id.into()),
            tool: KIND.into(),
            input: serde_json::value::to_raw_value(input).expect("JSON"),
            claims: AgentClaims {
                title: Some(title.into()),
                ..AgentClaims::default()
            },
        }
    }

    fn read_a() -> McpToolCall {
        McpToolCall {
            tool: "read_file".to_owned(),
            arguments: json!({"path": "/w/a"}),
        }
    }

    fn form(server: &str, id: &str) -> Value {
        json!({"rawInput": {
            "turn_id": "t", "server_name": server, "id": format!("mcp_tool_call_approval_{id}"),
            "request": {
                "mode": "form",
                "_meta": {"codex_approval_kind": "mcp_tool_call", "tool_params": {"path": "/w/a"}},
                "message": format!("Allow the {server} MCP server to run tool \"read_file\"?"),
            },
        }})
    }

    fn text_input(text: &str) -> Value {
        json!({"shown_content": [{"type": "content", "content": {"type": "text", "text": text}}]})
    }

    #[test]
    fn each_agents_way_of_asking_is_understood() {
        let raw = json!({"rawInput": {"path": "/w/a"}});
        let of_claude = request("toolu_1", "mcp__marshal__read_file", &raw);
        assert_eq!(parse_mcp_tool_call(&of_claude, "marshal"), Some(read_a()));
        let of_codex = request(
            "call_1",
            "Approve MCP tool call",
            &form("marshal", "call_1"),
        );
        assert_eq!(parse_mcp_tool_call(&of_codex, "marshal"), Some(read_a()));
        let title = "read_file (marshal MCP Server)";
        let of_gemini = request(
            "mcp_marshal_read_file__1",
            title,
            &text_input("{\"path\":\"/w/a\"}"),
        );
        assert_eq!(parse_mcp_tool_call(&of_gemini, "marshal"), Some(read_a()));
    }

    #[test]
    fn what_only_looks_like_it_is_none() {
        let raw = json!({"rawInput": {"path": "/w/a"}});
        let title = "mcp__marshal__read_file";
        let mut shell = request("1", title, &raw);
        shell.tool = "execute".into();
        let of_gemini = "read_file (marshal MCP Server)";
        let text = text_input("{\"path\":\"/w/a\"}");
        let mut nameless = request("mcp_marshal_read_file__1", of_gemini, &text);
        nameless.tool_id = None;
        for other in [
            shell,
            nameless,
            // Another server, or one whose name only begins the same.
            request("1", "mcp__search__read_file", &raw),
            request("1", "mcp__marshal2__read_file", &raw),
            request("1", "read_file", &raw),
            // More than the arguments, or none.
            request(
                "1",
                title,
                &json!({"rawInput": {}, "locations": [{"path": "/w"}]}),
            ),
            request(
                "1",
                title,
                &json!({"title": "other", "rawInput": {"path": "/w/a"}}),
            ),
            request("1", title, &json!({"rawInput": "path"})),
            request("1", title, &json!({})),
            // A form of another server, or about another call.
            request("call_1", "x", &form("search", "call_1")),
            request("call_2", "x", &form("marshal", "call_1")),
            // A title that a command or a model could have produced: the call's id is the program's
            // own.
            request("run_shell_command__1", of_gemini, &text),
            request("mcp_search_read_file__1", of_gemini, &text),
            request(
                "mcp_marshal_read_file__1",
                of_gemini,
                &text_input("read it"),
            ),
        ] {
            assert_eq!(parse_mcp_tool_call(&other, "marshal"), None, "{other:?}");
        }
    }
}
