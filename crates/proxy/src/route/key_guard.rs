//! Finds the key of a route in what an upstream sends back, also if it comes in small pieces.
//!
//! The key is found as it is, with some or all of its characters in percent, JSON or HTML escapes,
//! and within base64 text at each of the three alignments. What may be the beginning of the key is
//! held back until it is clear, so no part of a key is forwarded that a later piece completes. Other
//! encodings (a cipher, a language) are not found: an upstream that wants to give its key away can.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The most backslashes in front of one escaped character: JSON within JSON doubles them.
const BACKSLASHES: usize = 8;

/// The most digits of a character reference in HTML, leading zeros included.
const REFERENCE_DIGITS: usize = 7;

/// The forms in which a key is found.
pub struct KeyForms {
    key: Box<[u8]>,
    /// The part of its base64 text that does not depend on what is around it, by alignment.
    base64: [Box<[u8]>; 3],
    /// The bytes with which a form can begin.
    first: [bool; 256],
}

/// What a text has of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Nothing,
    /// Its beginning, up to the end of the text.
    Beginning,
    /// All of it.
    Whole,
}

impl KeyForms {
    /// The forms of a key, which must not be empty. A short one is found by chance.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        let base64 = [0, 1, 2].map(|before| fixed_base64(key, before));
        let mut first = [false; 256];
        let base64_first = base64.iter().filter_map(|text| text.first());
        for &byte in key.first().into_iter().chain(b"%\\&").chain(base64_first) {
            first[usize::from(byte)] = true;
        }
        // `-` and `_` stand for `+` and `/` in URLs.
        first[usize::from(b'-')] |= first[usize::from(b'+')];
        first[usize::from(b'_')] |= first[usize::from(b'/')];
        Self {
            key: key.into(),
            base64,
            first,
        }
    }

    /// Whether a whole text contains the key.
    #[must_use]
    pub fn is_in(&self, text: &[u8]) -> bool {
        self.scan(text).is_none()
    }

    /// From where on the text may be the beginning of the key; `None` if it contains the key.
    fn scan(&self, text: &[u8]) -> Option<usize> {
        let mut clear = text.len();
        for (at, byte) in text.iter().enumerate() {
            if !self.first[usize::from(*byte)] {
                continue;
            }
            match self.match_at(&text[at..]) {
                Match::Whole => return None,
                Match::Beginning => clear = clear.min(at),
                Match::Nothing => {}
            }
        }
        Some(clear)
    }

    fn match_at(&self, text: &[u8]) -> Match {
        let base64 = self.base64.iter().map(|form| match_base64(text, form));
        base64.fold(match_escaped(text, &self.key), Match::max)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for KeyForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyForms")
    }
}

/// The base64 text of `key` behind `before` other bytes, without the characters that other bytes
/// have a part in.
fn fixed_base64(key: &[u8], before: usize) -> Box<[u8]> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| {
        let byte = key[at / 8 - before];
        usize::from(byte >> (7 - at % 8) & 1)
    };
    let characters = (8 * before).div_ceil(6)..8 * (before + key.len()) / 6;
    let character = |at: usize| (6 * at..6 * at + 6).fold(0, |value, at| value << 1 | bit(at));
    characters.map(|at| ALPHABET[character(at)]).collect()
}

fn match_base64(text: &[u8], form: &[u8]) -> Match {
    let plain = |byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    };
    if form.is_empty()
        || text
            .iter()
            .zip(form)
            .any(|(byte, of_form)| plain(byte) != *of_form)
    {
        Match::Nothing
    } else if text.len() >= form.len() {
        Match::Whole
    } else {
        Match::Beginning
    }
}

/// Matches a key of which each character is itself or an escape of it.
fn match_escaped(mut text: &[u8], mut key: &[u8]) -> Match {
    while let Some((&wanted, rest)) = key.split_first() {
        let Some(&here) = text.first() else {
            return Match::Beginning;
        };
        let escape = match_escape(text, wanted);
        if here == wanted && !matches!(escape, Escape::Nothing) {
            // A key may contain `%`, `\` or `&`, which begin escapes as well: both readings count.
            let escaped = match escape {
                Escape::Whole(length) => match_escaped(&text[length..], rest),
                Escape::Beginning | Escape::Nothing => Match::Beginning,
            };
            return match_escaped(&text[1..], rest).max(escaped);
        }
        let length = match escape {
            Escape::Whole(length) => length,
            Escape::Beginning => return Match::Beginning,
            Escape::Nothing if here == wanted => 1,
            Escape::Nothing => return Match::Nothing,
        };
        (text, key) = (&text[length..], rest);
    }
    Match::Whole
}

/// What a text has of an escaped character.
enum Escape {
    /// All of it, of this length.
    Whole(usize),
    /// Its beginning, up to the end of the text.
    Beginning,
    Nothing,
}

