//! `marshal ls`: the pools and slots of the running supervisor.
//!
//! Owns their layout. Must not know how a request to the supervisor is sent. The text is safe to
//! show, whatever the supervisor sent.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unicode_width::UnicodeWidthStr as _;

use super::board::span;
use super::control_client::{Client, report_error};
use super::exit::Exit;
use super::streams::Streams;
use marshal_engine::api::listing::{Listing, PoolLine, SlotLine};
use marshal_model::untrusted::escape_for_display;

/// Columns of a cell before the last one: the longest names of pools and sessions fit.
const CELL: usize = 48;
/// Columns of a sentence.
const SENTENCE: usize = 300;

/// Prints the listing; with `json` as one object in a line.
pub(super) async fn run(state: &Path, json: bool, streams: &mut Streams) -> Exit {
    let reply = async { Client::connect(state).await?.list().await };
    let listing = match reply.await {
        Ok(listing) => listing,
        Err(error) => return report_error(&error, streams),
    };
    if json {
        let line = serde_json::to_string(&listing).unwrap_or_default();
        streams.out.json(&line);
    } else {
        streams.out.text(&render(&listing, now()));
    }
    Exit::Done
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Both tables; below a pool's row, what weakens its sandbox.
fn render(listing: &Listing, now: f64) -> String {
    let heads = [
        "pool",
        "launcher",
        "sandbox",
        "network",
        "policy",
        "tasks",
        "approvals",
    ];
    let mut rows = vec![Row::of(heads)];
    rows.extend(listing.pools.iter().map(pool));
    let mut text = grid(&rows);
    text.push('\n');
    let heads = ["slot", "state", "up", "pid", "task", "session", "note"];
    let mut rows = vec![Row::of(heads)];
    rows.extend(listing.slots.iter().map(|line| slot(line, now)));
    text += &grid(&rows);
    text
}

/// A row, and the sentences below it.
struct Row {
    cells: [String; 7],
    below: Vec<String>,
}

impl Row {
    fn of(cells: [&str; 7]) -> Self {
        Self {
            cells: cells.map(str::to_owned),
            below: Vec::new(),
        }
    }
}

fn pool(line: &PoolLine) -> Row {
    let mut below: Vec<String> = line
        .weak
        .iter()
        .map(|weak| format!("weak: {weak}"))
        .collect();
    below.extend(line.flow.clone());
    if !line.lacks.is_empty() {
        below.push(format!("missing on this host: {}", line.lacks.join(", ")));
    }
    Row {
        cells: [
            line.pool.clone(),
            line.launcher.clone(),
            line.sandbox.clone().unwrap_or_else(none),
            line.network.clone(),
            line.policy.clone(),
            line.tasks.to_string(),
            line.approvals.to_string(),
        ],
        below,
    }
}

fn slot(line: &SlotLine, now: f64) -> Row {
    let up = line.started_at.filter(|_| line.pid.is_some());
    let up = up.and_then(|since| Duration::try_from_secs_f64(now - since).ok());
    let exit = line.last_exit_code.map(|code| format!("last exit {code}"));
    let note = [line.note.clone(), exit].into_iter().flatten();
    Row {
        cells: [
            line.slot.clone(),
            line.state.clone(),
            up.map_or_else(none, span),
            line.pid.map_or_else(none, |pid| pid.to_string()),
            line.task.clone().unwrap_or_else(none),
            line.session.clone().unwrap_or_else(none),
            escape_for_display(&note.collect::<Vec<_>>().join("; "), SENTENCE),
        ],
        below: Vec::new(),
    }
}

fn none() -> String {
    "-".to_owned()
}

fn grid(rows: &[Row]) -> String {
    let mut widths = [0; 7];
    let rows: Vec<([String; 7], &[String])> = rows
        .iter()
        .map(|row| {
            let mut cells = row.cells.clone();
            for cell in cells.iter_mut().take(6) {
                *cell = escape_for_display(cell, CELL);
            }
            (cells, row.below.as_slice())
        })
        .collect();
    for (cells, _) in &rows {
        for (widest, cell) in widths.iter_mut().zip(cells) {
            *widest = (*widest).max(cell.width());
        }
    }
    let mut text = String::new();
    for (cells, below) in rows {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            line += cell;
            line += &" ".repeat(width.saturating_sub(cell.width()) + 2);
        }
        text += line.trim_end();
        text.push('\n');
        for sentence in below {
            let _ = writeln!(text, "  {}", escape_for_display(sentence, SENTENCE));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        Listing {
            pools: vec![PoolLine {
                pool: "demo".to_owned(),
                launcher: "unshare".to_owned(),
                sandbox: Some("standard".to_owned()),
                network: "host".to_owned(),
                policy: "developer".to_owned(),
                tasks: 2,
                lacks: vec!["landlock".to_owned(), "cgroup.memory".to_owned()],
                weak: vec!["network host: reaches it".to_owned()],
                ..PoolLine::default()
            }],
            slots: vec![
                SlotLine {
                    slot: "demo/0".to_owned(),
                    state: "busy".to_owned(),
                    pid: Some(7),
                    started_at: Some(40.0),
                    task: Some("t1".to_owned()),
                    session: Some("s1".to_owned()),
                    ..SlotLine::default()
                },
                SlotLine {
                    slot: "demo/1".to_owned(),
                    state: "parked".to_owned(),
                    started_at: Some(1.0),
                    note: Some("version \u{1b}[2J 2".to_owned()),
                    last_exit_code: Some(139),
                    ..SlotLine::default()
                },
            ],
        }
    }

    #[test]
    fn a_listing_shows_sandbox_gaps_below_their_pool_and_why_a_slot_is_parked() {
        insta::assert_snapshot!(render(&listing(), 100.0));
    }

    #[test]
    fn nothing_in_it_acts_on_a_terminal() {
        let mut hostile = listing();
        let word = "\u{1b}]0;x\u{7}\u{202e}\u{9b}0m\n".to_owned();
        hostile.pools[0].pool.clone_from(&word);
        hostile.pools[0].weak.push(word.clone());
        hostile.pools[0].lacks.push(word.clone());
        hostile.slots[0].task = Some(word.clone());
        hostile.slots[0].note = Some(word);
        let text = render(&hostile, f64::NAN);
        let acts = text
            .chars()
            .find(|c| *c != '\n' && marshal_model::untrusted::is_unsafe(*c));
        assert_eq!(acts, None, "{text:?}");
        assert_eq!(text.lines().count(), 9, "{text}");
    }
}
