//! `if`, `for` over literal words, and subshells, for policies that accept them.
//!
//! A loop becomes its commands once for each word, with the word in the place of the variable, so
//! that every command has exactly the words that bash runs. A branch may not run at all; it is read
//! as if it did. What else could change a variable or a directory is not plain.

use super::{NotPlain, Reader};
use crate::command::{Command, Join, Word, is_variable_name};

/// The most commands of a text with its loops unrolled.
const MOST_COMMANDS: usize = 1000;

/// The most words of all commands together.
const MOST_WORDS: usize = 20_000;

/// Built-in commands that change no variable, no directory and nothing else of the shell.
const HARMLESS_BUILTINS: &[&str] = &["echo", "true", "false", "pwd", "test", "[", ":"];

/// The other built-in commands of bash, and what begins or ends a construct that is not read here.
const BUILTINS: &[&str] = &[
    ".",
    "alias",
    "bg",
    "bind",
    "break",
    "builtin",
    "caller",
    "cd",
    "command",
    "compgen",
    "complete",
    "compopt",
    "continue",
    "declare",
    "dirs",
    "disown",
    "enable",
    "eval",
    "exec",
    "exit",
    "export",
    "fc",
    "fg",
    "getopts",
    "hash",
    "help",
    "history",
    "jobs",
    "kill",
    "let",
    "local",
    "logout",
    "mapfile",
    "popd",
    "printf",
    "pushd",
    "read",
    "readarray",
    "readonly",
    "return",
    "set",
    "shift",
    "shopt",
    "source",
    "suspend",
    "times",
    "trap",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "wait",
];

/// A construct that is open.
pub(super) struct Open {
    kind: Kind,
    /// The number of commands before its current part.
    start: usize,
}

enum Kind {
    /// Before `then`.
    Condition,
    /// Between `then` and `else` or `fi`.
    Then,
    /// Between `else` and `fi`.
    Else,
    /// Between `do` and `done`.
    Loop(Loop),
    /// Between parentheses.
    Subshell,
}

struct Loop {
    variable: String,
    words: Vec<Word>,
}

