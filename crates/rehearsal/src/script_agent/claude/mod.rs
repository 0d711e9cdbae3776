//! Claude Code's stream-json, version 2: the agent's lines, and the handling of its host's lines.
//!
//! Owns the command's arguments and the state of the conversation. Source: recorded conversations
//! with the program itself. It is stricter than that program: a message that an agent's host never
//! sends ends it. Must not know verbs.

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
use super::template::{Fields, fields};
pub use flags::ClaudeFlags;
pub(super) use flags::FlagError;
pub(super) use flags::check_new_session_id;
use output::Message;

/// The default version claim.
pub(super) const VERSION: &str = "2.1.330";

/// The permission modes.
pub(super) const MODES: [&str; 6] = [
    "plan",
    "acceptEdits",
    "auto",
    "dontAsk",
    "bypassPermissions",
    "default",
];

/// The maximum number of remembered open requests; beyond it, the oldest is forgotten.
const MAX_OPEN_REQUESTS: usize = 4096;
/// The maximum number of remembered prompt ids.
const MAX_PROMPT_IDS: usize = 4096;

/// The state of the conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// Whether messages are sent in pieces.
    is_streamed: bool,
    /// The claimed version.
    version: Option<Value>,
    /// The host's hook before every tool.
    hook: Option<String>,
    message: Option<Message>,
    messages: u64,
    requests: BTreeMap<u64, HostRequest>,
    /// The ids of accepted prompts.
    prompts: VecDeque<String>,
    /// The cost of the process's work so far, in millionths of a dollar.
    micros: u64,
}

/// An open request.
#[derive(Debug)]
struct HostRequest {
    tool_id: String,
    tool: &'static str,
    input: Value,
    title: String,
    only_reads: bool,
    at: Stage,
}

/// The stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The host's hook was called, or is about to be.
    Hook,
    Host,
    /// The request was withdrawn; an answer that still comes had been sent before.
    Withdrawn,
}

impl Conversation {
    /// The state at the start, from the command's arguments.
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

/// The id of the request with this number, and of its hook request.
fn request_id(number: u64) -> String {
    format!("r-{number}")
}

fn hook_id(number: u64) -> String {
    format!("h-{number}")
}

/// Reports that the session does not exist, as the program does before it ends.
pub(super) fn report_missing_session(out: &mut Outbox, id: &str) -> io::Result<()> {
    let why = format!("No conversation found with session ID: {id}");
    let fields: Fields = fields![session: id, why];
    let message = AgentDialect::Claude
        .templates()
        .fill("no_session", fields, &[])?;
    out.send(&message)
}

/// A call with the program's own names.
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

/// The names of all tools.
const TOOLS: [&str; 5] = ["Read", "Write", "LS", "Grep", "Bash"];
