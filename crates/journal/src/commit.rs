//! What callers hand to the journal: commits, their writes and what comes back.
//!
//! Must not know SQLite.

use std::any::Any;
use std::sync::Arc;

use super::approvals::{ApprovalChange, ApprovalRow};
use super::chats::ChatWrite;
use super::error::{Refusal, Violation};
use super::spend::SpendRow;
use marshal_model::{
    ExitClass, PermissionRequestId, PoolName, RunId, SessionId, SlotId, StampedEvent, TaskId,
    TaskOutcome, TaskSpec,
};

/// `command` of a run that is a conversation: it holds one session, and its tasks are the prompts of a
/// client. It ends when nobody may load it any more.
pub const CONVERSATION_COMMAND: &str = "conversation";

/// Rows that become durable together or not at all.
#[derive(Default)]
pub struct Commit {
    /// The rows, in order.
    pub writes: Vec<Write>,
    /// Dropped when the rows are durable (credits, permits), or when they never will be.
    pub permit: Option<Box<dyn Any + Send>>,
    /// Called on the writer's thread when the rows are durable or were left out, in the order of
    /// submission. Must be short and must not block. Dropped uncalled if the journal ends first.
    pub callback: Option<Box<dyn FnOnce(CommitResult) + Send>>,
}

impl Commit {
    /// A commit of these rows that tells nobody.
    #[must_use]
    pub fn new(writes: Vec<Write>) -> Self {
        Self {
            writes,
            ..Self::default()
        }
    }

    /// Keeps `hold` until the rows are durable.
    #[must_use]
    pub fn with_permit(mut self, hold: impl Any + Send) -> Self {
        self.permit = Some(Box::new(hold));
        self
    }

    /// Calls `done` when the rows are durable.
    #[must_use]
    pub fn with_callback(mut self, done: impl FnOnce(CommitResult) + Send + 'static) -> Self {
        self.callback = Some(Box::new(done));
        self
    }

    /// How many rows it has: each event is one.
    pub(super) fn row_count(&self) -> usize {
        let of = |write: &Write| match write {
            Write::Events { events, .. } => events.len(),
            _ => 1,
        };
        self.writes.iter().map(of).sum()
    }

    /// Whether it has a row of a question.
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

