//! The agent's lines in the format of Claude Code.
//!
//! A message of its model is sent in pieces, and each of its blocks is sent whole at the block's
//! end. Must not know the host's messages.

use std::io;

use serde_json::{Value, json};

use super::{
    Conversation, HostRequest, MAX_OPEN_REQUESTS, Stage, TOOLS, hook_id, native_call, request_id,
};
use crate::script_agent::agent::CONTEXT_WINDOW;
use crate::script_agent::agent_event::{AgentEvent, EventContext, TextFrame};
use crate::script_agent::pipes::Outbox;
use crate::script_agent::step::ToolCall;
use marshal_model::limits::AGENT_OUTPUT_BYTES;

/// The cost of a token that is read or written, in millionths of a dollar.
const READ_MICROS: u64 = 5;
const WRITTEN_MICROS: u64 = 25;

/// A message of its model in progress.
#[derive(Debug)]
pub(super) struct Message {
    id: String,
    /// The number of finished blocks.
    blocks: u64,
    open: Option<Block>,
}

/// The block in progress.
#[derive(Debug)]
struct Block {
    kind: BlockKind,
    text: String,
    /// Whether `text` contains everything that was sent of it.
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thought,
}

impl BlockKind {
    const fn block(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Thought => "thinking",
        }
    }

    const fn delta(self) -> &'static str {
        match self {
            Self::Text => "text_delta",
            Self::Thought => "thinking_delta",
        }
    }
}

impl Conversation {
    /// Queues the lines of an event behind what is queued.
    pub(crate) fn queue_event(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        event: &AgentEvent<'_>,
    ) -> io::Result<()> {
        match event {
            AgentEvent::TurnStarted => self.begin_turn(out, moment),
            AgentEvent::Text(text) => self.queue_delta(out, moment, BlockKind::Text, text),
            AgentEvent::Thought(text) => {
                self.end_block(out, moment)?;
                self.queue_delta(out, moment, BlockKind::Thought, text)?;
                self.end_block(out, moment)
            }
            // The protocol has no message for a plan.
            AgentEvent::Plan(entries) => {
                let plan = entries.iter().flat_map(|entry| ["- ", entry, "\n"]);
                self.queue_delta(out, moment, BlockKind::Text, &plan.collect::<String>())
            }
            AgentEvent::ToolStart { tool_id, call } => {
                self.queue_tool_call(out, moment, tool_id, call)
            }
            AgentEvent::PermissionRequest {
                number,
                tool_id,
                call,
            } => {
                self.remember_request(*number, tool_id, call);
                Ok(())
            }
            AgentEvent::RequestWithdrawn { number } => self.withdraw_request(out, *number),
            // The host knows, because it answered. Every message reports the context.
            AgentEvent::ToolRunning { .. } | AgentEvent::Context { .. } => Ok(()),
            AgentEvent::ToolEnd { tool_id, end, .. } => {
                let result = json!({
                    "type": "tool_result",
                    "tool_use_id": tool_id,
                    "content": end.output,
                    "is_error": end.is_error,
                });
                self.queue_user_message(out, moment, &result)
            }
            AgentEvent::TurnEnd {
                cancelled,
                iterations,
                input_tokens,
                output_tokens,
                answer,
                reply_to,
                ..
            } => {
                self.end_message(out, moment, "end_turn")?;
                if *cancelled {
                    let block = json!({"type": "text", "text": "[Request interrupted by user]"});
                    self.queue_user_message(out, moment, &block)?;
                }
                self.micros += input_tokens * READ_MICROS + output_tokens * WRITTEN_MICROS;
                let end = TurnResult {
                    cancelled: *cancelled,
                    turns: *iterations,
                    tokens: (*input_tokens, *output_tokens),
                    answer,
                    prompt: *reply_to,
                    micros: self.micros,
                };
                end_turn(out, moment, &end)
            }
        }
    }

