//! The strict reader: recognises unambiguous bash and nothing else.
//!
//! Only a text that it accepts can be allowed by a rule, so it may be wrong in one direction only:
//! the accepted text must have exactly the words that bash would run (a fuzz test compares them).
//! It must not guess, expand or recover; the tolerant reader does that.

use super::command::{
    Assignment, Command, Direction, Join, RESERVED, Redirect, Word, is_variable_name,
};
use marshal_model::untrusted::is_unsafe;

mod compound;
mod here;
#[cfg(test)]
mod tests;

/// Why a text is not plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotPlain {
    /// The construct, as a noun.
    pub what: &'static str,
    /// The position in bytes.
    pub at: usize,
    /// Whether readers disagree on the text: then a person must decide, whatever the default is.
    pub hidden: bool,
}

/// A plain command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PlainText {
    /// Its commands; none of an empty or comment-only text.
    pub commands: Vec<Command>,
    /// The bodies of its here-documents, for [`Command::stdin`].
    pub texts: Vec<String>,
}

/// Reads a plain command line.
pub(super) fn parse_plain(text: &str) -> Result<PlainText, NotPlain> {
    parse(text, false)
}

/// The same with `if`, `for` and subshells (see [`compound`]), here-documents and the status of
/// earlier commands. Commands in compound ones are marked as nested.
pub(super) fn parse_with_control_flow(text: &str) -> Result<PlainText, NotPlain> {
    parse(text, true)
}

fn parse(text: &str, has_control_flow: bool) -> Result<PlainText, NotPlain> {
    let is_plain = |b: u8| matches!(b, b' '..=b'~' | b'\n' | b'\t');
    if !text.bytes().all(is_plain)
        && let Some((at, _)) = text.char_indices().find(|&(_, c)| is_hidden(c))
    {
        return Err(NotPlain {
            what: "a control or invisible character",
            at,
            hidden: true,
        });
    }
    let mut reader = Reader {
        text: text.as_bytes(),
        at: 0,
        done: Vec::new(),
        current: Command::default(),
        expects_command: false,
        has_control_flow,
        open: Vec::new(),
        is_after_compound: false,
        unquoted_variables: false,
        has_status: false,
        texts: Vec::new(),
        pending: None,
    };
    reader.run()?;
    Ok(PlainText {
        commands: reader.done,
        texts: reader.texts,
    })
}

/// Characters that a reviewer cannot see or that shells read differently: everything that
/// [`is_unsafe`] names except tab and newline, and every blank that is not ASCII.
pub(super) fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' | ' ' => false,
        c if c.is_ascii_graphic() => false,
        c => is_unsafe(c) || c.is_whitespace(),
    }
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    done: Vec<Command>,
    current: Command,
    /// Whether `&&`, `||` or `|` precedes, so that a command must follow.
    expects_command: bool,
    /// Whether compound commands are read.
    has_control_flow: bool,
    /// The compound commands that are open, the innermost last.
    open: Vec<compound::Open>,
    /// Whether a compound command has just ended: only a separator may follow.
    is_after_compound: bool,
    /// Whether a variable of a loop stands without quotes.
    unquoted_variables: bool,
    /// Whether the word that is being read has the exit status of an earlier command.
    has_status: bool,
    /// The bodies of here-documents.
    texts: Vec<String>,
    /// The here-document whose body begins on the next line.
    pending: Option<here::Pending>,
}

