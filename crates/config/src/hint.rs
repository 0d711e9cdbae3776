//! `[[hint]]`: what the messages of agents mean, and what helps.
//!
//! A table of data: the built-in rows (`hint/builtin.toml`), and before them those of the file, read
//! by the same reader. Pure. Must not know where a message came from, or how a hint is shown.

use std::sync::{Arc, LazyLock};

use regex::{Regex, RegexBuilder};
use toml::de::DeTable;

use super::error::{ConfigErrors, SourceText};
use super::table::{Diagnostics, Section, word};
use super::types::Launcher;
use marshal_model::limits;
use marshal_model::{ExitStatus, UntrustedText, string_enum};

word!(HintTarget, HintClass);

string_enum!(
    /// Where a hint's pattern is looked for.
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
    /// What a hint's message brings about, beside the hint itself.
    HintClass {
        /// The provider limits requests.
        RateLimited = "rate_limited",
        /// Another start would end the same: a slot whose child was not ready yet is parked.
        Configuration = "configuration",
        /// The far end was not reached, so that nothing ran there.
        Unreachable = "unreachable",
    }
);

/// One row.
#[derive(Debug, Clone)]
pub struct Hint {
    /// What is looked for in each line.
    pub pattern: Regex,
    /// Where it is looked for.
    pub target: HintTarget,
    /// Only of this agent, by the name of its preset.
    pub agent: Option<String>,
    /// Only with this launcher.
    pub launcher: Option<Launcher>,
    /// Only where the child ended with this exit code.
    pub code: Option<i32>,
    /// What helps.
    pub text: String,
    /// What else follows.
    pub class: Option<HintClass>,
}

/// What went wrong, as far as is known.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The name of the agent's preset, or `custom`.
    pub agent: &'a str,
    /// How it was started.
    pub launcher: Launcher,
    /// How it ended, if it did.
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

/// What every configuration knows.
static BUILT_IN: LazyLock<Vec<Hint>> = LazyLock::new(|| parse_built_in().unwrap_or_default());

impl Hints {
    /// The file's own rows.
    #[must_use]
    pub fn own(&self) -> &[Hint] {
        &self.own
    }

    /// The first row that fits. Looks at a bounded number of bytes of what is foreign.
    #[must_use]
    pub fn find(&self, evidence: &Evidence<'_>) -> Option<&Hint> {
        let mut rows = self.own.iter().chain(BUILT_IN.iter());
        rows.find(|hint| hint.matches(evidence))
    }

    /// Whether a line says what this class is about: the first row that fits the line has it. So a
    /// row of the file without a class takes words back that a built-in one would take for it, and
    /// noise in another line hides nothing.
    #[must_use]
    pub fn matches_class(&self, evidence: &Evidence<'_>, class: HintClass) -> bool {
        let rows: Vec<&Hint> = self
            .own
            .iter()
            .chain(BUILT_IN.iter())
            .filter(|hint| hint.applies_to(evidence))
            .collect();
        let says = |line: &str, not: HintTarget| {
            let mut fitting = rows
                .iter()
                .filter(|hint| hint.target != not && hint.pattern.is_match(line));
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
        messages.any(|line| says(line, HintTarget::Stderr))
            || stderr.any(|line| says(line, HintTarget::Message))
    }
}

impl Hint {
    /// Whether its conditions hold; its pattern is another matter.
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

/// As much of a text as is looked at.
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

/// What the schema says of an agent's name.
const AGENT_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";
/// What the schema says of pattern and text.
const PATTERN_PATTERN: &str = "^.{1,1024}$";
const TEXT_PATTERN: &str = "^.{1,500}$";

fn read_row(table: &Section<'_>) -> Option<Hint> {
    let ledger = table.diagnostics;
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
            ledger.report(&table.place, format!("a hint needs {key}"), Some(help));
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
    let ledger = Diagnostics::new(SourceText::new(
        "built-in hints".to_owned(),
        Arc::from(source),
    ));
    let (tree, errors) = DeTable::parse_recoverable(source);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        ledger.report_all(vec![SourceText::build_error(
            "",
            span,
            error.message(),
            None,
        )]);
    }
    let root = Section::root(&ledger, tree.get_ref());
    let rows = read_rows(&root);
    root.reject_unknown_keys(&[], &[]);
    let faulty = ledger.has_errors();
    drop(root);
    let (text, errors, _) = ledger.into_parts();
    if faulty {
        Err(text.into_errors(errors))
    } else {
        Ok(rows)
    }
}

#[cfg(test)]
mod tests;
