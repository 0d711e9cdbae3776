//! ScaiFlux's serve mode: the agent's lines, and the handling of its controller's lines.
//!
//! Must not know verbs or tools.

mod handler;
mod messages;
pub(super) mod slash;

use std::io;

use serde_json::Value;

use super::agent_event::{AgentEvent, EventContext, TextFrame};
use super::pipes::Outbox;
use super::step::ToolCall;
use messages::{Details, Outbound, StopReason};

/// The claimed limit of output tokens.
const MAX_TOKENS: u64 = 8192;

/// Lines that are no messages, one of each kind.
pub(super) const GARBAGE: [&[u8]; 5] = [
    b"this is not JSON\n",
    b"\xff\xfe\x80 this is not UTF-8\n",
    b"{\"type\":\"text_delta\",\"turn_id\n",
    b"[1,2,3]\n",
    b"{\"type\":\"no_such_message\",\"turn_id\":\"t-0\"}\n",
];

/// Sends the ready message, which is the first line.
pub(super) fn ready(
    out: &mut Outbox,
    moment: &EventContext<'_>,
    claim: Option<&Value>,
) -> io::Result<()> {
    out.send(&Outbound::Ready {
        protocol: claim,
        version: env!("CARGO_PKG_VERSION"),
        session_id: moment.session,
        model: moment.model,
        mode: moment.mode,
        tools: &ToolCall::TOOLS,
        context_window: super::agent::CONTEXT_WINDOW,
        max_tokens: MAX_TOKENS,
        gadgets: &[],
    })
}

/// Queues the lines of an event behind what is queued.
pub(super) fn queue_event(
    out: &mut Outbox,
    moment: &EventContext<'_>,
    event: &AgentEvent<'_>,
) -> io::Result<()> {
    let turn_id = moment.turn;
    let text = |out: &mut Outbox, delta: &str| out.queue(&Outbound::TextDelta { turn_id, delta });
    match event {
        AgentEvent::TurnStarted => out.queue(&Outbound::TurnStarted { turn_id }),
        AgentEvent::Text(delta) => text(out, delta),
        // The protocol has no message for a thought, nor for a plan.
        AgentEvent::Thought(thought) => text(out, &format!("(thinking) {thought}\n")),
        AgentEvent::Plan(entries) => text(
            out,
            &entries
                .iter()
                .flat_map(|entry| ["- ", entry, "\n"])
                .collect::<String>(),
        ),
        AgentEvent::ToolStart { tool_id, call } => out.queue(&Outbound::ToolStart {
            turn_id,
            tool_id,
            name: call.tool(),
            input: call,
        }),
        AgentEvent::PermissionRequest { number, call, .. } => {
            out.queue(&Outbound::PermissionRequest {
                request_id: &request_id(*number),
                tool: call.tool(),
                active_mode: moment.mode,
                required_mode: call.required_mode(),
                details: Details {
                    tool_input: call,
                    reason: None,
                },
            })
        }
        // The controller knows, because it answered or cancelled the turn.
        AgentEvent::RequestWithdrawn { .. } | AgentEvent::ToolRunning { .. } => Ok(()),
        AgentEvent::ToolEnd {
            tool_id,
            end,
            took_s,
            ..
        } => out.queue(&Outbound::ToolResult {
            turn_id,
            tool_id,
            output: &end.output,
            is_error: end.is_error,
            duration_s: *took_s,
        }),
        AgentEvent::Context { pct, .. } => out.queue(&Outbound::StateChanged { context_pct: *pct }),
        AgentEvent::TurnEnd {
            cancelled,
            iterations,
            input_tokens,
            output_tokens,
            mutations,
            ..
        } => out.queue(&Outbound::TurnComplete {
            turn_id,
            stop_reason: if *cancelled {
                StopReason::Interrupted
            } else {
                StopReason::EndTurn
            },
            iterations: *iterations,
            input_tokens: *input_tokens,
            output_tokens: *output_tokens,
            mutations,
        }),
    }
}

/// The frame of a line with one piece of text.
pub(super) fn text_frame(moment: &EventContext<'_>) -> io::Result<TextFrame> {
    let line = serde_json::to_vec(&Outbound::TextDelta {
        turn_id: moment.turn,
        delta: "",
    })?;
    Ok(TextFrame::around(line))
}

/// The id of the request with this number.
fn request_id(number: u64) -> String {
    format!("r-{number}")
}
