//! The journal with a real SQLite on a real disk.

mod approvals;
mod audit;
mod chats;
mod crash;
mod faults;
mod opening;
mod order;
mod pace;
mod plans;
mod retention;
mod unfinished;
mod withdrawal;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use super::*;
use marshal_model::{
    AgentClaims, DecidedBy, Decision, Event, EventId, PermissionRequest, PermissionRequestId,
    PermissionRequestKey, PoolName, RunId, SessionId, SlotId, StampedEvent, TaskId, TaskSpec,
    UntrustedText, Verdict,
};

/// Long enough for a busy machine; a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(30);

/// A probe that reports ample free space.
pub(super) fn roomy() -> SpaceProbe {
    Box::new(|_| Ok(DiskSpace { free: u64::MAX }))
}

fn tempdir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .tempdir()
        .expect("dir")
}

fn open(dir: &Path) -> Journal {
    Journal::open_with_probe(dir, roomy()).expect("journal")
}

fn session(name: &str) -> SessionId {
    SessionId::new(name).expect("id")
}

fn slot(index: u16) -> SlotId {
    SlotId {
        pool: PoolName::new("demo").expect("name"),
        index,
    }
}

fn session_begun(session: &SessionId) -> Write {
    Write::SessionBegun(SessionRow {
        session: session.clone(),
        slot: slot(0),
        run: Some(RunId::new("r").expect("id")),
        task: Some(TaskId::new("t").expect("id")),
        attempt: 1,
        at_us: 1,
    })
}

fn event(session: &SessionId, epoch: u64, seq: u64, event: Event) -> Write {
    Write::Events {
        session: session.clone(),
        events: Arc::new(vec![StampedEvent {
            id: EventId { epoch, seq },
            at_us: i64::try_from(seq).expect("small"),
            event,
        }]),
    }
}

fn text(session: &SessionId, epoch: u64, seq: u64) -> Write {
    let delta = UntrustedText::new(format!("piece {seq}"));
    event(session, epoch, seq, Event::Text { delta })
}

fn permission_requested(permission_request: &str, input: &str) -> Event {
    Event::PermissionRequested {
        id: PermissionRequestId::new(permission_request).expect("id"),
        request: PermissionRequest {
            key: PermissionRequestKey {
                id: format!("key-{permission_request}"),
                serial: 1,
            },
            tool_id: None,
            tool: UntrustedText::new("bash"),
            input: RawValue::from_string(input.to_owned()).expect("JSON"),
            claims: AgentClaims::default(),
        },
    }
}

fn decided(permission_request: &str, decision: Decision) -> Event {
    Event::PermissionDecided(Verdict {
        request: PermissionRequestId::new(permission_request).expect("id"),
        decision,
        decided_by: DecidedBy::Policy,
        rules: vec!["p1/1".to_owned()],
        reason: "so says rule 1".to_owned(),
    })
}

fn task(run: &RunId, id: &str, place: u32) -> Write {
    Write::TaskQueued(TaskRow {
        run: run.clone(),
        place,
        spec: TaskSpec {
            id: TaskId::new(id).expect("id"),
            prompt: UntrustedText::new("read README.md"),
            pool: None,
            workspace: Some("/tmp/x".into()),
            attempts: Some(2),
            check: None,
            files: Vec::new(),
            embedded_files: Vec::new(),
            policy_layer: None,
            land: None,
            priority: 0,
            depends_on: Vec::new(),
        },
        pool: PoolName::new("demo").expect("name"),
        at_us: 1,
    })
}

/// A channel for the results of `done` callbacks.
fn callback_channel<T>() -> (SyncSender<T>, Receiver<T>) {
    sync_channel(1 << 20)
}

/// Submits a commit and waits for its result.
fn commit(journal: &Journal, writes: Vec<Write>) -> CommitResult {
    let (tx, rx) = callback_channel();
    journal
        .submit(Commit::new(writes).with_callback(move |committed| {
            let _ = tx.send(committed);
        }))
        .expect("accepted");
    rx.recv_timeout(LONG).expect("an end")
}

fn assert_durable(committed: &CommitResult) {
    assert!(
        matches!(committed, CommitResult::Durable { .. }),
        "{committed:?}"
    );
}

/// Waits until the health satisfies `wanted`.
fn wait_health(journal: &Journal, wanted: impl Fn(&Health) -> bool) -> Health {
    let health = journal.health();
    let until = Instant::now() + LONG;
    loop {
        let now = health.borrow().clone();
        if wanted(&now) {
            return now;
        }
        assert!(Instant::now() < until, "health stays {now:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_dense(reader: &Reader, session: &SessionId, last: u64) {
    let events = reader.events(session, 0, u32::MAX).expect("events");
    let seqs: Vec<u64> = events.iter().map(|event| event.id.seq).collect();
    assert_eq!(seqs, (1..=last).collect::<Vec<_>>(), "{session}");
}
