//! Shows the faults of a configuration with the offending line of each.
//!
//! Must not know how faults are found. The file's text is foreign: what could act on a terminal is
//! replaced before it is drawn.

use std::fmt;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
};

use crate::config::{ConfigError, ConfigErrors};
use crate::model::foreign;

/// How faults are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// In colours: for a terminal that wants them.
    pub colour: bool,
    /// Columns of a line.
    pub width: usize,
}

impl Look {
    /// For files, pipes and tests.
    pub const PLAIN: Self = Self {
        colour: false,
        width: 100,
    };
}

/// The longest line of a file that is shown whole; a longer one is shown as its place only.
const LONGEST_LINE: usize = 2000;

/// All faults, each with its place and line, then their number.
#[must_use]
pub fn render(errors: &ConfigErrors, look: Look) -> String {
    let theme = if look.colour {
        GraphicalTheme::unicode()
    } else {
        GraphicalTheme::unicode_nocolor()
    };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_width(look.width.max(40))
        .with_context_lines(0)
        .without_syntax_highlighting()
        .with_links(false);
    let text = showable(&errors.text);
    let mut out = String::new();
    for error in &errors.errors {
        let drawable = text
            .lines()
            .nth(error.line.saturating_sub(1))
            .is_none_or(|line| line.len() <= LONGEST_LINE);
        let report = Report {
            file: &errors.file,
            source: drawable.then(|| NamedSource::new(&errors.file, text.clone())),
            error,
        };
        if handler.render_report(&mut out, &report).is_err() {
            out.push_str(&format!("{}:{error}\n", errors.file));
        }
    }
    let number = errors.errors.len() + errors.left_out;
    let s = if number == 1 { "" } else { "s" };
    out.push_str(&format!("{number} error{s} in {}", errors.file));
    if errors.left_out > 0 {
        out.push_str(&format!(", {} not shown", errors.left_out));
    }
    out.push('\n');
    out
}

/// The faults for machines, one object each.
#[must_use]
pub fn json(errors: &ConfigErrors) -> Vec<serde_json::Value> {
    let object = |error: &ConfigError| {
        serde_json::json!({
            "error": "config",
            "file": errors.file,
            "line": error.line,
            "column": error.column,
            "key": error.key,
            "message": error.message,
            "help": error.help,
        })
    };
    errors.errors.iter().map(object).collect()
}

/// One fault as miette wants it.
struct Report<'e> {
    file: &'e str,
    source: Option<NamedSource<String>>,
    error: &'e ConfigError,
}

impl Report<'_> {
    /// The span, at least one byte long where the text has one, so that an arrow can point at it.
    fn span(&self) -> (usize, usize) {
        let span = &self.error.span;
        (span.start, span.len().max(1))
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError { key, message, .. } = self.error;
        if self.source.is_none() {
            write!(
                f,
                "{}:{}:{}: ",
                self.file, self.error.line, self.error.column
            )?;
        }
        if key.is_empty() {
            f.write_str(message)
        } else {
            write!(f, "{key}: {message}")
        }
    }
}

impl fmt::Debug for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Report<'_> {}

impl Diagnostic for Report<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.error.help.as_ref()?;
        Some(Box::new(help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        let source = self.source.as_ref()?;
        Some(source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.source.as_ref()?;
        let (start, length) = self.span();
        let label = LabeledSpan::new(Some("here".to_owned()), start, length);
        Some(Box::new(std::iter::once(label)))
    }
}

/// The text with every unsafe character replaced by one of the same length in bytes, so that spans
/// stay right.
fn showable(text: &str) -> String {
    text.chars()
        .map(|c| match (c, c.len_utf8()) {
            ('\n' | '\t', _) => c,
            (c, 1) if foreign::is_unsafe(c) => '?',
            (c, 2) if foreign::is_unsafe(c) => '\u{b7}',
            (c, 3) if foreign::is_unsafe(c) => '\u{fffd}',
            (c, _) if foreign::is_unsafe(c) => '\u{10ff0}',
            (c, _) => c,
        })
        .collect()
}