    /// The frame of a line with one piece of text, in a block that is sent only in pieces.
    pub(crate) fn text_frame(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
    ) -> io::Result<TextFrame> {
        self.end_block(out, moment)?;
        let index = self.open_block(out, moment, BlockKind::Text)?;
        if let Some(block) = self.message.as_mut().and_then(|item| item.open.as_mut()) {
            block.is_whole = false;
        }
        let event = delta_event(index, BlockKind::Text, "");
        let line = serde_json::to_vec(&stream_event(moment, &event))?;
        Ok(TextFrame::around(line))
    }

    fn begin_turn(&self, out: &mut Outbox, moment: &EventContext<'_>) -> io::Result<()> {
        if let Some(uuid) = moment.reply_to {
            queue_lifecycle(out, uuid, "started")?;
        }
        let cwd = std::env::current_dir().unwrap_or_default();
        let mut init = json!({
            "type": "system",
            "subtype": "init",
            "cwd": cwd,
            "session_id": moment.session,
            "tools": TOOLS,
            "mcp_servers": [],
            "model": moment.model,
            "permissionMode": moment.mode,
            "slash_commands": [],
            "output_style": "default",
        });
        if let Some(version) = &self.version {
            init["claude_code_version"] = json!(version);
        }
        out.queue(&init)?;
        out.queue(&json!({
            "type": "system", "subtype": "status", "status": "requesting", "session_id": moment.session,
        }))
    }

    /// Queues a piece of a block.
    fn queue_delta(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        kind: BlockKind,
        text: &str,
    ) -> io::Result<()> {
        let index = self.open_block(out, moment, kind)?;
        self.queue_stream_event(out, moment, &delta_event(index, kind, text))?;
        let Some(block) = self.message.as_mut().and_then(|item| item.open.as_mut()) else {
            return Ok(());
        };
        block.text.push_str(text);
        if block.text.len() >= AGENT_OUTPUT_BYTES {
            self.end_block(out, moment)?;
        }
        Ok(())
    }

    /// Begins a block of that kind, unless one is open. Returns its index in the message.
    fn open_block(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        kind: BlockKind,
    ) -> io::Result<u64> {
        let open = self.message.as_ref().and_then(|item| item.open.as_ref());
        if open.is_some_and(|open| open.kind != kind || !open.is_whole) {
            self.end_block(out, moment)?;
        }
        let index = self.begin_message(out, moment)?;
        let message = self.message.as_mut();
        let Some(message) = message.filter(|item| item.open.is_none()) else {
            return Ok(index);
        };
        message.open = Some(Block {
            kind,
            text: String::new(),
            is_whole: true,
        });
        let mut block = json!({"type": kind.block()});
        block[if kind == BlockKind::Text {
            "text"
        } else {
            "thinking"
        }] = json!("");
        let begins = json!({"type": "content_block_start", "index": index, "content_block": block});
        self.queue_stream_event(out, moment, &begins)?;
        Ok(index)
    }

