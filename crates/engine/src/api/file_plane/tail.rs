//! The newest lines of all output of a directory, bounded.

use std::collections::VecDeque;

use marshal_model::limits::{FILE_PLANE_TAIL_BYTES, FILE_PLANE_TAIL_LINES};

/// The last lines of output, up to a number of lines and bytes.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
    /// It has changed since it was last written.
    pub(super) is_new: bool,
}

impl Tail {
    /// Appends text; an unfinished last line continues with the next text.
    pub(super) fn push(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.is_new = true;
        for piece in text.split_inclusive('\n') {
            self.bytes += piece.len();
            match self.lines.back_mut().filter(|line| !line.ends_with('\n')) {
                Some(line) => line.push_str(piece),
                None => self.lines.push_back(piece.to_owned()),
            }
            // A single long line is cut at its front.
            if let Some(line) = self.lines.back_mut()
                && line.len() > FILE_PLANE_TAIL_BYTES
            {
                let mut at = line.len() - FILE_PLANE_TAIL_BYTES;
                while !line.is_char_boundary(at) {
                    at += 1;
                }
                line.drain(..at);
                self.bytes -= at;
            }
            while self.lines.len() > FILE_PLANE_TAIL_LINES || self.bytes > FILE_PLANE_TAIL_BYTES {
                let Some(first) = self.lines.pop_front() else {
                    break;
                };
                self.bytes -= first.len();
            }
        }
    }

    /// Ends the last line, because a request ended: the next output starts a new line.
    pub(super) fn end_line(&mut self) {
        if self.lines.back().is_some_and(|line| !line.ends_with('\n')) {
            self.push("\n");
        }
    }

    /// Returns the whole text.
    pub(super) fn text(&self) -> String {
        self.lines.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_last_lines_whole_and_is_bounded() {
        let mut tail = Tail::default();
        tail.push("a");
        tail.push("b\nc\n");
        assert_eq!(tail.text(), "ab\nc\n");
        tail.push("d");
        tail.end_line();
        tail.push("e");
        assert_eq!(tail.text(), "ab\nc\nd\ne");
        for line in 0..1000 {
            tail.push(&format!("{line}\n"));
        }
        let text = tail.text();
        assert_eq!(text.lines().count(), FILE_PLANE_TAIL_LINES);
        assert!(text.ends_with("\n999\n"), "{text}");
        // A line without an end, of characters of two bytes.
        for _ in 0..100 {
            tail.push(&"ä".repeat(FILE_PLANE_TAIL_BYTES / 4 + 1));
        }
        let text = tail.text();
        assert!(text.len() <= FILE_PLANE_TAIL_BYTES && text.len() > FILE_PLANE_TAIL_BYTES / 2);
        assert_eq!(tail.bytes, text.len());
        assert!(text.chars().all(|c| c == 'ä'), "no half of a character");
    }
}
