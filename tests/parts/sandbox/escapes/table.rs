//! `docs/escapes.md`: what stopped each attempt, compared with what happened, or written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::arena::{Attempt, Outcome, Outcomes};
use super::{COLUMNS, LET_THROUGH};
use crate::children::is_root;

const FILE: &str = include_str!("../../../../docs/escapes.md");
/// Between these the file is made.
const BEGIN: &str = "<!-- The tables are made by the test `escapes`. -->\n";

/// What differs between the table and what happened, a sentence each.
pub(super) fn compare(
    attempts: &[Attempt],
    controls: Option<&BTreeMap<String, String>>,
    columns: &BTreeMap<&str, Outcomes>,
) -> Vec<String> {
    if is_root() && std::env::var_os("MARSHAL_UPDATE_ESCAPES").is_some() {
        return write(attempts, controls, columns);
    }
    let rows = rows();
    let mut wrong = Vec::new();
    for attempt in attempts {
        let Some(cells) = rows.get(attempt.name.as_str()) else {
            wrong.push(format!("{} is not in docs/escapes.md", attempt.name));
            continue;
        };
        let mut check = |what: &str, place: usize, now: &str| {
            let then = cells.get(place).copied().unwrap_or_default();
            if then != now {
                let name = &attempt.name;
                wrong.push(format!("{name}, {what}: was {then:?}, is {now:?}"));
            }
        };
        check("what", 1, &attempt.what);
        if let Some(reported) = controls.and_then(|controls| controls.get(&attempt.name)) {
            check("control", 2, reported);
        }
        for (place, column) in COLUMNS.iter().enumerate() {
            let outcome = columns
                .get(column.name)
                .and_then(|all| all.get(&attempt.name));
            if let Some(outcome) = outcome {
                check(column.name, place + 3, &outcome_text(outcome));
            }
        }
    }
    if rows.len() != attempts.len() {
        wrong.push(format!(
            "docs/escapes.md has {} attempts, the prober {}",
            rows.len(),
            attempts.len()
        ));
    }
    if !FILE.contains(&let_through()) {
        wrong.push("docs/escapes.md does not say what is let through and why".to_owned());
    }
    if !wrong.is_empty() {
        wrong.push("if that is meant: MARSHAL_UPDATE_ESCAPES=1, as root".to_owned());
    }
    wrong
}

/// The rows of the file by their attempt's name.
fn rows() -> BTreeMap<&'static str, Vec<&'static str>> {
    let table = FILE.split_once(BEGIN).map_or("", |(_, table)| table);
    let table = table.split("\n## ").next().unwrap_or_default();
    table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`'), cells)
        })
        .collect()
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Through(_) => "**through**".to_owned(),
        Outcome::Blocked(symptom) => symptom.clone(),
        Outcome::Broken(why) => format!("broken: {why}"),
    }
}

fn let_through() -> String {
    if LET_THROUGH.is_empty() {
        return "## What gets through\n\nNothing.\n".to_owned();
    }
    let mut text = "## What gets through\n\n| Walls | Attempt | Why |\n|---|---|---|\n".to_owned();
    for (column, attempt, why) in LET_THROUGH {
        writeln!(text, "| {column} | `{attempt}` | {why} |").unwrap();
    }
    text
}

fn write(
    attempts: &[Attempt],
    controls: Option<&BTreeMap<String, String>>,
    columns: &BTreeMap<&str, Outcomes>,
) -> Vec<String> {
    let (head, _) = FILE.split_once(BEGIN).unwrap_or((FILE, ""));
    let mut text = format!("{head}{BEGIN}\n| Attempt | What | Control |");
    for column in COLUMNS {
        write!(text, " {} |", column.name).unwrap();
    }
    writeln!(text, "\n|---|---|---|{}", "---|".repeat(COLUMNS.len())).unwrap();
    for attempt in attempts {
        let control = controls.and_then(|controls| controls.get(&attempt.name));
        let control = control.map_or("", String::as_str);
        write!(
            text,
            "| `{}` | {} | {control} |",
            attempt.name, attempt.what
        )
        .unwrap();
        for column in COLUMNS {
            let outcome = columns
                .get(column.name)
                .and_then(|all| all.get(&attempt.name));
            write!(text, " {} |", outcome.map(outcome_text).unwrap_or_default()).unwrap();
        }
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&let_through());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/escapes.md");
    std::fs::write(path, text).unwrap();
    Vec::new()
}