fn match_escape(text: &[u8], wanted: u8) -> Escape {
    match text.first() {
        Some(b'%') => match_hex(text, 1, b"", wanted),
        Some(b'\\') => {
            // Bounded: a text of backslashes alone must not be counted from each of them.
            let slashes = text
                .iter()
                .take(BACKSLASHES + 1)
                .take_while(|byte| **byte == b'\\')
                .count();
            if slashes > BACKSLASHES {
                return Escape::Nothing;
            }
            match text.get(slashes) {
                None => Escape::Beginning,
                Some(b'u') => match_hex(text, slashes + 1, b"00", wanted),
                Some(b'x') => match_hex(text, slashes + 1, b"", wanted),
                Some(byte) if *byte == wanted && !wanted.is_ascii_alphanumeric() => {
                    Escape::Whole(slashes + 1)
                }
                Some(_) => Escape::Nothing,
            }
        }
        Some(b'&') => match_reference(text, wanted),
        _ => Escape::Nothing,
    }
}

/// Matches `prefix` and then two hexadecimal digits with the value `wanted`, from `at` on.
fn match_hex(text: &[u8], at: usize, prefix: &[u8], wanted: u8) -> Escape {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let own = [wanted >> 4, wanted & 15].map(|digit| DIGITS[usize::from(digit)]);
    let end = at + prefix.len() + own.len();
    let present = &text[at.min(text.len())..end.min(text.len())];
    let fits = present
        .iter()
        .zip(prefix.iter().chain(&own))
        .all(|(byte, expected)| byte.eq_ignore_ascii_case(expected));
    match fits {
        false => Escape::Nothing,
        true if text.len() >= end => Escape::Whole(end),
        true => Escape::Beginning,
    }
}

/// Matches `&#45;` and `&#x2d;`.
fn match_reference(text: &[u8], wanted: u8) -> Escape {
    match text.get(1) {
        None => return Escape::Beginning,
        Some(b'#') => {}
        Some(_) => return Escape::Nothing,
    }
    let is_hex = matches!(text.get(2), Some(b'x' | b'X'));
    let (begin, radix) = if is_hex { (3, 16) } else { (2, 10) };
    let digits = text.get(begin..).unwrap_or_default();
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .take(REFERENCE_DIGITS + 1)
        .count();
    if count > REFERENCE_DIGITS {
        return Escape::Nothing;
    }
    match digits.get(count) {
        None => Escape::Beginning,
        Some(b';') => {
            let number = std::str::from_utf8(&digits[..count]).unwrap_or_default();
            match u32::from_str_radix(number, radix) {
                Ok(value) if value == u32::from(wanted) => Escape::Whole(begin + count + 1),
                _ => Escape::Nothing,
            }
        }
        Some(_) => Escape::Nothing,
    }
}

/// The response contains the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFound;

/// The guard of one response.
#[derive(Debug)]
pub struct KeyGuard {
    /// `None`: the route has no key to look for.
    forms: Option<Arc<KeyForms>>,
    /// What may be the beginning of the key.
    held: Vec<u8>,
}

impl KeyGuard {
    /// A guard for a response.
    #[must_use]
    pub fn new(forms: Option<Arc<KeyForms>>) -> Self {
        Self {
            forms,
            held: Vec::new(),
        }
    }

    /// Takes the next piece of the response and returns what can be forwarded; that may be nothing.
    ///
    /// # Errors
    /// [`KeyFound`]: nothing more may be forwarded.
    pub fn pass(&mut self, piece: Bytes) -> Result<Bytes, KeyFound> {
        let Some(forms) = &self.forms else {
            return Ok(piece);
        };
        let mut piece = if self.held.is_empty() {
            piece
        } else {
            self.held.extend_from_slice(&piece);
            Bytes::from(std::mem::take(&mut self.held))
        };
        let clear = forms.scan(&piece).ok_or(KeyFound)?;
        self.held.extend_from_slice(&piece.split_off(clear));
        Ok(piece)
    }

