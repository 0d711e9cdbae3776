//! How the agent's lines look as Claude Code's.
//!
//! A message of its model is told piece by piece, and each block of it whole at the block's end. Must
//! not know what the host says.

use std::io;

use serde_json::{Value, json};

use super::{Asked, OPEN, Stage, TOOLS, Talk, hook_id, named, request_id};
use crate::cli::script_agent::agent::CONTEXT_WINDOW;
use crate::cli::script_agent::pipes::Outbox;
use crate::cli::script_agent::said::{Moment, Said, TextFrame};
use crate::cli::script_agent::step::Call;
use crate::limits::AGENT_OUTPUT_BYTES;

/// What a token costs, read and written, in millionths of a dollar.
const READ_MICROS: u64 = 5;
const WRITTEN_MICROS: u64 = 25;

/// A message of its model that is being told.
#[derive(Debug)]
pub(super) struct Message {
    id: String,
    /// Blocks that ended.
    blocks: u64,
    open: Option<Block>,
}

/// The block that is being told.
#[derive(Debug)]
struct Block {
    kind: Kind,
    text: String,
    /// All that was told of it is in `text`.
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thought,
}

impl Kind {
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

impl Talk {
    /// Puts what is said behind what is queued.
    pub(crate) fn queue(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        said: &Said<'_>,
    ) -> io::Result<()> {
        match said {
            Said::TurnStarted => self.begin_turn(out, moment),
            Said::Text(text) => self.piece(out, moment, Kind::Text, text),
            Said::Thought(text) => {
                self.end_block(out, moment)?;
                self.piece(out, moment, Kind::Thought, text)?;
                self.end_block(out, moment)
            }
            // The protocol has no message for a plan.
            Said::Plan(entries) => {
                let plan = entries.iter().flat_map(|entry| ["- ", entry, "\n"]);
                self.piece(out, moment, Kind::Text, &plan.collect::<String>())
            }
            Said::ToolStart { tool_id, call } => self.call(out, moment, tool_id, call),
            Said::Ask {
                number,
                tool_id,
                call,
            } => {
                self.remember(*number, tool_id, call);
                Ok(())
            }
            Said::Withdrawn { number } => self.withdraw(out, *number),
            // The host knows: it was asked. The context is told with each message.
            Said::ToolRuns { .. } | Said::Context { .. } => Ok(()),
            Said::ToolEnd { tool_id, end, .. } => {
                let result = json!({
                    "type": "tool_result",
                    "tool_use_id": tool_id,
                    "content": end.output,
                    "is_error": end.is_error,
                });
                self.told(out, moment, &result)
            }
            Said::TurnEnd {
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
                    let said = json!({"type": "text", "text": "[Request interrupted by user]"});
                    self.told(out, moment, &said)?;
                }
                self.micros += input_tokens * READ_MICROS + output_tokens * WRITTEN_MICROS;
                let end = End {
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

    /// The line of one piece of text, in a block that is told in pieces alone.
    pub(crate) fn text_frame(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
    ) -> io::Result<TextFrame> {
        self.end_block(out, moment)?;
        let index = self.open(out, moment, Kind::Text)?;
        if let Some(block) = self.message.as_mut().and_then(|of| of.open.as_mut()) {
            block.is_whole = false;
        }
        let event = delta(index, Kind::Text, "");
        let line = serde_json::to_vec(&streamed(moment, &event))?;
        Ok(TextFrame::around(line))
    }

    fn begin_turn(&self, out: &mut Outbox, moment: &Moment<'_>) -> io::Result<()> {
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

    /// A piece of a block.
    fn piece(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        kind: Kind,
        text: &str,
    ) -> io::Result<()> {
        let index = self.open(out, moment, kind)?;
        self.stream(out, moment, &delta(index, kind, text))?;
        let Some(block) = self.message.as_mut().and_then(|of| of.open.as_mut()) else {
            return Ok(());
        };
        block.text.push_str(text);
        if block.text.len() >= AGENT_OUTPUT_BYTES {
            self.end_block(out, moment)?;
        }
        Ok(())
    }

    /// Begins a block of that kind, unless one is open; says which of its message it is.
    fn open(&mut self, out: &mut Outbox, moment: &Moment<'_>, kind: Kind) -> io::Result<u64> {
        let open = self.message.as_ref().and_then(|of| of.open.as_ref());
        if open.is_some_and(|open| open.kind != kind || !open.is_whole) {
            self.end_block(out, moment)?;
        }
        let index = self.begin_message(out, moment)?;
        let message = self.message.as_mut();
        let Some(message) = message.filter(|of| of.open.is_none()) else {
            return Ok(index);
        };
        message.open = Some(Block {
            kind,
            text: String::new(),
            is_whole: true,
        });
        let mut block = json!({"type": kind.block()});
        block[if kind == Kind::Text {
            "text"
        } else {
            "thinking"
        }] = json!("");
        let begins = json!({"type": "content_block_start", "index": index, "content_block": block});
        self.stream(out, moment, &begins)?;
        Ok(index)
    }

    /// Begins a message, unless one is open; says how many blocks it has.
    fn begin_message(&mut self, out: &mut Outbox, moment: &Moment<'_>) -> io::Result<u64> {
        if let Some(message) = &self.message {
            return Ok(message.blocks);
        }
        self.messages += 1;
        let id = format!("msg_{}", self.messages);
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": moment.model,
            "content": [], "stop_reason": null, "usage": usage(moment.context, 0),
        });
        self.message = Some(Message {
            id,
            blocks: 0,
            open: None,
        });
        self.stream(
            out,
            moment,
            &json!({"type": "message_start", "message": message}),
        )?;
        Ok(0)
    }

    fn end_block(&mut self, out: &mut Outbox, moment: &Moment<'_>) -> io::Result<()> {
        let Some(message) = &mut self.message else {
            return Ok(());
        };
        let Some(block) = message.open.take() else {
            return Ok(());
        };
        let mut whole = json!({"type": block.kind.block()});
        whole[block.kind.block()] = json!(block.text);
        if block.kind == Kind::Thought {
            whole["signature"] = json!("none");
        }
        let whole = block.is_whole.then_some(whole);
        self.block_ended(out, moment, whole.as_ref())
    }

    /// Tells the end of a block, and all of it.
    fn block_ended(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        whole: Option<&Value>,
    ) -> io::Result<()> {
        let Some(message) = &mut self.message else {
            return Ok(());
        };
        let index = message.blocks;
        message.blocks += 1;
        let id = message.id.clone();
        self.stream(
            out,
            moment,
            &json!({"type": "content_block_stop", "index": index}),
        )?;
        let Some(whole) = whole else { return Ok(()) };
        out.queue(&json!({
            "type": "assistant",
            "message": {
                "id": id, "type": "message", "role": "assistant", "model": moment.model,
                "content": [whole], "stop_reason": null, "usage": usage(moment.context, 1),
            },
            "parent_tool_use_id": null,
            "session_id": moment.session,
        }))
    }

    fn end_message(&mut self, out: &mut Outbox, moment: &Moment<'_>, why: &str) -> io::Result<()> {
        self.end_block(out, moment)?;
        if self.message.take().is_none() {
            return Ok(());
        }
        let end =
            json!({"type": "message_delta", "delta": {"stop_reason": why}, "usage": usage(0, 1)});
        self.stream(out, moment, &end)?;
        self.stream(out, moment, &json!({"type": "message_stop"}))
    }

    /// The model calls a tool: the last block of its message.
    fn call(
        &mut self,
        out: &mut Outbox,
        moment: &Moment<'_>,
        tool_id: &str,
        call: &Call,
    ) -> io::Result<()> {
        self.end_block(out, moment)?;
        let index = self.begin_message(out, moment)?;
        let (name, input) = named(call);
        let block = |input: &Value| json!({"type": "tool_use", "id": tool_id, "name": name, "input": input});
        let begins = json!({"type": "content_block_start", "index": index, "content_block": block(&json!({}))});
        self.stream(out, moment, &begins)?;
        let delta = json!({"type": "input_json_delta", "partial_json": input.to_string()});
        let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
        self.stream(out, moment, &delta)?;
        self.block_ended(out, moment, Some(&block(&input)))?;
        self.end_message(out, moment, "tool_use")
    }

    /// What the model is told.
    fn told(&mut self, out: &mut Outbox, moment: &Moment<'_>, block: &Value) -> io::Result<()> {
        self.end_message(out, moment, "tool_use")?;
        out.queue(&json!({
            "type": "user",
            "message": {"role": "user", "content": [block]},
            "parent_tool_use_id": null,
            "session_id": moment.session,
        }))
    }

    fn stream(&self, out: &mut Outbox, moment: &Moment<'_>, event: &Value) -> io::Result<()> {
        if self.is_streamed {
            out.queue(&streamed(moment, event))?;
        }
        Ok(())
    }

    /// A request begins, with the host's hook.
    fn remember(&mut self, number: u64, tool_id: &str, call: &Call) {
        let (tool, input) = named(call);
        if self.asked.len() >= OPEN {
            self.asked.pop_first();
        }
        let asked = Asked {
            tool_id: tool_id.to_owned(),
            tool,
            input,
            title: call.title(),
            only_reads: call.required_mode() == "read-only",
            at: Stage::Hook,
        };
        self.asked.insert(number, asked);
    }

    /// Asks the hook about a request.
    pub(super) fn queue_hook(&self, out: &mut Outbox, number: u64) -> io::Result<()> {
        let Some(asked) = self.asked.get(&number) else {
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
                    "tool_name": asked.tool,
                    "tool_input": asked.input,
                    "tool_use_id": asked.tool_id,
                },
                "tool_use_id": asked.tool_id,
            },
        }))
    }

    /// Asks the host itself.
    pub(super) fn queue_host(
        &mut self,
        out: &mut Outbox,
        number: u64,
        reason: &str,
    ) -> io::Result<()> {
        let Some(asked) = self.asked.get_mut(&number) else {
            return Ok(());
        };
        asked.at = Stage::Host;
        out.queue(&json!({
            "type": "control_request",
            "request_id": request_id(number),
            "request": {
                "subtype": "can_use_tool",
                "tool_name": asked.tool,
                "input": asked.input,
                "description": asked.title,
                "decision_reason": reason,
                "permission_suggestions": [],
                "tool_use_id": asked.tool_id,
            },
        }))
    }

    fn withdraw(&mut self, out: &mut Outbox, number: u64) -> io::Result<()> {
        let Some(asked) = self.asked.get_mut(&number) else {
            return Ok(());
        };
        let id = match asked.at {
            Stage::Hook => hook_id(number),
            Stage::Host => request_id(number),
            Stage::Withdrawn => return Ok(()),
        };
        asked.at = Stage::Withdrawn;
        out.queue(&json!({"type": "control_cancel_request", "request_id": id}))
    }
}

