//! The model's answer, independent of a provider's form.
//!
//! Owns the token counts and the ids, which are the same for the same conversation. Must not know
//! any provider.

use serde_json::Value;

use super::tools::{Input, ToolCall};

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reply {
    /// The requested model.
    pub(super) model: String,
    /// Derived from the conversation: the same conversation gives the same id.
    pub(super) id: String,
    /// The text.
    pub(super) text: String,
    /// The tool call at its end.
    pub(super) call: Option<ToolCall>,
    /// The number of input tokens.
    pub(super) input_tokens: usize,
    /// The number of output tokens.
    pub(super) output_tokens: usize,
}

/// Bytes that count as one token.
const BYTES_PER_TOKEN: usize = 4;

/// The maximum size of one piece of a stream, in bytes.
const PIECE: usize = 4096;

/// The number of tokens of this many bytes: at least one.
pub(super) const fn tokens(bytes: usize) -> usize {
    bytes / BYTES_PER_TOKEN + 1
}

impl Reply {
    /// The text in pieces of at most 4 KiB, split between characters.
    pub(super) fn pieces(&self) -> Vec<&str> {
        let mut pieces = Vec::new();
        let mut rest = self.text.as_str();
        while !rest.is_empty() {
            let mut end = rest.len().min(PIECE);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            let (piece, left) = rest.split_at(end);
            pieces.push(piece);
            rest = left;
        }
        pieces
    }

    /// The id of its tool call.
    pub(super) fn call_id(&self) -> String {
        format!("call_{}", self.id)
    }

    /// Its input and output tokens.
    pub(super) const fn total_tokens(&self) -> usize {
        self.input_tokens + self.output_tokens
    }
}

impl ToolCall {
    /// The arguments as JSON text.
    pub(super) fn arguments(&self) -> String {
        self.object().to_string()
    }

    /// The arguments as an object.
    pub(super) fn object(&self) -> Value {
        match &self.input {
            Input::Arguments(arguments) => arguments.clone(),
            Input::Text(text) => serde_json::json!({ "input": text }),
            Input::LocalShell(argv) => serde_json::json!({ "command": argv }),
        }
    }
}

/// One line of a server-sent event stream without a name.
pub(super) fn data_event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A named server-sent event; its name is its `type`.
pub(super) fn named_event(value: &Value) -> String {
    let name = value.get("type").and_then(Value::as_str).unwrap_or("event");
    format!("event: {name}\ndata: {value}\n\n")
}
