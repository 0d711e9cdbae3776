//! What callers submit to the journal: commits, their writes and the results.
//!
//! Must not know SQLite.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::approvals::{ApprovalChange, ApprovalRow};
use super::chats::ChatWrite;
use super::error::{Refusal, Violation};
use super::spend::SpendRow;
use marshal_model::{
    ExitClass, PermissionRequestId, PoolName, RunId, SessionId, SlotId, StampedEvent, TaskId,
    TaskOutcome, TaskSpec,
};

/// The `command` of a run that is a conversation. It has one session, and its tasks are the prompts
/// of a client. It ends when nobody may load it any more.
pub const CONVERSATION_COMMAND: &str = "conversation";

/// Rows that become durable together or not at all.
#[derive(Default)]
pub struct Commit {
    /// The rows, in order.
    pub writes: Vec<Write>,
    /// Dropped when the rows are durable, or when they never will be. Returns credits or permits.
    pub permit: Option<Box<dyn Any + Send>>,
    /// Called on the writer's thread when the rows are durable or were left out, in the order of
    /// submission. Must be short and must not block. Dropped uncalled if the journal ends first.
    pub callback: Option<Box<dyn FnOnce(CommitResult) + Send>>,
    /// By which the caller may take the commit back.
    pub withdrawal: Option<Withdrawal>,
}

/// Takes a commit back that is not durable yet: nobody waits for its result any more. Clones share
/// the request.
#[derive(Debug, Clone, Default)]
pub struct Withdrawal(Arc<AtomicBool>);

impl Withdrawal {
    /// Asks for it. The writer answers by the commit's callback: with [`CommitResult::Withdrawn`]
    /// while the database is locked or its disk is full, or with the result of a write that was
    /// under way. It gives no answer while the disk itself gives none.
    pub fn request(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Commit {
    /// A commit of these rows without permit and callback.
    #[must_use]
    pub fn new(writes: Vec<Write>) -> Self {
        Self {
            writes,
            ..Self::default()
        }
    }

    /// Keeps `hold` until the rows are durable or were left out.
    #[must_use]
    pub fn with_permit(mut self, hold: impl Any + Send) -> Self {
        self.permit = Some(Box::new(hold));
        self
    }

    /// Calls `done` when the rows are durable or were left out.
    #[must_use]
    pub fn with_callback(mut self, done: impl FnOnce(CommitResult) + Send + 'static) -> Self {
        self.callback = Some(Box::new(done));
        self
    }

    /// Lets the caller take the commit back by `withdrawal`. Only for rows that nothing submitted
    /// later depends on.
    #[must_use]
    pub fn with_withdrawal(mut self, withdrawal: Withdrawal) -> Self {
        self.withdrawal = Some(withdrawal);
        self
    }

    /// Whether the caller has taken it back.
    pub(super) fn is_withdrawn(&self) -> bool {
        let wanted = self.withdrawal.as_ref();
        wanted.is_some_and(|wanted| wanted.0.load(Ordering::Acquire))
    }

    /// The number of rows; each event is one row.
    pub(super) fn row_count(&self) -> usize {
        let rows_of = |write: &Write| match write {
            Write::Events { events, .. } => events.len(),
            _ => 1,
        };
        self.writes.iter().map(rows_of).sum()
    }

    /// Whether it writes a row of an approval.
    pub(super) fn changes_approvals(&self) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|write| {
            matches!(
                write,
                Write::ApprovalOpened(_)
                    | Write::ApprovalChanged { .. }
                    | Write::ApprovalsOrphaned { .. }
            )
        })
    }

    /// Whether it begins new work, which a read-only journal refuses.
    pub(super) fn begins_new_work(&self) -> bool {
        let is_new = |write: &Write| match write {
            Write::RunBegun { .. } | Write::TaskQueued(_) => true,
            Write::Chat(write) => matches!(write, ChatWrite::Create(_) | ChatWrite::Accept(_)),
            _ => false,
        };
        self.writes.iter().any(is_new)
    }
}

impl std::fmt::Debug for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Commit({} writes)", self.writes.len())
    }
}

/// A commit that was not accepted, returned unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RefusedCommit {
    /// The commit, with its callback not called and its permit not dropped. Nothing of it was
    /// written.
    pub commit: Box<Commit>,
    /// Why it was not accepted.
    pub reason: Refusal,
}

