//! Where the values of a JSON text stand, so that it can be changed as a text: doubled keys, numbers
//! that no type holds and halves of surrogates have no place in a value that was read.

use std::ops::Range;

/// One value.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// The value itself.
    pub(crate) value: Range<usize>,
    /// From its key on, where it is a member.
    pub(crate) member: Range<usize>,
    /// Its key, without quotes.
    pub(crate) key: Option<Range<usize>>,
}

/// The values of a text, as far as it looks like JSON.
pub(crate) fn spans(text: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    let mut open: Vec<(usize, Option<Range<usize>>)> = Vec::new();
    let mut key: Option<Range<usize>> = None;
    let mut at = 0;
    while at < text.len() && found.len() < 4096 {
        match text[at] {
            b'{' | b'[' => {
                open.push((at, key.take()));
                at += 1;
            }
            b'}' | b']' => {
                at += 1;
                if let Some((from, key)) = open.pop() {
                    found.push(span(from..at, key));
                }
                key = None;
            }
            b'"' => {
                let end = string(text, at);
                let next = text[end..].iter().find(|byte| !byte.is_ascii_whitespace());
                if next == Some(&b':') && key.is_none() {
                    key = Some(at + 1..end.saturating_sub(1).max(at + 1));
                } else {
                    found.push(span(at..end, key.take()));
                }
                at = end;
            }
            byte if byte.is_ascii_alphanumeric() || byte == b'-' => {
                let ends = |byte: &u8| b",]}: \t\r\n\"[{".contains(byte);
                let end = text[at..]
                    .iter()
                    .position(ends)
                    .map_or(text.len(), |n| at + n);
                found.push(span(at..end, key.take()));
                at = end;
            }
            _ => at += 1,
        }
    }
    found
}

fn span(value: Range<usize>, key: Option<Range<usize>>) -> Span {
    let from = key.as_ref().map_or(value.start, |key| key.start - 1);
    Span {
        member: from..value.end,
        value,
        key,
    }
}

/// Where the string that begins here ends, behind its last quote.
fn string(text: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}
