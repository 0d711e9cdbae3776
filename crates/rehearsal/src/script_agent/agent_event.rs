//! The agent's output as events, independent of the protocol; each protocol's folder formats them.
//!
//! Must not know the format of a line.

use serde_json::Value;

use super::step::ToolCall;
use super::tools::ToolOutcome;

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
    PermissionRequest {
        /// Counted from 1 over the life of the process.
        number: u64,
        tool_id: &'a str,
        call: &'a ToolCall,
    },
    /// The agent no longer waits for the answer.
    RequestWithdrawn {
        number: u64,
    },
    /// The tool was allowed and now runs.
    ToolRunning {
        tool_id: &'a str,
    },
    ToolEnd {
        tool_id: &'a str,
        call: &'a ToolCall,
        end: &'a ToolOutcome,
        took_s: f64,
    },
    /// The use of the context window.
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
        /// The turn's text, limited to the maximum size of a tool's output.
        answer: &'a str,
        /// The request that the turn answers, in a protocol where a prompt is a request.
        reply_to: Option<&'a Value>,
    },
}

/// The state of the agent when an event is sent.
#[derive(Debug)]
pub(super) struct EventContext<'a> {
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

/// A line with one piece of text, split into the parts before and after the text.
#[derive(Debug)]
pub(super) struct TextFrame {
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
}

impl TextFrame {
    /// Splits a line (without its newline) whose text is empty.
    pub(super) fn around(mut line: Vec<u8>) -> Self {
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
