//! Reads pieces of an answer in one pass. An agent sends them more often than all other messages
//! together.
//!
//! Accepts only the exact shape that Codex writes. Any difference, even one member, is left to the
//! full readers (`jsonrpc`, `items`).

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Codex;
use super::items::TextKind;
use crate::Effects;
use marshal_wire::json::JsonString;

/// The first bytes of every such line.
const HEAD: &str = r#"{"method":"item/agentMessage/delta","params":"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(rename = "method")]
    _method: IgnoredAny,
    #[serde(borrow)]
    params: TextDelta<'a>,
    #[serde(default, rename = "emittedAtMs")]
    _emitted: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TextDelta<'a> {
    #[serde(borrow)]
    thread_id: JsonString<'a>,
    #[serde(borrow)]
    turn_id: JsonString<'a>,
    #[serde(borrow)]
    item_id: JsonString<'a>,
    #[serde(borrow)]
    delta: JsonString<'a>,
}

/// Reads a piece of text; `None` means that the full reader must read the line.
fn read(object: &str) -> Option<TextDelta<'_>> {
    // A second `method` would be a duplicate member, which no typed reader accepts.
    if !object.starts_with(HEAD) {
        return None;
    }
    Some(serde_json::from_str::<Line<'_>>(object).ok()?.params)
}

impl Codex {
    /// The fast path for a piece of text; `false` if it is not one, or not a plain one.
    pub(super) fn try_fast_path(&mut self, object: &str, out: &mut Effects) -> bool {
        let Some(piece) = read(object) else {
            return false;
        };
        let at = [&*piece.thread_id.0, &*piece.turn_id.0, &*piece.item_id.0];
        self.handle_text(
            at,
            TextKind::Answer,
            piece.delta.0.into_owned(),
            object,
            out,
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: &str = r#""threadId":"t","turnId":"u","itemId":"m","delta":"a\n\"b""#;

    #[test]
    fn what_codex_writes_is_read_at_once() {
        for more in ["", r#","emittedAtMs":1"#] {
            let line = format!("{HEAD}{{{PIECE}}}{more}}}");
            let piece = read(&line).unwrap();
            assert_eq!((&*piece.thread_id.0, &*piece.turn_id.0), ("t", "u"));
            assert_eq!((&*piece.item_id.0, &*piece.delta.0), ("m", "a\n\"b"));
        }
    }

    #[test]
    fn whatever_differs_is_left_to_the_patient_readers() {
        for other in [
            format!("{HEAD}{{{PIECE}}},\"id\":1}}"),
            format!("{HEAD}{{{PIECE}}},\"method\":\"x\"}}"),
            format!("{HEAD}{{{PIECE},\"more\":1}}}}"),
            format!("{HEAD}{{{PIECE},\"delta\":\"c\"}}}}"),
            format!("{HEAD}{{\"threadId\":\"t\"}}}}"),
            format!(" {HEAD}{{{PIECE}}}}}"),
            format!("{HEAD}{{{PIECE}}}}} x"),
        ] {
            assert!(read(&other).is_none(), "{other}");
        }
    }
}
