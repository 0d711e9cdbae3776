//! What was said in a turn, once.
//!
//! The agent streams an answer twice: each piece of it by itself, followed by a `session.status`,
//! and then the chunk that the pieces were taken from, whole. Such a chunk is told apart by these
//! marks: a status came right before it, and its answer is what the pieces since the last such
//! chunk make together. An agent that says everything once sends no status between two pieces; and
//! should one do, the length that a completed turn has for its answer shows it, and from then on
//! nothing is left out. Must not know turns.

use crate::model::Foreign;

/// Pieces are held against a whole chunk up to so many bytes; what is longer is told as it comes.
const HELD_BYTES: usize = 256 << 10;

/// The text of a turn.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The pieces since the last whole chunk.
    pieces: String,
    /// A status came after the last chunk.
    after_status: bool,
    /// UTF-16 units, as the agent counts: told, and left out.
    told: u64,
    left_out: u64,
    /// The pieces are too long to be held.
    is_over: bool,
    /// The agent says everything once: nothing is left out any more.
    says_once: bool,
}

impl Said {
    /// A turn begins.
    pub(super) fn begin(&mut self) {
        *self = Self {
            says_once: self.says_once,
            ..Self::default()
        };
    }

    /// The agent told its status.
    pub(super) const fn status(&mut self) {
        self.after_status = true;
    }

    /// Whether nothing was told.
    pub(super) const fn is_empty(&self) -> bool {
        self.told == 0
    }

    /// The text of a chunk's answer, if it was not told before.
    pub(super) fn chunk(&mut self, answer: String) -> Option<Foreign> {
        if answer.is_empty() {
            return None;
        }
        let units = answer.encode_utf16().count() as u64;
        let after_status = std::mem::take(&mut self.after_status);
        if after_status && !self.says_once && self.pieces == answer {
            self.pieces.clear();
            self.left_out += units;
            return None;
        }
        if self.pieces.len() + answer.len() > HELD_BYTES {
            // No chunk of this turn can be known for the sum of its pieces from here on.
            self.pieces = String::new();
            self.is_over = true;
        }
        if !self.says_once && !self.is_over {
            self.pieces.push_str(&answer);
        }
        self.told += units;
        Some(answer.into())
    }

    /// Compares with the length that the agent has for its answer: how much was left out that it
    /// had said only once.
    pub(super) fn lacks(&mut self, length: Option<u64>) -> Option<u64> {
        let is_whole = length? == self.told + self.left_out && self.left_out > 0;
        is_whole.then(|| {
            self.says_once = true;
            self.left_out
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.` is a status, anything else a chunk.
    fn heard(said: &mut Said, chunks: &[&str]) -> String {
        said.begin();
        let mut told = String::new();
        for chunk in chunks {
            if *chunk == "." {
                said.status();
            } else if let Some(text) = said.chunk((*chunk).to_owned()) {
                told.push_str(text.raw());
            }
        }
        told
    }

    #[test]
    fn a_chunk_that_repeats_its_pieces_is_told_once() {
        let said = &mut Said::default();
        assert_eq!(heard(said, &["a", ".", "a", "b", ".", "b"]), "ab");
        assert_eq!(
            heard(said, &["a", ".", "b", ".", "ab", "c", ".", "c"]),
            "abc"
        );
        // The same word twice, each of them twice.
        assert_eq!(heard(said, &["ha", ".", "ha", "ha", ".", "ha"]), "haha");
        assert_eq!(said.lacks(Some(4)), None);
    }

    #[test]
    fn an_agent_that_says_everything_once_loses_nothing() {
        let said = &mut Said::default();
        assert_eq!(heard(said, &["ha", "ha", "hahaha"]), "hahahahaha");
        assert_eq!(heard(said, &["a", ".", "b", ".", "c"]), "abc");
        // Nobody can know, until the turn's end says so.
        assert_eq!(heard(said, &["ha", ".", "ha"]), "ha");
        assert_eq!(said.lacks(Some(2)), None);
        assert_eq!(said.lacks(Some(4)), Some(2));
        assert_eq!(heard(said, &["ha", ".", "ha"]), "haha");
        assert_eq!(said.lacks(Some(4)), None);
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let said = &mut Said::default();
        let half = "x".repeat(HELD_BYTES / 2 + 1);
        assert_eq!(heard(said, &[&half, ".", &half]).len(), half.len());
        assert_eq!(
            heard(said, &[&half, ".", "y", ".", &half]).len(),
            2 * half.len() + 1
        );
        assert!(said.pieces.is_empty());
    }
}
