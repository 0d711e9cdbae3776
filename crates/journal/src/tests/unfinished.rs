//! A start after a crash: the ends it writes, the tasks and sessions it leaves, the parks it keeps.

use super::*;
use marshal_model::{ExitClass, TaskOutcome, TurnOutcome};

fn run_id() -> RunId {
    RunId::new("r").expect("id")
}

fn run_begun() -> Write {
    Write::RunBegun {
        run: run_id(),
        command: "run",
        at_us: 1,
    }
}

fn changed(task: &str, change: TaskChange) -> Write {
    Write::TaskUpdated {
        run: run_id(),
        task: TaskId::new(task).expect("id"),
        at_us: 1,
        change,
    }
}

fn running(task: &str, session: &SessionId) -> Write {
    changed(
        task,
        TaskChange::Begun {
            attempt: 1,
            slot: slot(0),
            session: session.clone(),
        },
    )
}

fn task_ended(task: &str) -> Write {
    changed(
        task,
        TaskChange::Ended {
            outcome: TaskOutcome::Done,
            detail: String::new(),
            result: String::new(),
        },
    )
}

fn prompt() -> Event {
    Event::PromptAccepted {
        task: None,
        attempt: 1,
        text: UntrustedText::new("x"),
    }
}

fn of_task(session: &SessionId, task: &str) -> Write {
    Write::SessionBegun(SessionRow {
        session: session.clone(),
        slot: slot(0),
        run: Some(run_id()),
        task: Some(TaskId::new(task).expect("id")),
        attempt: 1,
        at_us: 1,
    })
}

fn unfinished(reader: &Reader) -> Vec<String> {
    let runs = reader.unfinished_runs().expect("runs").into_iter();
    runs.map(|run| run.run).collect()
}

#[test]
fn a_start_writes_down_what_is_a_fact_and_leaves_tasks_to_whoever_continues_the_run() {
    let dir = tempdir();
    let journal = open(dir.path());
    let (id, of_slot) = (session("s"), session("of-a-slot"));
    assert_durable(&commit(
        &journal,
        vec![
            run_begun(),
            task(&run_id(), "t1", 0),
            task(&run_id(), "t2", 1),
            of_task(&id, "t1"),
            Write::SessionBegun(SessionRow {
                session: of_slot.clone(),
                slot: slot(0),
                run: Some(run_id()),
                task: None,
                attempt: 1,
                at_us: 1,
            }),
            running("t1", &id),
            event(&id, 1, 1, prompt()),
            event(&id, 1, 2, permission_requested("open", "{}")),
            event(&of_slot, 1, 1, prompt()),
        ],
    ));
    journal.close(LONG).expect("flushed");

    let journal = open(dir.path());
    let found = RecoveryReport {
        sessions: 1,
        open_slot_sessions: 1,
        turns: 2,
        permission_requests: 1,
    };
    assert_eq!(journal.recovery_report(), found);
    let reader = journal.reader().expect("reader");
    assert_dense(&reader, &id, 4);
    let events = reader.events(&id, 2, 10).expect("events");
    let Event::PermissionDecided(verdict) = events[0].decode().expect("event").event else {
        panic!("{:?}", events[0])
    };
    assert_eq!(
        (verdict.decision, verdict.decided_by),
        (Decision::Deny, DecidedBy::Gone)
    );
    let Event::TurnEnded { outcome, .. } = events[1].decode().expect("event").event else {
        panic!("{:?}", events[1])
    };
    assert_eq!(outcome, TurnOutcome::Lost);
    assert_eq!(events[1].id, EventId { epoch: 2, seq: 4 });
    let tasks = reader.tasks(&run_id()).expect("tasks");
    let states: Vec<_> = tasks.iter().map(|task| task.state.as_str()).collect();
    assert_eq!(states, ["running", "queued"]);
    assert_eq!(unfinished(&reader), ["r"]);
    assert_eq!(reader.verify_audit().expect("whole"), journal.audit_head());
    assert_eq!(journal.audit_head().link, 1);

    // The slot's session is open, and its stream continues where it ended.
    let left = reader.resumable_sessions().expect("sessions");
    assert_eq!(left.len(), 1);
    assert_eq!((&left[0].session, left[0].last_seq), (&of_slot, 2));
    assert_dense(&reader, &of_slot, 2);
    assert_durable(&commit(&journal, vec![text(&of_slot, 2, 3)]));
    let of_t1 = reader
        .sessions_of_task(&run_id(), &TaskId::new("t1").expect("id"))
        .expect("sessions");
    assert_eq!(of_t1.len(), 1);
    assert!(of_t1[0].ended_at_us.is_some());
    journal.close(LONG).expect("flushed");

    // A further start finds nothing more to write.
    let found = RecoveryReport {
        open_slot_sessions: 1,
        ..RecoveryReport::default()
    };
    let journal = open(dir.path());
    assert_eq!(journal.recovery_report(), found);
    assert_dense(&journal.reader().expect("reader"), &of_slot, 3);
}

