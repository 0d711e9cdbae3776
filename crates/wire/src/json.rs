//! JSON messages, one per line: UTF-8, one object, a `type`; reading and writing them.
//!
//! Must not know any protocol's messages. Reading finds the tag without building a tree, so that
//! the caller can parse the whole line once, typed, with what is only passed on as raw JSON.
//!
//! Outcomes: a key that a message knows and that comes twice makes its shape bad; unknown keys may
//! come as often as they like.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

/// Why a line is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// It is not UTF-8.
    #[error("the line is not UTF-8")]
    Utf8,
    /// It is not JSON, or more than one value.
    #[error("the line is not JSON")]
    Json,
    /// It is JSON, but not an object.
    #[error("the line is JSON, but not an object")]
    NotObject,
    /// It is an object without a `type` that is a string.
    #[error("the object has no type")]
    NoType,
    /// A member that the message needs is missing, of another type, or comes twice.
    #[error("the message lacks a member, or one has another type")]
    Shape,
}

impl BadFrame {
    /// The word that metrics and `BadLine` events use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Utf8 => "bad_utf8",
            Self::Json => "bad_json",
            Self::NotObject => "not_object",
            Self::NoType => "no_type",
            Self::Shape => "bad_shape",
        }
    }
}

impl From<serde_json::Error> for BadFrame {
    fn from(error: serde_json::Error) -> Self {
        match error.classify() {
            Category::Data => Self::Shape,
            Category::Syntax | Category::Eof | Category::Io => Self::Json,
        }
    }
}

/// The line as text that begins like an object. The rest is unread: parsing it may still fail.
///
/// # Errors
/// [`BadFrame::Utf8`], [`BadFrame::NotObject`], or [`BadFrame::Json`] if it does not begin like an
/// object and is not JSON either.
pub fn expect_object(line: &[u8]) -> Result<&str, BadFrame> {
    let text = std::str::from_utf8(line).map_err(|_| BadFrame::Utf8)?;
    if text.trim_ascii_start().starts_with('{') {
        return Ok(text);
    }
    let _: IgnoredAny = serde_json::from_str(text).map_err(|_| BadFrame::Json)?;
    Err(BadFrame::NotObject)
}

/// The value of an object's `type`. Where it comes first, as nearly every writer has it, nothing
/// else is read.
///
/// # Errors
/// [`BadFrame::Json`] or [`BadFrame::NoType`].
pub fn read_tag(object: &str) -> Result<Cow<'_, str>, BadFrame> {
    match leading_tag(object) {
        Some(tag) => Ok(Cow::Borrowed(tag)),
        None => scan_tag(object),
    }
}

/// The tag of `{"type":"…"`, with any white space and without escapes in it.
fn leading_tag(object: &str) -> Option<&str> {
    let rest = object.trim_ascii_start().strip_prefix('{')?;
    let rest = rest.trim_ascii_start().strip_prefix("\"type\"")?;
    let rest = rest.trim_ascii_start().strip_prefix(':')?;
    let rest = rest.trim_ascii_start().strip_prefix('"')?;
    let end = memchr::memchr2(b'"', b'\\', rest.as_bytes())?;
    let (tag, rest) = rest.split_at_checked(end)?;
    rest.starts_with('"').then_some(tag)
}

