//! `[[hint]]`: explanations of agents' messages, and what to do about them.
//!
//! A table of data: the rows of the file, then the built-in rows (`hint/builtin.toml`), parsed by
//! the same reader. Pure. Must not know the source of a message, or how a hint is displayed.

use std::sync::{Arc, LazyLock};

use regex::{Regex, RegexBuilder};
use toml::de::DeTable;

use super::error::{ConfigErrors, SourceText};
use super::table::{Diagnostics, Section, keywords};
use super::types::Launcher;
use marshal_model::limits;
use marshal_model::{ExitStatus, UntrustedText, string_enum};

keywords!(HintTarget, HintClass);

string_enum!(
    /// Where a hint's pattern is searched.
    HintTarget {
        /// In the error's message.
        Message = "message",
        /// In the last lines of the child's stderr.
        Stderr = "stderr",
        /// In both.
        Both = "both",
    }
);

string_enum!(
    /// What follows from a hint's message, besides the hint itself.
    HintClass {
        /// The provider limits requests.
        RateLimited = "rate_limited",
        /// Another start would fail the same way: a slot whose child was not ready yet is parked.
        Configuration = "configuration",
        /// The remote host was not reached, so nothing ran there.
        Unreachable = "unreachable",
    }
);

/// One row of the table.
#[derive(Debug, Clone)]
pub struct Hint {
    /// The pattern that is searched in each line.
    pub pattern: Regex,
    /// Where the pattern is searched.
    pub target: HintTarget,
    /// Applies only to this agent, by the name of its preset.
    pub agent: Option<String>,
    /// Applies only with this launcher.
    pub launcher: Option<Launcher>,
    /// Applies only if the child ended with this exit code.
    pub code: Option<i32>,
    /// The text of the hint.
    pub text: String,
    /// What follows besides the hint.
    pub class: Option<HintClass>,
}

/// The known facts about a failure.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The name of the agent's preset, or `custom`.
    pub agent: &'a str,
    /// The launcher.
    pub launcher: Launcher,
    /// How the child ended; `None` if it has not.
    pub status: Option<ExitStatus>,
    /// The error's messages.
    pub messages: &'a [&'a str],
    /// The last lines of its stderr.
    pub stderr: &'a [UntrustedText],
}

/// The rows of a file, and after them the built-in ones.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    own: Arc<[Hint]>,
}

/// The built-in rows.
static BUILT_IN: LazyLock<Vec<Hint>> = LazyLock::new(|| parse_built_in().unwrap_or_default());

impl Hints {
    /// The file's own rows.
    #[must_use]
    pub fn own(&self) -> &[Hint] {
        &self.own
    }

    /// The first matching row. Searches a bounded number of bytes of foreign text.
    #[must_use]
    pub fn find(&self, evidence: &Evidence<'_>) -> Option<&Hint> {
        let mut rows = self.own.iter().chain(BUILT_IN.iter());
        rows.find(|hint| hint.matches(evidence))
    }

    /// Whether the first row that matches some line has this class. So a row of the file without a
    /// class overrides a built-in row for its line, and noise in another line hides nothing.
    #[must_use]
    pub fn matches_class(&self, evidence: &Evidence<'_>, class: HintClass) -> bool {
        let rows: Vec<&Hint> = self
            .own
            .iter()
            .chain(BUILT_IN.iter())
            .filter(|hint| hint.applies_to(evidence))
            .collect();
        let matches = |line: &str, other_target: HintTarget| {
            let mut fitting = rows
                .iter()
                .filter(|hint| hint.target != other_target && hint.pattern.is_match(line));
            fitting.next().is_some_and(|hint| hint.class == Some(class))
        };
        let mut messages = evidence
            .messages
            .iter()
            .flat_map(|text| truncate_for_matching(text).lines());
        let mut stderr = evidence
            .stderr
            .iter()
            .map(|line| truncate_for_matching(line.raw()));
        messages.any(|line| matches(line, HintTarget::Stderr))
            || stderr.any(|line| matches(line, HintTarget::Message))
    }
}

impl Hint {
    /// Whether the row's conditions apply, apart from its pattern.
    fn applies_to(&self, evidence: &Evidence<'_>) -> bool {
        self.agent
            .as_deref()
            .is_none_or(|name| name == evidence.agent)
            && self
                .launcher
                .is_none_or(|launcher| launcher == evidence.launcher)
            && self
                .code
                .is_none_or(|code| evidence.status == Some(ExitStatus::Code(code)))
    }

