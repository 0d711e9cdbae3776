//! The output of both shell readers: simple commands, made of words, and how they are joined.
//!
//! Owns only the data types. Must not know rules, paths or which reader made them.

/// One word after quote removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// The text. A computed part appears as its source (`$x`, `$(…)`).
    pub text: String,
    /// Whether it begins with an unquoted `~` that stands for the home directory.
    pub tilde: bool,
    /// Whether it has an unquoted `*`, `?` or `[`.
    pub glob: bool,
    /// `Some(n)`: the shell computes a part of it; the first `n` bytes are literal.
    pub dynamic_from: Option<usize>,
    /// The byte ranges of the computed parts in the text.
    pub expansions: Vec<(usize, usize)>,
    /// Whether a part of it was quoted or escaped, so that it is not a reserved word.
    pub quoted: bool,
}

impl Word {
    /// Whether only the shell that runs it knows a part of it.
    pub(super) fn is_dynamic(&self) -> bool {
        self.dynamic_from.is_some()
    }

    /// The literal part at its beginning.
    pub(super) fn literal_prefix(&self) -> &str {
        self.dynamic_from
            .and_then(|n| self.text.get(..n))
            .unwrap_or(&self.text)
    }

    /// A literal word, such as the value of a tool's field.
    #[cfg(test)]
    pub(super) fn literal(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..Self::default()
        }
    }
}

/// `NAME=value` before a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    pub name: String,
    pub value: Word,
}

/// The kind of a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// `<`
    Read,
    /// `>`, `>>`, `>|`, `<>`, `&>`, `>&file`
    Write,
    /// `N>&M`, `N>&-`
    Duplicate,
}

impl Direction {
    /// The operator as it is displayed.
    pub(super) const fn sign(self) -> &'static str {
        match self {
            Self::Read => "<",
            Self::Write => ">",
            Self::Duplicate => ">&",
        }
    }
}

/// One redirect. Here-documents are not among them: see [`Command::stdin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    pub direction: Direction,
    pub target: Word,
}

/// How a command is joined to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Join {
    /// `;`, newline, or the first one.
    #[default]
    Then,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `|`
    Pipe,
}

/// One simple command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub join: Join,
    /// Whether the reserved word `time` precedes it.
    pub timed: bool,
    pub assignments: Vec<Assignment>,
    pub words: Vec<Word>,
    pub redirects: Vec<Redirect>,
    /// Here-documents and here-strings, by their indexes in the list of texts.
    pub stdin: Vec<usize>,
    /// Whether it is in a group, a branch, a substitution or the background. Then it may not run at
    /// all, and its effects on the shell may be undone.
    pub nested: bool,
}

impl Command {
    /// Whether nothing has been read into it yet.
    pub(super) fn is_empty(&self) -> bool {
        !self.timed
            && self.assignments.is_empty()
            && self.words.is_empty()
            && self.redirects.is_empty()
            && self.stdin.is_empty()
    }
}

/// Words that the shell's grammar reserves where a command is expected, including those that begin
/// a compound command (bash(1), RESERVED WORDS).
pub(super) const RESERVED: &[&str] = &[
    "!", "[[", "]]", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for",
    "function", "if", "in", "select", "then", "time", "until", "while", "{", "}",
];

/// Whether a text is a variable's name.
pub(super) fn is_variable_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The last component of a program's path.
pub(super) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
