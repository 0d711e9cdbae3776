//! The tolerant reader: finds as many simple commands as it can, whatever the text.
//!
//! Owns the look into groups, loops, functions, substitutions and here-documents, for rules that
//! deny or ask. Nothing that only this reader understands is ever allowed by a rule, so it may
//! guess; it must not fail, recurse without bound, or read a byte more than a few times.

use super::command::{Assignment, Command, Direction, Join, RESERVED, Redirect, Word, is_name};
use super::flow::Flows;
use crate::limits;

mod expand;
#[cfg(test)]
mod tests;

/// What was found in a text.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The commands, those of substitutions before the command that they stand in.
    pub commands: Vec<Command>,
    /// Here-document bodies and here-strings, for [`Command::stdin`].
    pub texts: Vec<String>,
    /// Which commands feed which.
    pub flows: Flows,
    /// Why no shell would accept the text, or why it was not read to its end.
    pub broken: Option<&'static str>,
}

/// Reads whatever can be read.
pub(super) fn scan(text: &str) -> Scan {
    scan_at(text, 0)
}

fn scan_at(text: &str, depth: usize) -> Scan {
    let mut scanner = Scanner {
        text: text.as_bytes(),
        at: 0,
        depth,
        found: Scan::default(),
        pending: Vec::new(),
    };
    scanner.list(None);
    scanner.found
}

struct Heredoc {
    delimiter: String,
    tabs: bool,
    literal: bool,
    place: usize,
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    /// How many substitutions this text stands in.
    depth: usize,
    found: Scan,
    pending: Vec<Heredoc>,
}

/// The state of one list of commands: a whole text, or the inside of one substitution.
#[derive(Default)]
struct List {
    current: Command,
    /// Open `(` of this list.
    groups: usize,
    /// Open `case` of this list: its patterns end with a lone `)`.
    cases: usize,
    /// Open `if`, loops, `{` and functions, to see what was never closed.
    opened: isize,
    /// How many pipelines stand around this list.
    depth: usize,
    /// Commands in process substitutions of the current command: they feed it, or it feeds them.
    fed: Vec<(std::ops::Range<usize>, bool)>,
    /// The current command only holds what the grammar put there, such as `then`.
    keyword: bool,
}

