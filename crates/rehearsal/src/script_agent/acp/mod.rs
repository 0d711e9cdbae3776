//! The Agent Client Protocol, version 1: the agent's lines, and the handling of its client's lines.
//!
//! Source: the protocol's schema, crate `agent-client-protocol-schema` 1.15.1. Must not know verbs.

mod client;
mod handler;
mod requests;
mod sessions;
mod tools;

use std::io;

use serde_json::value::RawValue;

use super::agent_event::{AgentEvent, Output, TextFrame};
use super::step::ToolCall;
use super::template::{Fields, fields};
pub(super) use client::ClientRequest;
pub(super) use tools::ToolServers;

impl Output<'_> {
    /// Queues the lines of an event behind what is queued.
    pub(super) fn queue_acp_event(&mut self, event: &AgentEvent<'_>) -> io::Result<()> {
        match event {
            // Every prompt is a request, so the client knows that the turn began.
            AgentEvent::TurnStarted | AgentEvent::RequestWithdrawn { .. } => Ok(()),
            AgentEvent::Text(text) => self.queue_update("text", fields![text]),
            AgentEvent::Thought(text) => self.queue_update("thought", fields![text]),
            AgentEvent::Plan(entries) => {
                let entries = entries.iter();
                let entries = entries.map(|entry| self.fill("plan_entry", fields![text: entry]));
                let entries: Vec<_> = entries.collect::<io::Result<_>>()?;
                self.queue_update("plan", fields![entries])
            }
            AgentEvent::ToolStart { tool_id, call } => {
                let update = self.fill_call("tool_start", tool_id, call)?;
                self.queue("update", fields![update])
            }
            AgentEvent::PermissionRequest(request) => {
                let name = ["call", "bare_call"][usize::from(self.bare_requests)];
                let call = self.fill_call(name, request.tool_id, request.call)?;
                let params = self.fill("permission", fields![call])?;
                self.queue(
                    "request",
                    fields![
                        id: request_id(request.number), method: "session/request_permission",
                        params,
                    ],
                )
            }
            AgentEvent::ToolRunning { tool_id } => {
                self.queue_update("tool_running", fields![tool_id])
            }
            AgentEvent::ToolEnd(end) => self.queue_update(
                "tool_end",
                fields![
                    tool_id: end.tool_id, status: status(end.outcome.is_error),
                    output: end.outcome.output, is_error: end.outcome.is_error,
                ],
            ),
            AgentEvent::Context { tokens, .. } => self.queue_update("usage", fields![tokens]),
            AgentEvent::TurnEnd(end) => {
                let Some(id) = end.reply_to else {
                    return Ok(());
                };
                let reason = ["end_turn", "cancelled"][usize::from(end.cancelled)];
                let result = self.fill("turn_end", fields![reason])?;
                self.queue("result", fields![id, result])
            }
        }
    }

    fn queue_update(&mut self, name: &str, fields: Fields<'_>) -> io::Result<()> {
        let update = self.fill(name, fields)?;
        self.queue("update", fields![update])
    }

    fn fill_call(&self, name: &str, id: &str, call: &ToolCall) -> io::Result<Box<RawValue>> {
        self.fill(
            name,
            fields![
                tool_id: id, title: call.title(), tool: call.tool(), kind: kind(call.tool()),
                input: call,
            ],
        )
    }

    /// The frame of a line with one piece of text.
    pub(super) fn acp_text_frame(&self) -> io::Result<TextFrame> {
        let update = self.fill("text", fields![text: ""])?;
        let line = self.fill("update", fields![update])?;
        Ok(TextFrame::around(&line))
    }
}

/// The id of the request with this number. Ids count from 0 as in the SDKs, so they also collide
/// with the client's own ids.
const fn request_id(number: u64) -> u64 {
    number.saturating_sub(1)
}

/// The status of a call that ended.
const fn status(is_error: bool) -> &'static str {
    if is_error { "failed" } else { "completed" }
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
