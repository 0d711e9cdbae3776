//! The agent's messages, field by field.
//!
//! Must not know what a line answers.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// A notification `session/update`.
#[derive(Debug, Serialize)]
pub(super) struct Notification<'a> {
    jsonrpc: &'static str,
    method: &'static str,
    params: UpdateParams<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UpdateParams<'a> {
    session_id: &'a str,
    update: Update<'a>,
}

impl<'a> Notification<'a> {
    pub(super) fn new(session_id: &'a str, update: Update<'a>) -> Self {
        Self {
            jsonrpc: "2.0",
            method: "session/update",
            params: UpdateParams { session_id, update },
        }
    }
}

/// The content of a `session/update`.
#[derive(Debug, Serialize)]
#[serde(tag = "sessionUpdate", rename_all = "snake_case")]
pub(super) enum Update<'a> {
    UserMessageChunk {
        content: Block<'a>,
    },
    AgentMessageChunk {
        content: Block<'a>,
    },
    AgentThoughtChunk {
        content: Block<'a>,
    },
    ToolCall(ToolCallUpdate<'a>),
    #[serde(rename = "tool_call_update")]
    ToolCallUpdate(ToolCallUpdate<'a>),
    Plan {
        entries: Vec<PlanEntry<'a>>,
    },
    #[serde(rename = "usage_update")]
    Usage {
        used: u64,
        size: u64,
    },
}

/// A block of text.
#[derive(Debug, Serialize)]
pub(super) struct Block<'a> {
    r#type: &'static str,
    text: &'a str,
}

impl<'a> Block<'a> {
    pub(super) const fn text(text: &'a str) -> Self {
        Self {
            r#type: "text",
            text,
        }
    }
}

/// One entry of a plan.
#[derive(Debug, Serialize)]
pub(super) struct PlanEntry<'a> {
    content: &'a str,
    priority: &'static str,
    status: Status,
}

impl<'a> PlanEntry<'a> {
    pub(super) const fn pending(content: &'a str) -> Self {
        Self {
            content,
            priority: "medium",
            status: Status::Pending,
        }
    }
}

/// The status of a tool call, or of an entry of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Pending,
    InProgress,
    Completed,
    Failed,
}

impl Status {
    pub(super) const fn from_is_error(is_error: bool) -> Self {
        if is_error {
            Self::Failed
        } else {
            Self::Completed
        }
    }
}

/// A tool call, or a change of one.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolCallUpdate<'a> {
    #[serde(rename = "toolCallId")]
    pub(super) id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) content: Vec<ToolContent<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) raw_input: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) raw_output: Option<RawOutput<'a>>,
}

impl<'a> ToolCallUpdate<'a> {
    /// An update that contains only the id.
    pub(super) fn id_only(id: &'a str) -> Self {
        Self {
            id,
            ..Self::default()
        }
    }
}

/// The result of a tool call, for a person.
#[derive(Debug, Serialize)]
pub(super) struct ToolContent<'a> {
    r#type: &'static str,
    content: Block<'a>,
}

impl<'a> ToolContent<'a> {
    pub(super) const fn text(text: &'a str) -> Self {
        Self {
            r#type: "content",
            content: Block::text(text),
        }
    }
}

/// The result of a tool call, for a program.
#[derive(Debug, Serialize)]
pub(super) struct RawOutput<'a> {
    pub(super) output: &'a str,
    pub(super) is_error: bool,
}

/// A request of the agent.
#[derive(Debug, Serialize)]
pub(super) struct Request<P> {
    pub(super) jsonrpc: &'static str,
    pub(super) id: u64,
    pub(super) method: &'static str,
    pub(super) params: P,
}

/// The parameters of `session/request_permission`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PermissionParams<'a> {
    pub(super) session_id: &'a str,
    pub(super) tool_call: ToolCallUpdate<'a>,
    pub(super) options: &'a [PermissionOption],
}

/// One of the client's choices.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PermissionOption {
    pub(super) option_id: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
}

/// The successful reply to a request of the client.
#[derive(Debug, Serialize)]
pub(in crate::script_agent) struct Success<'a, R> {
    jsonrpc: &'static str,
    id: &'a Value,
    result: R,
}

impl<'a, R> Success<'a, R> {
    pub(in crate::script_agent) const fn new(id: &'a Value, result: R) -> Self {
        Self {
            jsonrpc: "2.0",
            id,
            result,
        }
    }
}

/// The reply to `session/prompt`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnEnd {
    pub(super) stop_reason: StopReason,
}

/// The reason of a turn's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopReason {
    EndTurn,
    Cancelled,
}

/// The error reply to a request of the client.
#[derive(Debug, Serialize)]
pub(in crate::script_agent) struct Failure<'a> {
    jsonrpc: &'static str,
    id: &'a Value,
    error: &'a RpcError,
}

impl<'a> Failure<'a> {
    pub(in crate::script_agent) const fn new(id: &'a Value, error: &'a RpcError) -> Self {
        Self {
            jsonrpc: "2.0",
            id,
            error,
        }
    }
}

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(in crate::script_agent) struct RpcError {
    pub(in crate::script_agent) code: i32,
    pub(in crate::script_agent) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::script_agent) data: Option<Value>,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(in crate::script_agent) fn parse(message: impl Into<String>) -> Self {
        Self::new(-32700, message)
    }

    pub(in crate::script_agent) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    pub(super) fn method_not_found(method: &str) -> Self {
        Self {
            data: Some(serde_json::json!({"method": method})),
            ..Self::new(-32601, "method not found")
        }
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn auth_required() -> Self {
        Self::new(-32000, "Authentication required")
    }

    pub(super) fn unsupported_version() -> Self {
        Self {
            data: Some(serde_json::json!({"supported": [2]})),
            ..Self::new(-32022, "unsupported protocol version")
        }
    }

    pub(super) fn session_not_found(id: &str, why: impl Into<String>) -> Self {
        Self {
            data: Some(serde_json::json!({"sessionId": id})),
            ..Self::new(-32002, why)
        }
    }
}