    /// Whether it begins work that did not exist before.
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

/// A commit that was not accepted, given back as it was.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RefusedCommit {
    /// Nothing of it was written; `done` was not called and `hold` is still in it.
    pub commit: Box<Commit>,
    /// Why.
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

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitResult {
    /// On the disk.
    Durable {
        /// Bytes of the event bodies in it, for the session's quota.
        bytes: u64,
    },
    /// Left out, as a whole: a fault of this program.
    Rejected(Violation),
}

/// One row, or one change of a row. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub enum Write {
    /// Events of one session, in order. `PermissionRequested` also makes the permission request's row, `PermissionDecided` ends it and
    /// links it into the audit chain.
    Events {
        /// Their session, begun before or in the same commit.
        session: SessionId,
        /// The events, shared with those who are told of them; the first one's seq is the
        /// session's last + 1.
        events: Arc<Vec<StampedEvent>>,
    },
    /// A session begins.
    SessionBegun(SessionRow),
    /// A session ends for good.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// When.
        at_us: i64,
        /// How its last child ended, if it had one.
        class: Option<ExitClass>,
    },
    /// How an open permission request was judged; part of its audit record. Comes before the `PermissionDecided` event.
    RequestEvaluated {
        /// Which.
        request: PermissionRequestId,
        /// By what.
        evaluation: PolicyEvaluation,
    },
    /// A question to people is put, in the commit of its `PermissionRequested` event.
    ApprovalOpened(Box<ApprovalRow>),
    /// A question changed. One that is over stays as it is.
    ApprovalChanged {
        /// Which.
        approval: PermissionRequestId,
        /// When.
        at_us: i64,
        /// How.
        change: ApprovalChange,
    },
    /// A start: no agent waits for an answer any more, and what is late has expired.
    ApprovalsOrphaned {
        /// When.
        at_us: i64,
    },
    /// A run, or the life of a daemon, begins.
    RunBegun {
        /// Its id.
        run: RunId,
        /// `run`, `up` or [`CONVERSATION_COMMAND`].
        command: &'static str,
        /// When.
        at_us: i64,
    },
    /// What bounds a run, as JSON; `None`: nothing does any more.
    RunLimitsChanged {
        /// Its id.
        run: RunId,
        /// The bounds.
        limits: Option<String>,
    },
    /// Of a chat or one of its turns.
    Chat(ChatWrite),
    /// So much more was spent.
    SpendRecorded(SpendRow),
    /// This start of the supervisor goes on with a run of an earlier one.
    RunResumed {
        /// Its id.
        run: RunId,
    },
    /// It ends: with the end of its last task, or because there is nothing left to do.
    RunEnded {
        /// Its id.
        run: RunId,
        /// When.
        at_us: i64,
        /// 0 if every task of it is done, else 1.
        code: u8,
    },
    /// A task waits for a slot.
    TaskQueued(TaskRow),
    /// A task changed.
    TaskUpdated {
        /// Its run.
        run: RunId,
        /// Its id in the run.
        task: TaskId,
        /// When.
        at_us: i64,
        /// How.
        change: TaskChange,
    },
    /// An end that nobody asked for: spends the slot's restart budget.
    SlotFailure {
        /// Whose.
        slot: SlotId,
        /// Its class.
        class: ExitClass,
        /// When.
        at_us: i64,
        /// Why, in our words.
        detail: String,
    },
    /// Nothing starts in the slot until a person has looked, over every start of the supervisor.
    SlotParked {
        /// Which.
        slot: SlotId,
        /// The class of the end that parked it.
        class: ExitClass,
        /// When.
        at_us: i64,
        /// Why, in our words.
        reason: String,
    },
    /// The slot is tried again; its failures still count.
    SlotUnparked {
        /// Which.
        slot: SlotId,
    },
    /// A person unparked the slot: its failures no longer count.
    SlotFailuresCleared {
        /// Whose.
        slot: SlotId,
    },
}

/// A session as it begins.
#[derive(Debug, Clone)]
pub struct SessionRow {
    /// Its id.
    pub session: SessionId,
    /// Where it runs.
    pub slot: SlotId,
    /// The run that it belongs to; `None` for a session that outlives its runs.
    pub run: Option<RunId>,
    /// The task that it works; with `session = "slot"` there is none.
    pub task: Option<TaskId>,
    /// Which attempt of the task, from 1.
    pub attempt: u32,
    /// When.
    pub at_us: i64,
}

/// A task as it is queued.
#[derive(Debug, Clone)]
pub struct TaskRow {
    /// Its run.
    pub run: RunId,
    /// Its place in the run, from 0.
    pub place: u32,
    /// What the user asked for.
    pub spec: TaskSpec,
    /// The pool that works it.
    pub pool: PoolName,
    /// When.
    pub at_us: i64,
}

/// A change of a task.
#[derive(Debug, Clone)]
pub enum TaskChange {
    /// A slot works it.
    Begun {
        /// Which sending, from 1.
        attempt: u32,
        /// Where.
        slot: SlotId,
        /// In which session.
        session: SessionId,
    },
    /// It waits again.
    Requeued {
        /// Sendings made so far: a prompt that was accepted and never written is none.
        attempts: u32,
    },
    /// It ended.
    Ended {
        /// How.
        outcome: TaskOutcome,
        /// Why, in our words.
        detail: String,
        /// Its report, as [`codec::write_report`](super::codec::write_report) writes it; empty if
        /// there is none.
        result: String,
    },
}

/// How a permission request was judged: what the audit record says beside the verdict.
#[derive(Debug, Clone, Default)]
pub struct PolicyEvaluation {
    /// The policy's name.
    pub policy: String,
    /// The digest of its text, hexadecimal.
    pub policy_sha256: String,
    /// The facts that the rules saw, as JSON.
    pub facts: String,
    /// How long the evaluation took, in microseconds.
    pub eval_us: u64,
}
