//! `[[hint]]`: what the messages of agents mean, and what helps.
//!
//! A table of data: the built-in rows (`hint/builtin.toml`), and before them those of the file, read
//! by the same reader. Pure. Must not know where a message came from, or how a hint is shown.

use std::sync::{Arc, LazyLock};

use regex::{Regex, RegexBuilder};
use toml::de::DeTable;

use super::error::{ConfigErrors, Text};
use super::table::{Ledger, Section, word};
use super::types::Launcher;
use crate::limits;
use crate::model::{ExitStatus, Foreign, words};

word!(HintWhere, HintClass);

words!(
    /// Where a hint's pattern is looked for.
    HintWhere {
        /// In the error's message.
        Message = "message",
        /// In the last lines of the child's stderr.
        Stderr = "stderr",
        /// In both.
        Both = "both",
    }
);

words!(
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
    pub place: HintWhere,
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
    pub stderr: &'a [Foreign],
}

/// The rows of a file, and after them the built-in ones.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    own: Arc<[Hint]>,
}

/// What every configuration knows.
static BUILT_IN: LazyLock<Vec<Hint>> = LazyLock::new(|| built_in().unwrap_or_default());

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
        rows.find(|hint| hint.fits(evidence))
    }

    /// Whether a line says what this class is about: the first row that fits the line has it. So a
    /// row of the file without a class takes words back that a built-in one would take for it, and
    /// noise in another line hides nothing.
    #[must_use]
    pub fn tells(&self, evidence: &Evidence<'_>, class: HintClass) -> bool {
        let rows: Vec<&Hint> = self
            .own
            .iter()
            .chain(BUILT_IN.iter())
            .filter(|hint| hint.is_about(evidence))
            .collect();
        let says = |line: &str, not: HintWhere| {
            let mut fitting = rows
                .iter()
                .filter(|hint| hint.place != not && hint.pattern.is_match(line));
            fitting.next().is_some_and(|hint| hint.class == Some(class))
        };
        let mut messages = evidence
            .messages
            .iter()
            .flat_map(|text| looked_at(text).lines());
        let mut stderr = evidence.stderr.iter().map(|line| looked_at(line.raw()));
        messages.any(|line| says(line, HintWhere::Stderr))
            || stderr.any(|line| says(line, HintWhere::Message))
    }
}

impl Hint {
    /// Whether its conditions hold; its pattern is another matter.
    fn is_about(&self, evidence: &Evidence<'_>) -> bool {
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

    fn fits(&self, evidence: &Evidence<'_>) -> bool {
        let in_message = || {
            let mut lines = evidence
                .messages
                .iter()
                .flat_map(|text| looked_at(text).lines());
            lines.any(|line| self.pattern.is_match(line))
        };
        let in_stderr = || {
            let mut lines = evidence.stderr.iter();
            lines.any(|line| self.pattern.is_match(looked_at(line.raw())))
        };
        self.is_about(evidence)
            && match self.place {
                HintWhere::Message => in_message(),
                HintWhere::Stderr => in_stderr(),
                HintWhere::Both => in_message() || in_stderr(),
            }
    }
}

/// As much of a text as is looked at.
#[must_use]
pub fn looked_at(text: &str) -> &str {
    let mut end = text.len().min(limits::HINT_MESSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Reads the array `hint` of a file.
pub(super) fn read(root: &Section<'_>) -> Hints {
    Hints {
        own: rows(root).into(),
    }
}

fn rows(root: &Section<'_>) -> Vec<Hint> {
    let Some(item) = root.item("hint") else {
        return Vec::new();
    };
    let Some(items) = item.items("an array of tables, [[hint]]") else {
        return Vec::new();
    };
    let tables = items.iter().filter_map(super::table::Item::section);
    tables.filter_map(|table| row(&table)).collect()
}

/// What the schema says of an agent's name.
const AGENT_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";
/// What the schema says of pattern and text.
const PATTERN_PATTERN: &str = "^.{1,1024}$";
const TEXT_PATTERN: &str = "^.{1,500}$";

fn row(table: &Section<'_>) -> Option<Hint> {
    let ledger = table.ledger;
    let pattern = table.item("pattern").and_then(|item| {
        let found = item.text_like(PATTERN_PATTERN)?;
        let most = limits::HINT_PATTERN_BYTES;
        if found.value.is_empty() || found.value.len() > most {
            item.fault(format!("expected a pattern of 1 to {most} bytes"), None);
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
                item.fault(
                    format!("not a regular expression: {why}"),
                    Some(help.to_owned()),
                );
            })
            .ok()
    });
    let text = table.item("text").and_then(|item| {
        let found = item.text_like(TEXT_PATTERN)?;
        let most = limits::HINT_TEXT_BYTES;
        let fits = (1..=most).contains(&found.value.len())
            && !found.value.contains(crate::model::foreign::is_unsafe);
        if !fits {
            item.fault(format!("expected one line of 1 to {most} bytes"), None);
        }
        fits.then_some(found.value)
    });
    for (key, example) in [
        ("pattern", "\"quota exceeded\""),
        ("text", "\"ask the lab for more\""),
    ] {
        if table.item(key).is_none() {
            let help = format!("for example: {key} = {example}");
            ledger.fault(&table.place, format!("a hint needs {key}"), Some(help));
        }
    }
    let hint = Hint {
        place: table
            .word("where", &[])
            .map_or(HintWhere::Both, |found| found.value),
        agent: table.item("agent").and_then(|item| {
            let found = item.text_like(AGENT_PATTERN)?;
            if !super::sandbox::is_name(&found.value) {
                item.fault("expected an agent's name, such as \"codex\"", None);
            }
            Some(found.value)
        }),
        launcher: table.word("launcher", &[]).map(|found| found.value),
        code: table.integer("code", 0..=255).map(|found| found.value),
        class: table.word("class", &[]).map(|found| found.value),
        pattern: pattern?,
        text: text?,
    };
    table.close(
        &[],
        &[("kind", "class"), ("message", "text"), ("hint", "text")],
    );
    Some(hint)
}

/// The built-in rows.
fn built_in() -> Result<Vec<Hint>, ConfigErrors> {
    let source = include_str!("hint/builtin.toml");
    let ledger = Ledger::new(Text::new("built-in hints".to_owned(), Arc::from(source)));
    let (tree, errors) = DeTable::parse_recoverable(source);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        ledger.faults(vec![Text::error("", span, error.message(), None)]);
    }
    let root = Section::root(&ledger, tree.get_ref());
    let rows = rows(&root);
    root.close(&[], &[]);
    let faulty = ledger.is_faulty();
    drop(root);
    let (text, errors, _) = ledger.close();
    if faulty {
        Err(text.refuse(errors))
    } else {
        Ok(rows)
    }
}

#[cfg(test)]
mod tests;
