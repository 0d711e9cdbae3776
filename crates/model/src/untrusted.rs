//! Text of an untrusted source: a child, a workspace file, a client.
//!
//! [`UntrustedText`] has no `Display`, so that it cannot reach a terminal by accident;
//! [`UntrustedText::escape_for_display`] is the one way to print it. Must not know the output.

use std::fmt;

/// Untrusted text. Show it with [`UntrustedText::escape_for_display`]; store or compare it with
/// [`UntrustedText::raw`].
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct UntrustedText(String);

impl UntrustedText {
    /// Marks a text as untrusted.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The unchanged text. For parsers, comparison and storage, never for a person's screen.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.0
    }

    /// The unchanged text, owned.
    #[must_use]
    pub fn into_raw(self) -> String {
        self.0
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text for a person: on one line, every unsafe character escaped, cut to `width` columns
    /// (characters after escaping, so never less room than it takes).
    #[must_use]
    pub fn escape_for_display(&self, width: usize) -> String {
        escape_for_display(&self.0, width)
    }
}

impl fmt::Debug for UntrustedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({})", self.escape_for_display(200))
    }
}

impl From<&str> for UntrustedText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for UntrustedText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Whether a terminal could interpret a character, or it could mislead a reader: C0 (tab and
/// newline included), DEL, C1, bidi controls, zero-width characters, separators, tags and variation
/// selectors.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{61c}'
        | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes untrusted text to one line: unsafe characters become `\n`, `\t`, `\r` or `\u{…}`, and
/// what does not fit into `width` characters is cut, with `…` as its last one.
#[must_use]
pub fn escape_for_display(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len().min(width.saturating_add(8)));
    let mut used = 0;
    for c in text.chars() {
        let piece = match c {
            '\n' => "\\n".to_owned(),
            '\t' => "\\t".to_owned(),
            '\r' => "\\r".to_owned(),
            c if is_unsafe(c) => format!("\\u{{{:x}}}", c as u32),
            c => c.to_string(),
        };
        let wide = piece.chars().map(display_width).sum::<usize>();
        if used + wide > width {
            while used + 1 > width {
                match out.pop() {
                    Some(last) => used -= display_width(last),
                    None => return out,
                }
            }
            out.push('…');
            return out;
        }
        used += wide;
        out.push_str(&piece);
    }
    out
}

/// How many terminal columns a safe character takes, never less than one, so that combining
/// characters cannot make a line longer than it looks.
fn display_width(c: char) -> usize {
    unicode_width::UnicodeWidthChar::width(c)
        .unwrap_or(1)
        .max(1)
}

/// Writes a JSON text for a terminal: the same document, with every unsafe character as `\uXXXX`.
/// Such characters occur only inside strings of a valid document (structural white space there
/// is space, tab, CR and LF, which stay).
#[must_use]
pub fn escape_json_for_terminal(json: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t') {
            let mut units = [0_u16; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, width: usize, expect: &str) {
        assert_eq!(
            escape_for_display(input, width),
            expect,
            "{input:?} at {width}"
        );
    }

    #[test]
    fn nothing_that_acts_on_a_terminal_survives() {
        check("plain é 漢", 80, "plain é 漢");
        check("a\u{1b}]0;title\u{7}b", 80, "a\\u{1b}]0;title\\u{7}b");
        check(
            "\u{1b}]8;;http://x\u{1b}\\link",
            80,
            "\\u{1b}]8;;http://x\\u{1b}\\link",
        );
        check("\u{9b}2J", 80, "\\u{9b}2J");
        check("a\nb\tc\rd", 80, "a\\nb\\tc\\rd");
        check("abc\u{202e}txt.exe", 80, "abc\\u{202e}txt.exe");
        check(
            "zero\u{200b}width\u{2028}",
            80,
            "zero\\u{200b}width\\u{2028}",
        );
    }

    #[test]
    fn a_long_text_is_cut_to_its_width() {
        check("abcdef", 6, "abcdef");
        check("abcdef", 5, "abcd…");
        check("漢漢漢", 4, "漢…");
        check("abc", 0, "");
        check("ab\u{1b}", 4, "ab…");
    }

    #[test]
    fn json_for_a_terminal_is_the_same_document() {
        let text = serde_json::json!({"a": "x\u{1b}\u{202e}\u{9b}\u{e0041}y"}).to_string();
        let shown = escape_json_for_terminal(&text);
        assert!(!shown.chars().any(is_unsafe), "{shown}");
        let a: serde_json::Value = serde_json::from_str(&text).expect("valid");
        let b: serde_json::Value = serde_json::from_str(&shown).expect("valid");
        assert_eq!(a, b);
    }
}
