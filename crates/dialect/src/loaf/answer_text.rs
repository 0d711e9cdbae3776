//! The text of a turn's answer, without repetitions.
//!
//! The agent streams an answer twice: each piece by itself, followed by a `session.status`, and
//! then the whole chunk that the pieces were taken from. Such a chunk is recognized by two marks: a
//! status came right before it, and its answer equals the pieces since the last such chunk. An
//! agent that sends everything once sends no status between two pieces. Should one do so, the
//! length that a completed turn reports for its answer shows it, and from then on nothing is left
//! out. Must not know turns.

use marshal_model::UntrustedText;

/// The maximum bytes of pieces that are compared with a whole chunk. Longer text is reported as it
/// comes.
const MAX_PIECES_BYTES: usize = 256 << 10;

/// The text of a turn.
#[derive(Debug, Default)]
pub(super) struct AnswerText {
    /// The pieces since the last whole chunk.
    pieces: String,
    /// Whether a status came after the last chunk.
    after_status: bool,
    /// UTF-16 units, as the agent counts: reported, and left out.
    reported_units: u64,
    omitted_units: u64,
    /// Whether the pieces are too long to be compared.
    is_too_long: bool,
    /// Whether the agent sends everything once: nothing is left out any more.
    has_no_repeats: bool,
    /// Whether a chunk could not be read.
    is_unreadable: bool,
}

impl AnswerText {
    /// A turn begins.
    pub(super) fn begin(&mut self) {
        *self = Self {
            has_no_repeats: self.has_no_repeats,
            ..Self::default()
        };
    }

    /// The agent sent its status.
    pub(super) const fn status(&mut self) {
        self.after_status = true;
    }

    /// A chunk cannot be read.
    pub(super) const fn mark_unreadable(&mut self) {
        self.is_unreadable = true;
    }

    /// Whether a chunk of this turn could not be read.
    pub(super) const fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// Whether no text was reported.
    pub(super) const fn is_empty(&self) -> bool {
        self.reported_units == 0
    }

    /// The text of a chunk's answer, if it was not reported before.
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
            // From here on no chunk of this turn can be recognized as the sum of its pieces.
            self.pieces = String::new();
            self.is_too_long = true;
        }
        if !self.has_no_repeats && !self.is_too_long {
            self.pieces.push_str(&answer);
        }
        self.reported_units += units;
        Some(answer.into())
    }

    /// Compares with the answer length that the agent reports; returns how much was left out that
    /// the agent had sent only once.
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
    fn text_of_chunks(answer: &mut AnswerText, chunks: &[&str]) -> String {
        answer.begin();
        let mut output = String::new();
        for chunk in chunks {
            if *chunk == "." {
                answer.status();
            } else if let Some(text) = answer.take_new_text((*chunk).to_owned()) {
                output.push_str(text.raw());
            }
        }
        output
    }

    #[test]
    fn a_chunk_that_repeats_its_pieces_is_told_once() {
        let answer = &mut AnswerText::default();
        assert_eq!(
            text_of_chunks(answer, &["a", ".", "a", "b", ".", "b"]),
            "ab"
        );
        assert_eq!(
            text_of_chunks(answer, &["a", ".", "b", ".", "ab", "c", ".", "c"]),
            "abc"
        );
        // The same word twice, each of them sent twice.
        assert_eq!(
            text_of_chunks(answer, &["ha", ".", "ha", "ha", ".", "ha"]),
            "haha"
        );
        assert_eq!(answer.detect_false_repeats(Some(4)), None);
    }

    #[test]
    fn an_agent_that_says_everything_once_loses_nothing() {
        let answer = &mut AnswerText::default();
        assert_eq!(
            text_of_chunks(answer, &["ha", "ha", "hahaha"]),
            "hahahahaha"
        );
        assert_eq!(text_of_chunks(answer, &["a", ".", "b", ".", "c"]), "abc");
        // Undecidable until the turn's end.
        assert_eq!(text_of_chunks(answer, &["ha", ".", "ha"]), "ha");
        assert_eq!(answer.detect_false_repeats(Some(2)), None);
        assert_eq!(answer.detect_false_repeats(Some(4)), Some(2));
        assert_eq!(text_of_chunks(answer, &["ha", ".", "ha"]), "haha");
        assert_eq!(answer.detect_false_repeats(Some(4)), None);
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let answer = &mut AnswerText::default();
        let half = "x".repeat(MAX_PIECES_BYTES / 2 + 1);
        assert_eq!(
            text_of_chunks(answer, &[&half, ".", &half]).len(),
            half.len()
        );
        assert_eq!(
            text_of_chunks(answer, &[&half, ".", "y", ".", &half]).len(),
            2 * half.len() + 1
        );
        assert!(answer.pieces.is_empty());
    }
}
