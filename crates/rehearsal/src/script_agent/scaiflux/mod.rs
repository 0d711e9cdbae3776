//! ScaiFlux's serve mode: the agent's lines, and the handling of its controller's lines.
//!
//! Must not know verbs or tools.

mod handler;
mod messages;
pub(super) mod slash;

use std::io;

use super::AgentDialect;
use super::agent::{Agent, Halt};
use super::agent_event::{AgentEvent, Output, TextFrame, plan_text};
use super::step::ToolCall;
use super::template::fields;

impl Agent {
    /// Sends the ready message, which is the first line.
    pub(super) fn send_ready(&mut self) -> Result<(), Halt> {
        let claim = self.settings.claim.default_value();
        let name = claim.as_ref().map_or("ready_without_version", |_| "ready");
        let version = env!("CARGO_PKG_VERSION");
        let tools = ToolCall::TOOLS;
        self.send(name, fields![claim, version, tools])
    }
}

impl Output<'_> {
    /// Queues the lines of an event behind what is queued.
    pub(super) fn queue_scaiflux_event(&mut self, event: &AgentEvent<'_>) -> io::Result<()> {
        match event {
            AgentEvent::TurnStarted => self.queue("turn_started", &[]),
            AgentEvent::Text(text) => self.queue("text", fields![text]),
            // The protocol has no message for a thought, nor for a plan.
            AgentEvent::Thought(text) => {
                self.queue("text", fields![text: format!("(thinking) {text}\n")])
            }
            AgentEvent::Plan(entries) => self.queue("text", fields![text: plan_text(entries)]),
            AgentEvent::ToolStart { tool_id, call } => self.queue(
                "tool_start",
                fields![tool_id, tool: call.tool(), input: call],
            ),
            AgentEvent::PermissionRequest(request) => self.queue(
                "permission_request",
                fields![
                    request: request_id(request.number), tool: request.call.tool(),
                    required_mode: request.call.required_mode(), input: request.call,
                ],
            ),
            // The controller knows, because it answered or cancelled the turn.
            AgentEvent::RequestWithdrawn { .. } | AgentEvent::ToolRunning { .. } => Ok(()),
            AgentEvent::ToolEnd(end) => self.queue(
                "tool_result",
                fields![
                    tool_id: end.tool_id, output: end.outcome.output,
                    is_error: end.outcome.is_error, took_s: end.took_s,
                ],
            ),
            AgentEvent::Context { pct, .. } => self.queue("state_changed", fields![pct]),
            AgentEvent::TurnEnd(end) => {
                let how = ["end_turn", "interrupted"][usize::from(end.cancelled)];
                self.queue(
                    "turn_complete",
                    fields![
                        reason: how, iterations: end.iterations, read: end.input_tokens,
                        written: end.output_tokens, mutations: end.mutations,
                    ],
                )
            }
        }
    }
}

/// The frame of a line with one piece of text.
pub(super) fn text_frame(turn: &str) -> io::Result<TextFrame> {
    let templates = AgentDialect::Scaiflux.templates();
    let line = templates.fill("text", fields![text: "", turn], &[])?;
    Ok(TextFrame::around(&line))
}

/// The id of the request with this number.
fn request_id(number: u64) -> String {
    format!("r-{number}")
}
