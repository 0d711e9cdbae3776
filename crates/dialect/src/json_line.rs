//! Writes a message as one line.
//!
//! U+2028 and U+2029 are escaped, because some readers treat them as the end of a line. Must not
//! know any protocol's messages.

use serde::Serialize;

/// A message as one line. All keys of our messages are strings, so writing cannot fail.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut text = escape_separators(serde_json::to_string(message).unwrap_or_default());
    text.push('\n');
    text.into_bytes()
}

/// Escapes the two separators in JSON text, where they can only stand inside of strings.
pub(crate) fn escape_separators(text: String) -> String {
    if !text.contains(['\u{2028}', '\u{2029}']) {
        return text;
    }
    text.replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}
