//! The protocol of `codex app-server`: the agent's lines, and the handling of its client's lines.
//!
//! Owns the state of the conversation. Source: the schema that the program prints of its own
//! protocol, and recorded conversations with versions 0.166 and 0.169. It is stricter than that
//! program: a message that an agent's client never sends ends it. Must not know verbs.

mod handler;
mod items;
mod messages;
mod output;
mod threads;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::step::ToolCall;

/// The default version claim.
pub(super) const VERSION: &str = "0.169.0";

/// The maximum number of remembered open requests; beyond it, the oldest is forgotten.
const MAX_OPEN_REQUESTS: usize = 4096;

/// The state of the conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// Whether the client sent `initialized`.
    got_initialized: bool,
    /// Methods whose first request was refused as overloaded.
    overloaded_methods: BTreeSet<&'static str>,
    /// Notifications that the client opted out of.
    muted_methods: BTreeSet<String>,
    /// The answer in progress: the id of its item and its text.
    text: Option<(String, String)>,
    items: u64,
    /// The running call, as its item was sent.
    call: Option<Value>,
    /// Open requests. `true`: withdrawn; an answer that still comes had been sent before.
    requests: BTreeMap<u64, bool>,
    /// The tokens of each thread, read and written, since this process opened it.
    tokens: BTreeMap<String, (u64, u64)>,
}

/// The id of the request with this number. Ids count from 0, so they also collide with the client's
/// own ids.
const fn request_id(number: u64) -> u64 {
    number.saturating_sub(1)
}

/// A call as the program makes it: everything but a file change is a command.
pub(super) fn translate_call(call: &ToolCall) -> Cow<'_, ToolCall> {
    let command = match call {
        ToolCall::ReadFile { path } => format!("cat {}", shell_quote(path)),
        ToolCall::ListDir { path } => format!("ls {}", shell_quote(path)),
        ToolCall::GrepSearch { pattern, path } => format!(
            "grep -rnE {} {}",
            shell_quote(pattern),
            shell_quote(path.as_deref().unwrap_or("."))
        ),
        ToolCall::WriteFile { .. } | ToolCall::Bash { .. } => return Cow::Borrowed(call),
    };
    Cow::Owned(ToolCall::Bash { command })
}

/// Quotes a word for a shell.
fn shell_quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-./:@_=%^,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\"'\"'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_no_file_is_a_command() {
        let command = |call: ToolCall| match translate_call(&call).into_owned() {
            ToolCall::Bash { command } => command,
            other => panic!("{other:?}"),
        };
        let path = "a b/it's".to_owned();
        assert_eq!(
            command(ToolCall::ReadFile { path }),
            r#"cat 'a b/it'"'"'s'"#
        );
        let path = "src".to_owned();
        assert_eq!(command(ToolCall::ListDir { path }), "ls src");
        let pattern = "fn [a-z]+".to_owned();
        let path = None;
        assert_eq!(
            command(ToolCall::GrepSearch { pattern, path }),
            "grep -rnE 'fn [a-z]+' ."
        );
        let write = ToolCall::WriteFile {
            path: "a".to_owned(),
            content: String::new(),
        };
        assert_eq!(*translate_call(&write), write);
    }
}
