//! The protocol of `codex app-server`: how the agent's lines look, and what it does about its
//! client's.
//!
//! Owns what is kept of the conversation. Source: the schema that the program writes of its own
//! protocol, and conversations with versions 0.166 and 0.169. Strict where that is lenient: a message
//! that the client of an agent does not send ends it. Must not know verbs.

mod handler;
mod items;
mod messages;
mod output;
mod threads;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::step::ToolCall;

/// The version that it claims by itself.
pub(super) const VERSION: &str = "0.169.0";

/// Lines that are no messages of the protocol, one of each kind.
pub(super) const GARBAGE: [&[u8]; 5] = [
    b"this is not JSON\n",
    b"\xff\xfe\x80 this is not UTF-8\n",
    b"{\"method\":\"item/agentMess\n",
    b"[1,2,3]\n",
    b"{\"method\":\"no/such_message\",\"params\":{}}\n",
];

/// Requests that are remembered until they are answered; beyond, the oldest is forgotten.
const MAX_OPEN_REQUESTS: usize = 4096;

/// What is kept of the conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// `initialized` came.
    got_initialized: bool,
    /// Methods for which there was no room the first time.
    overloaded_methods: BTreeSet<&'static str>,
    /// Notifications that the client does not want.
    muted_methods: BTreeSet<String>,
    /// The text of the answer that is being told, with its item's id.
    text: Option<(String, String)>,
    items: u64,
    /// The call that runs, as it was told.
    call: Option<Value>,
    /// Requests that are open; `true`: withdrawn, and an answer that comes all the same crossed with
    /// that.
    requests: BTreeMap<u64, bool>,
    /// Tokens of each thread, read and written, since it was opened here.
    tokens: BTreeMap<String, (u64, u64)>,
}

/// The id of the `number`th request: from 0, so that the client's own ids come again.
const fn request_id(number: u64) -> u64 {
    number.saturating_sub(1)
}

/// A call as the program does it: whatever is no change of a file is a command.
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

/// A word as a shell reads it.
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