impl Reader<'_> {
    fn run(&mut self) -> Result<(), NotPlain> {
        loop {
            match self.peek(0) {
                None => return self.end(),
                Some(b' ' | b'\t') => self.at += 1,
                Some(b'\n') => {
                    self.at += 1;
                    self.is_after_compound = false;
                    if !self.current.is_empty() {
                        self.close(Join::Then)?;
                    }
                    self.read_body()?;
                }
                Some(b'#') => self.comment(),
                Some(b';') => {
                    if matches!(self.peek(1), Some(b';' | b'&')) {
                        return Err(self.not_plain("a case terminator"));
                    }
                    self.at += 1;
                    if self.is_after_compound {
                        self.is_after_compound = false;
                    } else {
                        self.close(Join::Then)?;
                    }
                }
                Some(b'(' | b')') if self.parenthesis()? => {}
                _ if self.is_after_compound => {
                    return Err(self.not_plain("something behind a compound command"));
                }
                Some(b'&') => match self.peek(1) {
                    Some(b'&') => {
                        self.at += 2;
                        self.close(Join::And)?;
                    }
                    Some(b'>') => self.redirect()?,
                    _ => return Err(self.not_plain("a background job")),
                },
                Some(b'|') => match self.peek(1) {
                    Some(b'|') => {
                        self.at += 2;
                        self.close(Join::Or)?;
                    }
                    Some(b'&') => return Err(self.not_plain("`|&`")),
                    _ => {
                        self.at += 1;
                        self.close(Join::Pipe)?;
                    }
                },
                Some(b'<' | b'>') => self.redirect()?,
                Some(b'\\') if self.peek(1) == Some(b'\n') => self.continuation()?,
                Some(_) => self.next_word()?,
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn not_plain(&self, what: &'static str) -> NotPlain {
        NotPlain {
            what,
            at: self.at,
            hidden: false,
        }
    }

    fn comment(&mut self) {
        while self.peek(0).is_some_and(|b| b != b'\n') {
            self.at += 1;
        }
    }

    /// `\`+newline between two words of a command, or behind an operator that a command must follow,
    /// with a blank before it: the shell drops both. Anywhere else it can join words unnoticed.
    fn continuation(&mut self) -> Result<(), NotPlain> {
        let after_blank = self.at > 0 && matches!(self.text[self.at - 1], b' ' | b'\t');
        let is_between = !self.current.words.is_empty() || self.expects_command;
        if !after_blank || !is_between || self.pending.is_some() {
            return Err(self.not_plain("a line continuation"));
        }
        self.at += 2;
        Ok(())
    }

    /// Ends the current command; `next` joins it to the following one.
    fn close(&mut self, next: Join) -> Result<(), NotPlain> {
        if self.current.is_empty() {
            return Err(self.not_plain("an operator without a command"));
        }
        if self.current.timed && self.current.words.is_empty() {
            return Err(self.not_plain("`time` without a command"));
        }
        let command = std::mem::take(&mut self.current);
        self.done.push(command);
        self.current.join = next;
        self.expects_command = next != Join::Then;
        Ok(())
    }

    fn end(&mut self) -> Result<(), NotPlain> {
        if self.pending.is_some() {
            return Err(self.not_plain("a here-document that is never closed"));
        }
        if self.current.is_empty() {
            if self.expects_command {
                return Err(self.not_plain("an operator without a command"));
            }
        } else {
            self.close(Join::Then)?;
        }
        if self.open.is_empty() {
            Ok(())
        } else {
            Err(self.not_plain("a compound command that is never closed"))
        }
    }

    fn next_word(&mut self) -> Result<(), NotPlain> {
        let start = self.at;
        let (word, equals) = self.word()?;
        if std::mem::take(&mut self.has_status) && !self.may_show_status() {
            return Err(NotPlain {
                what: "an expansion",
                at: start,
                hidden: false,
            });
        }
        let digits = !word.quoted && word.text.bytes().all(|b| b.is_ascii_digit());
        if digits && matches!(self.peek(0), Some(b'<' | b'>')) {
            if word.text.len() > 2 {
                return Err(self.not_plain("a large descriptor number"));
            }
            return self.redirect();
        }
        if !self.current.words.is_empty() {
            self.current.words.push(word);
            return Ok(());
        }
        let fail = |what| NotPlain {
            what,
            at: start,
            hidden: false,
        };
        if let Some(equals) = equals {
            let (name, value) = word.text.split_at(equals);
            if word.glob || word.is_dynamic() {
                return Err(fail("a pattern in an assignment"));
            }
            self.current.assignments.push(Assignment {
                name: name.to_owned(),
                value: Word {
                    text: value[1..].to_owned(),
                    quoted: word.quoted,
                    ..Word::default()
                },
            });
            return Ok(());
        }
        if !word.quoted && word.text == "time" {
            let first = self.current.assignments.is_empty()
                && self.current.redirects.is_empty()
                && self.current.join != Join::Pipe;
            if self.current.timed || !first || !self.time_is_simple() {
                return Err(fail("an unusual `time`"));
            }
            self.current.timed = true;
            return Ok(());
        }
        if !word.quoted && !word.is_dynamic() && self.reserved(&word.text)? {
            return Ok(());
        }
        if !word.quoted && RESERVED.contains(&word.text.as_str()) {
            return Err(fail("a reserved word"));
        }
        let mut word = word;
        // A lone `[` is no pattern: nothing closes it.
        word.glob &= word.text != "[";
        if word.glob || word.tilde && word.text == "~" {
            return Err(fail("a program name that the shell computes"));
        }
        if word.text.is_empty() || word.text.contains('=') || word.text.starts_with(['%', '!']) {
            return Err(fail("an unusual program name"));
        }
        self.current.words.push(word);
        Ok(())
    }

    /// Whether the current command only says or compares its words, so that it does not matter which
    /// number the shell puts in the place of a `$?`.
    fn may_show_status(&self) -> bool {
        let program = self.current.words.first();
        program.is_some_and(|word| matches!(word.text.as_str(), "echo" | "[" | "test"))
    }

    /// Whether `time` is followed by a plain word on the same line, with or without `-p` between
    /// them (it is skipped). Other forms need a person.
    fn time_is_simple(&mut self) -> bool {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if rest.starts_with(b" -p ") {
            self.at += 3;
        }
        let rest = self.text.get(self.at..).unwrap_or_default();
        let blank = rest
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t'))
            .count();
        blank > 0
            && rest
                .get(blank)
                .is_some_and(|&b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'/' | b'.'))
    }

    /// Reads one word. The second value is the offset of an unquoted `=` after an unquoted name:
    /// where a command is expected, that makes it an assignment.
    fn word(&mut self) -> Result<(Word, Option<usize>), NotPlain> {
        // Most words have no special character.
        let rest = &self.text[self.at..];
        let bare = rest.iter().take_while(|b| is_bare(**b)).count();
        let mut text = rest[..bare].to_vec();
        self.at += bare;
        let mut word = Word::default();
        let mut equals = None;
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' => break,
                b')' if self.is_in_subshell() => break,
                b'\'' => {
                    word.quoted = true;
                    self.single_quoted(&mut text)?;
                    continue;
                }
                b'"' => {
                    word.quoted = true;
                    self.double_quoted(&mut text, &mut word)?;
                    continue;
                }
                b'\\' => {
                    match self.peek(1) {
                        None => return Err(self.not_plain("a trailing backslash")),
                        Some(b'\n') => return Err(self.not_plain("a line continuation")),
                        Some(next) => text.push(next),
                    }
                    word.quoted = true;
                    self.at += 2;
                    continue;
                }
                b'~' => self.tilde(&text, &mut word)?,
                b'*' | b'?' | b'[' => word.glob = true,
                b'=' => {
                    // In zsh `=name` is the path of that program.
                    let named = self
                        .peek(1)
                        .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
                    if text.is_empty() && !word.quoted && named {
                        return Err(self.not_plain("a word that begins with `=`"));
                    }
                    if equals.is_none() && !word.quoted && is_ascii_name(&text) {
                        equals = Some(text.len());
                    }
                }
                b'$' if self.loop_variable(&mut text, &mut word, false) => continue,
                b'$' if self.exit_status(&mut text, false) => continue,
                // Nothing that could be expanded follows.
                b'$' if matches!(
                    self.peek(1),
                    None | Some(b' ' | b'\t' | b'\n' | b';' | b'|')
                ) => {}
                b'$' => return Err(self.not_plain("an expansion")),
                b'`' => return Err(self.not_plain("a command substitution")),
                b'(' | b')' => return Err(self.not_plain("a parenthesis")),
                b'{' if matches!(text.last(), Some(b'@' | b'^')) => {
                    self.revision(&mut text)?;
                    continue;
                }
                b'{' | b'}' => return Err(self.not_plain("a brace")),
                b'_' | b'-' | b'.' | b'/' | b',' | b':' | b'@' | b'%' | b'+' | b'^' | b'!'
                | b'#' | b']' => {}
                b if b.is_ascii_alphanumeric() || !b.is_ascii() => {}
                _ => return Err(self.not_plain("an unusual character")),
            }
            text.push(byte);
            self.at += 1;
        }
        if self.pending.is_some() && text.contains(&b'\n') {
            return Err(self.not_plain("a line's end before a here-document"));
        }
        word.text = String::from_utf8(text).map_err(|_| self.not_plain("a broken character"))?;
        Ok((word, equals))
    }

    /// `{…}` of a revision such as `HEAD^{tree}` and `stash@{0}`: without `,` and `..` the shell
    /// leaves it as it is.
    fn revision(&mut self, text: &mut Vec<u8>) -> Result<(), NotPlain> {
        let rest = &self.text[self.at + 1..];
        let length = rest
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric())
            .count();
        if rest.get(length) != Some(&b'}') {
            return Err(self.not_plain("a brace"));
        }
        text.extend_from_slice(&self.text[self.at..self.at + length + 2]);
        self.at += length + 2;
        Ok(())
    }

    /// An unquoted `~`. At a word's start it is the home directory if `/` or the word's end
    /// follows; after `=` or `:` bash may expand it even in an argument; elsewhere it is itself.
    fn tilde(&self, text: &[u8], word: &mut Word) -> Result<(), NotPlain> {
        if text.is_empty() && !word.quoted {
            let ends = match self.peek(1) {
                None => true,
                Some(b) => matches!(
                    b,
                    b'/' | b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>'
                ),
            };
            if !ends {
                return Err(self.not_plain("another user's home"));
            }
            word.tilde = true;
            return Ok(());
        }
        let before = self.at.checked_sub(1).and_then(|i| self.text.get(i));
        if text.is_empty()
            || matches!(text.last(), Some(b'=' | b':'))
            || !before.is_some_and(|&b| {
                b.is_ascii_alphanumeric()
                    || matches!(b, b'.' | b'_' | b'-' | b'/' | b']' | b'^' | b'@')
            })
        {
            return Err(self.not_plain("a tilde that the shell may expand"));
        }
        Ok(())
    }

    /// Reads `$?` or `${PIPESTATUS[N]}`, which the shell replaces by a number, as it is written;
    /// `false` if it is another expansion. Only the first of `PIPESTATUS` always has a number: without
    /// quotes, another one may be no word at all.
    fn exit_status(&mut self, text: &mut Vec<u8>, is_quoted: bool) -> bool {
        const PIPE: &[u8] = b"${PIPESTATUS[";
        let rest = &self.text[self.at..];
        let length = match rest {
            _ if !self.has_control_flow => return false,
            [b'$', b'?', ..] => 2,
            _ => match rest.strip_prefix(PIPE) {
                Some([digit, b']', b'}', ..])
                    if *digit == b'0' || is_quoted && digit.is_ascii_digit() =>
                {
                    PIPE.len() + 3
                }
                _ => return false,
            },
        };
        text.extend_from_slice(&rest[..length]);
        self.at += length;
        self.has_status = true;
        true
    }

    fn single_quoted(&mut self, text: &mut Vec<u8>) -> Result<(), NotPlain> {
        let start = self.at + 1;
        let Some(length) = self.text[start..].iter().position(|&b| b == b'\'') else {
            return Err(self.not_plain("an unterminated quote"));
        };
        text.extend_from_slice(&self.text[start..start + length]);
        self.at = start + length + 1;
        Ok(())
    }

    fn double_quoted(&mut self, text: &mut Vec<u8>, word: &mut Word) -> Result<(), NotPlain> {
        self.at += 1;
        loop {
            match self.peek(0) {
                None => return Err(self.not_plain("an unterminated quote")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'$') if self.loop_variable(text, word, true) => {}
                Some(b'$') if self.exit_status(text, true) => {}
                // Nothing that could be expanded follows.
                Some(b'$') if matches!(self.peek(1), Some(b'"' | b' ' | b')' | b'|' | b'/')) => {
                    text.push(b'$');
                    self.at += 1;
                }
                Some(b'$') => return Err(self.not_plain("an expansion")),
                Some(b'`') => return Err(self.not_plain("a command substitution")),
                Some(b'\\') => match self.peek(1) {
                    None => return Err(self.not_plain("an unterminated quote")),
                    Some(b'\n') => return Err(self.not_plain("a line continuation")),
                    Some(next @ (b'$' | b'`' | b'"' | b'\\')) => {
                        text.push(next);
                        self.at += 2;
                    }
                    Some(_) => {
                        text.push(b'\\');
                        self.at += 1;
                    }
                },
                Some(byte) => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    /// A redirect; its descriptor number was read before.
    fn redirect(&mut self) -> Result<(), NotPlain> {
        let rest = &self.text[self.at..];
        let (length, direction, both) = match rest {
            [b'&', b'>', b'>', ..] => (3, Direction::Write, true),
            [b'&', b'>', ..] => (2, Direction::Write, true),
            [b'>', b'&', ..] => (2, Direction::Duplicate, false),
            [b'>' | b'<', b'(', ..] => {
                return Err(self.not_plain("a process substitution"));
            }
            [b'>', b'>' | b'|', ..] => (2, Direction::Write, false),
            [b'>', ..] => (1, Direction::Write, false),
            [b'<', b'<', ..] => return self.here_document(),
            [b'<', b'>' | b'&', ..] => return Err(self.not_plain("an unusual redirect")),
            _ => (1, Direction::Read, false),
        };
        self.at += length;
        if direction == Direction::Duplicate && self.duplicate()? {
            return Ok(());
        }
        if both && self.peek(0) == Some(b'&') {
            return Err(self.not_plain("an unusual redirect"));
        }
        while matches!(self.peek(0), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        // After `>&` and blanks bash still accepts a lone `-`, and what follows it is an argument.
        if direction == Direction::Duplicate && self.peek(0) == Some(b'-') {
            return Err(self.not_plain("an unusual redirect"));
        }
        if self.peek(0) == Some(b'#') {
            return Err(self.not_plain("a redirect without a target"));
        }
        let (target, _) = self.word()?;
        if std::mem::take(&mut self.has_status) {
            return Err(self.not_plain("an expansion"));
        }
        if target.text.is_empty() || target.glob {
            return Err(self.not_plain("an unusual redirect"));
        }
        let direction = match direction {
            Direction::Duplicate => Direction::Write, // `>&file`
            other => other,
        };
        self.current.redirects.push(Redirect { direction, target });
        Ok(())
    }

    /// `>&` followed by a descriptor's number; `false` if a file's name follows.
    fn duplicate(&mut self) -> Result<bool, NotPlain> {
        let rest = &self.text[self.at..];
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let ends = match rest.get(digits) {
            None => true,
            Some(b) => matches!(b, b' ' | b'\t' | b'\n' | b';' | b'&' | b'|'),
        };
        match (digits, ends) {
            (1 | 2, true) => {
                let text = String::from_utf8_lossy(&rest[..digits]).into_owned();
                self.at += digits;
                self.current.redirects.push(Redirect {
                    direction: Direction::Duplicate,
                    target: Word {
                        text,
                        ..Word::default()
                    },
                });
                Ok(true)
            }
            (0, _) if rest.first() != Some(&b'-') => Ok(false),
            _ => Err(self.not_plain("an unusual redirect")),
        }
    }
}

/// Bytes that are ordinary characters in every word.
fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'_' | b'-' | b'.' | b'/' | b',' | b':' | b'@' | b'%' | b'+' | b'^'
        )
}

fn is_ascii_name(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(is_variable_name)
}
