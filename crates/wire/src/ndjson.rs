//! Newline-delimited frames from chunks of bytes, over one buffer.
//!
//! Owns where a line ends and how much of an unfinished line is kept. Must not know the content of
//! a line.
//!
//! Only `\n` ends a line; a `\r` before it stays, as JSON calls it white space. Blank lines are no
//! frames. A line longer than the cap fails the stream once and for good: what follows could be
//! the middle of that line.

use bytes::{Buf, Bytes};

use marshal_model::limits;

/// Why a stream of lines cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A line is longer than the cap.
    #[error("a line is longer than {cap} bytes; the stream ends here")]
    TooLong {
        /// The first bytes of the line, at most [`limits::BAD_LINE_HEAD_BYTES`].
        head: Bytes,
        /// The cap, in bytes, newline excluded.
        cap: usize,
    },
}

/// Cuts lines out of chunks. Push a chunk, then iterate until `None`, then push the next one.
///
/// A frame that lies wholly in one chunk is a slice of it and pins the whole chunk in memory while
/// it lives: copy what is kept. A frame that spans chunks is assembled once, in a buffer of its
/// own. At most the cap and one chunk are held, whatever comes.
#[derive(Debug)]
pub struct LineDecoder {
    cap: usize,
    /// The part of the last chunk that no frame was cut from yet.
    rest: Bytes,
    /// The start of an incomplete line; never longer than `cap`.
    partial: Vec<u8>,
    failed: bool,
}

impl Default for LineDecoder {
    fn default() -> Self {
        Self::new(limits::LINE_BYTES)
    }
}

impl LineDecoder {
    /// Lines of at most `cap` bytes, newline excluded.
    #[must_use]
    pub fn new(cap: usize) -> Self {
        Self {
            cap,
            rest: Bytes::new(),
            partial: Vec::new(),
            failed: false,
        }
    }

    /// Accepts the next chunk. Frames of the chunk before it that were not taken yet come first;
    /// keeping them costs a copy, so take them before.
    pub fn push(&mut self, chunk: impl Into<Bytes>) {
        let chunk = chunk.into();
        if self.failed {
            return;
        }
        if self.rest.is_empty() {
            self.rest = chunk;
        } else {
            self.rest = [self.rest.as_ref(), chunk.as_ref()].concat().into();
        }
    }

    /// The stream ended: gives the last line if no newline ended it. Call it after the iteration
    /// has given `None`.
    pub fn finish(&mut self) -> Option<Bytes> {
        let last = Bytes::from(std::mem::take(&mut self.partial));
        (!self.failed && !is_blank(&last)).then_some(last)
    }

    /// Whether a line was too long: nothing comes any more.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Bytes held here: of a line whose end has not come, and of a chunk not yet cut.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        self.partial.capacity() + self.rest.len()
    }

    /// Fails the stream and releases all buffers.
    fn fail(&mut self, line_part: &[u8]) -> LineError {
        let mut head = std::mem::take(&mut self.partial);
        head.truncate(limits::BAD_LINE_HEAD_BYTES);
        let remaining = limits::BAD_LINE_HEAD_BYTES - head.len();
        head.extend_from_slice(line_part.get(..remaining).unwrap_or(line_part));
        head.shrink_to_fit();
        self.failed = true;
        self.rest = Bytes::new();
        LineError::TooLong {
            head: head.into(),
            cap: self.cap,
        }
    }

    /// Keeps the beginning of a line. Grows by doubling, but never beyond the cap.
    fn push_partial(&mut self, part: &[u8]) {
        let needed = self.partial.len() + part.len();
        if needed > self.partial.capacity() {
            let target = (self.partial.capacity() * 2).min(self.cap).max(needed);
            self.partial.reserve_exact(target - self.partial.len());
        }
        self.partial.extend_from_slice(part);
    }
}

impl Iterator for LineDecoder {
    type Item = Result<Bytes, LineError>;

