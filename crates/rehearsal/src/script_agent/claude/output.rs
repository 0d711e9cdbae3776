//! The agent's lines in the format of Claude Code.
//!
//! A message of its model is sent in pieces, and each of its blocks is sent whole at the block's
//! end. Must not know the host's messages.

use std::io;

use serde_json::json;
use serde_json::value::RawValue;

use super::{HostRequest, MAX_OPEN_REQUESTS, Stage, TOOLS, hook_id, native_call, request_id};
use crate::script_agent::agent_event::{
    AgentEvent, CallRequest, Output, TextFrame, TurnEnd, plan_text,
};
use crate::script_agent::step::ToolCall;
use crate::script_agent::template::{Fields, fields};
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

/// The kind of a block, by its template.
type BlockKind = &'static str;
const TEXT: BlockKind = "text";
const THOUGHT: BlockKind = "thinking";

impl Output<'_> {
    /// Queues the lines of an event behind what is queued.
    pub(crate) fn queue_claude_event(&mut self, event: &AgentEvent<'_>) -> io::Result<()> {
        match event {
            AgentEvent::TurnStarted => self.begin_claude_turn(),
            AgentEvent::Text(text) => self.queue_piece(TEXT, text),
            AgentEvent::Thought(text) => {
                self.end_block()?;
                self.queue_piece(THOUGHT, text)?;
                self.end_block()
            }
            // The protocol has no message for a plan.
            AgentEvent::Plan(entries) => self.queue_piece(TEXT, &plan_text(entries)),
            AgentEvent::ToolStart { tool_id, call } => self.queue_tool_use(tool_id, call),
            AgentEvent::PermissionRequest(request) => {
                self.remember_request(request);
                Ok(())
            }
            AgentEvent::RequestWithdrawn { number } => self.withdraw_host_request(*number),
            // The host knows, because it answered. Every message reports the context.
            AgentEvent::ToolRunning { .. } | AgentEvent::Context { .. } => Ok(()),
            AgentEvent::ToolEnd(end) => {
                let (output, is_error) = (&end.outcome.output, &end.outcome.is_error);
                self.queue_user_message(
                    "tool_result",
                    fields![tool_id: end.tool_id, output, is_error],
                )
            }
            AgentEvent::TurnEnd(end) => self.end_claude_turn(end),
        }
    }

    /// The frame of a line with one piece of text, in a block that is sent only in pieces.
    pub(crate) fn claude_text_frame(&mut self) -> io::Result<TextFrame> {
        self.end_block()?;
        let index = self.open_block(TEXT)?;
        if let Some(block) = self.open_claude_block() {
            block.is_whole = false;
        }
        let delta = self.fill("text_delta", fields![text: ""])?;
        let event = self.fill("block_delta", fields![index, delta])?;
        let line = self.fill("stream_event", fields![event])?;
        Ok(TextFrame::around(&line))
    }

    fn open_claude_block(&mut self) -> Option<&mut Block> {
        self.claude.message.as_mut()?.open.as_mut()
    }

    fn begin_claude_turn(&mut self) -> io::Result<()> {
        self.queue_lifecycle(self.reply_to, "started")?;
        let cwd = std::env::current_dir().unwrap_or_default();
        let version = self.claude.version.clone();
        let name = version.as_ref().map_or("init_without_version", |_| "init");
        self.queue(name, fields![version, cwd, tools: TOOLS])?;
        self.queue("status", &[])
    }

    /// Queues the progress of a host's prompt, if it has an id.
    pub(super) fn queue_lifecycle(
        &mut self,
        uuid: Option<&impl serde::Serialize>,
        state: &str,
    ) -> io::Result<()> {
        uuid.map_or(Ok(()), |uuid| self.queue("lifecycle", fields![uuid, state]))
    }

    fn usage(&self, read: u64, written: u64) -> io::Result<Box<RawValue>> {
        self.fill("usage", fields![read, written])
    }

    /// Queues a piece of a block.
    fn queue_piece(&mut self, kind: BlockKind, text: &str) -> io::Result<()> {
        let index = self.open_block(kind)?;
        let delta = self.fill(&format!("{kind}_delta"), fields![text])?;
        self.queue_stream_event("block_delta", fields![index, delta])?;
        let Some(block) = self.open_claude_block() else {
            return Ok(());
        };
        block.text.push_str(text);
        if block.text.len() >= AGENT_OUTPUT_BYTES {
            self.end_block()?;
        }
        Ok(())
    }

    /// Begins a block of that kind, unless one is open. Returns its index in the message.
    fn open_block(&mut self, kind: BlockKind) -> io::Result<u64> {
        let open = self.open_claude_block();
        if open.is_some_and(|open| open.kind != kind || !open.is_whole) {
            self.end_block()?;
        }
        let index = self.begin_message()?;
        let message = self.claude.message.as_mut();
        let Some(message) = message.filter(|item| item.open.is_none()) else {
            return Ok(index);
        };
        message.open = Some(Block {
            kind,
            text: String::new(),
            is_whole: true,
        });
        let name = if kind == TEXT { TEXT } else { "thinking_start" };
        let block = self.fill(name, fields![text: ""])?;
        self.queue_stream_event("block_start", fields![index, block])?;
        Ok(index)
    }

    /// Begins a message, unless one is open. Returns its number of blocks.
    fn begin_message(&mut self) -> io::Result<u64> {
        if let Some(message) = &self.claude.message {
            return Ok(message.blocks);
        }
        self.claude.messages += 1;
        let id = format!("msg_{}", self.claude.messages);
        let usage = self.usage(self.context, 0)?;
        self.queue_stream_event("message_start", fields![id, usage])?;
        self.claude.message = Some(Message {
            id,
            blocks: 0,
            open: None,
        });
        Ok(0)
    }

    fn end_block(&mut self) -> io::Result<()> {
        let message = self.claude.message.as_mut();
        let Some(block) = message.and_then(|message| message.open.take()) else {
            return Ok(());
        };
        let whole = self.fill(block.kind, fields![text: block.text])?;
        self.finish_block(block.is_whole.then_some(&whole))
    }

    /// Ends a block, and sends it whole.
    fn finish_block(&mut self, whole: Option<&RawValue>) -> io::Result<()> {
        let Some(message) = &mut self.claude.message else {
            return Ok(());
        };
        let (id, index) = (message.id.clone(), message.blocks);
        message.blocks += 1;
        self.queue_stream_event("block_stop", fields![index])?;
        let Some(whole) = whole else { return Ok(()) };
        let usage = self.usage(self.context, 1)?;
        self.queue("assistant", fields![block: whole, id, usage])
    }

    fn end_message(&mut self, reason: &str) -> io::Result<()> {
        self.end_block()?;
        if self.claude.message.take().is_none() {
            return Ok(());
        }
        let usage = self.usage(0, 1)?;
        self.queue_stream_event("message_delta", fields![reason, usage])?;
        self.queue_stream_event("message_stop", &[])
    }

    /// A tool call of the model: the last block of its message.
    fn queue_tool_use(&mut self, tool_id: &str, call: &ToolCall) -> io::Result<()> {
        self.end_block()?;
        let index = self.begin_message()?;
        let (tool, input) = native_call(call);
        let fields: Fields = fields![tool_id, tool, input: json!({})];
        let block = self.fill("tool_use", fields)?;
        self.queue_stream_event("block_start", fields![index, block])?;
        let delta = self.fill("input_delta", fields![text: input.to_string()])?;
        self.queue_stream_event("block_delta", fields![index, delta])?;
        let fields: Fields = fields![tool_id, tool, input];
        let block = self.fill("tool_use", fields)?;
        self.finish_block(Some(&block))?;
        self.end_message("tool_use")
    }

    /// Queues a block of a user's message: the result of a call, as the model receives it.
    fn queue_user_message(&mut self, name: &str, fields: Fields<'_>) -> io::Result<()> {
        self.end_message("tool_use")?;
        let block = self.fill(name, fields)?;
        self.queue("user", fields![block])
    }

    fn queue_stream_event(&mut self, name: &str, fields: Fields<'_>) -> io::Result<()> {
        if !self.claude.is_streamed {
            return Ok(());
        }
        let event = self.fill(name, fields)?;
        self.queue("stream_event", fields![event])
    }

    /// Records a request, which begins with the host's hook.
    fn remember_request(&mut self, request: &CallRequest<'_>) {
        let (number, call) = (request.number, request.call);
        let (tool, input) = native_call(call);
        if self.claude.requests.len() >= MAX_OPEN_REQUESTS {
            self.claude.requests.pop_first();
        }
        let request = HostRequest {
            tool_id: request.tool_id.to_owned(),
            tool,
            input,
            title: call.title(),
            only_reads: call.required_mode() == "read-only",
            at: Stage::Hook,
        };
        self.claude.requests.insert(number, request);
    }

    /// Queues a request to the host, or to its hook.
    pub(super) fn queue_host_request(
        &mut self,
        number: u64,
        stage: Stage,
        reason: &str,
    ) -> io::Result<()> {
        let Some(request) = self.claude.requests.get_mut(&number) else {
            return Ok(());
        };
        request.at = stage;
        let (name, id) = match stage {
            Stage::Hook => ("hook", hook_id(number)),
            Stage::Host | Stage::Withdrawn => ("can_use_tool", request_id(number)),
        };
        let request = &self.claude.requests[&number];
        let request = self.fill(
            name,
            fields![
                hook: self.claude.hook, input: request.input, reason, title: request.title,
                tool: request.tool, tool_id: request.tool_id,
            ],
        )?;
        self.queue("request", fields![id, request])
    }

    fn withdraw_host_request(&mut self, number: u64) -> io::Result<()> {
        let Some(request) = self.claude.requests.get_mut(&number) else {
            return Ok(());
        };
        let id = match request.at {
            Stage::Hook => hook_id(number),
            Stage::Host => request_id(number),
            Stage::Withdrawn => return Ok(()),
        };
        request.at = Stage::Withdrawn;
        self.queue("cancel_request", fields![id])
    }

    fn end_claude_turn(&mut self, end: &TurnEnd<'_>) -> io::Result<()> {
        self.end_message("end_turn")?;
        if end.cancelled {
            self.queue_user_message(TEXT, fields![text: "[Request interrupted by user]"])?;
        }
        let (read, written) = (end.input_tokens, end.output_tokens);
        self.claude.micros += read * READ_MICROS + written * WRITTEN_MICROS;
        let cost = dollars(self.claude.micros);
        let models = self.fill("model_usage", fields![cost, read, written])?;
        let models = std::collections::BTreeMap::from([(self.model, models)]);
        let usage = self.usage(read, written)?;
        let state = ["completed", "cancelled"][usize::from(end.cancelled)];
        self.queue(
            state,
            fields![models, turns: end.iterations, answer: end.answer, cost, usage],
        )?;
        self.queue_lifecycle(end.reply_to, state)
    }
}

/// The cost of the process's work, in dollars, up to a limit of some thousands.
fn dollars(micros: u64) -> f64 {
    f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1e6
}
