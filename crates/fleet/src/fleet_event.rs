//! What the fleet tells those who watch it: notices while it works, a report for each task.
//!
//! Plain data. Must not know who watches. An event, a verdict and a task's end are told only
//! once they are durable; a slot's state is told as it changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marshal_model::limits::BROADCAST_BYTES;
use marshal_model::{
    PoolName, RunId, SessionId, SlotId, SlotState, StampedEvent, TaskId, TaskOutcome,
    UntrustedText, Usage,
};

/// One thing that a watcher may want to show.
#[derive(Debug, Clone)]
pub enum FleetEvent {
    /// A task was taken in; durable.
    TaskQueued {
        /// Its run.
        run: RunId,
        /// Its id.
        task: TaskId,
        /// Its pool.
        pool: PoolName,
    },
    /// A task was given to a slot.
    TaskAssigned {
        /// Its run.
        run: RunId,
        /// Its id.
        task: TaskId,
        /// Where.
        slot: SlotId,
        /// The session made for it.
        session: SessionId,
        /// Which sending, from 1.
        attempt: u32,
    },
    /// Durable events of a session, in order.
    SessionEvents {
        /// Where it happened.
        slot: SlotId,
        /// The session.
        session: SessionId,
        /// The task that runs in it.
        task: Option<TaskId>,
        /// The events with their ids.
        events: Arc<Vec<StampedEvent>>,
        /// Their share of what live notices may hold.
        permit: Option<BroadcastPermit>,
    },
    /// Durable events of a session that are not carried here, because live notices hold as much
    /// as they may: they are read from the journal.
    EventsSkipped {
        /// Where it happened.
        slot: SlotId,
        /// The session.
        session: SessionId,
        /// The task that runs in it.
        task: Option<TaskId>,
        /// The seq of the first one.
        first: u64,
        /// The seq of the last one.
        last: u64,
    },
    /// A slot's state changed.
    SlotChanged {
        /// Which.
        slot: SlotId,
        /// Its state now.
        state: SlotState,
        /// Why, in our words: the reason of a backoff or of parking.
        note: Option<String>,
    },
    /// A pool starts no tasks for a while, because its provider limits requests; or it does again.
    PoolPaused {
        /// Which.
        pool: PoolName,
        /// For how long from now; `None`: the pause is over.
        wait: Option<Duration>,
    },
    /// A task ended; durable.
    TaskEnded(Arc<TaskReport>),
}

/// The bytes that live notices hold, all together; bounded.
#[derive(Debug, Clone, Default)]
pub(crate) struct BroadcastBudget(Arc<AtomicUsize>);

impl BroadcastBudget {
    /// Takes a share; `None` if too much is held already.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<BroadcastPermit> {
        let relaxed = Ordering::Relaxed;
        let add = |held: usize| {
            held.checked_add(bytes)
                .filter(|sum| *sum <= BROADCAST_BYTES)
        };
        self.0.fetch_update(relaxed, relaxed, add).ok()?;
        Some(BroadcastPermit(Arc::new(Share {
            bytes,
            of: self.clone(),
        })))
    }
}

/// A share of what live notices may hold; given back with its last clone.
#[derive(Debug, Clone)]
pub struct BroadcastPermit(#[expect(dead_code, reason = "held for its drop")] Arc<Share>);

#[derive(Debug)]
struct Share {
    bytes: usize,
    of: BroadcastBudget,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The end of a task: one row of the table, one line of the results.
#[derive(Debug, Clone)]
pub struct TaskReport {
    /// Its run.
    pub run: RunId,
    /// Its id.
    pub task: TaskId,
    /// Its pool.
    pub pool: PoolName,
    /// The slot that worked it last; `None` if none did.
    pub slot: Option<SlotId>,
    /// The session of its last attempt.
    pub session: Option<SessionId>,
    /// How it ended.
    pub outcome: TaskOutcome,
    /// Sendings made.
    pub attempts: u32,
    /// Requests allowed, over all attempts.
    pub allowed: u32,
    /// Requests denied, over all attempts.
    pub denied: u32,
    /// Requests that the policy wanted a person to answer (denied in the end where nobody could
    /// be asked, and then counted in `denied` too).
    pub approvals: u32,
    /// Tool calls that ran without a request, and that the policy would have denied.
    pub unasked_denied: u32,
    /// The rules that denied, without repetition, in order of appearance.
    pub denied_by: Vec<String>,
    /// Tokens, as the agent reports them, over all attempts.
    pub usage: Usage,
    /// From its first assignment until its end.
    pub took: Duration,
    /// Changed files of the last attempt, relative to the workspace.
    pub changes: Vec<FileChange>,
    /// Whether `changes` was cut at its bound.
    pub changes_cut: bool,
    /// The task's own copy of the workspace, on the host, where there is one.
    pub copy: Option<PathBuf>,
    /// The bundle of its branch, on the host, where it worked in a clone and something came of it.
    pub bundle: Option<PathBuf>,
    /// Failures of its slot's children while it was worked: each one delayed the slot by backoff.
    pub restarts: u32,
    /// The sum of those delays.
    pub backoff: Duration,
    /// Why it did not end well, in our words; may hold foreign text.
    pub detail: Option<UntrustedText>,
    /// The last piece of the agent's answer, at most 4 KiB.
    pub answer: UntrustedText,
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Its path, relative to the workspace.
    pub path: UntrustedText,
    /// `added`, `modified` or `deleted`.
    pub kind: ChangeKind,
}

marshal_model::string_enum!(
    /// How a file changed.
    ChangeKind {
        /// It is new.
        Added = "added",
        /// Its content, mode or type changed.
        Modified = "modified",
        /// It is gone.
        Deleted = "deleted",
    }
);

/// One slot, as it is now.
#[derive(Debug, Clone)]
pub struct SlotView {
    /// Which.
    pub slot: SlotId,
    /// Its state.
    pub state: SlotState,
    /// The process of its child.
    pub pid: Option<u32>,
    /// The task that it works.
    pub task: Option<TaskId>,
    /// The session that works it.
    pub session: Option<SessionId>,
    /// Why it is parked or backing off.
    pub note: Option<String>,
    /// When its child was started: seconds since the Unix epoch.
    pub started_at: Option<f64>,
    /// Whether its child has passed its handshake.
    pub up: bool,
    /// Exit code of its last child, 128 plus the signal when one ended it.
    pub last_exit_code: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_live_notices_hold_is_bounded_and_comes_back_with_the_last_clone() {
        let pinned = BroadcastBudget::default();
        let first = pinned.reserve(BROADCAST_BYTES).expect("room");
        assert!(pinned.reserve(1).is_none(), "beyond the bound");
        let second = first.clone();
        drop(first);
        assert!(pinned.reserve(1).is_none(), "a clone holds it still");
        drop(second);
        assert!(pinned.reserve(BROADCAST_BYTES).is_some());
    }
}
