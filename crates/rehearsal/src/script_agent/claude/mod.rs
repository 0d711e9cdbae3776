//! Claude Code's stream-json, version 2: how the agent's lines look, and what it does about its
//! host's.
//!
//! Owns the words of its command and what is kept of the conversation. Source: conversations with the
//! program itself. Strict where that is lenient: a message that the host of an agent does not send
//! ends it. Must not know verbs.

mod flags;
mod handler;
mod messages;
mod output;

use std::collections::{BTreeMap, VecDeque};
use std::io;

use serde_json::{Value, json};

use super::AgentDialect;
use super::pipes::Outbox;
use super::step::ToolCall;
pub use flags::ClaudeFlags;
pub(super) use flags::FlagError;
pub(super) use flags::check_new_session_id;
use output::Message;

/// The version that it claims by itself.
pub(super) const VERSION: &str = "2.1.330";

/// The permission modes that there are.
pub(super) const MODES: [&str; 6] = [
    "plan",
    "acceptEdits",
    "auto",
    "dontAsk",
    "bypassPermissions",
    "default",
];

/// Lines that are no messages of the protocol, one of each kind.
pub(super) const GARBAGE: [&[u8]; 5] = [
    b"this is not JSON\n",
    b"\xff\xfe\x80 this is not UTF-8\n",
    b"{\"type\":\"stream_event\",\"event\n",
    b"[1,2,3]\n",
    b"{\"type\":\"no_such_message\",\"session_id\":\"s-0\"}\n",
];

/// Requests that are remembered until they are answered; beyond, the oldest is forgotten.
const MAX_OPEN_REQUESTS: usize = 4096;
/// Ids of prompts that are remembered.
const MAX_PROMPT_IDS: usize = 4096;

/// What is kept of the conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// Messages are told piece by piece.
    is_streamed: bool,
    /// The version that it said it is of.
    version: Option<Value>,
    /// The host's hook that is asked before every tool.
    hook: Option<String>,
    message: Option<Message>,
    messages: u64,
    requests: BTreeMap<u64, HostRequest>,
    /// Ids of prompts that came.
    prompts: VecDeque<String>,
    /// What the process's work cost so far, in millionths of a dollar.
    micros: u64,
}

/// A request that is open.
#[derive(Debug)]
struct HostRequest {
    tool_id: String,
    tool: &'static str,
    input: Value,
    title: String,
    only_reads: bool,
    at: Stage,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The host's hook was asked, or is about to be.
    Hook,
    Host,
    /// It wants no answer any more: one that comes all the same crossed with that.
    Withdrawn,
}

impl Conversation {
    /// What the command said.
    pub(super) fn new(
        dialect: AgentDialect,
        words: &ClaudeFlags,
        is_verbose: bool,
    ) -> Result<Self, FlagError> {
        if dialect == AgentDialect::Claude {
            words.check(is_verbose)?;
        } else {
            words.require_unset()?;
        }
        Ok(Self {
            is_streamed: words.include_partial_messages,
            ..Self::default()
        })
    }
}

/// The id of the `number`th request, and of the question to the hook before it.
fn request_id(number: u64) -> String {
    format!("r-{number}")
}

fn hook_id(number: u64) -> String {
    format!("h-{number}")
}

/// Says that there is no such session, as the program does before it ends.
pub(super) fn report_missing_session(out: &mut Outbox, id: &str) -> io::Result<()> {
    out.send(&json!({
        "type": "result",
        "subtype": "error_during_execution",
        "is_error": true,
        "num_turns": 0,
        "session_id": id,
        "total_cost_usd": 0,
        "errors": [format!("No conversation found with session ID: {id}")],
    }))
}

/// A call as the program names it.
fn native_call(call: &ToolCall) -> (&'static str, Value) {
    match call {
        ToolCall::ReadFile { path } => ("Read", json!({"file_path": path})),
        ToolCall::WriteFile { path, content } => {
            ("Write", json!({"file_path": path, "content": content}))
        }
        ToolCall::ListDir { path } => ("LS", json!({"path": path})),
        ToolCall::GrepSearch { pattern, path } => {
            let mut input = json!({"pattern": pattern});
            if let Some(path) = path {
                input["path"] = json!(path);
            }
            ("Grep", input)
        }
        ToolCall::Bash { command } => ("Bash", json!({"command": command})),
    }
}

/// Every tool's name.
const TOOLS: [&str; 5] = ["Read", "Write", "LS", "Grep", "Bash"];
