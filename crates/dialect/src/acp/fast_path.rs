//! Reads pieces of text in one pass. An agent sends them more often than all other messages
//! together.
//!
//! Accepts only the exact shape that the protocol's libraries write. Any difference, even one
//! member, is left to the full readers (`jsonrpc`, `updates`).

use serde::Deserialize;
use serde::de::IgnoredAny;

use marshal_wire::json::JsonString;

/// The first bytes of every such line.
const HEAD: &str = r#"{"jsonrpc":"2.0","method":"session/update","#;

/// A piece of an answer or of its reasoning.
#[derive(Debug)]
pub(super) struct TextChunk<'a> {
    pub(super) session: JsonString<'a>,
    /// `agent_message_chunk` or `agent_thought_chunk`.
    pub(super) tag: JsonString<'a>,
    pub(super) text: JsonString<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(rename = "jsonrpc")]
    _jsonrpc: IgnoredAny,
    #[serde(rename = "method")]
    _method: IgnoredAny,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params<'a> {
    #[serde(borrow)]
    session_id: JsonString<'a>,
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Update<'a> {
    #[serde(borrow, rename = "sessionUpdate")]
    tag: JsonString<'a>,
    #[serde(borrow)]
    content: Content<'a>,
    #[serde(default, rename = "messageId")]
    _message_id: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content<'a> {
    #[serde(rename = "type", borrow)]
    kind: JsonString<'a>,
    #[serde(borrow)]
    text: JsonString<'a>,
}

/// Reads a piece of text; `None` means that the full reader must read the line.
pub(super) fn read(object: &str) -> Option<TextChunk<'_>> {
    // A second `method` would be a duplicate member, which no typed reader accepts.
    if !object.starts_with(HEAD) {
        return None;
    }
    let Params { session_id, update } = serde_json::from_str::<Line<'_>>(object).ok()?.params;
    let is_piece = matches!(
        &*update.tag.0,
        "agent_message_chunk" | "agent_thought_chunk"
    );
    (is_piece && update.content.kind.0 == "text").then_some(TextChunk {
        session: session_id,
        tag: update.tag,
        text: update.content.text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(params: &str, more: &str) -> String {
        format!(r#"{HEAD}"params":{{{params}}}{more}}}"#)
    }

    #[test]
    fn what_the_libraries_write_is_read_at_once() {
        let update =
            r#""sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\n\"b"}"#;
        for update in [update.to_owned(), format!(r#"{update},"messageId":"m""#)] {
            let line = line(&format!(r#""sessionId":"s-1","update":{{{update}}}"#), "");
            let piece = read(&line).unwrap();
            assert_eq!(piece.session.0, "s-1");
            assert_eq!(piece.tag.0, "agent_message_chunk");
            assert_eq!(piece.text.0, "a\n\"b");
        }
    }

    #[test]
    fn whatever_differs_is_left_to_the_patient_readers() {
        let text = r#""content":{"type":"text","text":"x"}"#;
        let params = |update: &str| format!(r#""sessionId":"s","update":{{{update}}}"#);
        let chunk = format!(r#""sessionUpdate":"agent_message_chunk",{text}"#);
        assert!(read(&line(&params(&chunk), "")).is_some());
        for other in [
            line(&params(&chunk), r#","id":1"#),
            line(&params(&chunk), r#","method":"session/cancel""#),
            line(&params(&chunk), r#","params":{}"#),
            line(&params(&format!(r#"{chunk},"_meta":{{}}"#)), ""),
            line(&params(&format!("{chunk},{text}")), ""),
            line(&params(&format!(r#""sessionUpdate":"plan",{text}"#)), ""),
            line(&format!(r#""update":{{{chunk}}}"#), ""),
            line(&params(&chunk.replace("\"text\",", "\"image\",")), ""),
            line(&params(&chunk.replace("\"x\"", "null")), ""),
            format!("{} x", line(&params(&chunk), "")),
            format!(" {}", line(&params(&chunk), "")),
        ] {
            assert!(read(&other).is_none(), "{other}");
        }
    }
}