    fn matches(&self, evidence: &Evidence<'_>) -> bool {
        let in_message = || {
            let mut lines = evidence
                .messages
                .iter()
                .flat_map(|text| truncate_for_matching(text).lines());
            lines.any(|line| self.pattern.is_match(line))
        };
        let in_stderr = || {
            let mut lines = evidence.stderr.iter();
            lines.any(|line| self.pattern.is_match(truncate_for_matching(line.raw())))
        };
        self.applies_to(evidence)
            && match self.target {
                HintTarget::Message => in_message(),
                HintTarget::Stderr => in_stderr(),
                HintTarget::Both => in_message() || in_stderr(),
            }
    }
}

/// The part of a text that is searched.
#[must_use]
pub fn truncate_for_matching(text: &str) -> &str {
    let mut end = text.len().min(limits::HINT_MESSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads the array `hint` of a file.
pub(super) fn read(root: &Section<'_>) -> Hints {
    Hints {
        own: read_rows(root).into(),
    }
}

fn read_rows(root: &Section<'_>) -> Vec<Hint> {
    let Some(item) = root.get("hint") else {
        return Vec::new();
    };
    let Some(items) = item.elements("an array of tables, [[hint]]") else {
        return Vec::new();
    };
    let tables = items.iter().filter_map(super::table::Entry::section);
    tables.filter_map(|table| read_row(&table)).collect()
}

/// The JSON-schema pattern of an agent's name.
const AGENT_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";
/// The JSON-schema patterns of the keys `pattern` and `text`.
const PATTERN_PATTERN: &str = "^.{1,1024}$";
const TEXT_PATTERN: &str = "^.{1,500}$";

fn read_row(table: &Section<'_>) -> Option<Hint> {
    let diagnostics = table.diagnostics;
    let pattern = table.get("pattern").and_then(|item| {
        let found = item.text_like(PATTERN_PATTERN)?;
        let most = limits::HINT_PATTERN_BYTES;
        if found.value.is_empty() || found.value.len() > most {
            item.report(format!("expected a pattern of 1 to {most} bytes"), None);
            return None;
        }
        let built = RegexBuilder::new(&found.value)
            .size_limit(limits::HINT_REGEX_BYTES)
            .build();
        built
            .inspect_err(|error| {
                let words = error.to_string();
                let last = words.lines().last().unwrap_or_default();
                let why = last.trim_start_matches("error: ");
                let help =
                    "the syntax is that of Rust's regex crate: no look-around, no back-references";
                item.report(
                    format!("not a regular expression: {why}"),
                    Some(help.to_owned()),
                );
            })
            .ok()
    });
    let text = table.get("text").and_then(|item| {
        let found = item.text_like(TEXT_PATTERN)?;
        let most = limits::HINT_TEXT_BYTES;
        let fits = (1..=most).contains(&found.value.len())
            && !found.value.contains(marshal_model::untrusted::is_unsafe);
        if !fits {
            item.report(format!("expected one line of 1 to {most} bytes"), None);
        }
        fits.then_some(found.value)
    });
    for (key, example) in [
        ("pattern", "\"quota exceeded\""),
        ("text", "\"ask the lab for more\""),
    ] {
        if table.get(key).is_none() {
            let help = format!("for example: {key} = {example}");
            diagnostics.report(&table.place, format!("a hint needs {key}"), Some(help));
        }
    }
    let hint = Hint {
        target: table
            .keyword("where", &[])
            .map_or(HintTarget::Both, |found| found.value),
        agent: table.get("agent").and_then(|item| {
            let found = item.text_like(AGENT_PATTERN)?;
            if !super::sandbox::is_valid_name(&found.value) {
                item.report("expected an agent's name, such as \"codex\"", None);
            }
            Some(found.value)
        }),
        launcher: table.keyword("launcher", &[]).map(|found| found.value),
        code: table.integer("code", 0..=255).map(|found| found.value),
        class: table.keyword("class", &[]).map(|found| found.value),
        pattern: pattern?,
        text: text?,
    };
    table.reject_unknown_keys(
        &[],
        &[("kind", "class"), ("message", "text"), ("hint", "text")],
    );
    Some(hint)
}

/// The built-in rows.
fn parse_built_in() -> Result<Vec<Hint>, ConfigErrors> {
    let source = include_str!("hint/builtin.toml");
    let diagnostics = Diagnostics::new(SourceText::new(
        "built-in hints".to_owned(),
        Arc::from(source),
    ));
    let (tree, errors) = DeTable::parse_recoverable(source);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        diagnostics.report_all(vec![SourceText::build_error(
            "",
            span,
            error.message(),
            None,
        )]);
    }
    let root = Section::root(&diagnostics, tree.get_ref());
    let rows = read_rows(&root);
    root.reject_unknown_keys(&[], &[]);
    let faulty = diagnostics.has_errors();
    drop(root);
    let (text, errors, _) = diagnostics.into_parts();
    if faulty {
        Err(text.into_errors(errors))
    } else {
        Ok(rows)
    }
}

#[cfg(test)]
mod tests;