#[test]
fn a_run_is_unfinished_until_it_and_all_of_its_tasks_have_ended() {
    let dir = tempdir();
    let journal = open(dir.path());
    let reader = journal.reader().expect("reader");
    assert_eq!(unfinished(&reader), [""; 0]);
    assert_durable(&commit(
        &journal,
        vec![
            run_begun(),
            task(&run_id(), "a", 0),
            task(&run_id(), "b", 1),
        ],
    ));
    assert_eq!(unfinished(&reader), ["r"]);
    let over = |code| Write::RunEnded {
        run: run_id(),
        at_us: 2,
        code,
    };
    assert_durable(&commit(&journal, vec![task_ended("a"), over(0)]));
    assert_eq!(unfinished(&reader), ["r"], "b has not ended");
    let taken = Write::RunResumed { run: run_id() };
    assert_durable(&commit(&journal, vec![taken, task_ended("b")]));
    assert_eq!(unfinished(&reader), ["r"], "the run has no end");
    assert_durable(&commit(&journal, vec![over(1)]));
    assert_eq!(unfinished(&reader), [""; 0]);
    let run = reader.run(&run_id()).expect("read").expect("there");
    assert_eq!((run.code, run.ended_at_us), (Some(1), Some(2)));
    let none = reader.run(&RunId::new("none").expect("id")).expect("read");
    assert_eq!(none, None);
}

#[test]
fn a_task_that_waits_again_has_as_many_sendings_as_were_made() {
    let dir = tempdir();
    let journal = open(dir.path());
    let id = session("s");
    let begin = vec![run_begun(), task(&run_id(), "a", 0), of_task(&id, "a")];
    assert_durable(&commit(&journal, begin));
    let unwritten = TaskChange::Requeued { attempts: 0 };
    assert_durable(&commit(
        &journal,
        vec![running("a", &id), changed("a", unwritten)],
    ));
    let tasks = journal.reader().expect("reader").tasks(&run_id());
    let task = &tasks.expect("tasks")[0];
    assert_eq!((task.state.as_str(), task.attempts), ("queued", 0));
}

#[test]
fn a_park_is_remembered_until_it_is_tried_again_or_forgiven() {
    let dir = tempdir();
    let journal = open(dir.path());
    let park = |index, reason: &str| Write::SlotParked {
        slot: slot(index),
        class: ExitClass::VersionRefused,
        at_us: 5,
        reason: reason.to_owned(),
    };
    let failure = Write::SlotFailure {
        slot: slot(0),
        class: ExitClass::VersionRefused,
        at_us: i64::MAX,
        detail: "x".to_owned(),
    };
    let writes = vec![failure, park(0, "old"), park(0, "why"), park(1, "other")];
    assert_durable(&commit(&journal, writes));
    journal.close(LONG).expect("flushed");
    let journal = open(dir.path());
    let reader = journal.reader().expect("reader");
    let parked = || {
        let parks = reader.parked_slots().expect("parks").into_iter();
        parks
            .map(|park| (park.slot.index, park.reason))
            .collect::<Vec<_>>()
    };
    assert_eq!(parked(), [(0, "why".to_owned()), (1, "other".to_owned())]);
    let again = Write::SlotUnparked { slot: slot(0) };
    assert_durable(&commit(&journal, vec![again]));
    assert_eq!(parked(), [(1, "other".to_owned())]);
    assert_eq!(
        reader.slot_failures(&slot(0), 0).expect("failures").len(),
        1
    );
    let forgiven = [0, 1].map(|index| Write::SlotFailuresCleared { slot: slot(index) });
    assert_durable(&commit(&journal, forgiven.to_vec()));
    assert_eq!(parked(), []);
    assert_eq!(reader.slot_failures(&slot(0), 0).expect("failures"), []);
}