    /// Begins a message, unless one is open. Returns its number of blocks.
    fn begin_message(&mut self, out: &mut Outbox, moment: &EventContext<'_>) -> io::Result<u64> {
        if let Some(message) = &self.message {
            return Ok(message.blocks);
        }
        self.messages += 1;
        let id = format!("msg_{}", self.messages);
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": moment.model,
            "content": [], "stop_reason": null, "usage": usage_json(moment.context, 0),
        });
        self.message = Some(Message {
            id,
            blocks: 0,
            open: None,
        });
        self.queue_stream_event(
            out,
            moment,
            &json!({"type": "message_start", "message": message}),
        )?;
        Ok(0)
    }

    fn end_block(&mut self, out: &mut Outbox, moment: &EventContext<'_>) -> io::Result<()> {
        let Some(message) = &mut self.message else {
            return Ok(());
        };
        let Some(block) = message.open.take() else {
            return Ok(());
        };
        let mut whole = json!({"type": block.kind.block()});
        whole[block.kind.block()] = json!(block.text);
        if block.kind == BlockKind::Thought {
            whole["signature"] = json!("none");
        }
        let whole = block.is_whole.then_some(whole);
        self.finish_block(out, moment, whole.as_ref())
    }

    /// Ends a block, and sends it whole.
    fn finish_block(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        whole: Option<&Value>,
    ) -> io::Result<()> {
        let Some(message) = &mut self.message else {
            return Ok(());
        };
        let index = message.blocks;
        message.blocks += 1;
        let id = message.id.clone();
        self.queue_stream_event(
            out,
            moment,
            &json!({"type": "content_block_stop", "index": index}),
        )?;
        let Some(whole) = whole else { return Ok(()) };
        out.queue(&json!({
            "type": "assistant",
            "message": {
                "id": id, "type": "message", "role": "assistant", "model": moment.model,
                "content": [whole], "stop_reason": null, "usage": usage_json(moment.context, 1),
            },
            "parent_tool_use_id": null,
            "session_id": moment.session,
        }))
    }

    fn end_message(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        why: &str,
    ) -> io::Result<()> {
        self.end_block(out, moment)?;
        if self.message.take().is_none() {
            return Ok(());
        }
        let end = json!({"type": "message_delta", "delta": {"stop_reason": why}, "usage": usage_json(0, 1)});
        self.queue_stream_event(out, moment, &end)?;
        self.queue_stream_event(out, moment, &json!({"type": "message_stop"}))
    }

    /// A tool call of the model: the last block of its message.
    fn queue_tool_call(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        tool_id: &str,
        call: &ToolCall,
    ) -> io::Result<()> {
        self.end_block(out, moment)?;
        let index = self.begin_message(out, moment)?;
        let (name, input) = native_call(call);
        let block = |input: &Value| json!({"type": "tool_use", "id": tool_id, "name": name, "input": input});
        let begins = json!({"type": "content_block_start", "index": index, "content_block": block(&json!({}))});
        self.queue_stream_event(out, moment, &begins)?;
        let delta = json!({"type": "input_json_delta", "partial_json": input.to_string()});
        let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
        self.queue_stream_event(out, moment, &delta)?;
        self.finish_block(out, moment, Some(&block(&input)))?;
        self.end_message(out, moment, "tool_use")
    }

    /// Queues the result of a call, as the model receives it.
    fn queue_user_message(
        &mut self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        block: &Value,
    ) -> io::Result<()> {
        self.end_message(out, moment, "tool_use")?;
        out.queue(&json!({
            "type": "user",
            "message": {"role": "user", "content": [block]},
            "parent_tool_use_id": null,
            "session_id": moment.session,
        }))
    }

    fn queue_stream_event(
        &self,
        out: &mut Outbox,
        moment: &EventContext<'_>,
        event: &Value,
    ) -> io::Result<()> {
        if self.is_streamed {
            out.queue(&stream_event(moment, event))?;
        }
        Ok(())
    }

    /// Records a request, which begins with the host's hook.
    fn remember_request(&mut self, number: u64, tool_id: &str, call: &ToolCall) {
        let (tool, input) = native_call(call);
        if self.requests.len() >= MAX_OPEN_REQUESTS {
            self.requests.pop_first();
        }
        let request = HostRequest {
            tool_id: tool_id.to_owned(),
            tool,
            input,
            title: call.title(),
            only_reads: call.required_mode() == "read-only",
            at: Stage::Hook,
        };
        self.requests.insert(number, request);
    }

    /// Queues the request to the host's hook.
    pub(super) fn queue_hook_request(&self, out: &mut Outbox, number: u64) -> io::Result<()> {
        let Some(request) = self.requests.get(&number) else {
            return Ok(());
        };
        out.queue(&json!({
            "type": "control_request",
            "request_id": hook_id(number),
            "request": {
                "subtype": "hook_callback",
                "callback_id": self.hook,
                "input": {
                    "hook_event_name": "PreToolUse",
                    "tool_name": request.tool,
                    "tool_input": request.input,
                    "tool_use_id": request.tool_id,
                },
                "tool_use_id": request.tool_id,
            },
        }))
    }

    /// Queues the permission request to the host.
    pub(super) fn queue_host_request(
        &mut self,
        out: &mut Outbox,
        number: u64,
        reason: &str,
    ) -> io::Result<()> {
        let Some(request) = self.requests.get_mut(&number) else {
            return Ok(());
        };
        request.at = Stage::Host;
        out.queue(&json!({
            "type": "control_request",
            "request_id": request_id(number),
            "request": {
                "subtype": "can_use_tool",
                "tool_name": request.tool,
                "input": request.input,
                "description": request.title,
                "decision_reason": reason,
                "permission_suggestions": [],
                "tool_use_id": request.tool_id,
            },
        }))
    }

    fn withdraw_request(&mut self, out: &mut Outbox, number: u64) -> io::Result<()> {
        let Some(request) = self.requests.get_mut(&number) else {
            return Ok(());
        };
        let id = match request.at {
            Stage::Hook => hook_id(number),
            Stage::Host => request_id(number),
            Stage::Withdrawn => return Ok(()),
        };
        request.at = Stage::Withdrawn;
        out.queue(&json!({"type": "control_cancel_request", "request_id": id}))
    }
}

