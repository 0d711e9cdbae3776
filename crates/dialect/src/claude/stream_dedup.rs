//! What was streamed of the model's current message, so that the whole message, which follows, does
//! not tell it a second time.
//!
//! Keeps lengths and hashes, no text. Must not know messages.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use marshal_model::UntrustedText;

/// How many streamed blocks may wait for their whole.
const WAITING: usize = 256;

/// What a block is of.
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

/// The blocks that were streamed and have not come whole.
#[derive(Debug, Default)]
pub(super) struct StreamedBlocks {
    message: Option<UntrustedText>,
    blocks: VecDeque<Block>,
    /// The next piece belongs to a block of its own.
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

    /// A piece was told.
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

    /// What of a whole block was not told.
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
        let told = &self.blocks[at];
        let Some((begin, rest)) = whole.raw().split_at_checked(told.bytes) else {
            return whole;
        };
        let mut hash = DefaultHasher::new();
        hash.write(begin.as_bytes());
        if hash.finish() != told.hash.finish() {
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
        let mut told = StreamedBlocks::default();
        told.begin(id("m"));
        told.block();
        told.record_delta(Kind::Thought, &"hm".into());
        told.block();
        told.record_delta(Kind::Text, &"one ".into());
        told.record_delta(Kind::Text, &"two".into());
        let m = id("m");
        let m = m.as_ref();
        assert_eq!(told.rest(m, Kind::Thought, "hm".into()).raw(), "");
        // The end of it was not streamed.
        assert_eq!(
            told.rest(m, Kind::Text, "one two three".into()).raw(),
            " three"
        );
        // Another block, which was not streamed, though it has the same text.
        assert_eq!(told.rest(m, Kind::Text, "one two".into()).raw(), "one two");
    }

    #[test]
    fn another_message_or_another_text_is_told_whole() {
        let mut told = StreamedBlocks::default();
        told.begin(id("m"));
        told.record_delta(Kind::Text, &"aé".into());
        assert_eq!(
            told.rest(id("n").as_ref(), Kind::Text, "aé".into()).raw(),
            "aé"
        );
        assert_eq!(told.rest(None, Kind::Text, "aé".into()).raw(), "aé");
        let m = id("m");
        let m = m.as_ref();
        assert_eq!(told.rest(m, Kind::Text, "bé".into()).raw(), "bé");
        assert_eq!(told.rest(m, Kind::Text, "a".into()).raw(), "a");
        // The cut would fall into a character.
        assert_eq!(told.rest(m, Kind::Text, "aaé".into()).raw(), "aaé");
        assert_eq!(told.rest(m, Kind::Text, "aé".into()).raw(), "");
        told.begin(id("m"));
        assert_eq!(told.rest(m, Kind::Text, "aé".into()).raw(), "aé");
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut told = StreamedBlocks::default();
        told.begin(id("m"));
        for _ in 0..10 * WAITING {
            told.block();
            told.record_delta(Kind::Text, &"x".into());
        }
        assert_eq!(told.blocks.len(), WAITING);
    }
}
