//! The runs of the report, each with its tasks: what was asked, what came back, what it cost, and
//! the command that goes on from there.
//!
//! Must not know how the journal is read.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::cli::board::span;
use crate::cli::event_text::local_time as time;
use crate::cli::short_ids::short;
use marshal_journal::codec::read_report;
use marshal_journal::{StoredRun, StoredSpend, StoredTask};
use marshal_model::budget::{NANOS_PER_DOLLAR, format_cost};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{TaskOutcome, UnaskedCalls, UntrustedText};

/// Columns of an untrusted word, and of a sentence.
const WORD: usize = 60;
const SENTENCE: usize = 200;
/// Columns of a prompt, and of the last words of an answer.
const QUOTE: usize = 120;
/// The most tasks that are kept; the others are only counted.
const TASKS: usize = limits::REPORT_ROWS * 50;

/// The tasks of a task list, by run.
#[derive(Default)]
pub(super) struct RunRows {
    runs: Vec<RunRow>,
    by_id: HashMap<String, usize>,
    kept: usize,
    /// Calls without a permission request, of all ended tasks.
    pub(super) unasked: UnaskedCalls,
}

/// A run.
struct RunRow {
    id: String,
    stored: Option<StoredRun>,
    outcomes: BTreeMap<String, usize>,
    open: usize,
    cost: u64,
    tasks: Vec<TaskRow>,
    more: usize,
}

/// A task that has ended.
struct TaskRow {
    id: String,
    pool: String,
    outcome: String,
    session: Option<String>,
    detail: Option<String>,
    prompt: UntrustedText,
    answer: UntrustedText,
    denied: u32,
    denied_by: Vec<String>,
    unasked: UnaskedCalls,
    attempts: u32,
    took_ms: u64,
    cost: Option<u64>,
    /// Its own copy of the workspace, if something changed there.
    tree: Option<String>,
    has_branch: bool,
    changes: usize,
}

impl TaskRow {
    fn is_done(&self) -> bool {
        self.outcome == TaskOutcome::Done.as_str()
    }

    /// What a person looks at first comes first.
    fn rank(&self) -> u8 {
        match (self.is_done(), self.tree.is_some() || self.has_branch) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        }
    }

    /// The command that goes on from here.
    fn next(&self) -> Option<String> {
        let session = escape_for_display(short(self.session.as_ref()?), WORD);
        Some(if self.has_branch {
            format!("marshal diff {session}, then marshal land {session}")
        } else if self.is_done() && self.tree.is_some() {
            format!("marshal diff {session}")
        } else if self.is_done() {
            return None;
        } else {
            format!("marshal show {session}")
        })
    }
}

impl RunRows {
    /// Adds a task. `spend` is what its sessions spent, if that was recorded.
    pub(super) fn add(
        &mut self,
        run: &str,
        task: &StoredTask,
        spend: Option<StoredSpend>,
        stored: impl FnOnce() -> Option<StoredRun>,
    ) {
        let place = *self.by_id.entry(run.to_owned()).or_insert_with(|| {
            self.runs.push(RunRow {
                id: run.to_owned(),
                stored: stored(),
                outcomes: BTreeMap::new(),
                open: 0,
                cost: 0,
                tasks: Vec::new(),
                more: 0,
            });
            self.runs.len() - 1
        });
        let row = &mut self.runs[place];
        let cost = spend.map(|spend| spend.amount.nanodollars);
        row.cost = row.cost.saturating_add(cost.unwrap_or(0));
        if task.state != "ended" {
            row.open += 1;
            return;
        }
        let outcome = task.outcome.clone().unwrap_or_default();
        *row.outcomes.entry(outcome.clone()).or_default() += 1;
        let report = task
            .result
            .as_deref()
            .and_then(|text| read_report(text).ok());
        let unasked = report
            .as_ref()
            .map_or_else(UnaskedCalls::default, |report| UnaskedCalls {
                allowed: report.unasked_allowed,
                ask: report.unasked_ask,
                denied: report.unasked_denied,
            });
        self.unasked.add(unasked);
        if self.kept >= TASKS {
            row.more += 1;
            return;
        }
        self.kept += 1;
        let changed = report
            .as_ref()
            .filter(|report| report.changes_cut || !report.changes.is_empty());
        row.tasks.push(TaskRow {
            id: task.id.clone(),
            pool: task.pool.clone(),
            outcome,
            session: task.session.clone(),
            detail: task.detail.clone().filter(|detail| !detail.is_empty()),
            prompt: task.prompt.clone(),
            answer: UntrustedText::new(report.as_ref().map_or("", |report| &report.answer)),
            denied: report.as_ref().map_or(0, |report| report.requests.denied),
            denied_by: report
                .as_ref()
                .map_or_else(Vec::new, |report| report.denied_by.to_vec()),
            unasked,
            attempts: task.attempts,
            took_ms: report.as_ref().map_or(0, |report| report.duration_ms),
            cost,
            tree: changed.and_then(|report| report.workspace.as_ref().map(ToString::to_string)),
            has_branch: report
                .as_ref()
                .is_some_and(|report| report.bundle.is_some()),
            changes: report.as_ref().map_or(0, |report| report.changes.len()),
        });
    }

