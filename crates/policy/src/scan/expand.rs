//! The parts of a word that the shell computes: `$…`, backticks, `$'…'`, `{a,b}`.

use super::{Scanner, Word, scan_at};
use marshal_model::limits;

impl Scanner<'_> {
    /// Handles `$`: the commands of a substitution are read, `$HOME` and `$PWD` have their known
    /// values, and everything else stays in the word as its source and makes it dynamic.
    pub(super) fn dollar(&mut self, text: &mut Vec<u8>, word: &mut Word, in_quotes: bool) {
        let start = self.at;
        match self.peek(1) {
            Some(b'(') => {
                if self.peek(2) != Some(b'(') || !self.arithmetic(2) {
                    if self.peek(2) == Some(b'(') {
                        self.mark_broken("parentheses whose end is hard to tell");
                    }
                    self.at += 2;
                    self.nested(b')');
                }
            }
            Some(b'{') => {
                if self.home(b"${HOME}", text, word) {
                    return;
                }
                self.at += 2;
                self.braced(b'}', in_quotes);
            }
            Some(b'[') => {
                self.at += 2;
                self.braced(b']', in_quotes);
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
        self.mark_dynamic(start, text, word);
    }

    /// Marks the text from `start` on as computed when the command runs.
    pub(super) fn mark_dynamic(&self, start: usize, text: &mut Vec<u8>, word: &mut Word) {
        let from = text.len();
        word.dynamic_from.get_or_insert(from);
        text.extend_from_slice(&self.text[start..self.at.min(self.text.len())]);
        word.expansions.push((from, text.len()));
    }

    /// Reads `$HOME` at a word's start, as a complete name, as `~`.
    fn home(&mut self, source: &[u8], text: &mut Vec<u8>, word: &mut Word) -> bool {
        let rest = &self.text[self.at..];
        let whole = rest.starts_with(source)
            && !rest
                .get(source.len())
                .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        if !whole || !text.is_empty() || word.is_dynamic() {
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
            self.mark_broken("substitutions nested too deeply");
            return;
        }
        self.depth += 1;
        let pending = std::mem::take(&mut self.pending);
        self.list(Some(until));
        self.pending = pending;
        self.depth -= 1;
    }

    /// The inside of `${…}` or `$[…]`. `in_quotes`: in a double-quoted string or a here-document's
    /// body, where quotes do not prevent expansion.
    fn braced(&mut self, until: u8, in_quotes: bool) {
        if self.depth >= limits::POLICY_DEPTH {
            self.mark_broken("substitutions nested too deeply");
            return;
        }
        self.depth += 1;
        let start = self.at;
        let (mut text, mut word) = (Vec::new(), Word::default());
        loop {
            match self.peek(0) {
                None => {
                    self.mark_broken("an expansion that is never closed");
                    break;
                }
                Some(b) if b == until => {
                    self.at += 1;
                    break;
                }
                Some(b'$') => {
                    let from = self.at;
                    self.dollar(&mut text, &mut word, false);
                    if in_quotes && self.text.get(from + 1) == Some(&b'\'') {
                        self.scan_ineffective_quotes(from + 2);
                    }
                }
                Some(b'`') => self.backticks(&mut text, &mut word, in_quotes),
                Some(b'"') if until == b'}' => {
                    self.at += 1;
                    self.double_quoted(&mut text, &mut word, Some(b'"'));
                }
                Some(b'<' | b'>') if !in_quotes && until == b'}' && self.peek(1) == Some(b'(') => {
                    self.scan_process_substitution(&mut text, &mut word, &mut Vec::new());
                }
                // Quotes are plain text inside `$[…]`, where a subscript may hide a substitution.
                Some(b'\'') if until == b'}' => {
                    let from = self.at + 1;
                    self.single_quoted(&mut text);
                    if in_quotes {
                        self.scan_ineffective_quotes(from);
                    }
                }
                Some(b'\'' | b'"' | b'[' | b'#') if until == b']' => {
                    self.mark_broken("an old form of arithmetic whose end is hard to tell");
                    self.at += 1;
                }
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        self.depth -= 1;
        let inside = &self.text[start.min(self.text.len())..self.at.min(self.text.len())];
        let runs = until == b'}' && matches!(inside.first(), Some(b' ' | b'\t' | b'\n' | b'|'));
        if runs && self.depth > 0 {
            self.mark_broken("a substitution of new shells inside another");
        } else if runs {
            // New shells run the code in there.
            let script = String::from_utf8_lossy(inside.strip_suffix(b"}").unwrap_or(inside));
            let inner = scan_at(script.trim_start_matches('|'), self.depth + 1);
            self.append_scan(inner);
        }
        if inside.windows(2).any(|pair| pair == b"@P") {
            self.mark_broken("a text that is computed twice");
        }
    }

    /// Scans single quotes from `from` to here that end where they seem to but do not prevent
    /// expansion.
    fn scan_ineffective_quotes(&mut self, from: usize) {
        let end = self.at.saturating_sub(1).min(self.text.len());
        let inside = self.text.get(from..end).unwrap_or_default();
        if inside
            .iter()
            .any(|b| matches!(b, b'}' | b'"' | b'\\' | b'\n'))
        {
            self.mark_broken("quotes whose end is hard to tell");
        }
        if memchr::memchr2(b'$', b'`', inside).is_some() && self.depth < limits::POLICY_DEPTH {
            let mut inner = Scanner {
                text: inside,
                at: 0,
                depth: self.depth + 1,
                scan: std::mem::take(&mut self.scan),
                pending: Vec::new(),
            };
            inner.double_quoted(&mut Vec::new(), &mut Word::default(), None);
            self.scan = inner.scan;
        }
    }

    /// A command substitution in backticks. Its text loses one level of backslashes; those before
    /// double quotes only within double quotes.
    pub(super) fn backticks(&mut self, text: &mut Vec<u8>, word: &mut Word, in_quotes: bool) {
        let start = self.at;
        let mut script = Vec::new();
        let mut escaped = false;
        self.at += 1;
        loop {
            match self.peek(0) {
                None => {
                    self.mark_broken("an unterminated backtick");
                    break;
                }
                Some(b'`') => {
                    self.at += 1;
                    break;
                }
                Some(b'\\') if in_quotes && self.peek(1) == Some(b'"') => {
                    escaped = true;
                    script.extend(b"\\\"");
                    self.at += 2;
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
        self.mark_dynamic(start, text, word);
        if self.depth >= limits::POLICY_DEPTH {
            self.mark_broken("substitutions nested too deeply");
            return;
        }
        let script = String::from_utf8_lossy(&script);
        if escaped && self.depth >= 2 {
            self.mark_broken("quotes in backticks nested too deeply");
        }
        if escaped && self.depth < 2 {
            // The context decides which of the two it is.
            let inner = scan_at(&script.replace("\\\"", "\""), self.depth + 1);
            self.scan.broken = self.scan.broken.or(inner.broken);
            self.append_scan(inner);
        }
        let inner = scan_at(&script, self.depth + 1);
        self.scan.broken = self.scan.broken.or(inner.broken);
        self.append_scan(inner);
    }

    /// Adds the commands of a text that was read separately.
    fn append_scan(&mut self, inner: super::Scan) {
        self.scan.may_repeat |= inner.may_repeat;
        let offset = self.scan.texts.len();
        self.scan.texts.extend(inner.texts);
        let commands = self.scan.commands.len();
        self.scan.flows.adopt(inner.flows.edges, commands);
        for mut command in inner.commands {
            for place in &mut command.stdin {
                *place += offset;
            }
            self.scan.commands.push(command);
        }
    }

    /// `((…))`, whose second parenthesis is `ahead` bytes away. In it `<<` is a shift and begins no
    /// here-document that would hide what follows. It may also be a command in two nested groups,
    /// so its inside is also read as that, separately. `false` if no `))` ends it.
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
            self.mark_broken("parentheses whose end is not seen");
            return false;
        }
        if self.text.get(end + 1) != Some(&b')') || self.depth >= limits::POLICY_DEPTH {
            return false;
        }
        let inside = String::from_utf8_lossy(&self.text[start..end]).into_owned();
        let inner = scan_at(&inside, self.depth + 1);
        self.append_scan(inner);
        self.at = end + 2;
        true
    }

    /// `$'…'`: ends at the first `'` without a backslash before it.
    fn ansi_c(&mut self, text: &mut Vec<u8>) {
        self.at += 2;
        let start = self.at;
        loop {
            match self.peek(0) {
                None => {
                    self.mark_broken("an unterminated quote");
                    break;
                }
                Some(b'\'') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        let end = self.at.min(self.text.len());
        self.at = end + 1;
        decode(&self.text[start.min(end)..end], text);
    }
}

/// The escapes of bash(1), QUOTING. A NUL ends the text.
fn decode(source: &[u8], text: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(&byte) = source.get(at) {
        at += 1;
        let code = source.get(at).copied();
        let (b'\\', Some(code)) = (byte, code) else {
            text.push(byte);
            continue;
        };
        at += 1;
        let value = match code {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'v' => 11,
            b'f' => 12,
            b'e' | b'E' => 0x1b,
            b'\\' | b'\'' | b'"' | b'?' => code,
            b'0'..=b'7' => low_byte(number(source, at - 1, 8, 3, &mut at)),
            b'x' => {
                let brace = source.get(at) == Some(&b'{');
                let from = at + usize::from(brace);
                let value = number(
                    source,
                    from,
                    16,
                    if brace { usize::MAX } else { 2 },
                    &mut at,
                );
                if at == from && !brace {
                    text.extend(b"\\x");
                    continue;
                }
                at += usize::from(brace && source.get(at) == Some(&b'}'));
                low_byte(value)
            }
            b'u' | b'U' => {
                let from = at;
                let value = number(source, from, 16, if code == b'u' { 4 } else { 8 }, &mut at);
                match char::from_u32(value).filter(|_| at > from) {
                    Some('\0') => return,
                    Some(c) => text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                    None => text.extend([b'\\', code]),
                }
                continue;
            }
            b'c' => match source.get(at).copied() {
                None => {
                    text.extend(b"\\c");
                    continue;
                }
                Some(item) => {
                    at += 1;
                    at += usize::from(item == b'\\' && source.get(at) == Some(&b'\\'));
                    if item == b'?' {
                        0x7f
                    } else {
                        item.to_ascii_uppercase() & 0x1f
                    }
                }
            },
            other => {
                text.extend([b'\\', other]);
                continue;
            }
        };
        if value == 0 {
            return;
        }
        text.push(value);
    }
}

fn low_byte(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

/// A number of at most `most` digits from `from` on; `at` is moved after it.
fn number(source: &[u8], from: usize, radix: u32, most: usize, at: &mut usize) -> u32 {
    let mut value = 0_u32;
    *at = from;
    while *at - from < most
        && let Some(digit) = source.get(*at).and_then(|b| char::from(*b).to_digit(radix))
    {
        value = value.wrapping_mul(radix).wrapping_add(digit);
        *at += 1;
    }
    value
}
