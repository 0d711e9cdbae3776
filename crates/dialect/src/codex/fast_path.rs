//! Pieces of an answer, which an agent sends more often than everything else together: read in one
//! pass.
//!
//! Takes only the very shape in which Codex writes them. What differs in any way, even by one member,
//! is left to the readers that know what to make of it (`envelope`, `items`).

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Codex;
use super::items::TextKind;
use crate::Effects;
use marshal_wire::json::JsonString;

/// How every such line begins.
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

/// Reads a piece of text; `Idle` says that the line is to be read with patience.
fn read(object: &str) -> Option<TextDelta<'_>> {
    // A second `method` would be a second member of that name, which no typed reader takes.
    if !object.starts_with(HEAD) {
        return None;
    }
    Some(serde_json::from_str::<Line<'_>>(object).ok()?.params)
}

impl Codex {
    /// The short way of a piece of text. `false`: it is none, or not one of the plain kind.
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