    /// For the JSON of the report: the runs, and their tasks as one list.
    pub(super) fn document(&self) -> (Value, Value, usize) {
        let usd = |nano: u64| nano as f64 / NANOS_PER_DOLLAR as f64;
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|run| {
                let stored = run.stored.as_ref();
                json!({
                    "run": run.id, "outcomes": run.outcomes, "open": run.open,
                    "begun_at_us": stored.map(|run| run.begun_at_us),
                    "ended_at_us": stored.and_then(|run| run.ended_at_us),
                    "cost_usd": usd(run.cost),
                })
            })
            .collect();
        let tasks = self
            .runs
            .iter()
            .flat_map(|run| run.tasks.iter().map(move |task| (run, task)));
        let tasks: Vec<Value> = tasks
            .map(|(run, task)| {
                json!({
                    "run": run.id, "task": task.id, "pool": task.pool, "outcome": task.outcome,
                    "session": task.session, "detail": task.detail, "prompt": task.prompt.raw(),
                    "answer": task.answer.raw(), "denied": task.denied, "denied_by": task.denied_by,
                    "unasked": {
                        "allowed": task.unasked.allowed, "ask": task.unasked.ask,
                        "denied": task.unasked.denied,
                    },
                    "attempts": task.attempts, "duration_ms": task.took_ms,
                    "cost_usd": task.cost.map(usd), "tree": task.tree, "branch": task.has_branch,
                    "changes": task.changes, "next": task.next(),
                })
            })
            .collect();
        let more = self.runs.iter().map(|run| run.more).sum();
        (Value::Array(runs), Value::Array(tasks), more)
    }

    /// Lines for a person, the newest run last.
    pub(super) fn push_lines(&self, lines: &mut Vec<String>) {
        for run in &self.runs {
            lines.push(String::new());
            lines.push(run.headline());
            if run.open > 0 {
                lines.push(format!(
                    "  {} running or waiting; if nothing runs: marshal run --continue {}",
                    run.open,
                    escape_for_display(short(&run.id), WORD)
                ));
            }
            let begun = |task: &&TaskRow| task.session.is_some() || task.is_done();
            let (mut tasks, unstarted): (Vec<&TaskRow>, Vec<_>) = run.tasks.iter().partition(begun);
            tasks.sort_by_key(|task| task.rank());
            for task in tasks.iter().take(limits::REPORT_ROWS) {
                task.push_lines(lines);
            }
            let more = tasks.len().saturating_sub(limits::REPORT_ROWS) + run.more;
            if more > 0 {
                lines.push(format!("  and {more} more tasks; --json has them"));
            }
            push_unstarted(&unstarted, lines);
        }
    }
}

/// Tasks that no agent has begun, together where they have one reason.
fn push_unstarted(tasks: &[&TaskRow], lines: &mut Vec<String>) {
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for task in tasks {
        let outcome = escape_for_display(&task.outcome, WORD);
        let why = escape_for_display(task.detail.as_deref().unwrap_or_default(), SENTENCE);
        let ids = by_reason.entry(format!("{outcome}: {why}")).or_default();
        ids.push(escape_for_display(&task.id, WORD));
    }
    for (reason, ids) in by_reason {
        let count = if ids.len() == 1 {
            "1 task".to_owned()
        } else {
            format!("{} tasks", ids.len())
        };
        lines.push(format!("  {count} not begun, {reason}"));
        lines.push(format!(
            "    {}",
            escape_for_display(&ids.join(", "), 2 * SENTENCE)
        ));
    }
}

impl RunRow {
    fn headline(&self) -> String {
        let mut parts = vec![format!(
            "RUN        {}",
            escape_for_display(short(&self.id), WORD)
        )];
        if let Some(stored) = &self.stored {
            let begun = time(stored.begun_at_us);
            parts.push(match stored.ended_at_us {
                Some(ended) => format!("{begun} to {}", time(ended)),
                None => format!("begun {begun}, not ended"),
            });
        }
        let outcomes = self.outcomes.iter();
        let outcomes: Vec<_> = outcomes
            .map(|(word, count)| format!("{count} {}", escape_for_display(word, WORD)))
            .collect();
        if !outcomes.is_empty() {
            parts.push(outcomes.join(", "));
        }
        if self.cost > 0 {
            parts.push(format_cost(self.cost));
        }
        parts.join("  ")
    }
}

impl TaskRow {
    fn push_lines(&self, lines: &mut Vec<String>) {
        let took = std::time::Duration::from_millis(self.took_ms);
        let mut facts = vec![
            escape_for_display(&self.id, WORD),
            escape_for_display(&self.outcome, WORD),
            span(took),
        ];
        facts.extend(self.cost.map(format_cost));
        if self.attempts > 1 {
            facts.push(format!("{} attempts", self.attempts));
        }
        match self.changes {
            0 => {}
            1 => facts.push("1 file changed".to_owned()),
            count => facts.push(format!("{count} files changed")),
        }
        lines.push(format!("  {}", facts.join("  ")));
        let mut fact = |name: &str, text: String| {
            if !text.is_empty() {
                lines.push(format!("    {name:<7} {text}"));
            }
        };
        fact("prompt", first_line(&self.prompt));
        fact("answer", last_line(&self.answer));
        if let Some(detail) = &self.detail {
            fact("why", escape_for_display(detail, SENTENCE));
        }
        if self.denied > 0 {
            let rules = self.denied_by.iter();
            let rules: Vec<_> = rules.map(|rule| escape_for_display(rule, WORD)).collect();
            let rules = escape_for_display(&rules.join(", "), SENTENCE);
            fact("denied", format!("{} by {rules}", self.denied));
        }
        if self.unasked.ask + self.unasked.denied > 0 {
            fact("unasked", self.unasked.describe());
        }
        fact("next", self.next().unwrap_or_default());
    }
}

/// The first line of a text that is not empty.
fn first_line(text: &UntrustedText) -> String {
    let line = text.raw().lines().find(|line| !line.trim().is_empty());
    escape_for_display(line.unwrap_or_default().trim(), QUOTE)
}

/// The last line of a text that is not empty.
fn last_line(text: &UntrustedText) -> String {
    let line = text
        .raw()
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty());
    escape_for_display(line.unwrap_or_default().trim(), QUOTE)
}