impl Scanner<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn broken(&mut self, why: &'static str) {
        self.found.broken.get_or_insert(why);
    }

    /// Reads commands until `until` closes this list, or to the end.
    fn list(&mut self, until: Option<u8>) {
        self.enter();
        let mut list = List {
            depth: self.found.flows.depth(),
            ..List::default()
        };
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\n' => {
                    self.at += 1;
                    self.finish(&mut list, Join::Then);
                    self.bodies();
                }
                b'#' => {
                    while self.peek(0).is_some_and(|b| b != b'\n') {
                        self.at += 1;
                    }
                }
                b'(' if self.peek(1) == Some(b'(') && self.arithmetic(1) => {}
                b'(' => {
                    self.at += 1;
                    list.groups += 1;
                    self.finish(&mut list, Join::Then);
                    self.enter();
                }
                b')' => {
                    self.at += 1;
                    self.finish(&mut list, Join::Then);
                    if list.groups > 0 {
                        list.groups -= 1;
                        self.leave(&list);
                    } else if list.cases == 0 {
                        if until == Some(b')') {
                            self.leave_all(&list);
                            return;
                        }
                        self.broken("a parenthesis that nothing opened");
                    }
                }
                b'<' | b'>' => self.redirect(&mut list),
                b'&' if self.peek(1) == Some(b'>') => self.redirect(&mut list),
                b';' | b'&' | b'|' => self.operator(&mut list),
                _ => self.next_word(&mut list),
            }
            if self.found.commands.len() >= limits::POLICY_COMMANDS {
                self.broken("more commands than are looked at");
                self.at = self.text.len();
            }
        }
        let dangling = list.current.is_empty() && list.current.join != Join::Then;
        self.finish(&mut list, Join::Then);
        self.bodies();
        self.leave_all(&list);
        if until.is_some() || list.groups > 0 || list.opened != 0 || list.cases > 0 || dangling {
            self.broken("something that is never closed");
        }
    }

    fn operator(&mut self, list: &mut List) {
        let (length, join) = match (self.peek(0), self.peek(1)) {
            (Some(b'&'), Some(b'&')) => (2, Join::And),
            (Some(b'|'), Some(b'|')) => (2, Join::Or),
            (Some(b'|'), Some(b'&')) => (2, Join::Pipe),
            (Some(b'|'), _) => (1, Join::Pipe),
            (Some(b';'), Some(b';' | b'&')) => (2, Join::Then),
            _ => (1, Join::Then),
        };
        let dangling = list.current.is_empty()
            && !list.keyword
            && list.groups == 0
            && list.cases == 0
            && self.found.commands.is_empty();
        if dangling {
            self.broken("an operator without a command");
        }
        self.at += length;
        self.finish(list, join);
    }

    /// A group begins.
    fn enter(&mut self) {
        let at = self.found.commands.len();
        self.found.flows.enter(at);
    }

    /// A group of this list ends.
    fn leave(&mut self, list: &List) {
        let flows = &mut self.found.flows;
        if flows.depth() > list.depth {
            flows.leave(self.found.commands.len(), flows.depth() - 1);
        }
    }

    /// The list ends, and all of its groups.
    fn leave_all(&mut self, list: &List) {
        let at = self.found.commands.len();
        self.found.flows.leave(at, list.depth.saturating_sub(1));
    }

    fn finish(&mut self, list: &mut List, next: Join) {
        list.keyword = false;
        let command = std::mem::take(&mut list.current);
        let at = self.found.commands.len();
        if command.is_empty() {
            match next {
                // What follows `|`, after a newline or in a group, is still the pipe's.
                Join::Then if command.join == Join::Pipe => {}
                Join::Pipe => self.found.flows.pipe(at),
                _ => self.found.flows.end(at),
            }
            // A newline after `&&` leaves the joint open.
            list.current.join = if next == Join::Then {
                command.join
            } else {
                next
            };
            return;
        }
        self.found.commands.push(command);
        for (inner, incoming) in std::mem::take(&mut list.fed) {
            let (from, to) = if incoming {
                (inner, at..at + 1)
            } else {
                (at..at + 1, inner)
            };
            self.found.flows.feed(from, to);
        }
        match next {
            Join::Pipe => self.found.flows.pipe(at + 1),
            _ => self.found.flows.end(at + 1),
        }
        list.current.join = next;
    }

    fn next_word(&mut self, list: &mut List) {
        let (word, equals) = self.word();
        if word.text.is_empty() && !word.quoted {
            return; // a continuation alone
        }
        let digits = !word.quoted
            && !word.live()
            && !word.text.is_empty()
            && word.text.bytes().all(|b| b.is_ascii_digit());
        if digits && matches!(self.peek(0), Some(b'<' | b'>')) {
            return self.redirect(list);
        }
        if !list.current.words.is_empty() {
            let group = !word.quoted && word.text == "{";
            if group {
                list.opened += 1;
                self.finish(list, Join::Then);
                return self.enter();
            }
            return expand::push(&mut list.current.words, word);
        }
        if let Some(equals) = equals {
            return self.assignment(list, &word, equals);
        }
        if !word.quoted && !word.live() && RESERVED.contains(&word.text.as_str()) {
            return self.reserved(list, word);
        }
        if list.current.timed && matches!(word.text.as_str(), "-p" | "--") {
            return;
        }
        expand::push(&mut list.current.words, word);
    }

    fn assignment(&mut self, list: &mut List, word: &Word, equals: usize) {
        let append = word.text[..equals].ends_with('+');
        let name = word.text[..equals - usize::from(append)].to_owned();
        let value = Word {
            text: word.text[equals + 1..].to_owned(),
            live_from: word.live_from.map(|n| n.saturating_sub(equals + 1)),
            quoted: word.quoted,
            ..Word::default()
        };
        if value.text.is_empty() && self.peek(0) == Some(b'(') {
            // An array's elements are words, not commands; substitutions in them are found.
            self.at += 1;
            while let Some(byte) = self.peek(0) {
                match byte {
                    b')' => break,
                    b'\'' | b'"' | b'\\' | b'$' | b'`' => drop(self.word()),
                    _ => self.at += 1,
                }
            }
            self.at += 1;
        }
        list.current.assignments.push(Assignment { name, value });
    }

    fn reserved(&mut self, list: &mut List, word: Word) {
        list.keyword = true;
        match word.text.as_str() {
            "time" => list.current.timed = true,
            "if" | "while" | "until" | "{" => {
                list.opened += 1;
                self.enter();
            }
            "fi" | "done" | "}" => {
                list.opened -= 1;
                self.leave(list);
            }
            "for" | "select" => {
                list.opened += 1;
                self.enter();
                list.current.words.push(word);
            }
            "case" => {
                list.cases += 1;
                self.enter();
                list.current.words.push(word);
            }
            "esac" => {
                list.cases = list.cases.saturating_sub(1);
                self.leave(list);
            }
            "[[" => self.test(),
            "]]" | "in" => list.current.words.push(word),
            _ => {}
        }
    }

    /// The inside of `[[ … ]]`: operators there compare, they do not join or redirect.
    fn test(&mut self) {
        while self.at < self.text.len() {
            if self.text[self.at..].starts_with(b"]]") {
                self.at += 2;
                return;
            }
            match self.peek(0) {
                Some(b'\'' | b'"' | b'\\' | b'$' | b'`') => drop(self.word()),
                _ => self.at += 1,
            }
        }
        self.broken("something that is never closed");
    }

    /// Reads one word; the second value is the place of an unquoted `=` after a name.
    fn word(&mut self) -> (Word, Option<usize>) {
        let mut text = Vec::new();
        let mut word = Word::default();
        let mut equals = None;
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' => break,
                b'\'' => {
                    word.quoted = true;
                    self.single_quoted(&mut text);
                    continue;
                }
                b'"' => {
                    word.quoted = true;
                    self.at += 1;
                    self.double_quoted(&mut text, &mut word, Some(b'"'));
                    continue;
                }
                b'\\' => {
                    match self.peek(1) {
                        None => self.broken("a trailing backslash"),
                        Some(b'\n') => {
                            self.at += 2;
                            continue;
                        }
                        Some(next) => text.push(next),
                    }
                    word.quoted = true;
                    self.at += 2;
                    continue;
                }
                b'$' => {
                    self.dollar(&mut text, &mut word, false);
                    continue;
                }
                b'`' => {
                    self.backticks(&mut text, &mut word);
                    continue;
                }
                b'~' if text.is_empty() && !word.quoted => match self.peek(1) {
                    None | Some(b'/' | b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b')') => {
                        word.tilde = true;
                    }
                    Some(_) => word.live_from = Some(0),
                },
                b'*' | b'?' | b'[' => word.glob = true,
                b'=' if equals.is_none() && !word.quoted && !word.live() => {
                    let name = text.strip_suffix(b"+").unwrap_or(&text);
                    let name = match name.iter().position(|&b| b == b'[') {
                        Some(bracket) if name.ends_with(b"]") => &name[..bracket],
                        _ => name,
                    };
                    if std::str::from_utf8(name).is_ok_and(is_name) {
                        equals = Some(text.len());
                    }
                }
                _ => {}
            }
            text.push(byte);
            self.at += 1;
        }
        // Only pieces of valid UTF-8 were joined, at ASCII places.
        word.text = String::from_utf8_lossy(&text).into_owned();
        (word, equals)
    }

    fn single_quoted(&mut self, text: &mut Vec<u8>) {
        let start = self.at + 1;
        let rest = self.text.get(start..).unwrap_or_default();
        if let Some(length) = memchr::memchr(b'\'', rest) {
            text.extend_from_slice(&rest[..length]);
            self.at = start + length + 1;
        } else {
            text.extend_from_slice(rest);
            self.at = self.text.len();
            self.broken("an unterminated quote");
        }
    }

    /// Text in which only `$`, backticks and some backslashes act: a double-quoted string up to
    /// `until`, or a here-document's body to its end.
    fn double_quoted(&mut self, text: &mut Vec<u8>, word: &mut Word, until: Option<u8>) {
        loop {
            match self.peek(0) {
                None => {
                    if until.is_some() {
                        self.broken("an unterminated quote");
                    }
                    return;
                }
                byte if byte == until => {
                    self.at += 1;
                    return;
                }
                Some(b'$') => self.dollar(text, word, true),
                Some(b'`') => self.backticks(text, word),
                Some(b'\\') => {
                    match self.peek(1) {
                        Some(b'\n') => {}
                        Some(next @ (b'$' | b'`' | b'"' | b'\\')) => text.push(next),
                        Some(next) => text.extend([b'\\', next]),
                        None => text.push(b'\\'),
                    }
                    self.at += 2;
                }
                Some(byte) => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    /// A redirect, a here-document, a here-string or a process substitution.
    fn redirect(&mut self, list: &mut List) {
        let rest = &self.text[self.at..];
        let (length, direction) = match rest {
            [b'<' | b'>', b'(', ..] => {
                let start = self.at;
                let incoming = rest[0] == b'<';
                let first = self.found.commands.len();
                self.at += 2;
                self.nested(b')');
                list.fed.push((first..self.found.commands.len(), incoming));
                let text = String::from_utf8_lossy(&self.text[start..self.at.min(self.text.len())]);
                list.current.words.push(Word {
                    text: text.into_owned(),
                    live_from: Some(0),
                    ..Word::default()
                });
                return;
            }
            [b'<', b'<', b'<', ..] => {
                self.at += 3;
                let first = self.found.commands.len();
                let target = self.target();
                list.fed.push((first..self.found.commands.len(), true));
                list.current.stdin.push(self.found.texts.len());
                self.found.texts.push(target.text);
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
        while matches!(self.peek(0), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        if matches!(self.peek(0), Some(b'<' | b'>')) && self.peek(1) == Some(b'(') {
            return; // a process substitution as target: the next round finds its commands
        }
        if direction == Direction::Duplicate && self.peek(0) == Some(b'-') {
            self.at += 1; // `>& -x` closes the descriptor, and `x` is an argument
            return;
        }
        let target = self.target();
        let number =
            !target.text.is_empty() && target.text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        let direction = match direction {
            Direction::Duplicate if number || !writes => Direction::Duplicate,
            Direction::Duplicate => Direction::Write,
            other => other,
        };
        list.current.redirects.push(Redirect { direction, target });
    }

    fn target(&mut self) -> Word {
        while matches!(self.peek(0), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        let (word, _) = self.word();
        if word.text.is_empty() && !word.quoted {
            self.broken("a redirect without a target");
        }
        word
    }

    fn heredoc(&mut self, list: &mut List) {
        self.at += 2;
        let tabs = self.peek(0) == Some(b'-');
        self.at += usize::from(tabs);
        let word = self.target();
        let place = self.found.texts.len();
        self.found.texts.push(String::new());
        list.current.stdin.push(place);
        if self.pending.len() < limits::POLICY_DEPTH {
            self.pending.push(Heredoc {
                delimiter: word.text,
                tabs,
                literal: word.quoted,
                place,
            });
        } else {
            self.broken("too many here-documents");
        }
    }

    /// Reads the bodies that begin on this line.
    fn bodies(&mut self) {
        for heredoc in std::mem::take(&mut self.pending) {
            let start = self.at.min(self.text.len());
            let mut end = start;
            loop {
                if end >= self.text.len() {
                    // Shells take it; but what follows may be no body at all to them.
                    self.broken("a here-document that is never closed");
                    self.at = end;
                    break;
                }
                let rest = &self.text[end..];
                let length = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                let mut line = &rest[..length];
                while heredoc.tabs && line.first() == Some(&b'\t') {
                    line = &line[1..];
                }
                self.at = (end + length + 1).min(self.text.len());
                if line == heredoc.delimiter.as_bytes() {
                    break;
                }
                end = self.at;
            }
            let body = &self.text[start..end];
            let resume = self.at;
            let first = self.found.commands.len();
            if !heredoc.literal && memchr::memchr2(b'$', b'`', body).is_some() {
                let mut inner = Scanner {
                    text: body,
                    at: 0,
                    depth: self.depth + 1,
                    found: std::mem::take(&mut self.found),
                    pending: Vec::new(),
                };
                if inner.depth <= limits::POLICY_DEPTH {
                    inner.double_quoted(&mut Vec::new(), &mut Word::default(), None);
                }
                self.found = inner.found;
                let reader = |command: &Command| command.stdin.contains(&heredoc.place);
                if let Some(at) = self.found.commands[..first].iter().rposition(reader) {
                    let body = first..self.found.commands.len();
                    self.found.flows.feed(body, at..at + 1);
                }
            }
            self.at = resume;
            self.found.texts[heredoc.place] = String::from_utf8_lossy(body).into_owned();
        }
    }
}
