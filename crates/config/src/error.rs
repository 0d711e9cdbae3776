//! Faults of a configuration: each with its place, its key and what was expected.
//!
//! Must not know how a fault is displayed; the command line renders it with the offending line.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use marshal_model::limits;
use marshal_model::untrusted;

/// One fault of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, as a dotted path from the root (`pool.demo.size`); empty for the file as a whole.
    /// Safe to show.
    pub key: String,
    /// The offending text, as bytes of [`ConfigErrors::text`].
    pub span: Range<usize>,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// What was wrong and what was expected, as a lower-case fragment. Safe to show.
    pub message: String,
    /// What to do about it, where that is not obvious. Safe to show.
    pub help: Option<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if let Some(help) = &self.help {
            write!(f, " ({help})")?;
        }
        Ok(())
    }
}

/// All faults that were found in one file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// The file's name for people. Safe to show.
    pub file: String,
    /// The text that the spans point into. It is untrusted: escape it before it reaches a terminal.
    pub text: Arc<str>,
    /// The faults; never empty.
    pub errors: Vec<ConfigError>,
    /// The number of faults that were omitted because there were too many.
    pub omitted: usize,
}

impl ConfigErrors {
    /// Sorts the faults, drops repetitions and keeps at most [`limits::CONFIG_ERRORS`].
    fn new(text: SourceText, mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by(|a, b| (a.span.start, &a.key).cmp(&(b.span.start, &b.key)));
        errors.dedup();
        let left_out = errors.len().saturating_sub(limits::CONFIG_ERRORS);
        errors.truncate(limits::CONFIG_ERRORS);
        for error in &mut errors {
            (error.line, error.column) = text.line_column(error.span.start);
        }
        Self {
            file: text.file,
            text: text.source,
            errors,
            omitted: left_out,
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.errors.iter().enumerate() {
            let end = if at + 1 == self.errors.len() {
                ""
            } else {
                "\n"
            };
            write!(f, "{}:{error}{end}", self.file)?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

/// A text with its line starts; builds faults.
#[derive(Debug, Clone)]
pub(super) struct SourceText {
    /// The file's name for people.
    pub(super) file: String,
    /// The text.
    pub(super) source: Arc<str>,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl SourceText {
    pub(super) fn new(file: String, source: Arc<str>) -> Self {
        let newlines = source.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let lines = std::iter::once(0)
            .chain(newlines.map(|(at, _)| at + 1))
            .collect();
        Self {
            file,
            source,
            lines,
        }
    }

    /// Line and column of a byte, both from 1.
    fn line_column(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|begin| *begin <= at).max(1);
        let begin = self.lines.get(line - 1).copied().unwrap_or(0);
        let before = self.source.get(begin..at).unwrap_or("");
        (line, before.chars().count() + 1)
    }

    /// A fault at `span`; `key` and `message` may contain text of the file, which is escaped here.
    pub(super) fn build_error(
        key: &str,
        span: Range<usize>,
        message: &str,
        help: Option<String>,
    ) -> ConfigError {
        ConfigError {
            key: untrusted::escape_for_display(key, 200),
            span,
            // Computed only for the faults that are shown: a line may be long.
            line: 0,
            column: 0,
            message: untrusted::escape_for_display(message, 600),
            help: help.map(|help| untrusted::escape_for_display(&help, 600)),
        }
    }

    /// The faults, as the error of the parser.
    pub(super) fn into_errors(self, errors: Vec<ConfigError>) -> ConfigErrors {
        ConfigErrors::new(self, errors)
    }
}

/// The place of each key of a checked configuration. A fault that only the file system reveals (a
/// missing workspace, an unreadable policy) then points at its line like every other.
#[derive(Clone)]
pub struct SourceMap {
    text: SourceText,
    spans: BTreeMap<String, Range<usize>>,
}

impl SourceMap {
    pub(super) fn new(text: SourceText, spans: BTreeMap<String, Range<usize>>) -> Self {
        Self { text, spans }
    }

    /// Faults found after the check: key (`pool.demo.workspace.path`), message and help each. A
    /// key that the file does not have is placed at the nearest table above it.
    #[must_use]
    pub fn locate_errors(&self, faults: Vec<(String, String, Option<String>)>) -> ConfigErrors {
        let errors = faults.into_iter().map(|(key, message, help)| {
            let span = self.span(&key);
            SourceText::build_error(&key, span, &message, help)
        });
        self.text.clone().into_errors(errors.collect())
    }

    /// Whether the file has this key.
    #[must_use]
    pub fn has_key(&self, key: &str) -> bool {
        self.spans.contains_key(key)
    }

    fn span(&self, key: &str) -> Range<usize> {
        let mut path = key;
        loop {
            if let Some(span) = self.spans.get(path) {
                return span.clone();
            }
            match path.rsplit_once(['.', '[']) {
                Some((above, _)) => path = above,
                None => return 0..0,
            }
        }
    }
}

impl fmt::Debug for SourceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Places({} keys of {})", self.spans.len(), self.text.file)
    }
}

/// A word of the file in quotes, truncated so that a message stays readable.
pub(super) fn quote(text: &str) -> String {
    format!("\"{}\"", untrusted::escape_for_display(text, 60))
}

/// `"a", "b" or "c"`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => format!("\"{only}\""),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(|word| format!("\"{word}\"")).collect();
            format!("{} or \"{last}\"", first.join(", "))
        }
    }
}
