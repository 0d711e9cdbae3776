//! Secrets in JSON: found in the decoded strings, replaced in the source text.
//!
//! Must not know what the JSON means. It was parsed once, so its syntax is valid.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Mask, Span};

/// A decoded JSON string, with its positions in the source.
#[derive(Default)]
struct Decoded {
    text: String,
    /// The pieces: their offsets in the decoded text and in the source, and whether the piece is
    /// copied byte for byte. Any other piece is one escape.
    pieces: Vec<(usize, usize, bool)>,
    /// The end of the string in the source.
    end: usize,
}

pub(super) fn mask_json<'t>(mask: &Mask, value: &'t RawValue) -> Cow<'t, RawValue> {
    let raw = value.get();
    // Without an escape every string appears literally.
    if memchr::memchr(b'\\', raw.as_bytes()).is_none() && !mask.matcher.is_match(raw) {
        return Cow::Borrowed(value);
    }
    let Some(out) = replace_secrets(mask, raw) else {
        return Cow::Borrowed(value);
    };
    // The result must still be JSON. If it were not, none of it would be kept.
    match RawValue::from_string(out) {
        Ok(value) => Cow::Owned(value),
        Err(_) => Cow::Owned(RawValue::NULL.to_owned()),
    }
}

/// The string without its secrets; `None` if it has none.
fn replace_secrets(mask: &Mask, raw: &str) -> Option<String> {
    let bytes = raw.as_bytes();
    let mut out = None;
    let (mut at, mut done) = (0, 0);
    let mut decoded = Decoded::default();
    while let Some(&byte) = bytes.get(at) {
        let begins = at;
        match byte {
            b'"' => {
                let inside = begins + 1;
                let (end, is_plain) = text_end(bytes, inside);
                at = end + 1;
                let text = raw.get(inside..end).unwrap_or_default();
                let spans = if is_plain {
                    mask.find_secrets(text)
                } else {
                    decoded.decode(text);
                    mask.find_secrets(&decoded.text)
                };
                for span in spans {
                    let (from, to) = if is_plain {
                        (span.start, span.end)
                    } else {
                        (decoded.raw_offset(span.start), decoded.raw_offset(span.end))
                    };
                    let (from, to) = (inside + from, inside + to);
                    put(&mut out, raw, (done, from), span, false);
                    done = to;
                }
            }
            b'-' | b'0'..=b'9' => {
                at = begins + number_len(bytes.get(begins..).unwrap_or_default());
                let number = raw.get(begins..at).unwrap_or_default();
                if let Some(span) = mask.find_secrets(number).into_iter().next() {
                    put(&mut out, raw, (done, begins), span, true);
                    done = at;
                }
            }
            _ => at += 1,
        }
    }
    let mut out = out?;
    out.push_str(raw.get(done..).unwrap_or_default());
    Some(out)
}

/// Copies up to a secret, and writes its mark.
fn put(
    out: &mut Option<String>,
    raw: &str,
    (done, to): (usize, usize),
    span: Span<'_>,
    quoted: bool,
) {
    let out = out.get_or_insert_with(|| String::with_capacity(raw.len()));
    out.push_str(raw.get(done..to).unwrap_or_default());
    if quoted {
        out.push('"');
    }
    span.mark.push_to(out);
    if quoted {
        out.push('"');
    }
}

/// The end of the string that begins there, and whether it has no escapes.
fn text_end(bytes: &[u8], from: usize) -> (usize, bool) {
    let (mut at, mut is_plain) = (from, true);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match memchr::memchr2(b'"', b'\\', rest) {
            Some(step) if rest.get(step) == Some(&b'"') => return (at + step, is_plain),
            Some(step) => {
                is_plain = false;
                at += step + 2;
            }
            None => return (bytes.len(), is_plain),
        }
    }
}

fn number_len(bytes: &[u8]) -> usize {
    let is_part = |b: &u8| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    bytes
        .iter()
        .position(|b| !is_part(b))
        .unwrap_or(bytes.len())
}

impl Decoded {
    /// Decodes a string. An unpaired surrogate becomes U+FFFD.
    fn decode(&mut self, raw: &str) {
        self.text.clear();
        self.pieces.clear();
        self.end = raw.len();
        let bytes = raw.as_bytes();
        let mut at = 0;
        while at < raw.len() {
            let rest = bytes.get(at..).unwrap_or_default();
            let plain = memchr::memchr(b'\\', rest).unwrap_or(rest.len());
            if plain > 0 {
                self.pieces.push((self.text.len(), at, true));
                self.text
                    .push_str(raw.get(at..at + plain).unwrap_or_default());
                at += plain;
                continue;
            }
            self.pieces.push((self.text.len(), at, false));
            let (c, len) = escape(rest);
            self.text.push(c);
            at += len;
        }
    }

    /// The source offset of a decoded offset, which is at a character boundary like every secret.
    fn raw_offset(&self, at: usize) -> usize {
        let piece = self.pieces.partition_point(|(begins, ..)| *begins <= at);
        let last = piece.checked_sub(1).and_then(|item| self.pieces.get(item));
        match last {
            _ if at >= self.text.len() => self.end,
            Some((begins, raw, true)) => raw + (at - begins),
            Some((_, raw, false)) => *raw,
            None => 0,
        }
    }
}

/// The character of an escape at the beginning of a text, and the escape's length.
fn escape(bytes: &[u8]) -> (char, usize) {
    let c = match bytes.get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return of_unit(bytes),
        Some(other) if other.is_ascii() => char::from(*other),
        _ => char::REPLACEMENT_CHARACTER,
    };
    (c, 2)
}

fn of_unit(bytes: &[u8]) -> (char, usize) {
    const LONE: (char, usize) = (char::REPLACEMENT_CHARACTER, 6);
    let Some(first) = unit(bytes) else {
        return LONE;
    };
    if !(0xd800..0xdc00).contains(&first) {
        return (
            char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER),
            6,
        );
    }
    match bytes.get(6..).and_then(unit) {
        Some(second @ 0xdc00..0xe000) => {
            let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            (
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
                12,
            )
        }
        _ => LONE,
    }
}

/// The number of `\uXXXX` at the beginning.
fn unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
