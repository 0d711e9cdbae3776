//! What was said in a turn, once.
//!
//! The agent streams an answer twice: each piece of it by itself, followed by a `session.status`,
//! and then the chunk that the pieces were taken from, whole. Such a chunk is told apart by these
//! marks: a status came right before it, and its answer is what the pieces since the last such
//! chunk make together. An agent that says everything once sends no status between two pieces; and
//! should one do, the length that a completed turn has for its answer shows it, and from then on
//! nothing is left out. Must not know turns.

use marshal_model::UntrustedText;

/// Pieces are held against a whole chunk up to so many bytes; what is longer is told as it comes.
const MAX_PIECES_BYTES: usize = 256 << 10;

/// The text of a turn.
#[derive(Debug, Default)]
pub(super) struct AnswerText {
    /// The pieces since the last whole chunk.
    pieces: String,
    /// A status came after the last chunk.
    after_status: bool,
    /// UTF-16 units, as the agent counts: told, and left out.
    reported_units: u64,
    omitted_units: u64,
    /// The pieces are too long to be held.
    is_too_long: bool,
    /// The agent says everything once: nothing is left out any more.
    has_no_repeats: bool,
}

impl AnswerText {
    /// A turn begins.
    pub(super) fn begin(&mut self) {
        *self = Self {
            has_no_repeats: self.has_no_repeats,
            ..Self::default()
        };
    }

    /// The agent told its status.
    pub(super) const fn status(&mut self) {
        self.after_status = true;
    }

    /// Whether nothing was told.
    pub(super) const fn is_empty(&self) -> bool {
        self.reported_units == 0
    }

    /// The text of a chunk's answer, if it was not told before.
    pub(super) fn take_new_text(&mut self, answer: String) -> Option<UntrustedText> {
        if answer.is_empty() {
            return None;
        }
        let units = answer.encode_utf16().count() as u64;
        let after_status = std::mem::take(&mut self.after_status);
        if after_status && !self.has_no_repeats && self.pieces == answer {
            self.pieces.clear();
            self.omitted_units += units;
            return None;
        }
        if self.pieces.len() + answer.len() > MAX_PIECES_BYTES {
            // No chunk of this turn can be known for the sum of its pieces from here on.
            self.pieces = String::new();
            self.is_too_long = true;
        }
        if !self.has_no_repeats && !self.is_too_long {
            self.pieces.push_str(&answer);
        }
        self.reported_units += units;
        Some(answer.into())
    }

    /// Compares with the length that the agent has for its answer: how much was left out that it
    /// had said only once.
    pub(super) fn detect_false_repeats(&mut self, length: Option<u64>) -> Option<u64> {
        let is_whole =
            length? == self.reported_units + self.omitted_units && self.omitted_units > 0;
        is_whole.then(|| {
            self.has_no_repeats = true;
            self.omitted_units
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.` is a status, anything else a chunk.
    fn heard(said: &mut AnswerText, chunks: &[&str]) -> String {
        said.begin();
        let mut told = String::new();
        for chunk in chunks {
            if *chunk == "." {
                said.status();
            } else if let Some(text) = said.take_new_text((*chunk).to_owned()) {
                told.push_str(text.raw());
            }
        }
        told
    }

    #[test]
    fn a_chunk_that_repeats_its_pieces_is_told_once() {
        let said = &mut AnswerText::default();
        assert_eq!(heard(said, &["a", ".", "a", "b", ".", "b"]), "ab");
        assert_eq!(
            heard(said, &["a", ".", "b", ".", "ab", "c", ".", "c"]),
            "abc"
        );
        // The same word twice, each of them twice.
        assert_eq!(heard(said, &["ha", ".", "ha", "ha", ".", "ha"]), "haha");
        assert_eq!(said.detect_false_repeats(Some(4)), None);
    }

    #[test]
    fn an_agent_that_says_everything_once_loses_nothing() {
        let said = &mut AnswerText::default();
        assert_eq!(heard(said, &["ha", "ha", "hahaha"]), "hahahahaha");
        assert_eq!(heard(said, &["a", ".", "b", ".", "c"]), "abc");
        // Nobody can know, until the turn's end says so.
        assert_eq!(heard(said, &["ha", ".", "ha"]), "ha");
        assert_eq!(said.detect_false_repeats(Some(2)), None);
        assert_eq!(said.detect_false_repeats(Some(4)), Some(2));
        assert_eq!(heard(said, &["ha", ".", "ha"]), "haha");
        assert_eq!(said.detect_false_repeats(Some(4)), None);
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let said = &mut AnswerText::default();
        let half = "x".repeat(MAX_PIECES_BYTES / 2 + 1);
        assert_eq!(heard(said, &[&half, ".", &half]).len(), half.len());
        assert_eq!(
            heard(said, &[&half, ".", "y", ".", &half]).len(),
            2 * half.len() + 1
        );
        assert!(said.pieces.is_empty());
    }
}
