//! The tolerant reader: finds as many simple commands as it can, in any text.
//!
//! Owns the search in groups, loops, functions, substitutions and here-documents, for rules that
//! deny or ask. A rule never allows what only this reader understands, so it may guess. It must not
//! fail, recurse without bound, or read a byte more than a few times.

use super::command::{Assignment, Command, Join, RESERVED, Word, is_variable_name};
use super::flow::Flows;
use marshal_model::limits;

mod brace;
mod compound;
mod expand;
mod redirect;
#[cfg(test)]
mod tests;

/// The result of reading a text.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The commands, those of substitutions before the command around them.
    pub commands: Vec<Command>,
    /// Here-document bodies and here-strings, for [`Command::stdin`].
    pub texts: Vec<String>,
    /// Which commands feed which.
    pub flows: Flows,
    /// The bodies of functions, by name.
    pub functions: Vec<(String, std::ops::Range<usize>)>,
    /// Whether commands may run again, or later than their position: loops, functions.
    pub may_repeat: bool,
    /// Why no shell would accept the text, or why it was not read to its end; `None` if it is
    /// valid.
    pub broken: Option<&'static str>,
}

/// Reads as much of the text as possible.
pub(super) fn scan(text: &str) -> Scan {
    scan_at(text, 0)
}

fn scan_at(text: &str, depth: usize) -> Scan {
    let mut scanner = Scanner {
        text: text.as_bytes(),
        at: 0,
        depth,
        scan: Scan::default(),
        pending: Vec::new(),
    };
    if has_split_operator(scanner.text) {
        scanner.mark_broken("a line that is continued inside an operator");
    }
    scanner.list(None);
    scanner.scan
}

/// Whether a line continuation is where the shell joins its two sides to one operator, which this
/// reader would read as two.
fn has_split_operator(text: &[u8]) -> bool {
    let joins = |at: usize| {
        let before = at.checked_sub(1).and_then(|i| text.get(i));
        matches!(before, Some(b'$' | b'<' | b'>' | b'('))
            || before == Some(&b'=') && text.get(at + 2) == Some(&b'(')
    };
    memchr::memmem::find_iter(text, b"\\\n").any(joins)
}

/// The commands of a process substitution; `true` if they feed the command around it.
type ProcessSubstitution = (std::ops::Range<usize>, bool);

struct Heredoc {
    delimiter: String,
    tabs: bool,
    literal: bool,
    place: usize,
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    /// The number of substitutions around this text.
    depth: usize,
    scan: Scan,
    pending: Vec<Heredoc>,
}

/// The state of one list of commands: a whole text, or the inside of one substitution.
#[derive(Default)]
struct List {
    current: Command,
    /// The number of open `(` of this list.
    groups: usize,
    /// The number of open `case` of this list.
    cases: usize,
    /// The number of open `if`, loops, `{` and functions, to detect one that is never closed.
    opened: isize,
    /// The number of pipelines around this list.
    depth: usize,
    /// The commands in process substitutions of the current command, which feed it or are fed by
    /// it.
    process_substitutions: Vec<ProcessSubstitution>,
    /// Whether the current command has only a word of the grammar, such as `then`.
    keyword: bool,
    /// Whether `function` precedes: the next word is a name, whatever it spells.
    expects_function_name: bool,
    /// Functions whose bodies are being read: the name, the first command, and the number of groups
    /// and of open words around it.
    function_bodies: Vec<(String, usize, usize, isize)>,
}