impl RefusedCommit {
    pub(super) fn new(commit: Commit, reason: Refusal) -> Self {
        Self {
            commit: Box::new(commit),
            reason,
        }
    }
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitResult {
    /// All rows are durable.
    Durable {
        /// The size of its event bodies in bytes, for the session's quota.
        bytes: u64,
    },
    /// The whole commit was left out because of a bug in this program.
    Rejected(Violation),
    /// The caller took the commit back; nothing of it was written.
    Withdrawn,
}

/// One row, or one change of a row. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub enum Write {
    /// Events of one session, in order. `PermissionRequested` also inserts the permission request's
    /// row. `PermissionDecided` completes that row and links it into the audit chain.
    Events {
        /// The session, begun earlier or in the same commit.
        session: SessionId,
        /// The events, shared with the session's subscribers. The first one's seq is the session's
        /// last + 1.
        events: Arc<Vec<StampedEvent>>,
    },
    /// A session begins.
    SessionBegun(SessionRow),
    /// A session ends for good.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// When it ended.
        at_us: i64,
        /// The exit class of its last child; `None` if it had no child.
        class: Option<ExitClass>,
    },
    /// The policy's evaluation of an open permission request, which becomes part of its audit
    /// record. Comes before the `PermissionDecided` event.
    RequestEvaluated {
        /// The permission request.
        request: PermissionRequestId,
        /// The policy and its result.
        evaluation: PolicyEvaluation,
    },
    /// A permission request waits for a person. Belongs in the commit of its `PermissionRequested`
    /// event.
    ApprovalOpened(Box<ApprovalRow>),
    /// An approval changed. An ended approval stays as it is.
    ApprovalChanged {
        /// The approval's id, which is the id of its first request.
        approval: PermissionRequestId,
        /// When it changed.
        at_us: i64,
        /// The change.
        change: ApprovalChange,
    },
    /// The supervisor has started: pending approvals become orphaned, and those past their deadline
    /// expire.
    ApprovalsOrphaned {
        /// When it started.
        at_us: i64,
    },
    /// A run begins, or a daemon starts.
    RunBegun {
        /// The run's id.
        run: RunId,
        /// `run`, `up` or [`CONVERSATION_COMMAND`].
        command: &'static str,
        /// When it began.
        at_us: i64,
    },
    /// The limits of a run, as JSON; `None` removes them.
    RunLimitsChanged {
        /// The run's id.
        run: RunId,
        /// The limits.
        limits: Option<String>,
    },
    /// A change of a chat or of one of its turns.
    Chat(ChatWrite),
    /// An increase of what was spent.
    SpendRecorded(SpendRow),
    /// This start of the supervisor continues a run of an earlier one.
    RunResumed {
        /// The run's id.
        run: RunId,
    },
    /// The run ends: with the end of its last task, or because nothing is left to do.
    RunEnded {
        /// The run's id.
        run: RunId,
        /// When it ended.
        at_us: i64,
        /// The exit code: 0 if all its tasks are done, else 1.
        code: u8,
    },
    /// A task waits for a slot.
    TaskQueued(TaskRow),
    /// A task changed.
    TaskUpdated {
        /// The task's run.
        run: RunId,
        /// The task's id in the run.
        task: TaskId,
        /// When it changed.
        at_us: i64,
        /// The change.
        change: TaskChange,
    },
    /// A child ended unexpectedly, which counts against the slot's restart budget.
    SlotFailure {
        /// The slot.
        slot: SlotId,
        /// The exit class.
        class: ExitClass,
        /// When the child ended.
        at_us: i64,
        /// The reason, in the supervisor's own words.
        detail: String,
    },
    /// The slot is parked: nothing starts in it until a person unparks it, also after a restart of
    /// the supervisor.
    SlotParked {
        /// The slot.
        slot: SlotId,
        /// The exit class that parked it.
        class: ExitClass,
        /// When it was parked.
        at_us: i64,
        /// The reason, in the supervisor's own words.
        reason: String,
    },
    /// The slot is unparked for another attempt; its failures still count.
    SlotUnparked {
        /// The slot.
        slot: SlotId,
    },
    /// A person unparked the slot: its failures no longer count.
    SlotFailuresCleared {
        /// The slot.
        slot: SlotId,
    },
}

/// A session at its begin.
#[derive(Debug, Clone)]
pub struct SessionRow {
    /// The session's id.
    pub session: SessionId,
    /// The slot that it runs in.
    pub slot: SlotId,
    /// The session's run; `None` for a session that outlives its runs.
    pub run: Option<RunId>,
    /// The session's task; `None` with `session = "slot"`.
    pub task: Option<TaskId>,
    /// The number of the task's attempt, from 1.
    pub attempt: u32,
    /// When it began.
    pub at_us: i64,
}

/// A task when it is queued.
#[derive(Debug, Clone)]
pub struct TaskRow {
    /// The task's run.
    pub run: RunId,
    /// The task's position in the run, from 0.
    pub place: u32,
    /// The task as the user specified it.
    pub spec: TaskSpec,
    /// The pool whose slots may work on it.
    pub pool: PoolName,
    /// When it was queued.
    pub at_us: i64,
}

/// A change of a task.
#[derive(Debug, Clone)]
pub enum TaskChange {
    /// A slot begins to work on the task.
    Begun {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The slot.
        slot: SlotId,
        /// The session.
        session: SessionId,
    },
    /// The task waits again.
    Requeued {
        /// Attempts made so far. A prompt that was accepted but never written to an agent does not
        /// count.
        attempts: u32,
    },
    /// The task ended.
    Ended {
        /// The outcome.
        outcome: TaskOutcome,
        /// The reason, in the supervisor's own words.
        detail: String,
        /// Its report, as [`codec::write_report`](super::codec::write_report) writes it; empty if
        /// there is none.
        result: String,
    },
}

/// How the policy evaluated a permission request: what the audit record adds to the verdict.
#[derive(Debug, Clone, Default)]
pub struct PolicyEvaluation {
    /// The policy's name.
    pub policy: String,
    /// The SHA-256 of the policy's text, in hexadecimal.
    pub policy_sha256: String,
    /// The facts that the rules saw, as JSON.
    pub facts: String,
    /// How long the evaluation took, in microseconds.
    pub eval_us: u64,
}
