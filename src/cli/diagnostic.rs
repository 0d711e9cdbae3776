//! Shows the faults of a configuration with the offending line of each.
//!
//! Must not know how faults are found. The file's text is foreign: what could act on a terminal is
//! replaced before it is drawn.

use std::fmt::{self, Write as _};

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

/// The longest line of a file that is drawn; beside a longer one, only the place is told.
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
        .with_context_lines(1)
        .without_syntax_highlighting()
        .with_links(false);
    let text = showable(&errors.text);
    let mut out = String::new();
    for error in &errors.errors {
        // The line, the one before and the one after.
        let first = error.line.saturating_sub(2);
        let mut around = text.lines().skip(first).take(3);
        let drawable = around.all(|line| line.len() <= LONGEST_LINE);
        let report = Report {
            file: &errors.file,
            source: drawable.then(|| NamedSource::new(&errors.file, text.clone())),
            error,
        };
        if handler.render_report(&mut out, &report).is_err() {
            let _ = writeln!(out, "{}:{error}", errors.file);
        }
        out.push('\n');
    }
    let number = errors.errors.len() + errors.left_out;
    let s = if number == 1 { "" } else { "s" };
    let _ = write!(out, "{number} error{s} in {}", errors.file);
    if errors.left_out > 0 {
        let _ = write!(out, ", {} not shown", errors.left_out);
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::{Config, Origin};

    fn errors(text: &str) -> ConfigErrors {
        let origin = Origin {
            file: Some(PathBuf::from("/etc/marshal/supervisor.toml")),
            dir: PathBuf::from("/etc/marshal"),
            named: true,
        };
        Config::parse(text, &origin)
            .map(|_| ())
            .expect_err("faulty")
    }

    fn plain(text: &str) -> String {
        render(&errors(text), Look::PLAIN)
    }

    #[test]
    fn every_fault_is_shown_with_its_line() {
        insta::assert_snapshot!(plain(
            "[supervisor]\nlisten = \"0.0.0.0:7117\"   # everywhere\n\n[pool.demo]\nagent = \"script\"\nszie = 4\ntimeouts = { silence = \"10\" }\nrestart = { on_crash = \"retry\" }\n"
        ));
    }

    #[test]
    fn a_syntax_fault_is_shown_with_its_line() {
        insta::assert_snapshot!(plain("[pool.demo]\nagent = \"script\nsize = 4\n"));
    }

    #[test]
    fn a_missing_key_is_shown_at_its_table() {
        insta::assert_snapshot!(plain("# a pool\n[pool.demo]\nsize = 4\n"));
    }

    #[test]
    fn a_fault_of_the_whole_file_is_shown() {
        insta::assert_snapshot!(plain(""));
        insta::assert_snapshot!(plain("\u{feff}[pool.demo]\nagent = \"script\"\n"));
    }

    #[test]
    fn words_of_later_versions_are_shown_as_such() {
        insta::assert_snapshot!(plain("[pool.demo]\nagent = \"goose\"\n[remote]\n"));
    }

    #[test]
    fn nothing_in_a_file_acts_on_a_terminal() {
        let nasty = "\u{1b}[2J\u{202e}\u{9b}31m\u{e0041}\u{200b}";
        for text in [
            format!("[pool.demo]\nagent = \"script\"\n\"{nasty}\" = 1 # {nasty}\n"),
            format!("[pool.demo]\nagent = \"{nasty}\" # {nasty}\n"),
            format!("[pool.\"{nasty}\"]\nagent = \"script\"\n"),
            format!("[pool.demo]\ncommand = [\"{{sesion}}{nasty}\", \"/{nasty}\"]\n"),
            "[pool.\"\\u001b]0;x\\u0007\"]\nagent = \"script\"\nx = \"\\u009b\"\n".to_owned(),
            format!(
                "[pool.demo]\nagent = \"script\"\nworkspace = {{ path = \"/x\u{202e}\", mode = \"{nasty}\" }}\n"
            ),
            format!("{nasty}\r{nasty}"),
        ] {
            let errors = errors(&text);
            let both = [render(&errors, Look::PLAIN), errors.to_string()];
            for shown in both {
                let bad = shown.chars().find(|c| *c != '\n' && foreign::is_unsafe(*c));
                assert_eq!(bad, None, "{shown:?}");
            }
        }
    }

    #[test]
    fn colours_are_only_for_those_who_want_them() {
        let errors = errors("size = 4\n");
        assert!(!render(&errors, Look::PLAIN).contains('\u{1b}'));
        let colour = Look {
            colour: true,
            width: 80,
        };
        assert!(render(&errors, colour).contains('\u{1b}'));
    }

    #[test]
    fn a_very_long_line_is_not_printed() {
        let text = format!(
            "[pool.demo]\nagent = \"script\"\nx = \"{}\"\n",
            "y".repeat(100_000)
        );
        let shown = plain(&text);
        assert!(shown.len() < 1000, "{}", shown.len());
        assert!(shown.contains("supervisor.toml:3:1: "), "{shown}");
    }

    #[test]
    fn machines_get_one_object_for_each_fault() {
        let objects = json(&errors(
            "[pool.demo]\nagent = \"script\"\nszie = 4\nattempts = 0\n",
        ));
        assert_eq!(objects.len(), 2);
        assert_eq!(objects[0]["line"], 3);
        assert_eq!(objects[0]["column"], 1);
        assert_eq!(objects[0]["key"], "pool.demo.szie");
        assert_eq!(objects[0]["help"], "did you mean size?");
        assert_eq!(objects[1]["line"], 4);
    }
}