fn stream_event(moment: &EventContext<'_>, event: &Value) -> Value {
    json!({
        "type": "stream_event",
        "event": event,
        "parent_tool_use_id": null,
        "session_id": moment.session,
    })
}

fn delta_event(index: u64, kind: BlockKind, text: &str) -> Value {
    let mut delta = json!({"type": kind.delta()});
    delta[kind.block()] = json!(text);
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn usage_json(read: u64, written: u64) -> Value {
    json!({
        "input_tokens": read,
        "output_tokens": written,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    })
}

/// Queues the progress of a host's prompt.
pub(super) fn queue_lifecycle(out: &mut Outbox, uuid: &Value, state: &str) -> io::Result<()> {
    out.queue(&json!({"type": "command_lifecycle", "command_uuid": uuid, "state": state}))
}

struct TurnResult<'a> {
    cancelled: bool,
    turns: u64,
    tokens: (u64, u64),
    answer: &'a str,
    /// The id of the turn's prompt.
    prompt: Option<&'a Value>,
    micros: u64,
}

/// The cost of the process's work, in dollars, up to a limit of some thousands.
fn dollars(micros: u64) -> f64 {
    f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1e6
}

fn end_turn(out: &mut Outbox, moment: &EventContext<'_>, end: &TurnResult<'_>) -> io::Result<()> {
    let (read, written) = end.tokens;
    let cost = dollars(end.micros);
    let mut result = json!({
        "type": "result",
        "is_error": end.cancelled,
        "num_turns": end.turns,
        "session_id": moment.session,
        "total_cost_usd": cost,
        "usage": usage_json(read, written),
        "permission_denials": [],
    });
    result["modelUsage"][moment.model] = json!({
        "inputTokens": read,
        "outputTokens": written,
        "costUSD": cost,
        "contextWindow": CONTEXT_WINDOW,
    });
    if end.cancelled {
        result["subtype"] = json!("error_during_execution");
        result["terminal_reason"] = json!("aborted_tools");
        result["stop_reason"] = json!("tool_use");
        result["errors"] = json!(["the turn was interrupted"]);
    } else {
        result["subtype"] = json!("success");
        result["terminal_reason"] = json!("completed");
        result["stop_reason"] = json!("end_turn");
        result["result"] = json!(end.answer);
    }
    out.queue(&result)?;
    if let Some(uuid) = end.prompt {
        let state = if end.cancelled {
            "cancelled"
        } else {
            "completed"
        };
        queue_lifecycle(out, uuid, state)?;
    }
    Ok(())
}