impl Reader<'_> {
    /// Whether a compound command may begin or end here.
    fn is_at_boundary(&self) -> bool {
        self.current.is_empty()
            && self.current.join == Join::Then
            && !self.expects_command
            && !self.is_after_compound
    }

    /// Reads a reserved word; `false` if it is none that is read here.
    pub(super) fn reserved(&mut self, word: &str) -> Result<bool, NotPlain> {
        if !self.has_control_flow || !self.current.is_empty() || self.expects_command {
            return Ok(false);
        }
        match word {
            "if" if self.is_at_boundary() => self.open(Kind::Condition),
            "for" if self.is_at_boundary() => {
                let looped = self.loop_head()?;
                self.open(Kind::Loop(looped));
            }
            "then" => self.next_part(|kind| matches!(kind, Kind::Condition), Some(Kind::Then))?,
            "elif" => self.next_part(|kind| matches!(kind, Kind::Then), Some(Kind::Condition))?,
            "else" => self.next_part(|kind| matches!(kind, Kind::Then), Some(Kind::Else))?,
            "fi" => self.next_part(|kind| matches!(kind, Kind::Then | Kind::Else), None)?,
            "done" => {
                self.next_part(|kind| matches!(kind, Kind::Loop(_)), None)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opens or closes a subshell; `false` if parentheses are not read.
    pub(super) fn parenthesis(&mut self) -> Result<bool, NotPlain> {
        if !self.has_control_flow {
            return Ok(false);
        }
        let opens = self.peek(0) == Some(b'(');
        // `((` begins arithmetic, and `()` a function.
        if opens && (!self.is_at_boundary() || self.peek(1) == Some(b'(')) {
            return Ok(false);
        }
        if opens {
            self.at += 1;
            self.open(Kind::Subshell);
            return Ok(true);
        }
        if !self.current.is_empty() {
            self.close(Join::Then)?;
        }
        self.next_part(|kind| matches!(kind, Kind::Subshell), None)?;
        self.at += 1;
        Ok(true)
    }

    /// Whether a `)` ends something.
    pub(super) fn is_in_subshell(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Open {
                kind: Kind::Subshell,
                ..
            })
        )
    }

    fn open(&mut self, kind: Kind) {
        self.open.push(Open {
            kind,
            start: self.done.len(),
        });
    }

    /// Ends the current part of the innermost construct, which must be of a kind, and begins the
    /// next one; without a next one the construct ends.
    fn next_part(
        &mut self,
        is_expected: impl Fn(&Kind) -> bool,
        next: Option<Kind>,
    ) -> Result<(), NotPlain> {
        let is_complete = self.current.is_empty() && !self.expects_command;
        let Some(open) = self
            .open
            .pop_if(|open| is_complete && is_expected(&open.kind) && self.done.len() > open.start)
        else {
            return Err(self.not_plain("a reserved word"));
        };
        for command in &mut self.done[open.start..] {
            command.nested = true;
        }
        if let Some(odd) = self.done[open.start..]
            .iter()
            .find(|command| !is_harmless(command))
        {
            let what = if odd.words.is_empty() {
                "an assignment in a compound command"
            } else {
                "a built-in command in a compound command"
            };
            return Err(self.not_plain(what));
        }
        self.is_after_compound = next.is_none();
        match (next, open.kind) {
            (Some(next), _) => self.open(next),
            (None, Kind::Loop(looped)) => self.unroll(&looped, open.start)?,
            (None, _) => {}
        }
        Ok(())
    }

    /// `NAME in WORD…; do`, behind `for`.
    fn loop_head(&mut self) -> Result<Loop, NotPlain> {
        self.blanks()?;
        let (variable, _) = self.word()?;
        if variable.quoted || !is_variable_name(&variable.text) {
            return Err(self.not_plain("an unusual loop"));
        }
        self.blanks()?;
        let (word, _) = self.word()?;
        if word.quoted || word.text != "in" {
            return Err(self.not_plain("an unusual loop"));
        }
        let mut words = Vec::new();
        loop {
            match self.peek(0) {
                Some(b' ' | b'\t') => self.at += 1,
                Some(b';' | b'\n') => break,
                // A word would be empty there.
                None | Some(b'&' | b'|' | b'<' | b'>' | b'#' | b')') => {
                    return Err(self.not_plain("an unusual loop"));
                }
                Some(_) => words.push(self.word()?.0),
            }
        }
        self.at += 1;
        while matches!(self.peek(0), Some(b' ' | b'\t' | b'\n')) {
            self.at += 1;
        }
        let (word, _) = self.word()?;
        let has_room = matches!(self.peek(0), Some(b' ' | b'\t' | b'\n'));
        if words.is_empty() || word.quoted || word.text != "do" || !has_room {
            return Err(self.not_plain("an unusual loop"));
        }
        // An unquoted word of which the shell makes other words is not in the place of one.
        let has_status = std::mem::take(&mut self.has_status);
        if has_status || words.iter().any(|word| word.tilde || word.is_dynamic()) {
            return Err(self.not_plain("a loop over computed words"));
        }
        // What follows an inner loop of the same variable would see that loop's last word.
        let is_same = |open: &Open| matches!(&open.kind, Kind::Loop(outer) if outer.variable == variable.text);
        if self.open.iter().any(is_same) {
            return Err(self.not_plain("a loop in a loop of the same variable"));
        }
        Ok(Loop {
            variable: variable.text,
            words,
        })
    }

    fn blanks(&mut self) -> Result<(), NotPlain> {
        let start = self.at;
        while matches!(self.peek(0), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.not_plain("an unusual loop"));
        }
        Ok(())
    }

    /// Reads `$NAME` or `${NAME}` of an open loop's variable into the word; `false` if it is
    /// another expansion.
    pub(super) fn loop_variable(
        &mut self,
        text: &mut Vec<u8>,
        word: &mut Word,
        is_quoted: bool,
    ) -> bool {
        let rest = &self.text[self.at..];
        let names = self.open.iter().filter_map(|open| match &open.kind {
            Kind::Loop(looped) => Some(looped.variable.as_bytes()),
            _ => None,
        });
        let length = |name: &[u8]| {
            let plain = rest.get(1..=name.len()) == Some(name)
                && !rest.get(name.len() + 1).is_some_and(|byte| {
                    byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'['
                });
            let braced = rest.get(1) == Some(&b'{')
                && rest.get(2..name.len() + 2) == Some(name)
                && rest.get(name.len() + 2) == Some(&b'}');
            match (plain, braced) {
                (true, _) => Some(name.len() + 1),
                (_, true) => Some(name.len() + 3),
                _ => None,
            }
        };
        let Some(length) = names.filter_map(length).max() else {
            return false;
        };
        let start = text.len();
        text.extend_from_slice(&rest[..length]);
        self.at += length;
        word.expansions.push((start, text.len()));
        word.dynamic_from = Some(word.dynamic_from.unwrap_or(start));
        // Where it is not quoted, the shell splits and expands the value again.
        self.unquoted_variables |= !is_quoted;
        true
    }

    /// Repeats the commands of a loop for each of its words.
    fn unroll(&mut self, looped: &Loop, start: usize) -> Result<(), NotPlain> {
        let body = self.done.split_off(start);
        let is_odd = |command: &Command| {
            command.words.first().is_some_and(Word::is_dynamic)
                || command
                    .redirects
                    .iter()
                    .any(|redirect| redirect.target.is_dynamic())
                || command.assignments.iter().any(|set| set.value.is_dynamic())
        };
        if body.iter().any(is_odd) {
            return Err(self.not_plain("a program or a file that a loop computes"));
        }
        let words: usize = body.iter().map(|command| command.words.len()).sum();
        if (self.done.len() + body.len() * looped.words.len() > MOST_COMMANDS)
            || words * looped.words.len() > MOST_WORDS
        {
            return Err(self.not_plain("a loop with too many commands"));
        }
        if self.unquoted_variables && !looped.words.iter().all(|word| is_one_word(&word.text)) {
            return Err(self.not_plain("a variable without quotes"));
        }
        for value in &looped.words {
            for command in &body {
                let mut command = command.clone();
                for word in &mut command.words {
                    substitute(word, &looped.variable, value);
                }
                self.done.push(command);
            }
        }
        Ok(())
    }
}

/// Whether a command in a compound command changes neither a variable nor a directory.
fn is_harmless(command: &Command) -> bool {
    command.words.first().is_some_and(|program| {
        let name = program.text.as_str();
        HARMLESS_BUILTINS.contains(&name) || !BUILTINS.contains(&name)
    })
}

/// Whether a text stays one word where the shell splits and expands it.
fn is_one_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-./,:@%+=".contains(&byte))
}

/// Puts a loop's word in the place of its variable.
fn substitute(word: &mut Word, variable: &str, value: &Word) {
    let (plain, braced) = (format!("${variable}"), format!("${{{variable}}}"));
    let mut text = String::with_capacity(word.text.len());
    let mut rest = Vec::new();
    let mut from = 0;
    for &(start, end) in &word.expansions {
        text.push_str(&word.text[from..start]);
        let source = &word.text[start..end];
        if source == plain || source == braced {
            text.push_str(&value.text);
            word.glob |= value.glob;
        } else {
            rest.push((text.len(), text.len() + source.len()));
            text.push_str(source);
        }
        from = end;
    }
    text.push_str(&word.text[from..]);
    word.text = text;
    word.dynamic_from = rest.first().map(|(start, _)| *start);
    word.expansions = rest;
}
