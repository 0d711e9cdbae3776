//! loaf's RPC, protocol 1: the agent's lines, and the handling of its client's lines.
//!
//! Source: loaf's page "RPC mode"; where it is silent, the behaviour of the real agent. Must not
//! know verbs.

mod handler;
mod queue;
mod sessions;

use std::io;

use serde_json::{Value, json};

use super::agent::CONTEXT_WINDOW;
use super::agent_event::{AgentEvent, EventContext, TextFrame};
use super::pipes::Outbox;
use super::step::ToolCall;
use super::tools::ToolOutcome;
pub(super) use queue::PromptQueue;

/// Lines that are no messages of the protocol, one of each kind.
pub(super) const GARBAGE: [&[u8]; 5] = [
    b"this is not JSON\n",
    b"\xff\xfe\x80 this is not UTF-8\n",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"eve\n",
    b"[1,2,3]\n",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"event\",\"params\":{\"type\":\"no.such.event\",\"payload\":{}}}\n",
];

/// A notification of the protocol.
fn event_json(kind: &str, payload: &Value) -> Value {
    let timestamp = jiff::Timestamp::now().to_string();
    json!({
        "jsonrpc": "2.0",
        "method": "event",
        "params": {"type": kind, "timestamp": timestamp, "payload": payload},
    })
}

/// Queues the lines of an event behind what is queued.
pub(super) fn queue_event(
    out: &mut Outbox,
    moment: &EventContext<'_>,
    event: &AgentEvent<'_>,
) -> io::Result<()> {
    let (session, turn) = (moment.session, moment.turn);
    let mut say = |kind: &str, payload: Value| out.queue(&event_json(kind, &payload));
    let text = |text: &str| json!({"session_id": session, "turn_id": turn, "chunk": {"thoughts": [], "answerText": text}});
    let of_turn = |data: Value| json!({"session_id": session, "turn_id": turn, "data": data});
    match event {
        AgentEvent::TurnStarted => say("session.status", working_status(session, turn)),
        AgentEvent::Text(delta) => say("session.stream.chunk", text(delta)),
        AgentEvent::Thought(thought) => say(
            "session.stream.chunk",
            json!({"session_id": session, "turn_id": turn, "chunk": {"thoughts": [thought], "answerText": ""}}),
        ),
        // The protocol has no message for a plan.
        AgentEvent::Plan(entries) => {
            let plan = entries.iter().flat_map(|entry| ["- ", entry, "\n"]);
            say("session.stream.chunk", text(&plan.collect::<String>()))
        }
        AgentEvent::ToolStart { tool_id, call } => say(
            "session.tool.call.started",
            of_turn(json!({"toolRound": 0, "call": {
                "name": call.tool(), "input": call,
                "providerToolName": call.tool(), "callId": tool_id,
            }})),
        ),
        // The protocol has no permission requests, so nothing waits for an answer.
        AgentEvent::PermissionRequest { .. }
        | AgentEvent::RequestWithdrawn { .. }
        | AgentEvent::ToolRunning { .. } => Ok(()),
        AgentEvent::ToolEnd { call, end, .. } => {
            let executed = executed_json(call, end);
            say(
                "session.tool.call.completed",
                of_turn(json!({"toolRound": 0, "executed": executed})),
            )?;
            say(
                "session.tool.results",
                of_turn(json!({"toolRound": 0, "executed": [executed]})),
            )
        }
        AgentEvent::Context { tokens, .. } => say(
            "session.context.estimate",
            json!({"session_id": session, "estimated_tokens": tokens, "context_window": CONTEXT_WINDOW}),
        ),
        AgentEvent::TurnEnd {
            cancelled, answer, ..
        } => {
            if *cancelled {
                say(
                    "session.interrupted",
                    json!({"session_id": session, "turn_id": turn, "partial_output": !answer.is_empty()}),
                )?;
            } else {
                let message = json!({"id": 0, "kind": "assistant", "text": answer});
                say(
                    "session.message.appended",
                    json!({"session_id": session, "message": message}),
                )?;
                let length = answer.encode_utf16().count();
                say(
                    "session.completed",
                    json!({"session_id": session, "turn_id": turn, "answer_length": length}),
                )?;
            }
            say(
                "session.status",
                json!({"session_id": session, "pending": false, "status_label": "ready"}),
            )
        }
    }
}

/// The status with the id of the running turn.
fn working_status(session: &str, turn: &str) -> Value {
    json!({"session_id": session, "pending": true, "status_label": "thinking...", "turn_id": turn})
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

/// The frame of a line with one piece of text.
pub(super) fn text_frame(moment: &EventContext<'_>) -> TextFrame {
    // Written by hand, because the text must be the last empty string in the line.
    let payload = json!({"session_id": moment.session, "turn_id": moment.turn}).to_string();
    let open = payload.trim_end_matches('}');
    let timestamp = jiff::Timestamp::now();
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"event","params":{{"type":"session.stream.chunk","timestamp":"{timestamp}","payload":{open},"chunk":{{"thoughts":[],"answerText":""}}}}}}}}"#
    );
    TextFrame::around(line.into_bytes())
}
