//! What the agent says, whatever its protocol: each protocol's folder makes its own lines of it.
//!
//! Must not know how a line looks.

use serde_json::Value;

use super::step::ToolCall;
use super::tools::ToolOutcome;

/// One thing to say.
#[derive(Debug)]
pub(super) enum AgentEvent<'a> {
    TurnStarted,
    /// A piece of the answer.
    Text(&'a str),
    Thought(&'a str),
    /// The whole plan, each entry still to be done.
    Plan(&'a [String]),
    ToolStart {
        tool_id: &'a str,
        call: &'a ToolCall,
    },
    PermissionRequest {
        /// Counted from 1 over the life of the process.
        number: u64,
        tool_id: &'a str,
        call: &'a ToolCall,
    },
    /// The request wants no answer any more.
    RequestWithdrawn {
        number: u64,
    },
    /// The tool was allowed and runs now.
    ToolRunning {
        tool_id: &'a str,
    },
    ToolEnd {
        tool_id: &'a str,
        call: &'a ToolCall,
        end: &'a ToolOutcome,
        took_s: f64,
    },
    /// How full the context is.
    Context {
        tokens: u64,
        pct: u64,
    },
    TurnEnd {
        cancelled: bool,
        iterations: u64,
        input_tokens: u64,
        output_tokens: u64,
        mutations: &'a [(&'static str, String)],
        /// What was said, cut where a tool's output would be.
        answer: &'a str,
        /// The request that the turn answers, in a protocol where a prompt is one.
        reply_to: Option<&'a Value>,
    },
}

/// What is true while something is said.
#[derive(Debug)]
pub(super) struct EventContext<'a> {
    pub(super) session: &'a str,
    /// Empty between turns.
    pub(super) turn: &'a str,
    /// What the turn answers, until its end.
    pub(super) reply_to: Option<&'a Value>,
    pub(super) mode: &'a str,
    pub(super) model: &'a str,
    /// Tokens in the context.
    pub(super) context: u64,
    /// Requests carry nothing but the id of their tool call, where the protocol lets them.
    pub(super) bare_requests: bool,
}

/// The line of one piece of text, before and after the text.
#[derive(Debug)]
pub(super) struct TextFrame {
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
}

impl TextFrame {
    /// Cuts a line, without its newline, whose text is empty.
    pub(super) fn around(mut line: Vec<u8>) -> Self {
        // The text is the last value that is an empty string, in every protocol here.
        let quotes = line.windows(2).rposition(|pair| pair == b"\"\"");
        let mut tail = line.split_off(quotes.map_or(line.len(), |at| at + 1));
        tail.push(b'\n');
        Self { head: line, tail }
    }

    /// Bytes of a line whose text is empty, newline included.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }
}
