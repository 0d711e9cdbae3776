//! `marshal ls`: the pools and slots of the running supervisor.
//!
//! Owns their layout. Must not know how a request to the supervisor is sent. The text is safe to
//! show, whatever the supervisor sent.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use unicode_width::UnicodeWidthStr as _;

use super::audit::now_us;
use super::board::span;
use super::exit::Exit;
use super::streams::Streams;
use super::supervisor_client::Client;
use marshal_engine::api::listing::{Pool, Slot};
use marshal_engine::api::time::Time;
use marshal_model::PoolPhase;
use marshal_model::untrusted::escape_for_display;

/// Columns of a cell before the last one: the longest names of pools and sessions fit.
const CELL: usize = 48;
/// Columns of a sentence.
const SENTENCE: usize = 300;

/// Prints the pools and slots; with `json` as one object in a line.
pub(super) async fn run(state: &Path, json: bool, streams: &mut Streams) -> Exit {
    let (pools, slots) = match Client::new(state).pools_and_slots().await {
        Ok(found) => found,
        Err(error) => return error.report(streams),
    };
    if json {
        let line = serde_json::json!({"pools": pools, "slots": slots});
        streams.out.json(&line.to_string());
    } else {
        streams.out.text(&render(&pools, &slots, Time(now_us())));
    }
    Exit::Done
}

/// Both tables; below a pool's row, what weakens its sandbox.
fn render(pools: &[Pool], slots: &[Slot], now: Time) -> String {
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
    rows.extend(pools.iter().map(pool));
    let mut text = grid(&rows);
    text.push('\n');
    let heads = ["slot", "state", "up", "pid", "task", "session", "note"];
    let mut rows = vec![Row::of(heads)];
    rows.extend(slots.iter().map(|line| slot(line, now)));
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

fn pool(line: &Pool) -> Row {
    let mut below: Vec<String> = line
        .weak
        .iter()
        .map(|weak| format!("weak: {weak}"))
        .collect();
    below.extend(orders(line));
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

/// The orders of operators that apply to a pool; `None` if there are none.
fn orders(line: &Pool) -> Option<String> {
    let mut words = Vec::new();
    if line.flow != PoolPhase::Running.as_str() {
        words.push(format!("tasks wait: {}", line.flow));
    }
    if line.size != line.slots {
        words.push(format!(
            "{} of {} slots receive tasks",
            line.size, line.slots
        ));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

fn slot(line: &Slot, now: Time) -> Row {
    let up = line
        .started_at
        .filter(|_| line.pid.is_some())
        .and_then(|Time(since)| u64::try_from(now.0 - since).ok())
        .map(Duration::from_micros);
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

    fn listed() -> (Vec<Pool>, Vec<Slot>) {
        let pool = Pool {
            pool: "demo".to_owned(),
            size: 2,
            slots: 2,
            flow: "running".to_owned(),
            launcher: "unshare".to_owned(),
            sandbox: Some("standard".to_owned()),
            network: "host".to_owned(),
            policy: "developer".to_owned(),
            tasks: 2,
            lacks: vec!["landlock".to_owned(), "cgroup.memory".to_owned()],
            weak: vec!["network host: reaches it".to_owned()],
            ..Pool::default()
        };
        let busy = Slot {
            slot: "demo/0".to_owned(),
            state: "busy".to_owned(),
            pid: Some(7),
            started_at: Some(Time(40_000_000)),
            task: Some("t1".to_owned()),
            session: Some("s1".to_owned()),
            ..Slot::default()
        };
        let parked = Slot {
            slot: "demo/1".to_owned(),
            state: "parked".to_owned(),
            started_at: Some(Time(1_000_000)),
            note: Some("version \u{1b}[2J 2".to_owned()),
            last_exit_code: Some(139),
            ..Slot::default()
        };
        (vec![pool], vec![busy, parked])
    }

    #[test]
    fn a_listing_shows_sandbox_gaps_below_their_pool_and_why_a_slot_is_parked() {
        let (pools, slots) = listed();
        let now = Time(100_000_000);
        insta::assert_snapshot!(render(&pools, &slots, now));
    }

    #[test]
    fn orders_of_operators_are_told() {
        let (mut pools, slots) = listed();
        pools[0].size = 1;
        pools[0].flow = "paused".to_owned();
        let text = render(&pools, &slots, Time(0));
        let told = "tasks wait: paused; 1 of 2 slots receive tasks";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn nothing_in_it_acts_on_a_terminal() {
        let (mut pools, mut slots) = listed();
        let word = "\u{1b}]0;x\u{7}\u{202e}\u{9b}0m\n".to_owned();
        pools[0].pool.clone_from(&word);
        pools[0].weak.push(word.clone());
        pools[0].lacks.push(word.clone());
        slots[0].task = Some(word.clone());
        slots[0].note = Some(word);
        let text = render(&pools, &slots, Time(0));
        let acts = text
            .chars()
            .find(|c| *c != '\n' && marshal_model::untrusted::is_unsafe(*c));
        assert_eq!(acts, None, "{text:?}");
        assert_eq!(text.lines().count(), 9, "{text}");
    }
}