    /// The next whole line, without its newline. `None` says that more bytes are needed; iterating
    /// goes on after the next [`LineDecoder::push`].
    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = memchr::memchr(b'\n', &self.rest);
            let part = self.rest.split_to(end.unwrap_or(self.rest.len()));
            if self.partial.len() + part.len() > self.cap {
                return Some(Err(self.fail(&part)));
            }
            if end.is_none() {
                self.rest = Bytes::new();
                self.push_partial(&part);
                return None;
            }
            self.rest.advance(1);
            if self.rest.is_empty() {
                // An empty slice pins its chunk like any other.
                self.rest = Bytes::new();
            }
            let line = if self.partial.is_empty() {
                part
            } else {
                self.push_partial(&part);
                Bytes::from(std::mem::take(&mut self.partial))
            };
            if !is_blank(&line) {
                return Some(Ok(line));
            }
        }
        None
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds the chunks and gives every frame, `TooLong` as its head in angle brackets.
    fn lines(cap: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = LineDecoder::new(cap);
        let mut out = Vec::new();
        for chunk in chunks {
            lines.push(Bytes::copy_from_slice(chunk));
            for line in lines.by_ref() {
                out.push(match line {
                    Ok(line) => String::from_utf8_lossy(&line).into_owned(),
                    Err(LineError::TooLong { head, .. }) => {
                        format!("<{}>", String::from_utf8_lossy(&head))
                    }
                });
            }
        }
        out.extend(
            lines
                .finish()
                .map(|l| String::from_utf8_lossy(&l).into_owned()),
        );
        out
    }

    fn check(cap: usize, chunks: &[&str], expect: &[&str]) {
        let chunks: Vec<&[u8]> = chunks.iter().map(|c| c.as_bytes()).collect();
        assert_eq!(lines(cap, &chunks), expect, "{chunks:?}");
    }

    #[test]
    fn only_a_newline_ends_a_line() {
        check(9, &["a\nb\n"], &["a", "b"]);
        check(9, &["a", "b", "\n", "c\nd"], &["ab", "c", "d"]);
        check(9, &["a\r\nb\n"], &["a\r", "b"]);
        check(9, &["a\u{2028}b\n"], &["a\u{2028}b"]);
        check(9, &[""], &[]);
    }

    #[test]
    fn blank_lines_are_no_frames() {
        check(9, &["\n\n \t\r\n", "\n", "a\n", " "], &["a"]);
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        check(9, &["a\n{\"b", "\""], &["a", "{\"b\""]);
    }

    #[test]
    fn a_line_of_just_the_cap_passes_and_one_byte_more_fails_the_stream_once() {
        check(4, &["abcd\n"], &["abcd"]);
        check(4, &["ab", "cd", "\n"], &["abcd"]);
        check(4, &["abcde\nf\n"], &["<abcde>"]);
        check(4, &["ab", "cde", "fg\n", "h\n"], &["<abcde>"]);
        check(4, &["x\nabcde", "\n"], &["x", "<abcde>"]);
    }

    #[test]
    fn frames_not_taken_before_the_next_chunk_are_kept() {
        let mut lines = LineDecoder::new(9);
        lines.push("a\nb\nc");
        assert_eq!(lines.next(), Some(Ok("a".into())));
        lines.push("d\n");
        let rest: Vec<_> = lines.by_ref().flatten().collect();
        assert_eq!(rest, ["b", "cd"]);
    }

    #[test]
    fn a_frame_within_one_chunk_is_a_slice_of_it() {
        let chunk = Bytes::from_static(b"first\nsecond\n");
        let mut lines = LineDecoder::new(64);
        lines.push(chunk.clone());
        for line in lines.flatten() {
            assert!(chunk.as_ptr_range().contains(&line.as_ptr()));
        }
    }

    #[test]
    fn a_chunk_is_let_go_of_when_its_last_frame_is() {
        for text in ["one\ntwo\n", "one\nthe beginning of tw"] {
            let chunk = Bytes::from(text.as_bytes().to_vec());
            let mut lines = LineDecoder::new(100);
            lines.push(chunk.clone());
            let frames: Vec<_> = lines.by_ref().collect();
            assert!(!chunk.is_unique());
            drop(frames);
            assert!(chunk.is_unique(), "{text:?}");
        }
    }

    #[test]
    fn bytes_without_a_newline_never_take_more_than_the_cap_and_a_chunk() {
        let (cap, chunk) = (1 << 20, Bytes::from(vec![b'x'; 64 << 10]));
        let mut lines = LineDecoder::new(cap);
        let (mut most, mut errors) = (0, 0);
        for _ in 0..1000 {
            lines.push(chunk.clone());
            most = most.max(lines.buffered_bytes());
            for line in lines.by_ref() {
                let Err(LineError::TooLong { head, .. }) = line else {
                    panic!("a line came out of nothing");
                };
                assert_eq!(head.len(), limits::BAD_LINE_HEAD_BYTES);
                errors += 1;
            }
            most = most.max(lines.buffered_bytes());
        }
        assert_eq!(
            (errors, lines.has_failed(), lines.buffered_bytes()),
            (1, true, 0)
        );
        assert!(most <= cap + chunk.len(), "{most}");
        assert_eq!(lines.finish(), None);
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(0_usize..200, 0..8),
        ) {
            let whole = lines(20, &[&text]);
            let single: Vec<&[u8]> = text.chunks(1).collect();
            let split = lines(20, &single);
            // The head of an overlong line holds what had come when it grew too long.
            let heads = |lines: &[String]| -> Vec<String> {
                lines.iter().map(|l| if l.starts_with('<') { "<".into() } else { l.clone() }).collect()
            };
            prop_assert_eq!(heads(&whole), heads(&split));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.sort_unstable();
            let mut pieces: Vec<&[u8]> = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            pieces.push(&text[from..]);
            prop_assert_eq!(heads(&whole), heads(&lines(20, &pieces)));
        }
    }
}
