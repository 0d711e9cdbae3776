//! Tracks the streamed part of the model's current message, so that the whole message, which
//! follows, is not reported a second time.
//!
//! Stores lengths and hashes, no text. Must not know messages.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use marshal_model::UntrustedText;

/// How many streamed blocks may wait for the whole message.
const WAITING: usize = 256;

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thought,
}

#[derive(Debug)]
struct Block {
    kind: Kind,
    bytes: usize,
    hash: DefaultHasher,
}

/// The blocks that were streamed and have not arrived whole.
#[derive(Debug, Default)]
pub(super) struct StreamedBlocks {
    message: Option<UntrustedText>,
    blocks: VecDeque<Block>,
    /// Whether the next piece belongs to a new block.
    is_new: bool,
}

impl StreamedBlocks {
    /// A message begins.
    pub(super) fn begin(&mut self, message: Option<UntrustedText>) {
        *self = Self {
            message,
            ..Self::default()
        };
    }

    /// A block of it begins.
    pub(super) const fn block(&mut self) {
        self.is_new = true;
    }

    /// Records a piece that was reported.
    pub(super) fn record_delta(&mut self, kind: Kind, piece: &UntrustedText) {
        let goes_on = self.blocks.back().is_some_and(|last| last.kind == kind);
        if self.is_new || !goes_on {
            self.is_new = false;
            if self.blocks.len() >= WAITING {
                self.blocks.pop_front();
            }
            self.blocks.push_back(Block {
                kind,
                bytes: 0,
                hash: DefaultHasher::new(),
            });
        }
        if let Some(last) = self.blocks.back_mut() {
            last.bytes += piece.len();
            last.hash.write(piece.raw().as_bytes());
        }
    }

    /// The part of a whole block that was not reported.
    pub(super) fn rest(
        &mut self,
        message: Option<&UntrustedText>,
        kind: Kind,
        whole: UntrustedText,
    ) -> UntrustedText {
        if message.is_none() || message != self.message.as_ref() {
            return whole;
        }
        let Some(at) = self.blocks.iter().position(|block| block.kind == kind) else {
            return whole;
        };
        let streamed = &self.blocks[at];
        let Some((begin, rest)) = whole.raw().split_at_checked(streamed.bytes) else {
            return whole;
        };
        let mut hash = DefaultHasher::new();
        hash.write(begin.as_bytes());
        if hash.finish() != streamed.hash.finish() {
            return whole;
        }
        let rest = UntrustedText::from(rest);
        self.blocks.remove(at);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<UntrustedText> {
        (!text.is_empty()).then(|| text.into())
    }

    #[test]
    fn what_was_told_is_not_told_again_and_nothing_is_lost() {
        let mut streamed = StreamedBlocks::default();
        streamed.begin(id("m"));
        streamed.block();
        streamed.record_delta(Kind::Thought, &"hm".into());
        streamed.block();
        streamed.record_delta(Kind::Text, &"one ".into());
        streamed.record_delta(Kind::Text, &"two".into());
        let m = id("m");
        let m = m.as_ref();
        assert_eq!(streamed.rest(m, Kind::Thought, "hm".into()).raw(), "");
        // The end of it was not streamed.
        assert_eq!(
            streamed.rest(m, Kind::Text, "one two three".into()).raw(),
            " three"
        );
        // Another block with the same text that was not streamed.
        assert_eq!(
            streamed.rest(m, Kind::Text, "one two".into()).raw(),
            "one two"
        );
    }

    #[test]
    fn another_message_or_another_text_is_told_whole() {
        let mut streamed = StreamedBlocks::default();
        streamed.begin(id("m"));
        streamed.record_delta(Kind::Text, &"aé".into());
        assert_eq!(
            streamed
                .rest(id("n").as_ref(), Kind::Text, "aé".into())
                .raw(),
            "aé"
        );
        assert_eq!(streamed.rest(None, Kind::Text, "aé".into()).raw(), "aé");
        let m = id("m");
        let m = m.as_ref();
        assert_eq!(streamed.rest(m, Kind::Text, "bé".into()).raw(), "bé");
        assert_eq!(streamed.rest(m, Kind::Text, "a".into()).raw(), "a");
        // The cut would split a character.
        assert_eq!(streamed.rest(m, Kind::Text, "aaé".into()).raw(), "aaé");
        assert_eq!(streamed.rest(m, Kind::Text, "aé".into()).raw(), "");
        streamed.begin(id("m"));
        assert_eq!(streamed.rest(m, Kind::Text, "aé".into()).raw(), "aé");
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut streamed = StreamedBlocks::default();
        streamed.begin(id("m"));
        for _ in 0..10 * WAITING {
            streamed.block();
            streamed.record_delta(Kind::Text, &"x".into());
        }
        assert_eq!(streamed.blocks.len(), WAITING);
    }
}
