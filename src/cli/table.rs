//! The table at the end of a run, its summary, and explanations for the tasks that failed.
//!
//! Pure: takes reports, returns one text; the same reports give the same text. Must not know
//! terminals: the caller gives the width and whether to use colours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use unicode_width::UnicodeWidthStr;

use super::board::span;
use super::short_ids::short;
use marshal_fleet::{ChangeKind, TaskReport};
use marshal_model::budget::format_cost;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{TaskOutcome, UnaskedCalls};

/// Columns of a task's id.
const TASK: usize = 32;
/// Columns of a slot's name.
const SLOT: usize = 20;
/// The least columns of the changed files.
const CHANGED: usize = 12;
/// The most files in a row; the width cuts them anyway.
const NAMED: usize = 20;
/// Tasks that are explained below the table.
const EXPLAINED: usize = 20;
/// Tasks that share one explanation.
const SHARED: usize = 20;
/// Columns of an explanation.
const SENTENCE: usize = 600;

/// The layout of the table.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Width in columns.
    pub width: usize,
    /// Whether outcomes have colours.
    pub coloured: bool,
}

/// One cell: its text, and whether it is right-aligned.
struct Cell {
    text: String,
    right: bool,
}

fn left(text: impl Into<String>) -> Cell {
    Cell {
        text: text.into(),
        right: false,
    }
}

fn right(text: impl Into<String>) -> Cell {
    Cell {
        text: text.into(),
        right: true,
    }
}

/// The whole text: table, summary, explanations. `rows` are in the order of the run's tasks;
/// `missing` is how many tasks have no report; `took` is the run's time.
#[must_use]
pub fn render(rows: &[&TaskReport], missing: usize, took: Duration, style: Style) -> String {
    let mut text = grid(rows, style);
    text.push('\n');
    summary(&mut text, rows, missing, took);
    explain(&mut text, rows, style);
    text
}

