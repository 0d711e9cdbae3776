//! What a board tells of a run.

use std::sync::Arc;

use super::*;
use marshal_engine::api::test_fixtures::{EVIL, event, hostile_items, report, slot};
use marshal_model::untrusted::is_unsafe;
use marshal_model::{
    AgentClaims, ExitClass, PermissionRequest, PermissionRequestKey, RunId, SessionId, Usage,
};

fn task(id: &str) -> TaskId {
    TaskId::new(id).expect("id")
}

fn assigned(id: &str, at: u16, attempt: u32) -> RunStreamItem {
    RunStreamItem::Notice(FleetEvent::TaskAssigned {
        run: RunId::new("r").expect("id"),
        task: task(id),
        slot: slot(at),
        session: SessionId::new("s").expect("id"),
        attempt,
    })
}

fn happened(id: &str, what: Event) -> RunStreamItem {
    let session = SessionId::new("s").expect("id");
    RunStreamItem::Notice(event(&slot(0), &session, &task(id), what))
}

fn permission_request(id: &str, tool: &str) -> Event {
    Event::PermissionRequested {
        id: PermissionRequestId::new(id).expect("id"),
        request: PermissionRequest {
            key: PermissionRequestKey {
                id: "k".to_owned(),
                serial: 1,
            },
            tool_id: None,
            tool: tool.into(),
            input: serde_json::value::to_raw_value(&()).expect("JSON"),
            claims: AgentClaims::default(),
        },
    }
}

fn decided(id: &str, decision: Decision, rules: &[&str]) -> Event {
    Event::PermissionDecided(Verdict {
        request: PermissionRequestId::new(id).expect("id"),
        decision,
        decided_by: DecidedBy::Policy,
        rules: rules.iter().map(ToString::to_string).collect(),
        reason: "because".to_owned(),
    })
}

fn lines_of(board: &mut Board, items: &[RunStreamItem]) -> Vec<String> {
    items
        .iter()
        .flat_map(|item| board.apply(item).lines)
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
        happened("a", permission_request("q1", "read_file")),
        happened("a", decided("q1", Decision::Allow, &["read"])),
        happened("a", Event::Text { delta: "hi".into() }),
        happened("a", permission_request("q2", "bash")),
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
        RunStreamItem::Notice(FleetEvent::SlotChanged {
            slot: slot(0),
            state: SlotState::BackingOff,
            note: Some("next start in 0.4s".to_owned()),
        }),
        assigned("a", 0, 2),
        RunStreamItem::Lagged(7),
        RunStreamItem::Ended(Arc::new(report(&run, &task("a"), TaskOutcome::Done))),
        RunStreamItem::Ended(Arc::new(denied)),
        RunStreamItem::Ended(Arc::new(skipped)),
        RunStreamItem::Complete,
    ];
    let mut board = Board::new(Verbosity::Normal);
    let expect = [
        "a: assigned to demo/0",
        "a: denied bash by net, guard:x",
        "a: denied a request: because",
        "a: child ended (signalled): signal 9",
        "demo/0: backing off: next start in 0.4s",
        "a: sent again to demo/0, attempt 2",
        "7 notices were skipped because they arrived too fast; their events follow from the journal",
        "a: done in 1.2s",
        "b: denied in 1.2s: every request was denied",
        "c: skipped",
    ];
    assert_eq!(lines_of(&mut board, &items), expect);
    assert_eq!(board.ended_count(), 3);
    assert_eq!(board.total_line(), "1 done, 1 denied, 1 skipped");
    let mut verbose = Board::new(Verbosity::Verbose);
    let more = lines_of(&mut verbose, &items);
    assert!(
        more.contains(&"a: allowed read_file by read".to_owned()),
        "{more:?}"
    );
}

#[test]
fn a_slots_line_says_what_it_does() {
    let mut board = Board::new(Verbosity::Normal);
    board.apply(&assigned("a", 0, 1));
    board.apply(&RunStreamItem::Notice(FleetEvent::SlotChanged {
        slot: slot(0),
        state: SlotState::Busy,
        note: None,
    }));
    let change = board.apply(&happened("a", permission_request("q", "bash")));
    assert_eq!(change.slot, Some(slot(0)));
    assert_eq!(
        board.slot_line(&slot(0)),
        "demo/0    busy         a  asks for bash"
    );
    let text = || happened("a", Event::Text { delta: "x".into() });
    assert!(board.apply(&text()).slot.is_some());
    assert_eq!(
        board.apply(&text()),
        Change::default(),
        "a flood of text redraws nothing"
    );
    let run = RunId::new("r").expect("id");
    board.apply(&RunStreamItem::Ended(Arc::new(report(
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
            let (report, notices) = hostile_items(evil);
            let mut board = Board::new(verbosity);
            let ends = [RunStreamItem::Ended(Arc::new(report))];
            let items = notices.into_iter().map(RunStreamItem::Notice).chain(ends);
            let mut lines = 0;
            for item in items {
                let change = board.apply(&item);
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

#[test]
fn a_board_has_tokens_cost_denials_and_pending_approvals() {
    let mut board = Board::new(Verbosity::Normal);
    let usage = |input| Event::Usage(Usage { input, output: 34 });
    board.apply(&assigned("a", 0, 1));
    board.apply(&happened("a", usage(1_200)));
    let again = board.apply(&happened("a", usage(1_200)));
    assert_eq!(again, Change::default(), "nothing has changed");
    board.apply(&happened("a", permission_request("q1", "bash")));
    board.apply(&happened("a", decided("q1", Decision::Deny, &["net"])));
    let pending = RunStreamItem::Notice(FleetEvent::ApprovalPending {
        slot: slot(0),
        session: SessionId::new("s").expect("id"),
        request: PermissionRequestId::new("q2").expect("id"),
        tool: "bash".into(),
        about: "git push".into(),
        deadline_us: now_us() + 60_000_000,
    });
    assert!(board.apply(&pending).total);
    assert_eq!(
        board.slot_line(&slot(0)),
        "demo/0    unloaded     a  1.2k tokens  1 denied  waits for approval"
    );
    assert!(board.has_task(&slot(0)));
    assert_eq!(board.total_line(), "1 approval pending");
    let answered = happened("a", decided("q2", Decision::Allow, &["push"]));
    assert!(board.apply(&answered).total);
    let run = RunId::new("r").expect("id");
    let mut ended = report(&run, &task("a"), TaskOutcome::Done);
    (ended.usage.input, ended.usage.output) = (2_000_000, 500_000);
    ended.cost = 400_000_000;
    board.apply(&RunStreamItem::Ended(Arc::new(ended)));
    assert_eq!(board.total_line(), "1 done, 2.5M tokens, $0.40");
    assert!(!board.has_task(&slot(0)));
    board.apply(&assigned("b", 0, 1));
    assert_eq!(board.slot_line(&slot(0)), "demo/0    unloaded     b");
}
