//! Constructs with a grammar of their own: tests, arrays, subscripts, branches of `case`, names of
//! functions. Each ends where bash ends it, so that nothing after it counts as a part of it.

use super::{List, ProcessSubstitution, Scanner};
use crate::command::{Join, Word};
use marshal_model::limits;

impl Scanner<'_> {
    /// Handles a `(` that begins a group: a function's name precedes it, or a pattern that only
    /// some shells accept.
    pub(super) fn parenthesis(&mut self, list: &mut List) {
        let before = self.at.checked_sub(1).and_then(|i| self.text.get(i));
        if matches!(before, Some(b'?' | b'*' | b'+' | b'@' | b'!')) {
            self.mark_broken("an extended pattern");
        }
        let rest = &self.text[self.at + 1..];
        let next = rest.iter().find(|b| !matches!(b, b' ' | b'\t'));
        let [name] = list.current.words.as_slice() else {
            return;
        };
        if next != Some(&b')') {
            return;
        }
        self.scan.may_repeat = true;
        let start = self.scan.commands.len() + 1;
        if list
            .function_bodies
            .last()
            .is_none_or(|body| body.1 != start)
        {
            let name = name.text.clone();
            list.function_bodies
                .push((name, start, list.groups, list.opened));
        }
    }

    /// A group was closed; it may have been a function's body.
    pub(super) fn close_function_bodies(&mut self, list: &mut List) {
        let end = self.scan.commands.len();
        while let Some((_, start, groups, opened)) = list.function_bodies.last() {
            if (*groups, *opened) != (list.groups, list.opened) || end <= *start {
                return;
            }
            if let Some((name, start, ..)) = list.function_bodies.pop() {
                self.scan.functions.push((name, start..end));
            }
        }
    }

    /// The and-or list that just ended runs in the background.
    pub(super) fn mark_background(&mut self) {
        for command in self.scan.commands.iter_mut().rev() {
            command.nested = true;
            if command.join == Join::Then {
                break;
            }
        }
    }

    /// After `case`: the subject, `in`, and the first pattern.
    pub(super) fn case(&mut self, list: &mut List) {
        self.skip_blanks();
        let (subject, _) = self.word(false, &mut list.process_substitutions);
        list.current.words.push(subject);
        self.lines();
        let (word, _) = self.word(false, &mut Vec::new());
        if word.quoted || word.text != "in" {
            self.mark_broken("a `case` without its `in`");
            return;
        }
        self.finish(list, Join::Then);
        self.pattern(list);
    }

    /// The pattern of a branch, in which only `esac` is reserved.
    pub(super) fn pattern(&mut self, list: &mut List) {
        self.lines();
        let opened = self.peek(0) == Some(b'(');
        self.at += usize::from(opened);
        self.skip_blanks();
        let (word, _) = self.word(false, &mut Vec::new());
        if !opened && !word.quoted && word.text == "esac" {
            return self.reserved(list, word);
        }
        loop {
            self.skip_blanks();
            match self.peek(0) {
                Some(b'|') => {
                    self.at += 1;
                    self.skip_blanks();
                    self.word(false, &mut Vec::new());
                }
                Some(b')') => {
                    self.at += 1;
                    return;
                }
                _ => return self.mark_broken("a pattern that is never closed"),
            }
        }
    }

    /// Skips blanks, newlines and comments.
    fn lines(&mut self) {
        loop {
            self.skip_blanks();
            match self.peek(0) {
                Some(b'\n') => {
                    self.at += 1;
                    self.read_heredoc_bodies();
                }
                Some(b'#') => self.comment(),
                _ => return,
            }
        }
    }

    pub(super) fn comment(&mut self) {
        while self.peek(0).is_some_and(|b| b != b'\n') {
            self.at += 1;
        }
    }

    /// The inside of `[[ … ]]`, `word`: operators there compare, they do not join or redirect. The
    /// files that it tests become the operands of a command of that name.
    pub(super) fn test(&mut self, list: &mut List, word: Word) {
        list.current.words.push(Word {
            glob: false,
            ..word
        });
        let mut last = Word::default();
        let mut wanted = false;
        let mut depth = 0_usize;
        loop {
            self.skip_blanks();
            let start = self.at;
            match self.peek(0) {
                None => return self.mark_broken("something that is never closed"),
                Some(b'#') => self.mark_broken("a comment in a test"),
                Some(b'(') => depth += 1,
                Some(b')') => depth = depth.saturating_sub(1),
                _ => {}
            }
            let (word, _) = self.word(false, &mut list.process_substitutions);
            if self.at == start {
                self.at += 1; // an operator or a newline
                continue;
            }
            if !word.quoted && word.text == "]]" {
                if depth > 0 {
                    self.mark_broken("a test whose end is hard to tell");
                }
                return;
            }
            let compares = matches!(word.text.as_str(), "-nt" | "-ot" | "-ef");
            if compares {
                list.current.words.push(std::mem::take(&mut last));
            }
            let computes = word.quoted && word.text.contains(['$', '`']);
            if std::mem::replace(&mut wanted, compares || is_file_test(&word)) || computes {
                list.current.words.push(word.clone());
            }
            last = word;
        }
    }

    /// The subscript after a name: everything up to its `]`, including blanks and operators.
    pub(super) fn subscript(&mut self, text: &mut Vec<u8>) {
        let start = self.at;
        let (mut inside, mut word) = (Vec::new(), Word::default());
        let mut depth = 0_usize;
        loop {
            match self.peek(0) {
                None => {
                    self.mark_broken("a subscript that is never closed");
                    break;
                }
                Some(b'\\') => self.at += 2,
                Some(b'\'') => self.single_quoted(&mut inside),
                Some(b'"') => {
                    self.at += 1;
                    self.double_quoted(&mut inside, &mut word, Some(b'"'));
                }
                Some(b'$') => self.dollar(&mut inside, &mut word, false),
                Some(b'`') => self.backticks(&mut inside, &mut word, false),
                Some(byte) => {
                    self.at += 1;
                    match byte {
                        b'[' => depth += 1,
                        b']' => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
        }
        text.extend_from_slice(&self.text[start..self.at.min(self.text.len())]);
    }

    /// The elements of an array: words, not commands; substitutions in them are found.
    pub(super) fn array(&mut self, text: &mut Vec<u8>, fed: &mut Vec<ProcessSubstitution>) {
        let start = self.at;
        self.at += 1;
        if self.depth >= limits::POLICY_DEPTH {
            return self.mark_broken("arrays nested too deeply");
        }
        self.depth += 1;
        loop {
            self.lines();
            let before = self.at;
            match self.peek(0) {
                None => {
                    self.mark_broken("an array that is never closed");
                    break;
                }
                Some(b')') => {
                    self.at += 1;
                    break;
                }
                Some(b'[') => self.subscript(&mut Vec::new()),
                _ => {}
            }
            self.word(false, fed);
            if self.at == before {
                self.mark_broken("an operator in an array");
                self.at += 1;
            }
        }
        self.depth -= 1;
        text.extend_from_slice(&self.text[start..self.at.min(self.text.len())]);
    }
}

/// Whether a word of a test asks for a property of the file in the next word.
fn is_file_test(word: &Word) -> bool {
    let letter = word.text.strip_prefix('-').filter(|t| t.len() == 1);
    !word.quoted && letter.is_some_and(|l| "abcdefghkprstuwxGLNOS".contains(l))
}
