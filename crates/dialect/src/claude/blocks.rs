//! The blocks of a message: text, thought, tool calls and their results.
//!
//! Must not know who sends a message, or when.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use marshal_model::UntrustedText;
use marshal_wire::json::JsonString;

/// The maximum number of blocks that are read of one message.
pub(super) const BLOCKS: usize = 1024;

#[derive(Debug, Deserialize)]
pub(super) struct BlockFields<'a> {
    #[serde(borrow, rename = "type")]
    tag: JsonString<'a>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_id: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    is_error: Option<&'a RawValue>,
}

/// A block of a message.
#[derive(Debug)]
pub(super) enum Block<'a> {
    Text(UntrustedText),
    Thinking(UntrustedText),
    /// The model calls a tool.
    Call {
        id: UntrustedText,
        name: UntrustedText,
        input: Option<&'a RawValue>,
    },
    /// A tool's result.
    Result {
        id: UntrustedText,
        output: UntrustedText,
        is_error: bool,
    },
    /// A block of an unknown kind.
    Other(UntrustedText, &'a RawValue),
}

/// Reads a block from its members.
pub(super) fn block<'a>(fields: &BlockFields<'a>, raw: &'a RawValue) -> Block<'a> {
    match fields.tag.0.as_ref() {
        "text" => Block::Text(parse_string(fields.text).unwrap_or_default()),
        "thinking" => Block::Thinking(parse_string(fields.thinking).unwrap_or_default()),
        // Its text is only for the provider.
        "redacted_thinking" => Block::Thinking(UntrustedText::default()),
        "tool_use" | "server_tool_use" | "mcp_tool_use" => Block::Call {
            id: parse_string(fields.id).unwrap_or_default(),
            name: parse_string(fields.name).unwrap_or_default(),
            input: fields.input,
        },
        tag if tag.ends_with("tool_result") => Block::Result {
            id: parse_string(fields.tool_use_id).unwrap_or_default(),
            output: output(fields.content),
            is_error: fields.is_error.map(RawValue::get) == Some("true"),
        },
        other => Block::Other(other.into(), raw),
    }
}

/// A tool's output: a text, or the texts of a list of blocks.
fn output(content: Option<&RawValue>) -> UntrustedText {
    let Some(content) = content else {
        return UntrustedText::default();
    };
    if let Some(text) = parse_string(Some(content)) {
        return text;
    }
    let front: Option<BoundedList<'_, BLOCKS>> = parse(content);
    let mut all = String::new();
    for raw in front.unwrap_or_default().items {
        let fields: Option<BlockFields<'_>> = parse_object(raw);
        let message = match fields.map(|fields| (parse_string(fields.text), fields.tag)) {
            Some((Some(text), _)) => text.into_raw(),
            Some((None, tag)) => format!("[{}]", tag.0),
            None => continue,
        };
        if !all.is_empty() {
            all.push('\n');
        }
        all.push_str(&message);
    }
    UntrustedText::new(all)
}