impl Scanner<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn mark_broken(&mut self, why: &'static str) {
        self.scan.broken.get_or_insert(why);
    }

    /// Reads commands until `until` closes this list, or to the end.
    fn list(&mut self, until: Option<u8>) {
        self.begin_group();
        let mut list = List {
            depth: self.scan.flows.depth(),
            ..List::default()
        };
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\\' if self.peek(1) == Some(b'\n') => self.at += 2,
                b'\n' => {
                    self.at += 1;
                    self.finish(&mut list, Join::Then);
                    self.read_heredoc_bodies();
                }
                b'#' => self.comment(),
                b'(' if self.peek(1) == Some(b'(') && self.arithmetic(1) => {}
                b'(' => {
                    self.parenthesis(&mut list);
                    self.at += 1;
                    list.groups += 1;
                    self.finish(&mut list, Join::Then);
                    self.begin_group();
                }
                b')' => {
                    self.at += 1;
                    self.finish(&mut list, Join::Then);
                    if list.groups > 0 {
                        list.groups -= 1;
                        self.end_group(&list);
                        self.close_function_bodies(&mut list);
                    } else {
                        if until == Some(b')') && list.cases == 0 {
                            self.leave_all(&list);
                            return;
                        }
                        self.mark_broken("a parenthesis that nothing opened");
                    }
                }
                b'<' | b'>' if self.peek(1) == Some(b'(') => self.next_word(&mut list),
                b'<' | b'>' => self.redirect(&mut list),
                b'&' if self.peek(1) == Some(b'>') => self.redirect(&mut list),
                b';' | b'&' | b'|' => self.operator(&mut list),
                _ => self.next_word(&mut list),
            }
            if self.scan.commands.len() >= limits::POLICY_COMMANDS {
                self.mark_broken("more commands than are looked at");
                self.at = self.text.len();
            }
        }
        let dangling = list.current.is_empty() && list.current.join != Join::Then;
        self.finish(&mut list, Join::Then);
        self.read_heredoc_bodies();
        self.leave_all(&list);
        if until.is_some() || list.groups > 0 || list.opened != 0 || list.cases > 0 || dangling {
            self.mark_broken("something that is never closed");
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
            && self.scan.commands.is_empty();
        if dangling {
            self.mark_broken("an operator without a command");
        }
        let background = self.peek(0) == Some(b'&') && length == 1;
        let pattern = list.cases > 0 && self.peek(0) == Some(b';') && length == 2;
        self.at += length;
        self.finish(list, join);
        if background {
            self.mark_background();
        }
        if pattern {
            self.at += usize::from(self.peek(0) == Some(b'&'));
            self.pattern(list);
        }
    }

    /// A group begins.
    fn begin_group(&mut self) {
        let at = self.scan.commands.len();
        self.scan.flows.begin_group(at);
    }

    /// A group of this list ends.
    fn end_group(&mut self, list: &List) {
        let flows = &mut self.scan.flows;
        if flows.depth() > list.depth {
            flows.end_groups(self.scan.commands.len(), flows.depth() - 1);
        }
    }

    /// Ends the list and all of its groups.
    fn leave_all(&mut self, list: &List) {
        let at = self.scan.commands.len();
        self.scan.flows.end_groups(at, list.depth.saturating_sub(1));
    }

    fn finish(&mut self, list: &mut List, next: Join) {
        list.keyword = false;
        let mut command = std::mem::take(&mut list.current);
        let at = self.scan.commands.len();
        if command.is_empty() {
            match next {
                // After a newline or in a group, what follows `|` still belongs to the pipe.
                Join::Then if command.join == Join::Pipe => {}
                Join::Pipe => self.scan.flows.pipe(at),
                _ => self.scan.flows.end(at),
            }
            // A newline after `&&` leaves the and-or list open.
            list.current.join = if next == Join::Then {
                command.join
            } else {
                next
            };
            return;
        }
        command.nested |= self.depth > 0 || list.groups > 0 || list.opened != 0 || list.cases > 0;
        self.scan.commands.push(command);
        for (inner, incoming) in std::mem::take(&mut list.process_substitutions) {
            let (from, to) = if incoming {
                (inner, at..at + 1)
            } else {
                (at..at + 1, inner)
            };
            self.scan.flows.feed(from, to);
        }
        match next {
            Join::Pipe => self.scan.flows.pipe(at + 1),
            _ => self.scan.flows.end(at + 1),
        }
        list.current.join = next;
    }

    fn next_word(&mut self, list: &mut List) {
        let start = self.at;
        let first = list.current.words.is_empty();
        let (word, equals) = self.word(first, &mut list.process_substitutions);
        if word.text.is_empty() && !word.quoted {
            return; // a continuation alone
        }
        let redirects = matches!(self.peek(0), Some(b'<' | b'>'));
        if redirects && is_descriptor(&word) {
            return self.redirect(list);
        }
        let source = &self.text[start..self.at.min(self.text.len())];
        if list.expects_function_name {
            list.expects_function_name = false;
            let here = (list.groups, list.opened);
            let name = word.text.clone();
            list.function_bodies
                .push((name, self.scan.commands.len() + 1, here.0, here.1));
            return list.current.words.push(word);
        }
        if !list.current.words.is_empty() {
            let group = !word.quoted && word.text == "{";
            if group {
                list.opened += 1;
                self.finish(list, Join::Then);
                return self.begin_group();
            }
            return self.push_expanded_word(list, word, source);
        }
        if let Some(equals) = equals {
            return assignment(list, &word, equals);
        }
        // The shell recognizes reserved words only where nothing precedes them.
        let prefixed = !list.current.assignments.is_empty()
            || !list.current.redirects.is_empty()
            || !list.current.stdin.is_empty();
        let reserved = !word.quoted && !word.is_dynamic() && RESERVED.contains(&word.text.as_str());
        if reserved && prefixed && list.current.assignments.is_empty() {
            // In a substitution bash writes redirects after the words and reads it once more.
            self.mark_broken("a reserved word behind a redirect");
        }
        if reserved && !prefixed {
            return self.reserved(list, word);
        }
        if list.current.timed && matches!(word.text.as_str(), "-p" | "--") {
            return;
        }
        self.push_expanded_word(list, word, source);
    }

    /// Adds a word to a command, with its braces expanded as by the shell.
    fn push_expanded_word(&mut self, list: &mut List, word: Word, source: &[u8]) {
        if memchr::memchr(b'{', source).is_none() {
            return list.current.words.push(word);
        }
        match brace::expand(source) {
            brace::BraceExpansion::Unchanged => list.current.words.push(word),
            brace::BraceExpansion::TooMany => {
                self.mark_broken("braces that make more words than are looked at");
                list.current.words.push(word);
            }
            brace::BraceExpansion::Words(sources) => {
                for source in sources {
                    let mut reader = Scanner {
                        text: &source,
                        at: 0,
                        depth: limits::POLICY_DEPTH,
                        scan: Scan::default(),
                        pending: Vec::new(),
                    };
                    let (word, _) = reader.word(false, &mut Vec::new());
                    if !word.text.is_empty() || word.quoted {
                        list.current.words.push(word);
                    }
                }
            }
        }
    }

    fn reserved(&mut self, list: &mut List, word: Word) {
        list.keyword = true;
        match word.text.as_str() {
            "time" => list.current.timed = true,
            "if" | "while" | "until" | "{" => {
                self.scan.may_repeat |= matches!(word.text.as_str(), "while" | "until");
                list.opened += 1;
                self.begin_group();
            }
            "fi" | "done" | "}" => {
                list.opened -= 1;
                self.end_group(list);
                self.close_function_bodies(list);
            }
            "for" | "select" => {
                self.scan.may_repeat = true;
                list.opened += 1;
                self.begin_group();
                list.current.words.push(word);
            }
            "case" => {
                list.cases += 1;
                self.begin_group();
                list.current.words.push(word);
                self.case(list);
            }
            "esac" => {
                list.cases = list.cases.saturating_sub(1);
                self.end_group(list);
                self.close_function_bodies(list);
            }
            "[[" => self.test(list, word),
            "]]" | "in" => list.current.words.push(word),
            "function" => {
                self.scan.may_repeat = true;
                list.expects_function_name = true;
            }
            "!" | "coproc" => list.current.nested = true,
            _ => {}
        }
    }

    /// Reads one word; the second value is the offset of an unquoted `=` after a name. `first`: a
    /// command is expected here, so `a[…` is the subscript of an assignment. Commands that feed the
    /// word's command by process substitution are added to `fed`.
    fn word(&mut self, first: bool, fed: &mut Vec<ProcessSubstitution>) -> (Word, Option<usize>) {
        let mut text = Vec::new();
        let mut word = Word::default();
        let mut equals = None;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'<' | b'>' if self.peek(1) == Some(b'(') => {
                    self.scan_process_substitution(&mut text, &mut word, fed);
                    continue;
                }
                b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' => break,
                b'[' if first
                    && equals.is_none()
                    && is_variable_name_bytes(&text)
                    && !word.quoted =>
                {
                    self.subscript(&mut text);
                    word.glob |= !matches!(self.peek(0), Some(b'=' | b'+'));
                    continue;
                }
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
                        None => self.mark_broken("a trailing backslash"),
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
                    self.backticks(&mut text, &mut word, false);
                    continue;
                }
                b'~' if text.is_empty() && !word.quoted => match self.peek(1) {
                    None | Some(b'/' | b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b')') => {
                        word.tilde = true;
                    }
                    Some(_) => word.dynamic_from = Some(0),
                },
                b'*' | b'?' | b'[' => word.glob = true,
                b'=' if equals.is_none() && !word.quoted && !word.is_dynamic() => {
                    let name = text.strip_suffix(b"+").unwrap_or(&text);
                    let name = match name.iter().position(|&b| b == b'[') {
                        Some(bracket) if name.ends_with(b"]") => &name[..bracket],
                        _ => name,
                    };
                    if std::str::from_utf8(name).is_ok_and(is_variable_name) {
                        equals = Some(text.len());
                        if self.peek(1) == Some(b'(') {
                            self.at += 1;
                            text.push(b'=');
                            self.array(&mut text, fed);
                            continue;
                        }
                    }
                }
                _ => {}
            }
            text.push(byte);
            self.at += 1;
        }
        // Only pieces of valid UTF-8 were joined, at ASCII positions.
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
            self.mark_broken("an unterminated quote");
        }
    }

    /// Text in which only `$`, backticks and some backslashes are special: a double-quoted string
    /// up to `until`, or a here-document's body to its end.
    fn double_quoted(&mut self, text: &mut Vec<u8>, word: &mut Word, until: Option<u8>) {
        loop {
            match self.peek(0) {
                None => {
                    if until.is_some() {
                        self.mark_broken("an unterminated quote");
                    }
                    return;
                }
                byte if byte == until => {
                    self.at += 1;
                    return;
                }
                Some(b'$') => self.dollar(text, word, true),
                Some(b'`') => self.backticks(text, word, until.is_some()),
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
}

/// Whether unquoted text is a variable's name.
fn is_variable_name_bytes(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(is_variable_name)
}

/// Whether a word right before `<` or `>` is a descriptor: its number, or `{name}` for a new one.
fn is_descriptor(word: &Word) -> bool {
    if word.quoted || word.is_dynamic() || word.text.is_empty() {
        return false;
    }
    let inside = word
        .text
        .strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'));
    let name = inside.map(|text| text.split('[').next().unwrap_or(text));
    name.is_some_and(is_variable_name) || word.text.bytes().all(|b| b.is_ascii_digit())
}

fn assignment(list: &mut List, word: &Word, equals: usize) {
    let append = word.text[..equals].ends_with('+');
    let name = word.text[..equals - usize::from(append)].to_owned();
    let value = Word {
        text: word.text[equals + 1..].to_owned(),
        dynamic_from: word.dynamic_from.map(|n| n.saturating_sub(equals + 1)),
        quoted: word.quoted,
        ..Word::default()
    };
    list.current.assignments.push(Assignment { name, value });
}
