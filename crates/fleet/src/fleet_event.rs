//! The events that the fleet sends to its subscribers, and the report of a task.
//!
//! Plain data. Must not know the subscribers. Session events, verdicts and ends of tasks are sent
//! only once they are durable; slot states are sent as they change.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marshal_model::limits::BROADCAST_BYTES;
use marshal_model::{
    PermissionRequestId, PoolName, RunId, SessionId, SlotId, SlotState, StampedEvent, TaskId,
    TaskOutcome, UnaskedCalls, UntrustedText, Usage,
};
use marshal_sandbox::workspace::branch::git::LineCounts;

/// One event for subscribers.
#[derive(Debug, Clone)]
pub enum FleetEvent {
    /// A task was queued; durable.
    TaskQueued {
        /// The task's run.
        run: RunId,
        /// The task's id.
        task: TaskId,
        /// The task's pool.
        pool: PoolName,
    },
    /// A task was assigned to a slot.
    TaskAssigned {
        /// The task's run.
        run: RunId,
        /// The task's id.
        task: TaskId,
        /// The slot.
        slot: SlotId,
        /// The session that runs it.
        session: SessionId,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// Durable events of a session, in order.
    SessionEvents {
        /// The session's slot.
        slot: SlotId,
        /// The session's id.
        session: SessionId,
        /// The task that runs in it.
        task: Option<TaskId>,
        /// The events with their ids.
        events: Arc<Vec<StampedEvent>>,
        /// Their share of the broadcast budget, returned when the last subscriber has read them.
        permit: Option<BroadcastPermit>,
    },
    /// Durable events of a session that are not included, because unread events have used up
    /// the broadcast budget: subscribers read them from the journal.
    EventsSkipped {
        /// The session's slot.
        slot: SlotId,
        /// The session's id.
        session: SessionId,
        /// The task that runs in it.
        task: Option<TaskId>,
        /// The seq of the first event.
        first: u64,
        /// The seq of the last event.
        last: u64,
    },
    /// A slot's state changed.
    SlotChanged {
        /// The slot.
        slot: SlotId,
        /// The new state.
        state: SlotState,
        /// The reason for a backoff or for parking.
        note: Option<String>,
    },
    /// A permission request waits for a person; durable.
    ApprovalPending {
        /// The slot whose agent sent the request.
        slot: SlotId,
        /// The agent's session.
        session: SessionId,
        /// The id that an answer names.
        request: PermissionRequestId,
        /// The tool, as the agent calls it.
        tool: UntrustedText,
        /// A summary of the request: the words that the policy evaluated.
        about: UntrustedText,
        /// When it expires, in microseconds since the Unix epoch.
        deadline_us: i64,
    },
    /// A pool pauses because of a rate limit of its provider, or the pause has ended.
    PoolPaused {
        /// The pool.
        pool: PoolName,
        /// How long it pauses from now; `None`: the pause has ended.
        wait: Option<Duration>,
    },
    /// A run is paused, because its last tasks were denied: no further task of it begins until the
    /// policies are loaded again.
    RunPaused {
        /// The run.
        run: RunId,
        /// The pool of the last of them.
        pool: PoolName,
        /// The rules that denied it.
        rules: Vec<String>,
    },
    /// A task ended; durable.
    TaskEnded(Arc<TaskReport>),
}

/// Counts the bytes of all events that subscribers have not read, up to [`BROADCAST_BYTES`].
#[derive(Debug, Clone, Default)]
pub(crate) struct BroadcastBudget(Arc<AtomicUsize>);

impl BroadcastBudget {
    /// Reserves a share; `None` if the budget would be exceeded.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<BroadcastPermit> {
        let relaxed = Ordering::Relaxed;
        let add = |used: usize| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= BROADCAST_BYTES)
        };
        self.0.fetch_update(relaxed, relaxed, add).ok()?;
        Some(BroadcastPermit(Arc::new(Share {
            bytes,
            of: self.clone(),
        })))
    }
}

/// A share of the broadcast budget; returned when its last clone is dropped.
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