fn grid(rows: &[&TaskReport], style: Style) -> String {
    let extra = ExtraColumns {
        cost: rows.iter().any(|row| row.cost > 0),
        restarts: rows.iter().any(|row| row.restarts > 0),
    };
    let mut lines: Vec<(Vec<Cell>, Option<TaskOutcome>)> = vec![(header(extra), None)];
    lines.extend(
        rows.iter()
            .map(|row| (cells(row, extra), Some(row.outcome))),
    );
    let mut widths = widths_of(&lines);
    let mut optional = OPTIONAL.iter();
    while width_of(&widths) + CHANGED > style.width
        && let Some(name) = optional.next()
    {
        let place = lines[0].0.iter().position(|cell| cell.text == *name);
        if let Some(place) = place {
            widths.remove(place);
            for (cells, _) in &mut lines {
                cells.remove(place);
            }
        }
    }
    let columns = widths.len();
    let fixed = width_of(&widths);
    let mut header = lines[0].0.iter();
    let before = header.position(|cell| cell.text == "outcome").unwrap_or(0);
    let last = &mut widths[columns - 1];
    *last = (*last).min(style.width.saturating_sub(fixed).max(CHANGED));
    let mut text = String::new();
    for (cells, outcome) in &lines {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let shown = escape_for_display(&cell.text, *width);
            let gap = " ".repeat(width.saturating_sub(shown.width()));
            if column > 0 {
                line.push_str("  ");
            }
            if cell.right {
                line.push_str(&gap);
            }
            line.push_str(&shown);
            if !cell.right {
                line.push_str(&gap);
            }
        }
        let line = escape_for_display(line.trim_end(), style.width);
        let line = match outcome {
            Some(outcome) if style.coloured => paint(&line, *outcome, before),
            _ => line,
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The columns that a narrow screen does without, the least telling first.
const OPTIONAL: [&str; 7] = [
    "backoff",
    "restarts",
    "approvals",
    "allowed",
    "slot",
    "tokens",
    "cost",
];

/// The columns of each cell's text.
fn widths_of(lines: &[(Vec<Cell>, Option<TaskOutcome>)]) -> Vec<usize> {
    let columns = lines.first().map_or(0, |(cells, _)| cells.len());
    let widest = |column: usize| {
        let widths = lines.iter().map(|(cells, _)| cells[column].text.width());
        widths.max().unwrap_or(0)
    };
    (0..columns).map(widest).collect()
}

/// The width of all columns but the last, with the gaps.
fn width_of(widths: &[usize]) -> usize {
    let last = widths.len().saturating_sub(1);
    widths[..last].iter().sum::<usize>() + 2 * last
}

/// The columns that are shown only where a row has something for them.
#[derive(Clone, Copy)]
struct ExtraColumns {
    cost: bool,
    restarts: bool,
}

fn header(extra: ExtraColumns) -> Vec<Cell> {
    let mut cells = vec![
        left("task"),
        left("slot"),
        left("outcome"),
        right("allowed"),
        right("denied"),
        right("approvals"),
        right("tokens"),
    ];
    if extra.cost {
        cells.push(right("cost"));
    }
    cells.push(right("time"));
    if extra.restarts {
        cells.push(right("restarts"));
        cells.push(right("backoff"));
    }
    cells.push(left("changed"));
    cells
}

fn cells(row: &TaskReport, extra: ExtraColumns) -> Vec<Cell> {
    let slot = row.slot.as_ref().map(ToString::to_string);
    let tokens = row.usage.input.saturating_add(row.usage.output);
    let mut cells = vec![
        left(escape_for_display(row.task.as_str(), TASK)),
        left(escape_for_display(slot.as_deref().unwrap_or("-"), SLOT)),
        left(row.outcome.as_str()),
        right(row.allowed.to_string()),
        right(row.denied.to_string()),
        right(row.approvals.to_string()),
        right(tokens.to_string()),
    ];
    if extra.cost {
        cells.push(right(match row.cost {
            0 => "-".to_owned(),
            cost => format_cost(cost),
        }));
    }
    cells.push(right(if slot.is_some() {
        span(row.took)
    } else {
        "-".to_owned()
    }));
    if extra.restarts {
        cells.push(right(row.restarts.to_string()));
        cells.push(right(if row.restarts > 0 {
            span(row.backoff)
        } else {
            "-".to_owned()
        }));
    }
    cells.push(left(changed(row)));
    cells
}

/// `+added ~modified -deleted`, up to the most files of a row.
fn changed(row: &TaskReport) -> String {
    if row.changes.is_empty() {
        // The changes are unknown if the supervisor ended before it compared the files.
        return if row.changes_cut { "…" } else { "-" }.to_owned();
    }
    let mut text = String::new();
    for change in row.changes.iter().take(NAMED) {
        let mark = match change.kind {
            ChangeKind::Added => '+',
            ChangeKind::Modified => '~',
            ChangeKind::Deleted => '-',
        };
        let gap = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{gap}{mark}{}", change.path.escape_for_display(200));
    }
    if row.changes.len() > NAMED || row.changes_cut {
        text.push_str(" …");
    }
    text
}

/// Colours the word of the outcome in a line that is already laid out and cut.
fn paint(line: &str, outcome: TaskOutcome, columns_before: usize) -> String {
    let colour = match outcome {
        TaskOutcome::Done => "32",
        TaskOutcome::Denied | TaskOutcome::Refused | TaskOutcome::Cancelled => "33",
        TaskOutcome::Skipped => "2",
        TaskOutcome::Failed | TaskOutcome::TimedOut | TaskOutcome::Lost => "31",
    };
    let word = outcome.as_str();
    // Search from its column on: a task's id may be "done".
    let mut from = 0;
    for _ in 0..columns_before {
        let Some(gap) = line[from..].find("  ") else {
            return line.to_owned();
        };
        from += gap;
        from += line[from..].len() - line[from..].trim_start().len();
    }
    match line[from..].strip_prefix(word) {
        Some(rest) => format!("{}\u{1b}[{colour}m{word}\u{1b}[0m{rest}", &line[..from]),
        None => line.to_owned(),
    }
}

fn summary(text: &mut String, rows: &[&TaskReport], missing: usize, took: Duration) {
    let mut outcomes: BTreeMap<TaskOutcome, usize> = BTreeMap::new();
    let mut total = missing;
    for row in rows {
        total += 1;
        *outcomes.entry(row.outcome).or_default() += 1;
    }
    let done = outcomes.remove(&TaskOutcome::Done).unwrap_or(0);
    let _ = write!(text, "{done} of {total} done");
    for (outcome, count) in outcomes {
        let _ = write!(text, ", {count} {outcome}");
    }
    if missing > 0 {
        let _ = write!(text, ", {missing} without a result");
    }
    let _ = writeln!(text, " in {}", span(took));
    let mut unasked = UnaskedCalls::default();
    for row in rows {
        unasked.add(row.unasked);
    }
    if unasked.total() > 0 {
        let _ = writeln!(
            text,
            "{} tool calls ran without a permission request: by the policy {}",
            unasked.total(),
            unasked.describe()
        );
    }
}

/// Explains failed tasks, and shows where changed files are.
fn explain(text: &mut String, rows: &[&TaskReport], style: Style) {
    // Tasks that share an explanation share a line: they mostly did not begin.
    let mut notable: Vec<(Vec<String>, String)> = Vec::new();
    for row in rows {
        let Some(explanation) = explanation(row) else {
            continue;
        };
        let id = escape_for_display(row.task.as_str(), TASK);
        match notable.last_mut() {
            Some((ids, same)) if *same == explanation && ids.len() < SHARED => ids.push(id),
            _ => notable.push((vec![id], explanation)),
        }
    }
    let mut more = 0;
    for (place, (ids, explanation)) in notable.into_iter().enumerate() {
        if place < EXPLAINED {
            let _ = writeln!(
                text,
                "{}: {}",
                ids.join(", "),
                escape_for_display(&explanation, SENTENCE.max(style.width))
            );
        } else {
            more += ids.len();
        }
    }
    if more > 0 {
        let _ = writeln!(text, "and {more} more; --results FILE has all of them");
    }
    let failed = |row: &&&TaskReport| row.outcome != TaskOutcome::Done && row.session.is_some();
    if let Some(first) = rows.iter().find(failed) {
        let id = escape_for_display(first.task.as_str(), TASK);
        let _ = writeln!(
            text,
            "next: `marshal show {id}`, or `marshal report` for all of it"
        );
    }
}

fn explanation(row: &TaskReport) -> Option<String> {
    let mut parts = Vec::new();
    if row.outcome != TaskOutcome::Done {
        let mut part = row.outcome.as_str().replace('_', " ");
        if !row.denied_by.is_empty() {
            let rules: Vec<String> = row
                .denied_by
                .iter()
                .map(|rule| escape_for_display(rule, 80))
                .collect();
            let _ = write!(part, " by {}", rules.join(", "));
        }
        if let Some(detail) = &row.detail {
            let _ = write!(part, ": {}", detail.escape_for_display(SENTENCE));
        }
        if row.attempts > 1 {
            let _ = write!(part, " (attempt {})", row.attempts);
        }
        parts.push(part);
    } else if row.denied > 0 {
        let rules: Vec<String> = row
            .denied_by
            .iter()
            .map(|rule| escape_for_display(rule, 80))
            .collect();
        let by = if rules.is_empty() {
            String::new()
        } else {
            format!(" by {}", rules.join(", "))
        };
        parts.push(format!("done, with {} denied{by}", row.denied));
    }
    if row.outcome == TaskOutcome::Done
        && let Some(remark) = &row.detail
    {
        parts.push(remark.escape_for_display(SENTENCE));
    }
    if row.unasked.ask + row.unasked.denied > 0 {
        parts.push(format!(
            "{} tool calls ran without a permission request: by the policy {}",
            row.unasked.total(),
            row.unasked.describe()
        ));
    }
    let changed = row.changes_cut || !row.changes.is_empty();
    // Nobody is sent into a directory of an agent's where the changes can be shown from outside: a
    // program that looks around there may obey what the agent left.
    let session = row.session.as_ref().map(|session| short(session.as_str()));
    if let (Some(_), Some(session)) = (&row.bundle, session) {
        parts.push(format!("its changes: `marshal diff {session}`"));
        let branch = row.branch.as_ref().filter(|branch| branch.in_repository);
        parts.push(branch.map_or_else(
            || format!("to get its branch: `marshal land {session}`"),
            |branch| format!("its branch: {}", escape_for_display(&branch.name, SENTENCE)),
        ));
    } else if let (Some(_), Some(session), true) = (&row.copy, session, changed) {
        parts.push(format!("its changes: `marshal diff {session}`"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
