//! What a board tells of a run.

use std::sync::Arc;

use super::*;
use crate::api::testing::{EVIL, event, hostile, report, slot};
use crate::model::foreign::is_unsafe;
use crate::model::{Ask, AskKey, Claimed, ExitClass, RunId, SessionId};

fn task(id: &str) -> TaskId {
    TaskId::new(id).expect("id")
}

fn assigned(id: &str, at: u16, attempt: u32) -> Item {
    Item::Notice(Notice::Assigned {
        run: RunId::new("r").expect("id"),
        task: task(id),
        slot: slot(at),
        session: SessionId::new("s").expect("id"),
        attempt,
    })
}

fn happened(id: &str, what: Event) -> Item {
    let session = SessionId::new("s").expect("id");
    Item::Notice(event(&slot(0), &session, &task(id), what))
}

fn asked(id: &str, tool: &str) -> Event {
    Event::Asked {
        id: AskId::new(id).expect("id"),
        ask: Ask {
            key: AskKey {
                id: "k".to_owned(),
                serial: 1,
            },
            tool_id: None,
            tool: tool.into(),
            input: serde_json::value::to_raw_value(&()).expect("JSON"),
            claimed: Claimed::default(),
        },
    }
}

fn decided(id: &str, decision: Decision, rules: &[&str]) -> Event {
    Event::Decided(Verdict {
        ask: AskId::new(id).expect("id"),
        decision,
        by: DecidedBy::Policy,
        rules: rules.iter().map(ToString::to_string).collect(),
        reason: "because".to_owned(),
    })
}

fn told(board: &mut Board, items: &[Item]) -> Vec<String> {
    items
        .iter()
        .flat_map(|item| board.take(item).lines)
        .collect()
}

#[test]
fn a_run_is_told_by_its_meaningful_changes() {
    let run = RunId::new("r").expect("id");
    let mut denied = report(&run, &task("b"), TaskOutcome::Denied);
    denied.detail = Some("every request was denied".into());
    let skipped = TaskReport {
        slot: None,
        ..report(&run, &task("c"), TaskOutcome::Skipped)
    };
    let items = [
        assigned("a", 0, 1),
        assigned("a", 0, 1),
        happened("a", asked("q1", "read_file")),
        happened("a", decided("q1", Decision::Allow, &["read"])),
        happened("a", Event::Text { delta: "hi".into() }),
        happened("a", asked("q2", "bash")),
        happened("a", decided("q2", Decision::Deny, &["net", "guard:x"])),
        happened("a", decided("gone", Decision::Deny, &[])),
        happened(
            "a",
            Event::ChildExited {
                class: ExitClass::Signalled,
                status: None,
                detail: "signal 9".to_owned(),
                stderr: Vec::new(),
                memory_peak: None,
            },
        ),
        Item::Notice(Notice::Slot {
            slot: slot(0),
            state: SlotState::BackingOff,
            note: Some("next start in 0.4s".to_owned()),
        }),
        assigned("a", 0, 2),
        Item::Lagged(7),
        Item::Ended(Arc::new(report(&run, &task("a"), TaskOutcome::Done))),
        Item::Ended(Arc::new(denied)),
        Item::Ended(Arc::new(skipped)),
        Item::Complete,
    ];
    let mut board = Board::new(Verbosity::Normal);
    let expect = [
        "a: given to demo/0",
        "a: denied bash by net, guard:x",
        "a: denied a request: because",
        "a: child ended (signalled): signal 9",
        "demo/0: backing off: next start in 0.4s",
        "a: sent again to demo/0, attempt 2",
        "7 notices came too fast; their events follow from the journal",
        "a: done in 1.2s",
        "b: denied in 1.2s: every request was denied",
        "c: skipped",
    ];
    assert_eq!(told(&mut board, &items), expect);
    assert_eq!(board.ended(), 3);
    assert_eq!(board.total_line(), "1 done, 1 denied, 1 skipped");
    let mut verbose = Board::new(Verbosity::Verbose);
    let more = told(&mut verbose, &items);
    assert!(
        more.contains(&"a: allowed read_file by read".to_owned()),
        "{more:?}"
    );
}

#[test]
fn a_slots_line_says_what_it_does() {
    let mut board = Board::new(Verbosity::Normal);
    board.take(&assigned("a", 0, 1));
    board.take(&Item::Notice(Notice::Slot {
        slot: slot(0),
        state: SlotState::Busy,
        note: None,
    }));
    let change = board.take(&happened("a", asked("q", "bash")));
    assert_eq!(change.slot, Some(slot(0)));
    assert_eq!(
        board.slot_line(&slot(0)),
        "demo/0    busy         a  asks for bash"
    );
    let text = || happened("a", Event::Text { delta: "x".into() });
    assert!(board.take(&text()).slot.is_some());
    assert_eq!(
        board.take(&text()),
        Change::default(),
        "a flood of text redraws nothing"
    );
    let run = RunId::new("r").expect("id");
    board.take(&Item::Ended(Arc::new(report(
        &run,
        &task("a"),
        TaskOutcome::Done,
    ))));
    assert_eq!(board.slot_line(&slot(0)), "demo/0    busy         -");
}

#[test]
fn nothing_that_acts_on_a_terminal_is_told() {
    for evil in EVIL {
        for verbosity in [Verbosity::Normal, Verbosity::Verbose] {
            let (report, notices) = hostile(evil);
            let mut board = Board::new(verbosity);
            let ends = [Item::Ended(Arc::new(report))];
            let items = notices.into_iter().map(Item::Notice).chain(ends);
            let mut lines = 0;
            for item in items {
                let change = board.take(&item);
                lines += change.lines.len();
                let slots: Vec<_> = board.slots().map(|slot| board.slot_line(slot)).collect();
                for text in change
                    .lines
                    .iter()
                    .chain(&slots)
                    .chain([&board.total_line()])
                {
                    assert!(!text.chars().any(is_unsafe), "{text:?}");
                }
            }
            assert!(lines >= 5, "the test tells something");
        }
    }
}

#[test]
fn spans_are_short() {
    for (ms, expect) in [
        (0, "0.0s"),
        (49, "0.0s"),
        (340, "0.3s"),
        (59_940, "59.9s"),
        (59_960, "1m00s"),
        (185_000, "3m05s"),
        (7_620_000, "2h07m"),
    ] {
        assert_eq!(span(Duration::from_millis(ms)), expect);
    }
}
