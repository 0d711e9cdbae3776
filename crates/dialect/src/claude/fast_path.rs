//! Reads pieces of a message that the model is writing in one pass. They are more frequent than all
//! other messages together.
//!
//! Accepts only the shapes in which Claude Code writes pieces of text, of thought and of a call's
//! input, with the members in any order. Any difference, even one member, is left to the full
//! readers (`message`).

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Claude;
use super::message::StreamDelta;
use crate::Effects;
use marshal_model::UntrustedText;
use marshal_wire::json::JsonString;

/// The first bytes of every such line.
const HEAD: &str = r#"{"type":"stream_event","event":{"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(borrow)]
    event: Event<'a>,
    /// Set for a subagent, whose messages the full readers handle.
    #[serde(default, rename = "parent_tool_use_id")]
    _parent: Option<()>,
    #[serde(default, rename = "session_id")]
    _session: Option<IgnoredAny>,
    #[serde(default, rename = "uuid")]
    _uuid: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    tag: JsonString<'a>,
    #[serde(default, rename = "index")]
    _index: Option<IgnoredAny>,
    #[serde(borrow)]
    delta: Delta<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta<'a> {
    #[serde(borrow, rename = "type")]
    tag: JsonString<'a>,
    #[serde(borrow, default)]
    text: Option<JsonString<'a>>,
    #[serde(borrow, default)]
    thinking: Option<JsonString<'a>>,
    #[serde(default, rename = "partial_json")]
    _input: Option<IgnoredAny>,
}

/// Reads a piece; `None` means that the full reader must read the line.
fn read(object: &str) -> Option<StreamDelta> {
    if !object.starts_with(HEAD) {
        return None;
    }
    let line: Line<'_> = serde_json::from_str(object).ok()?;
    let Event { tag, delta, .. } = line.event;
    if tag.0 != "content_block_delta" {
        return None;
    }
    let foreign = |text: JsonString<'_>| UntrustedText::new(text.0.into_owned());
    match (delta.tag.0.as_ref(), delta.text, delta.thinking) {
        ("text_delta", Some(text), None) => Some(StreamDelta::Text(foreign(text))),
        ("thinking_delta", None, Some(text)) => Some(StreamDelta::Thought(foreign(text))),
        ("input_json_delta", None, None) => Some(StreamDelta::Ignored),
        _ => None,
    }
}

impl Claude {
    /// The fast path for a piece; `false` if it is not one, or not a plain one.
    pub(super) fn try_fast_path(&mut self, object: &str, out: &mut Effects) -> bool {
        let Some(streamed) = read(object) else {
            return false;
        };
        self.handle_stream_delta(streamed, object.as_bytes(), out);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        r#""type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\n\"b"}"#;

    #[test]
    fn what_claude_code_writes_is_read_at_once() {
        for more in [
            "",
            r#","parent_tool_use_id":null"#,
            r#","session_id":"s","parent_tool_use_id":null,"uuid":"u""#,
        ] {
            let line = format!("{HEAD}{TEXT}}}{more}}}");
            assert_eq!(
                read(&line),
                Some(StreamDelta::Text("a\n\"b".into())),
                "{line}"
            );
        }
        let sorted = r#""delta":{"thinking":"hm","type":"thinking_delta"},"index":0,"type":"content_block_delta""#;
        let line = format!("{HEAD}{sorted}}}}}");
        assert_eq!(read(&line), Some(StreamDelta::Thought("hm".into())));
        let input = r#""type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}"#;
        let line = format!("{HEAD}{input}}}}}");
        assert_eq!(read(&line), Some(StreamDelta::Ignored));
    }

    #[test]
    fn whatever_differs_is_left_to_the_patient_readers() {
        let other = |from: &str, to: &str| format!("{HEAD}{TEXT}}}}}").replace(from, to);
        for line in [
            other("}}}", r#"}},"parent_tool_use_id":"c-1"}"#),
            other("}}}", r#"}},"type":"x"}"#),
            other("}}}", r#"}},"more":1}"#),
            other("\"index\":0", "\"message\":{}"),
            other("content_block_delta", "content_block_start"),
            other("text_delta", "later_delta"),
            other("\"text\":\"a", "\"thinking\":\"a"),
            other("\"text\":", "\"text\":\"c\",\"text\":"),
            other("{\"type\":\"stream", " {\"type\":\"stream"),
            other("}}}", "}}} x"),
        ] {
            assert!(read(&line).is_none(), "{line}");
        }
    }
}