/// The report of an ended task: one row of the table, one line of the results.
#[derive(Debug, Clone)]
pub struct TaskReport {
    /// The task's run.
    pub run: RunId,
    /// The task's id.
    pub task: TaskId,
    /// The task's pool.
    pub pool: PoolName,
    /// The slot of its last attempt; `None` if it had none.
    pub slot: Option<SlotId>,
    /// The session of its last attempt; `None` if it had none.
    pub session: Option<SessionId>,
    /// The task's outcome.
    pub outcome: TaskOutcome,
    /// How often its prompt was sent.
    pub attempts: u32,
    /// Requests allowed, over all attempts.
    pub allowed: u32,
    /// Requests denied, over all attempts.
    pub denied: u32,
    /// Requests for which the policy required a person. If nobody could be asked, the request is
    /// denied and also counted in `denied`.
    pub approvals: u32,
    /// Tool calls that ran without a permission request, over all attempts.
    pub unasked: UnaskedCalls,
    /// The rules that denied a request, without duplicates, in the order of their first denial.
    pub denied_by: Vec<String>,
    /// Tokens, as the agent reports them, over all attempts.
    pub usage: Usage,
    /// What its model cost, in nanodollars; 0 where that is not known.
    pub cost: u64,
    /// From its first assignment until its end.
    pub took: Duration,
    /// Changed files of the last attempt, relative to the workspace.
    pub changes: Vec<FileChange>,
    /// Whether `changes` was cut at its bound.
    pub changes_cut: bool,
    /// The host path of the task's copy of the workspace, if it has one.
    pub copy: Option<PathBuf>,
    /// The host path of its branch's bundle, if it worked in a clone and made commits; of several, the
    /// first one.
    pub bundle: Option<PathBuf>,
    /// The bundles of its branches in further repositories of the workspace.
    pub repos: Vec<RepoBundle>,
    /// The branch in that bundle.
    pub branch: Option<TaskBranch>,
    /// Whether its check passed; `None` if there was none.
    pub check: Option<bool>,
    /// Where its work landed.
    pub landed: Option<LandedWork>,
    /// Failures of its slot's children during its attempts; each one delayed the slot by a backoff.
    pub restarts: u32,
    /// The sum of these backoffs.
    pub backoff: Duration,
    /// The reason for an outcome other than `done`, or a note; may contain untrusted text.
    pub detail: Option<UntrustedText>,
    /// The end of the agent's answer, at most 4 KiB.
    pub answer: UntrustedText,
}

/// The branch of a task in a further repository of its workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoBundle {
    /// The repository's place in the workspace.
    pub at: String,
    /// The host path of the branch's bundle.
    pub bundle: PathBuf,
}

/// The branch that a task came back with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskBranch {
    /// Its name.
    pub name: String,
    /// What its commits change, if that could be counted.
    pub lines: Option<LineCounts>,
    /// Whether the supervisor brought it into the repository.
    pub in_repository: bool,
}

/// Work that is on a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandedWork {
    /// The branch.
    pub branch: String,
    /// What its last commit is there.
    pub commit: String,
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The file's path, relative to the workspace.
    pub path: UntrustedText,
    /// `added`, `modified` or `deleted`.
    pub kind: ChangeKind,
}

marshal_model::string_enum!(
    /// How a file changed.
    ChangeKind {
        /// The file is new.
        Added = "added",
        /// The file's content, mode or type changed.
        Modified = "modified",
        /// The file is deleted.
        Deleted = "deleted",
    }
);

/// The current state of one slot.
#[derive(Debug, Clone)]
pub struct SlotView {
    /// The slot's id.
    pub slot: SlotId,
    /// The slot's state.
    pub state: SlotState,
    /// The process id of its child, while one runs.
    pub pid: Option<u32>,
    /// The task that it runs.
    pub task: Option<TaskId>,
    /// The session in it.
    pub session: Option<SessionId>,
    /// Why it is parked or backing off.
    pub note: Option<String>,
    /// When its child was started: seconds since the Unix epoch.
    pub started_at: Option<f64>,
    /// Whether its child has completed the handshake.
    pub up: bool,
    /// The exit code of its last child; 128 plus the signal's number if a signal ended it.
    pub last_exit_code: Option<i32>,
    /// The last session whose turn began here, and its turns since the supervisor has it.
    pub turns: Option<(SessionId, u32)>,
}

impl SlotView {
    /// Counts a turn of a session.
    pub(crate) fn count_turn(&mut self, session: &SessionId) {
        match &mut self.turns {
            Some((last, turns)) if last == session => *turns = turns.saturating_add(1),
            turns => *turns = Some((session.clone(), 1)),
        }
    }
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
