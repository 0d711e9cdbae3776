//! The difference between two versions as text, within limits of size and time.

use similar::TextDiff;

use marshal_model::limits;

/// The difference between two contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Diff {
    /// They are equal.
    Same,
    /// In unified form, with three lines around each change.
    Text {
        /// The lines; they are foreign text from files, so escape them for display.
        text: String,
        /// Whether there is more than [`limits::STORE_DIFF_OUTPUT_BYTES`] bytes of it.
        cut: bool,
    },
    /// One of them is not text.
    Binary,
    /// One of them is longer than [`limits::STORE_DIFF_BYTES`].
    TooLong,
    /// Only digest and size of one of them are stored.
    NotStored,
}

/// Compares two contents.
pub(super) fn compare(old: &[u8], new: &[u8]) -> Diff {
    if old == new {
        return Diff::Same;
    }
    if old.len().max(new.len()) > limits::STORE_DIFF_BYTES {
        return Diff::TooLong;
    }
    let (Some(old), Some(new)) = (text(old), text(new)) else {
        return Diff::Binary;
    };
    let diff = TextDiff::configure()
        .timeout(limits::STORE_DIFF_TIMEOUT)
        .diff_lines(old, new);
    let mut shown = String::new();
    let mut cut = false;
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        shown.push_str(&hunk.to_string());
        if shown.len() > limits::STORE_DIFF_OUTPUT_BYTES {
            let mut at = limits::STORE_DIFF_OUTPUT_BYTES;
            while !shown.is_char_boundary(at) {
                at -= 1;
            }
            shown.truncate(at);
            cut = true;
            break;
        }
    }
    Diff::Text { text: shown, cut }
}

fn text(content: &[u8]) -> Option<&str> {
    std::str::from_utf8(content)
        .ok()
        .filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_and_what_is_no_text_is_said_to_be_none() {
        let Diff::Text { text, cut } = compare(b"a\nb\nc\n", b"a\nB\nc\n") else {
            panic!("text");
        };
        assert_eq!(text, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        assert!(!cut);
        assert_eq!(compare(b"a", b"a"), Diff::Same);
        assert_eq!(compare(b"a", b"\xff"), Diff::Binary);
        assert_eq!(compare(b"a", b"a\0"), Diff::Binary);
        assert_eq!(
            compare(b"a", &vec![b'x'; limits::STORE_DIFF_BYTES + 1]),
            Diff::TooLong
        );
    }

    #[test]
    fn a_long_difference_is_cut_and_says_so() {
        let lines = |word: &str| {
            let lines: Vec<String> = (0..40_000).map(|n| format!("{word} {n}\n")).collect();
            lines.concat()
        };
        let (old, new) = (lines("old"), lines("né"));
        let Diff::Text { text, cut } = compare(old.as_bytes(), new.as_bytes()) else {
            panic!("text");
        };
        assert!(cut);
        assert!(text.len() <= limits::STORE_DIFF_OUTPUT_BYTES);
        assert!(text.len() > limits::STORE_DIFF_OUTPUT_BYTES - 4);
    }
}
