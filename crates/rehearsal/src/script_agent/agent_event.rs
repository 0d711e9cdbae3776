//! The agent's output as events, independent of the protocol; each protocol's folder formats them.
//!
//! Must not know the format of a line.

use std::io;

use serde_json::Value;
use serde_json::value::RawValue;

use super::agent::CONTEXT_WINDOW;
use super::pipes::Outbox;
use super::step::ToolCall;
use super::template::Fields;
use super::tools::ToolOutcome;
use super::{AgentDialect, claude, codex, scaiflux};

/// One event.
#[derive(Debug)]
pub(super) enum AgentEvent<'a> {
    TurnStarted,
    /// A piece of the answer.
    Text(&'a str),
    Thought(&'a str),
    /// The whole plan; no entry has been done yet.
    Plan(&'a [String]),
    ToolStart {
        tool_id: &'a str,
        call: &'a ToolCall,
    },
    PermissionRequest(CallRequest<'a>),
    /// The agent no longer waits for the answer.
    RequestWithdrawn {
        number: u64,
    },
    /// The tool was allowed and now runs.
    ToolRunning {
        tool_id: &'a str,
    },
    ToolEnd(ToolEnd<'a>),
    /// The use of the context window.
    Context {
        tokens: u64,
        pct: u64,
    },
    TurnEnd(TurnEnd<'a>),
}

/// A permission request.
#[derive(Debug)]
pub(super) struct CallRequest<'a> {
    /// Counted from 1 over the life of the process.
    pub(super) number: u64,
    pub(super) tool_id: &'a str,
    pub(super) call: &'a ToolCall,
}

/// The end of a tool call.
#[derive(Debug)]
pub(super) struct ToolEnd<'a> {
    pub(super) tool_id: &'a str,
    pub(super) call: &'a ToolCall,
    pub(super) outcome: &'a ToolOutcome,
    pub(super) took_s: f64,
}

/// The end of a turn.
#[derive(Debug)]
pub(super) struct TurnEnd<'a> {
    pub(super) cancelled: bool,
    pub(super) iterations: u64,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) mutations: &'a [(&'static str, String)],
    /// The turn's text, limited to the maximum size of a tool's output.
    pub(super) answer: &'a str,
    /// The request that the turn answers, in a protocol where a prompt is a request.
    pub(super) reply_to: Option<&'a Value>,
}

/// The output, and the state of the agent that its messages contain.
#[derive(Debug)]
pub(super) struct Output<'a> {
    pub(super) out: &'a mut Outbox,
    pub(super) dialect: AgentDialect,
    pub(super) claude: &'a mut claude::Conversation,
    pub(super) codex: &'a mut codex::Conversation,
    pub(super) session: &'a str,
    /// Empty between turns.
    pub(super) turn: &'a str,
    /// The request that the turn answers, until the turn ends.
    pub(super) reply_to: Option<&'a Value>,
    pub(super) mode: &'a str,
    pub(super) model: &'a str,
    /// Tokens in the context.
    pub(super) context: u64,
    /// Permission requests contain only the id of their tool call, where the protocol permits that.
    pub(super) bare_requests: bool,
}

impl Output<'_> {
    /// Queues the lines of an event behind what is queued.
    pub(super) fn queue_event(&mut self, event: &AgentEvent<'_>) -> io::Result<()> {
        match self.dialect {
            AgentDialect::Scaiflux => self.queue_scaiflux_event(event),
            AgentDialect::Acp => self.queue_acp_event(event),
            AgentDialect::Loaf => self.queue_loaf_event(event),
            AgentDialect::Claude => self.queue_claude_event(event),
            AgentDialect::Codex => self.queue_codex_event(event),
        }
    }

    /// The frame of a line with one piece of text. A line that marks the begin of a text is queued.
    pub(super) fn text_frame(&mut self) -> io::Result<TextFrame> {
        match self.dialect {
            AgentDialect::Scaiflux => scaiflux::text_frame(self.turn),
            AgentDialect::Acp => self.acp_text_frame(),
            AgentDialect::Loaf => self.loaf_text_frame(),
            AgentDialect::Claude => self.claude_text_frame(),
            AgentDialect::Codex => self.codex_text_frame(),
        }
    }

    /// Fills a template of the protocol.
    pub(super) fn fill(&self, name: &str, fields: Fields<'_>) -> io::Result<Box<RawValue>> {
        let context: Fields = &[
            ("session", &self.session),
            ("turn", &self.turn),
            ("mode", &self.mode),
            ("model", &self.model),
            ("context", &self.context),
            ("window", &CONTEXT_WINDOW),
        ];
        self.dialect.templates().fill(name, fields, context)
    }

    /// Queues a message of the protocol.
    pub(super) fn queue(&mut self, name: &str, fields: Fields<'_>) -> io::Result<()> {
        let message = self.fill(name, fields)?;
        self.out.queue(&message)
    }
}

/// A plan as a text, for protocols without a message for it.
pub(super) fn plan_text(entries: &[String]) -> String {
    let parts = entries.iter().flat_map(|entry| ["- ", entry, "\n"]);
    parts.collect()
}

/// A line with one piece of text, split into the parts before and after the text.
#[derive(Debug)]
pub(super) struct TextFrame {
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
}

impl TextFrame {
    /// Splits a line (without its newline) whose text is empty.
    pub(super) fn around(line: &RawValue) -> Self {
        let mut line = line.get().as_bytes().to_vec();
        // In every protocol here, the text is the last value that is an empty string.
        let quotes = line.windows(2).rposition(|pair| pair == b"\"\"");
        let mut tail = line.split_off(quotes.map_or(line.len(), |at| at + 1));
        tail.push(b'\n');
        Self { head: line, tail }
    }

    /// The length of a line with an empty text, newline included.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }
}
