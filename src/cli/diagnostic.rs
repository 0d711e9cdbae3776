//! Shows the errors of a configuration, each with its line.
//!
//! Must not know how errors are found. The file's text is untrusted: characters that could act on a
//! terminal are replaced.

use std::fmt::Write as _;
use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use marshal_config::{ConfigError, ConfigErrors};
use marshal_model::untrusted;

/// How errors are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderStyle {
    /// Whether to use colours.
    pub colour: bool,
    /// Width in columns.
    pub width: usize,
}

impl RenderStyle {
    /// The style for files, pipes and tests.
    pub const PLAIN: Self = Self {
        colour: false,
        width: 100,
    };
}

/// The longest line that is shown; for a longer one, only the position is shown.
const LONGEST_LINE: usize = 2000;

/// All errors, each with its position and line, and then their number.
#[must_use]
pub fn render(errors: &ConfigErrors, look: RenderStyle) -> String {
    let renderer = if look.colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer
        .decor_style(DecorStyle::Unicode)
        .term_width(look.width.max(40));
    let text = showable(&errors.text);
    let mut out = String::new();
    for error in &errors.errors {
        out.push_str(&renderer.render(&[report(error, &errors.file, &text)]));
        out.push_str("\n\n");
    }
    let number = errors.errors.len() + errors.omitted;
    let s = if number == 1 { "" } else { "s" };
    let _ = write!(out, "{number} error{s} in {}", errors.file);
    if errors.omitted > 0 {
        let _ = write!(out, ", {} not shown", errors.omitted);
    }
    out.push('\n');
    out
}

/// The errors as JSON, one object each.
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

/// One error with its line, the line before and the line after. Only with its position if the file
/// has no text or a line is too long.
fn report<'a>(error: &'a ConfigError, file: &'a str, text: &'a str) -> Group<'a> {
    let ConfigError { key, message, .. } = error;
    let mut title = if key.is_empty() {
        message.clone()
    } else {
        format!("{key}: {message}")
    };
    let before = error.line.saturating_sub(2);
    let mut lines = text.split_inclusive('\n');
    let start: usize = lines.by_ref().take(before).map(str::len).sum();
    let context = || lines.clone().take(3);
    let end = start + context().map(str::len).sum::<usize>();
    let snippet = (start < end && context().all(|line| line.len() <= LONGEST_LINE)).then(|| {
        let place = AnnotationKind::Primary.span(within(&text[start..end], start, &error.span));
        Snippet::source(&text[start..end])
            .path(file)
            .line_start(before + 1)
            .fold(false)
            .annotation(place)
    });
    if snippet.is_none() {
        title = format!("{file}:{}:{}: {title}", error.line, error.column);
    }
    let help = error.help.as_deref().map(|help| Level::HELP.message(help));
    Level::ERROR
        .primary_title(title)
        .elements(snippet)
        .elements(help)
}

/// The part of a span that is marked: the part on its first line, in whole characters and at least
/// one. At the end of a line, it is the last character. `source` begins at the file's byte `start`.
fn within(source: &str, start: usize, span: &Range<usize>) -> Range<usize> {
    let wanted = span.start.saturating_sub(start);
    let mut from = 0;
    let mut is_at_end = false;
    for (at, c) in source.char_indices().take_while(|(at, _)| *at <= wanted) {
        is_at_end = c == '\n';
        if !is_at_end || source[..at].ends_with('\n') {
            from = at;
        }
    }
    let line = source[from..]
        .find('\n')
        .map_or(source.len(), |at| from + at);
    let end = if is_at_end {
        line
    } else {
        line.min(span.end.saturating_sub(start))
    };
    let mut ends = end.max(from + 1)..source.len();
    from..ends
        .find(|at| source.is_char_boundary(*at))
        .unwrap_or(source.len())
}

/// The text with every unsafe character replaced by one of the same length in bytes, so that spans
/// stay valid.
fn showable(text: &str) -> String {
    text.chars()
        .map(|c| match (c, c.len_utf8()) {
            ('\n' | '\t', _) => c,
            (c, 1) if untrusted::is_unsafe(c) => '?',
            (c, 2) if untrusted::is_unsafe(c) => '\u{b7}',
            (c, 3) if untrusted::is_unsafe(c) => '\u{fffd}',
            (c, _) if untrusted::is_unsafe(c) => '\u{10ff0}',
            (c, _) => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use marshal_config::{Config, Origin};

    fn errors(text: &str) -> ConfigErrors {
        let origin = Origin {
            file: Some(PathBuf::from("/etc/marshal/supervisor.toml")),
            dir: PathBuf::from("/etc/marshal"),
            is_explicit: true,
        };
        Config::parse(text, &origin)
            .map(|_| ())
            .expect_err("faulty")
    }

    fn plain(text: &str) -> String {
        render(&errors(text), RenderStyle::PLAIN)
    }

    #[test]
    fn every_fault_is_shown_with_its_line() {
        insta::assert_snapshot!(plain(
            "[supervisor]\nlisten = \"0.0.0.0:7117\"   # everywhere\n\n[pool.demo]\nagent = \"script\"\nszie = 4\ntimeouts = { silence = \"10\" }\nrestart = { on_crash = \"resume\" }\n"
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
    fn an_arrow_points_at_whole_characters_of_one_line() {
        let source = "a = \u{fffd}\n\nb = 1\n";
        for (span, expected) in [
            (0..1, 0..1),
            (5..6, 4..7),
            (4..30, 4..7),
            (7..8, 4..7),
            (8..9, 8..9),
            (9..9, 9..10),
            (90..99, 13..14),
        ] {
            let span = span.start + 100..span.end + 100;
            assert_eq!(within(source, 100, &span), expected, "{span:?}");
        }
        assert_eq!(within(source, 100, &(3..4)), 0..1, "before the source");
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
            let both = [render(&errors, RenderStyle::PLAIN), errors.to_string()];
            for shown in both {
                let bad = shown
                    .chars()
                    .find(|c| *c != '\n' && untrusted::is_unsafe(*c));
                assert_eq!(bad, None, "{shown:?}");
            }
        }
    }

    #[test]
    fn colours_are_only_for_those_who_want_them() {
        let errors = errors("size = 4\n");
        assert!(!render(&errors, RenderStyle::PLAIN).contains('\u{1b}'));
        let colour = RenderStyle {
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