fn streamed(moment: &Moment<'_>, event: &Value) -> Value {
    json!({
        "type": "stream_event",
        "event": event,
        "parent_tool_use_id": null,
        "session_id": moment.session,
    })
}

fn delta(index: u64, kind: Kind, text: &str) -> Value {
    let mut delta = json!({"type": kind.delta()});
    delta[kind.block()] = json!(text);
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn usage(read: u64, written: u64) -> Value {
    json!({
        "input_tokens": read,
        "output_tokens": written,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    })
}

/// How far a prompt of the host is.
pub(super) fn queue_lifecycle(out: &mut Outbox, uuid: &Value, state: &str) -> io::Result<()> {
    out.queue(&json!({"type": "command_lifecycle", "command_uuid": uuid, "state": state}))
}

struct End<'a> {
    cancelled: bool,
    turns: u64,
    tokens: (u64, u64),
    answer: &'a str,
    /// The id of its prompt.
    prompt: Option<&'a Value>,
    micros: u64,
}

/// What a process's work cost, in dollars; beyond some thousands it stays there.
fn dollars(micros: u64) -> f64 {
    f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1e6
}

fn end_turn(out: &mut Outbox, moment: &Moment<'_>, end: &End<'_>) -> io::Result<()> {
    let (read, written) = end.tokens;
    let cost = dollars(end.micros);
    let mut result = json!({
        "type": "result",
        "is_error": end.cancelled,
        "num_turns": end.turns,
        "session_id": moment.session,
        "total_cost_usd": cost,
        "usage": usage(read, written),
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
