//! What the shell computes inside a word: `$…`, backticks, `$'…'`, `{a,b}`.

use super::{Scanner, Word, scan_at};
use crate::limits;

impl Scanner<'_> {
    /// At `$`: a substitution is looked into, `$HOME` and `$PWD` are what they are, everything
    /// else stays in the word as its source and makes it live.
    pub(super) fn dollar(&mut self, text: &mut Vec<u8>, word: &mut Word, in_quotes: bool) {
        let start = self.at;
        match self.peek(1) {
            Some(b'(') => {
                if self.peek(2) != Some(b'(') || !self.arithmetic(2) {
                    self.at += 2;
                    self.nested(b')');
                }
            }
            Some(b'{') => {
                if self.home(b"${HOME}", text, word) {
                    return;
                }
                self.at += 2;
                self.braced(b'}');
            }
            Some(b'[') => {
                self.at += 2;
                self.braced(b']');
            }
            Some(b'\'') if !in_quotes => {
                word.quoted = true;
                return self.ansi_c(text);
            }
            Some(b'"') if !in_quotes => {
                self.at += 1; // a translated string is read as a double-quoted one
                return;
            }
            Some(b) if b.is_ascii_alphanumeric() || b == b'_' => {
                if self.home(b"$HOME", text, word) {
                    return;
                }
                self.at += 2;
                while self
                    .peek(0)
                    .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
                {
                    self.at += 1;
                }
            }
            Some(b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!') => self.at += 2,
            _ => {
                text.push(b'$');
                self.at += 1;
                return;
            }
        }
        word.live_from.get_or_insert(text.len());
        let end = self.at.min(self.text.len());
        text.extend_from_slice(&self.text[start..end]);
    }

    /// `$HOME` at a word's start, as a name of its own, is read as `~`.
    fn home(&mut self, source: &[u8], text: &mut Vec<u8>, word: &mut Word) -> bool {
        let rest = &self.text[self.at..];
        let whole = rest.starts_with(source)
            && !rest
                .get(source.len())
                .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        if !whole || !text.is_empty() || word.live() {
            return false;
        }
        word.tilde = true;
        text.push(b'~');
        self.at += source.len();
        true
    }

    /// The commands inside `$(`, `<(` or `>(`.
    pub(super) fn nested(&mut self, until: u8) {
        if self.depth >= limits::POLICY_DEPTH {
            self.broken("substitutions nested too deeply");
            return;
        }
        self.depth += 1;
        let pending = std::mem::take(&mut self.pending);
        self.list(Some(until));
        self.pending = pending;
        self.depth -= 1;
    }

    /// The inside of `${…}` or `$[…]`.
    fn braced(&mut self, until: u8) {
        if self.depth >= limits::POLICY_DEPTH {
            self.broken("substitutions nested too deeply");
            return;
        }
        self.depth += 1;
        let (mut text, mut word) = (Vec::new(), Word::default());
        loop {
            match self.peek(0) {
                None => {
                    self.broken("an expansion that is never closed");
                    break;
                }
                Some(b) if b == until => {
                    self.at += 1;
                    break;
                }
                Some(b'$') => self.dollar(&mut text, &mut word, false),
                Some(b'`') => self.backticks(&mut text, &mut word),
                Some(b'"') => {
                    self.at += 1;
                    self.double_quoted(&mut text, &mut word, Some(b'"'));
                }
                // Quotes are text inside `$[…]`, where a subscript may hide a substitution.
                Some(b'\'') if until == b'}' => self.single_quoted(&mut text),
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        self.depth -= 1;
    }

    /// A command substitution in backticks: its text loses one level of backslashes.
    pub(super) fn backticks(&mut self, text: &mut Vec<u8>, word: &mut Word) {
        let start = self.at;
        let mut script = Vec::new();
        self.at += 1;
        loop {
            match self.peek(0) {
                None => {
                    self.broken("an unterminated backtick");
                    break;
                }
                Some(b'`') => {
                    self.at += 1;
                    break;
                }
                Some(b'\\') if matches!(self.peek(1), Some(b'`' | b'\\' | b'$')) => {
                    script.extend(self.peek(1));
                    self.at += 2;
                }
                Some(byte) => {
                    script.push(byte);
                    self.at += 1;
                }
            }
        }
        word.live_from.get_or_insert(text.len());
        text.extend_from_slice(&self.text[start..self.at.min(self.text.len())]);
        if self.depth >= limits::POLICY_DEPTH {
            self.broken("substitutions nested too deeply");
            return;
        }
        let inner = scan_at(&String::from_utf8_lossy(&script), self.depth + 1);
        self.found.broken = self.found.broken.or(inner.broken);
        self.adopt(inner);
    }

    /// Takes the commands of a text that was read by itself.
    fn adopt(&mut self, inner: super::Scan) {
        let offset = self.found.texts.len();
        self.found.texts.extend(inner.texts);
        let commands = self.found.commands.len();
        self.found.flows.adopt(inner.flows.edges, commands);
        for mut command in inner.commands {
            for place in &mut command.stdin {
                *place += offset;
            }
            self.found.commands.push(command);
        }
    }

    /// `((…))`, whose second parenthesis is `ahead` bytes away: there `<<` shifts and begins no
    /// here-document that would hide what follows. As it may also be a command in a group in a
    /// group, its inside is read as one, too, by itself. `false`: no `))` ends it.
    pub(super) fn arithmetic(&mut self, ahead: usize) -> bool {
        let start = self.at + ahead + 1;
        let bound = (start + limits::POLICY_ARITHMETIC).min(self.text.len());
        let mut depth = 0_usize;
        let mut end = start;
        while end < bound {
            match self.text[end] {
                b'(' => depth += 1,
                b')' if depth == 0 => break,
                b')' => depth -= 1,
                b'\\' => end += 1,
                quote @ (b'\'' | b'"') => {
                    let rest = self.text.get(end + 1..bound).unwrap_or_default();
                    let Some(length) = memchr::memchr(quote, rest) else {
                        return false;
                    };
                    end += length + 1;
                }
                _ => {}
            }
            end += 1;
        }
        if end >= bound {
            self.broken("parentheses whose end is not seen");
            return false;
        }
        if self.text.get(end + 1) != Some(&b')') || self.depth >= limits::POLICY_DEPTH {
            return false;
        }
        let inside = String::from_utf8_lossy(&self.text[start..end]).into_owned();
        let inner = scan_at(&inside, self.depth + 1);
        self.adopt(inner);
        self.at = end + 2;
        true
    }

    /// `$'…'` with the escapes of bash(1), QUOTING.
    fn ansi_c(&mut self, text: &mut Vec<u8>) {
        self.at += 2;
        loop {
            let Some(byte) = self.peek(0) else {
                self.broken("an unterminated quote");
                return;
            };
            self.at += 1;
            match byte {
                b'\'' => return,
                b'\\' => {
                    let Some(code) = self.peek(0) else { continue };
                    self.at += 1;
                    match code {
                        b'n' => text.push(b'\n'),
                        b't' => text.push(b'\t'),
                        b'r' => text.push(b'\r'),
                        b'a' => text.push(7),
                        b'b' => text.push(8),
                        b'e' | b'E' => text.push(0x1b),
                        b'x' => self.number(text, 16, 2),
                        b'u' => self.number(text, 16, 4),
                        b'U' => self.number(text, 16, 8),
                        b'0'..=b'7' => {
                            self.at -= 1;
                            self.number(text, 8, 3);
                        }
                        other => text.push(other),
                    }
                }
                other => text.push(other),
            }
        }
    }

    fn number(&mut self, text: &mut Vec<u8>, radix: u32, most: usize) {
        let mut value = 0_u32;
        for _ in 0..most {
            let Some(digit) = self.peek(0).and_then(|b| char::from(b).to_digit(radix)) else {
                break;
            };
            value = value.wrapping_mul(radix).wrapping_add(digit);
            self.at += 1;
        }
        if let Some(c) = char::from_u32(value) {
            text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

/// Adds a word to a command, with one flat `{a,b}` written out as bash would: enough to see
/// `{rm,-rf,x}`. Deeper forms stay a live word.
pub(super) fn push(words: &mut Vec<Word>, word: Word) {
    let Some((open, close)) = braces(&word) else {
        words.push(word);
        return;
    };
    let (before, after) = (&word.text[..open], &word.text[close + 1..]);
    for part in word.text[open + 1..close].split(',') {
        words.push(Word {
            text: format!("{before}{part}{after}"),
            ..word.clone()
        });
    }
}

fn braces(word: &Word) -> Option<(usize, usize)> {
    if word.quoted || word.live() {
        return None;
    }
    let open = word.text.find('{')?;
    let close = open + word.text[open..].find('}')?;
    let inside = &word.text[open + 1..close];
    let parts = inside.matches(',').count() + 1;
    // What is written out costs parts × length: bounded, so that the whole stays linear.
    (parts > 1 && parts <= 16 && !inside.contains('{') && word.text.len() <= 256)
        .then_some((open, close))
}
