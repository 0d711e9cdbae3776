//! loaf's RPC, protocol 1: the agent's lines, and the handling of its client's lines.
//!
//! Source: loaf's page "RPC mode"; where it is silent, the behaviour of the real agent. Must not
//! know verbs.

mod handler;
mod queue;
mod sessions;

use std::io;

use serde_json::{Value, json};

use super::agent_event::{AgentEvent, Output, TextFrame, plan_text};
use super::step::ToolCall;
use super::template::{Fields, fields};
use super::tools::ToolOutcome;
pub(super) use queue::PromptQueue;

impl Output<'_> {
    /// Queues a notification whose payload has the template of that type.
    fn queue_notification(&mut self, kind: &str, fields: Fields<'_>) -> io::Result<()> {
        let name = match kind {
            "ready" | "working" | "pending" => "session.status",
            "created" => "state.changed",
            _ => kind,
        };
        let payload = self.fill(kind, fields)?;
        let now = jiff::Timestamp::now().to_string();
        let fields: Fields = fields![kind: name, payload, timestamp: now];
        self.queue("event", fields)
    }

    /// Queues the lines of an event behind what is queued.
    pub(super) fn queue_loaf_event(&mut self, event: &AgentEvent<'_>) -> io::Result<()> {
        const CHUNK: &str = "session.stream.chunk";
        const NONE: [&str; 0] = [];
        match event {
            AgentEvent::TurnStarted => self.queue_notification("working", &[]),
            AgentEvent::Text(text) => self.queue_notification(CHUNK, fields![text, thoughts: NONE]),
            AgentEvent::Thought(text) => {
                self.queue_notification(CHUNK, fields![text: "", thoughts: [text]])
            }
            // The protocol has no message for a plan.
            AgentEvent::Plan(entries) => {
                let text = plan_text(entries);
                self.queue_notification(CHUNK, fields![text, thoughts: NONE])
            }
            AgentEvent::ToolStart { tool_id, call } => self.queue_notification(
                "session.tool.call.started",
                fields![tool_id, tool: call.tool(), input: json!(call)],
            ),
            // The protocol has no permission requests, so nothing waits for an answer.
            AgentEvent::PermissionRequest(_)
            | AgentEvent::RequestWithdrawn { .. }
            | AgentEvent::ToolRunning { .. } => Ok(()),
            AgentEvent::ToolEnd(end) => {
                let fields: Fields = fields![executed: executed_json(end.call, end.outcome)];
                self.queue_notification("session.tool.call.completed", fields)?;
                self.queue_notification("session.tool.results", fields)
            }
            AgentEvent::Context { tokens, .. } => {
                self.queue_notification("session.context.estimate", fields![tokens])
            }
            AgentEvent::TurnEnd(end) => {
                if end.cancelled {
                    let is_partial = !end.answer.is_empty();
                    let fields: Fields = fields![is_partial];
                    self.queue_notification("session.interrupted", fields)?;
                } else {
                    let fields: Fields = fields![role: "assistant", text: end.answer];
                    self.queue_notification("session.message.appended", fields)?;
                    let length = end.answer.encode_utf16().count();
                    self.queue_notification("session.completed", fields![length])?;
                }
                self.queue_notification("ready", &[])
            }
        }
    }

    /// The frame of a line with one piece of text.
    pub(super) fn loaf_text_frame(&self) -> io::Result<TextFrame> {
        let now = jiff::Timestamp::now().to_string();
        let line = self.fill("text_event", fields![text: "", timestamp: now])?;
        Ok(TextFrame::around(&line))
    }
}

/// The result of a call, without the call's id.
fn executed_json(call: &ToolCall, end: &ToolOutcome) -> Value {
    let mut executed = json!({
        "name": call.tool(), "ok": !end.is_error, "input": call, "result": end.output,
    });
    if end.is_error {
        executed["error"] = json!("the tool failed");
    }
    executed
}