    /// What was held back, at the end of the response: it is no key.
    pub fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.held))
    }

    /// Whether something is held back.
    #[must_use]
    pub const fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "sk-test_51/Hq+7%aZ%";

    /// The key in every form that is found, each behind `before` bytes of base64.
    fn forms(key: &str) -> Vec<String> {
        let each = |form: &dyn Fn(u8) -> String| key.bytes().map(form).collect::<String>();
        let mut all = vec![
            key.to_owned(),
            each(&|byte| format!("%{byte:02X}")),
            each(&|byte| format!("%{byte:02x}")),
            each(&|byte| format!("\\u{byte:04x}")),
            each(&|byte| format!("\\\\u{byte:04X}")),
            each(&|byte| format!("\\x{byte:02x}")),
            each(&|byte| format!("&#{byte};")),
            each(&|byte| format!("&#x{byte:02X};")),
            key.replace('/', "\\/"),
            key.replace('/', "%2F").replace('-', "\\u002d"),
        ];
        for before in ["", "u", "us", "user:"] {
            let text = base64(format!("{before}{key}and more").as_bytes());
            all.push(text.replace('+', "-").replace('/', "_"));
            all.push(text);
        }
        all
    }

    fn base64(bytes: &[u8]) -> String {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let quads = bytes.chunks(3).map(|three| {
            let mut all = [0; 4];
            all[1..=three.len()].copy_from_slice(three);
            let value = u32::from_be_bytes(all);
            let used = three.len() + 1;
            (0..4)
                .map(|at| match at {
                    at if at < used => ALPHABET[(value >> (18 - 6 * at) & 63) as usize] as char,
                    _ => '=',
                })
                .collect::<String>()
        });
        quads.collect()
    }

    /// Passes a text in pieces; returns what was forwarded, and whether the key was found.
    fn pass(text: &[u8], cuts: impl Fn(usize) -> usize) -> (Vec<u8>, bool) {
        let mut guard = KeyGuard::new(Some(Arc::new(KeyForms::new(KEY.as_bytes()))));
        let (mut rest, mut forwarded) = (text, Vec::new());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cuts(rest.len()).clamp(1, rest.len()));
            match guard.pass(Bytes::copy_from_slice(piece)) {
                Ok(clear) => forwarded.extend_from_slice(&clear),
                Err(KeyFound) => return (forwarded, true),
            }
            rest = after;
        }
        forwarded.extend_from_slice(&guard.finish());
        (forwarded, false)
    }

    #[test]
    fn base64_of_the_tests_is_base64() {
        assert_eq!(base64(b"Man"), "TWFu");
        assert_eq!(base64(b"light w"), "bGlnaHQgdw==");
    }

    #[test]
    fn every_form_is_found_in_pieces_of_any_size_before_any_of_it_is_forwarded() {
        for form in forms(KEY) {
            let text = format!("data: {{\"you sent\": \"{form}\"}}\n\n");
            for size in [1, 2, 3, 7, 1000] {
                let (forwarded, found) = pass(text.as_bytes(), |_| size);
                assert!(found, "{form} in pieces of {size}");
                // Base64 text begins with characters that the key has only a part in.
                let most = "data: {\"you sent\": \"".len() + "user:".len() * 4 / 3 + 4;
                assert!(forwarded.len() <= most, "{form}: {forwarded:?}");
            }
        }
    }

    #[test]
    fn a_key_that_is_not_complete_passes_whole_at_the_end() {
        for text in [
            "sk-test_51/Hq+7%a",
            "x %73%6",
            "\\\\\\u00",
            "&#11",
            "sk-test sk-test_51",
        ] {
            let (forwarded, found) = pass(text.as_bytes(), |_| 1);
            assert!(!found);
            assert_eq!(forwarded, text.as_bytes());
        }
    }

    #[test]
    fn only_a_possible_beginning_waits() {
        let mut guard = KeyGuard::new(Some(Arc::new(KeyForms::new(KEY.as_bytes()))));
        let clear = guard
            .pass(Bytes::from_static(b"event: x\ndata: ask-tes"))
            .unwrap();
        assert_eq!(clear, "event: x\ndata: a");
        assert!(guard.holds_back());
        assert_eq!(
            guard.pass(Bytes::from_static(b"k\n\n")).unwrap(),
            "sk-task\n\n".replace("task", "tesk")
        );
        assert!(!guard.holds_back());
    }

    #[test]
    fn a_large_text_of_beginnings_is_searched_in_one_pass() {
        let forms = KeyForms::new(KEY.as_bytes());
        for text in ["\\", "%", "&#", "sk-", "c2st"] {
            assert!(!forms.is_in(text.repeat(1 << 20).as_bytes()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_has_no_key_passes_unchanged(
            text in "[sk%\\\\&#x0-9a-f;\n-]{0,200}",
            sizes in proptest::collection::vec(1_usize..9, 1..20),
        ) {
            let turn = std::cell::Cell::new(0);
            let (forwarded, found) = pass(text.as_bytes(), |_| {
                turn.set(turn.get() + 1);
                sizes[turn.get() % sizes.len()]
            });
            prop_assert!(!found);
            prop_assert_eq!(forwarded, text.into_bytes());
        }

        #[test]
        fn a_key_is_found_whatever_is_around_it(
            before in "[ -~]{0,40}",
            after in "[ -~]{0,40}",
            form in 0_usize..18,
            sizes in proptest::collection::vec(1_usize..30, 1..20),
        ) {
            let all = forms(KEY);
            let text = format!("{before}{}{after}", all[form % all.len()]);
            let turn = std::cell::Cell::new(0);
            let (_, found) = pass(text.as_bytes(), |_| {
                turn.set(turn.get() + 1);
                sizes[turn.get() % sizes.len()]
            });
            prop_assert!(found, "{text}");
        }
    }
}