/// The tag, wherever it stands; the first one if there are several.
fn scan_tag(object: &str) -> Result<Cow<'_, str>, BadFrame> {
    struct Tag;
    impl<'de> Visitor<'de> for Tag {
        type Value = Option<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(key) = map.next_key::<JsonString<'de>>()? {
                if key.0 == "type" && found.is_none() {
                    found = Some(map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(found)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(object);
    let found = reader.deserialize_map(Tag)?;
    reader.end()?;
    let tag = found.ok_or(BadFrame::NoType)?;
    match serde_json::from_str::<JsonString<'_>>(tag.get()) {
        Ok(tag) => Ok(tag.0),
        Err(_) => Err(BadFrame::NoType),
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct JsonString<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// The JSON text `null`.
#[must_use]
pub fn null_value() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// A typed message being written, as one line: compact, members in the order in which they are
/// given, no newline but the one at its end.
#[derive(Debug)]
pub struct MessageWriter(Vec<u8>);

impl MessageWriter {
    /// Begins `{"type":"…"`.
    #[must_use]
    pub fn with_tag(tag: &str) -> Self {
        let mut line = Self(Vec::with_capacity(64));
        line.0.extend_from_slice(b"{\"type\":");
        line.push_string(tag);
        line
    }

    /// Adds a string.
    #[must_use]
    pub fn string_field(mut self, name: &str, value: &str) -> Self {
        self.0.push(b',');
        self.push_string(name);
        self.0.push(b':');
        self.push_string(value);
        self
    }

    /// The line, newline included.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        self.0
    }

    fn push_string(&mut self, text: &str) {
        write_string(&mut self.0, text);
    }
}

/// Writes a JSON string. U+2028 and U+2029 are escaped too: JSON does not ask for it, but some
/// readers take them for the end of a line.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut clean = 0;
    for (at, c) in text.char_indices() {
        let escape: &[u8] = match c {
            '"' => b"\\\"",
            '\\' => b"\\\\",
            '\n' => b"\\n",
            '\r' => b"\\r",
            '\t' => b"\\t",
            '\u{8}' => b"\\b",
            '\u{c}' => b"\\f",
            '\u{2028}' => b"\\u2028",
            '\u{2029}' => b"\\u2029",
            '\0'..='\u{1f}' => b"",
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[clean..at]);
        clean = at + c.len_utf8();
        if escape.is_empty() {
            out.extend_from_slice(format!("\\u{:04x}", c as u32).as_bytes());
        } else {
            out.extend_from_slice(escape);
        }
    }
    out.extend_from_slice(&text.as_bytes()[clean..]);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(line: &[u8], expect: Result<&str, BadFrame>) {
        let got = expect_object(line).and_then(read_tag);
        let got = got.as_ref().map(AsRef::as_ref).map_err(|bad| *bad);
        assert_eq!(got, expect, "{}", String::from_utf8_lossy(line));
    }

    #[test]
    fn the_tag_is_found_wherever_it_stands() {
        check(br#"{"type":"ready","a":1}"#, Ok("ready"));
        check(b" {\t\"type\" : \"ready\" }\r", Ok("ready"));
        check(br#"{"a":{"type":"no"},"type":"yes"}"#, Ok("yes"));
        check(br#"{"type":"re\u0061dy"}"#, Ok("ready"));
        check(br#"{"\u0074ype":"x"}"#, Ok("x"));
        check(br#"{"a":1,"type":"x","type":"y"}"#, Ok("x"));
    }

    #[test]
    fn what_is_no_message_says_why() {
        check(b"{\"type\":\"a\xff\"}", Err(BadFrame::Utf8));
        check(b"\xed\xa0\x80", Err(BadFrame::Utf8));
        check(b"hello", Err(BadFrame::Json));
        check(b"\xef\xbb\xbf{}", Err(BadFrame::Json));
        check(b"{\"a\":1", Err(BadFrame::Json));
        check(b"{\"a\":1} x", Err(BadFrame::Json));
        check(b"[1,2]", Err(BadFrame::NotObject));
        check(b"7", Err(BadFrame::NotObject));
        check(b"null", Err(BadFrame::NotObject));
        check(b"{}", Err(BadFrame::NoType));
        check(br#"{"type":5}"#, Err(BadFrame::NoType));
        check(br#"{"type":null}"#, Err(BadFrame::NoType));
    }

    #[test]
    fn depth_is_no_danger() {
        let deep = format!("{{\"a\":{}1", "[".repeat(1 << 20));
        check(deep.as_bytes(), Err(BadFrame::Json));
        let closed = format!(
            "{{\"a\":{}{},\"type\":\"x\"}}",
            "[".repeat(1 << 16),
            "]".repeat(1 << 16)
        );
        check(closed.as_bytes(), Ok("x"));
    }

    #[test]
    fn a_line_is_written_compact_and_in_order() {
        let line = MessageWriter::with_tag("prompt")
            .string_field("text", "a\"\\\n\u{1}\u{2028}é")
            .finish();
        assert_eq!(
            String::from_utf8_lossy(&line),
            "{\"type\":\"prompt\",\"text\":\"a\\\"\\\\\\n\\u0001\\u2028é\"}\n"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_and_stays_on_its_line(text in any::<String>()) {
            let line = MessageWriter::with_tag("t").string_field("text", &text).finish();
            let (newline, body) = line.split_last().unwrap();
            prop_assert_eq!(*newline, b'\n');
            prop_assert!(!body.contains(&b'\n'));
            let body = std::str::from_utf8(body).unwrap();
            let separators = ['\u{2028}', '\u{2029}', '\r'];
            prop_assert!(!body.contains(separators));
            let value: serde_json::Value = serde_json::from_str(body).unwrap();
            prop_assert_eq!(value["text"].as_str(), Some(text.as_str()));
        }

        #[test]
        fn no_bytes_panic(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = expect_object(&line).and_then(read_tag);
        }
    }
}
