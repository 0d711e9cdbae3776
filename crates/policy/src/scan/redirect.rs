//! Redirects, here-documents and here-strings, and where their bodies end.

use std::borrow::Cow;

use super::{Heredoc, List, ProcessSubstitution, Scanner};
use crate::command::{Command, Direction, Redirect, Word};
use marshal_model::limits;

impl Scanner<'_> {
    /// A redirect, a here-document, a here-string or a process substitution.
    pub(super) fn redirect(&mut self, list: &mut List) {
        let rest = &self.text[self.at..];
        let (length, direction) = match rest {
            [b'<', b'<', b'<', ..] => {
                self.at += 3;
                let first = self.scan.commands.len();
                let target = self.target(&mut list.process_substitutions);
                list.process_substitutions
                    .push((first..self.scan.commands.len(), true));
                list.current.stdin.push(self.scan.texts.len());
                self.scan.texts.push(target.text);
                return;
            }
            [b'<', b'<', ..] => return self.heredoc(list),
            [b'&', b'>', b'>', ..] => (3, Direction::Write),
            [b'&' | b'<', b'>', ..] | [b'>', b'>' | b'|', ..] => (2, Direction::Write),
            [b'>' | b'<', b'&', ..] => (2, Direction::Duplicate),
            [b'>', ..] => (1, Direction::Write),
            _ => (1, Direction::Read),
        };
        let writes = rest[0] == b'>';
        self.at += length;
        self.skip_blanks();
        if direction == Direction::Duplicate && self.peek(0) == Some(b'-') {
            self.at += 1; // `>& -x` closes the descriptor, and `x` is an argument
            return;
        }
        let target = self.target(&mut list.process_substitutions);
        let number =
            !target.text.is_empty() && target.text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        let direction = match direction {
            Direction::Duplicate if number || !writes => Direction::Duplicate,
            Direction::Duplicate => Direction::Write,
            other => other,
        };
        list.current.redirects.push(Redirect { direction, target });
    }

    /// Skips blanks and line continuations.
    pub(super) fn skip_blanks(&mut self) {
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b' ' | b'\t'), _) => self.at += 1,
                (Some(b'\\'), Some(b'\n')) => self.at += 2,
                _ => return,
            }
        }
    }

    /// A process substitution inside a word, which continues after it.
    pub(super) fn scan_process_substitution(
        &mut self,
        text: &mut Vec<u8>,
        word: &mut Word,
        fed: &mut Vec<ProcessSubstitution>,
    ) {
        let start = self.at;
        let incoming = self.peek(0) == Some(b'<');
        let first = self.scan.commands.len();
        self.at += 2;
        self.nested(b')');
        fed.push((first..self.scan.commands.len(), incoming));
        self.mark_dynamic(start, text, word);
    }

    fn target(&mut self, fed: &mut Vec<ProcessSubstitution>) -> Word {
        self.skip_blanks();
        let (word, _) = self.word(false, fed);
        if word.text.is_empty() && !word.quoted {
            self.mark_broken("a redirect without a target");
        }
        word
    }

    fn heredoc(&mut self, list: &mut List) {
        self.at += 2;
        let tabs = self.peek(0) == Some(b'-');
        self.at += usize::from(tabs);
        self.skip_blanks();
        let start = self.at;
        let commands = self.scan.commands.len();
        let word = self.target(&mut Vec::new());
        // A delimiter is never expanded, so nothing in it runs.
        self.scan.commands.truncate(commands);
        let source = &self.text[start..self.at.min(self.text.len())];
        let delimiter = if word.is_dynamic() || word.tilde {
            self.mark_broken("a here-document whose end is hard to tell");
            let quotes = |b: &u8| !matches!(b, b'\'' | b'"' | b'\\');
            let text: Vec<u8> = source.iter().copied().filter(quotes).collect();
            String::from_utf8_lossy(&text).into_owned()
        } else {
            word.text
        };
        let literal = word.quoted || memchr::memchr3(b'\'', b'"', b'\\', source).is_some();
        let place = self.scan.texts.len();
        self.scan.texts.push(String::new());
        list.current.stdin.push(place);
        if self.pending.len() < limits::POLICY_DEPTH {
            self.pending.push(Heredoc {
                delimiter,
                tabs,
                literal,
                place,
            });
        } else {
            self.mark_broken("too many here-documents");
        }
    }

    /// Reads the bodies that begin on this line.
    pub(super) fn read_heredoc_bodies(&mut self) {
        for heredoc in std::mem::take(&mut self.pending) {
            let start = self.at.min(self.text.len());
            let mut end = start;
            loop {
                if end >= self.text.len() {
                    // Shells accept it; but to them what follows may not be a body at all.
                    self.mark_broken("a here-document that is never closed");
                    self.at = end;
                    break;
                }
                let (line, next) = line(&self.text[end..], heredoc.literal);
                let mut line = line.as_ref();
                while heredoc.tabs && line.first() == Some(&b'\t') {
                    line = &line[1..];
                }
                self.at = (end + next).min(self.text.len());
                if line == heredoc.delimiter.as_bytes() {
                    break;
                }
                end = self.at;
            }
            let body = &self.text[start..end];
            let resume = self.at;
            let first = self.scan.commands.len();
            if !heredoc.literal && memchr::memchr2(b'$', b'`', body).is_some() {
                let mut inner = Scanner {
                    text: body,
                    at: 0,
                    depth: self.depth + 1,
                    scan: std::mem::take(&mut self.scan),
                    pending: Vec::new(),
                };
                if inner.depth <= limits::POLICY_DEPTH {
                    inner.double_quoted(&mut Vec::new(), &mut Word::default(), None);
                }
                self.scan = inner.scan;
                let reader = |command: &Command| command.stdin.contains(&heredoc.place);
                if let Some(at) = self.scan.commands[..first].iter().rposition(reader) {
                    let body = first..self.scan.commands.len();
                    self.scan.flows.feed(body, at..at + 1);
                }
            }
            self.at = resume;
            self.scan.texts[heredoc.place] = String::from_utf8_lossy(body).into_owned();
        }
    }
}

/// The first line of a text, and where the next one begins. Unless `literal`, a line that ends with
/// a backslash continues in the next one, before it is compared with a delimiter.
fn line(text: &[u8], literal: bool) -> (Cow<'_, [u8]>, usize) {
    let length = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        memchr::memchr(b'\n', rest).unwrap_or(rest.len())
    };
    let mut end = length(0);
    let continued = |end: usize| {
        let before = text[..end].iter().rev();
        let slashes = before.take_while(|b| **b == b'\\').count();
        !literal && slashes % 2 == 1 && end < text.len()
    };
    if !continued(end) {
        return (Cow::Borrowed(&text[..end]), end + 1);
    }
    let mut joined = text[..end - 1].to_vec();
    loop {
        let start = end + 1;
        end = start + length(start);
        if continued(end) && end > start {
            joined.extend_from_slice(&text[start..end - 1]);
        } else {
            joined.extend_from_slice(&text[start.min(text.len())..end.min(text.len())]);
            return (Cow::Owned(joined), end + 1);
        }
    }
}
