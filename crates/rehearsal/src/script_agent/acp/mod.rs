//! The Agent Client Protocol, version 1: the agent's lines, and the handling of its client's lines.
//!
//! Source: the protocol's schema, crate `agent-client-protocol-schema` 1.15.1. Must not know verbs.

mod client;
mod handler;
pub(super) mod messages;
pub(super) mod requests;
mod sessions;
mod tools;

use std::io;

use serde_json::value::RawValue;

use super::agent::CONTEXT_WINDOW;
use super::agent_event::{AgentEvent, EventContext, TextFrame};
use super::pipes::Outbox;
use super::step::ToolCall;
pub(super) use client::ClientRequest;
use messages::{
    Block, Notification, PermissionOption, PermissionParams, PlanEntry, RawOutput, Request, Status,
    StopReason, Success, ToolCallUpdate, ToolContent, TurnEnd, Update,
};
pub(super) use tools::ToolServers;

/// Lines that are no messages of the protocol, one of each kind.
pub(super) const GARBAGE: [&[u8]; 5] = [
    b"this is not JSON\n",
    b"\xff\xfe\x80 this is not UTF-8\n",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"session/upd\n",
    b"[1,2,3]\n",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"no/such_message\",\"params\":{}}\n",
];

/// The choices of a permission request. Their order and ids are a trap for a client that chooses by
/// position or by the look of an id: the first one is permanent, and the last one allows.
const OPTIONS: [PermissionOption; 3] = [
    PermissionOption {
        option_id: ALWAYS,
        name: "Always allow",
        kind: "allow_always",
    },
    PermissionOption {
        option_id: REJECT,
        name: "Reject",
        kind: "reject_once",
    },
    PermissionOption {
        option_id: ONCE,
        name: "Allow once",
        kind: "allow_once",
    },
];

const ALWAYS: &str = "option-1";
const REJECT: &str = "option-2";
const ONCE: &str = "option-3";

/// Queues the lines of an event behind what is queued.
pub(super) fn queue_event(
    out: &mut Outbox,
    moment: &EventContext<'_>,
    event: &AgentEvent<'_>,
) -> io::Result<()> {
    let mut update = |update: Update<'_>| out.queue(&Notification::new(moment.session, update));
    match event {
        // Every prompt is a request, so the client knows that the turn began.
        AgentEvent::TurnStarted
        | AgentEvent::RequestWithdrawn { .. }
        | AgentEvent::TurnEnd { reply_to: None, .. } => Ok(()),
        AgentEvent::Text(text) => update(Update::AgentMessageChunk {
            content: Block::text(text),
        }),
        AgentEvent::Thought(text) => update(Update::AgentThoughtChunk {
            content: Block::text(text),
        }),
        AgentEvent::Plan(entries) => update(Update::Plan {
            entries: entries
                .iter()
                .map(|entry| PlanEntry::pending(entry))
                .collect(),
        }),
        AgentEvent::ToolStart { tool_id, call } => {
            let input = raw(call)?;
            let title = call.title();
            update(Update::ToolCall(describe_tool_call(
                tool_id, call, &title, &input,
            )))
        }
        AgentEvent::PermissionRequest {
            number,
            tool_id,
            call,
        } => {
            let input = raw(call)?;
            let title = call.title();
            let tool_call = if moment.bare_requests {
                ToolCallUpdate::id_only(tool_id)
            } else {
                describe_tool_call(tool_id, call, &title, &input)
            };
            out.queue(&Request {
                jsonrpc: "2.0",
                id: request_id(*number),
                method: "session/request_permission",
                params: PermissionParams {
                    session_id: moment.session,
                    tool_call,
                    options: &OPTIONS,
                },
            })
        }
        AgentEvent::ToolRunning { tool_id } => update(Update::ToolCallUpdate(ToolCallUpdate {
            status: Some(Status::InProgress),
            ..ToolCallUpdate::id_only(tool_id)
        })),
        AgentEvent::ToolEnd { tool_id, end, .. } => {
            update(Update::ToolCallUpdate(ToolCallUpdate {
                status: Some(Status::from_is_error(end.is_error)),
                content: vec![ToolContent::text(&end.output)],
                raw_output: Some(RawOutput {
                    output: &end.output,
                    is_error: end.is_error,
                }),
                ..ToolCallUpdate::id_only(tool_id)
            }))
        }
        AgentEvent::Context { tokens, .. } => update(Update::Usage {
            used: *tokens,
            size: CONTEXT_WINDOW,
        }),
        AgentEvent::TurnEnd {
            cancelled,
            reply_to: Some(id),
            ..
        } => out.queue(&Success::new(
            id,
            TurnEnd {
                stop_reason: if *cancelled {
                    StopReason::Cancelled
                } else {
                    StopReason::EndTurn
                },
            },
        )),
    }
}

/// The frame of a line with one piece of text.
pub(super) fn text_frame(moment: &EventContext<'_>) -> io::Result<TextFrame> {
    let update = Update::AgentMessageChunk {
        content: Block::text(""),
    };
    let line = serde_json::to_vec(&Notification::new(moment.session, update))?;
    Ok(TextFrame::around(line))
}

/// The id of the request with this number. Ids count from 0 as in the SDKs, so they also collide
/// with the client's own ids.
const fn request_id(number: u64) -> u64 {
    number.saturating_sub(1)
}

fn raw(call: &ToolCall) -> io::Result<Box<RawValue>> {
    Ok(serde_json::value::to_raw_value(call)?)
}

/// A tool call before it runs, with its full description. It has no `locations`: the path occurs
/// once, in the input, exactly as in the script, so that the policy sees the same as in the other
/// protocols.
fn describe_tool_call<'a>(
    tool_id: &'a str,
    call: &'a ToolCall,
    title: &'a str,
    input: &'a RawValue,
) -> ToolCallUpdate<'a> {
    ToolCallUpdate {
        name: Some(call.tool()),
        title: Some(title),
        kind: Some(kind(call.tool())),
        status: Some(Status::Pending),
        raw_input: Some(input),
        ..ToolCallUpdate::id_only(tool_id)
    }
}

/// The protocol's kind of a tool.
fn kind(tool: &str) -> &'static str {
    match tool {
        "read_file" | "list_dir" => "read",
        "write_file" => "edit",
        "grep_search" => "search",
        "bash" => "execute",
        _ => "other",
    }
}
