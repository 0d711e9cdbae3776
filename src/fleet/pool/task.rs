//! A task on its way through the pool: what it asked for, what its attempts added up to.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::fleet::clock;
use crate::fleet::notice::{FileChange, TaskReport};
use crate::fleet::session::{Attempt, CheckResult, Tally, outcome};
use crate::model::{AskId, Foreign, PoolName, RunId, SessionId, SlotId, TaskOutcome, TaskSpec};

/// A task that is not over.
#[derive(Debug)]
pub(crate) struct ActiveTask {
    pub(crate) run: RunId,
    pub(crate) spec: TaskSpec,
    /// How many sendings may be made.
    pub(crate) attempts: u32,
    /// Who waits for its report; has a place for every task of the run.
    pub(crate) tell: mpsc::Sender<Arc<TaskReport>>,
    /// What says when its run is over.
    pub(crate) open: Arc<OpenTasks>,
    pub(crate) queued: Instant,
    pub(crate) first_assigned: Option<Instant>,
    /// Its run was cancelled: it is not sent again.
    pub(crate) cancelled: bool,
    /// It waits for the answer to this question, which the session of that slot put.
    pub(crate) waits: Option<(AskId, u16)>,
    /// Sendings made.
    pub(crate) sent: u32,
    pub(crate) restarts: u32,
    pub(crate) backoff: Duration,
    tally: Tally,
    last: Option<(SlotId, SessionId)>,
    changes: Vec<FileChange>,
    changes_cut: bool,
    copy: Option<PathBuf>,
    bundle: Option<PathBuf>,
    /// What is to be said about its branch.
    remark: Option<String>,
}

impl ActiveTask {
    pub(crate) fn new(
        run: RunId,
        spec: TaskSpec,
        attempts: u32,
        tell: mpsc::Sender<Arc<TaskReport>>,
        open: Arc<OpenTasks>,
    ) -> Self {
        Self {
            run,
            spec,
            attempts,
            tell,
            open,
            queued: clock::now(),
            first_assigned: None,
            cancelled: false,
            waits: None,
            sent: 0,
            restarts: 0,
            backoff: Duration::ZERO,
            tally: Tally::default(),
            last: None,
            changes: Vec::new(),
            changes_cut: false,
            copy: None,
            bundle: None,
            remark: None,
        }
    }

    /// Goes on from what an earlier start of the supervisor did.
    pub(crate) fn after(mut self, past: Past) -> Self {
        self.sent = past.sent;
        self.tally = past.tally;
        self.last = past.last;
        self.copy = past.copy;
        self.bundle = past.bundle;
        self.changes_cut = self.copy.is_some();
        self.first_assigned = past.begun;
        self
    }

    /// Adds what an attempt brought.
    pub(super) fn take_in(&mut self, slot: &SlotId, attempt: &Attempt) {
        self.tally.add(attempt.tally.clone());
        self.last = Some((slot.clone(), attempt.session.clone()));
        self.changes.clone_from(&attempt.survey.changes);
        self.changes_cut = attempt.survey.cut;
        self.copy.clone_from(&attempt.survey.copy);
        self.bundle.clone_from(&attempt.survey.returned.bundle);
        self.remark.clone_from(&attempt.survey.returned.remark);
    }

    /// Ends it. Also gives the way to tell who waits.
    pub(crate) fn into_report(
        self,
        pool: &PoolName,
        outcome: TaskOutcome,
        why: Option<String>,
    ) -> (TaskReport, mpsc::Sender<Arc<TaskReport>>) {
        let (slot, session) = self.last.unzip();
        let report = TaskReport {
            run: self.run,
            task: self.spec.id,
            pool: pool.clone(),
            slot,
            session,
            outcome,
            attempts: self.sent,
            allowed: self.tally.allowed,
            denied: self.tally.denied,
            asked: self.tally.asked,
            unasked_denied: self.tally.unasked_denied,
            answer: self.tally.answer(),
            usage: self.tally.usage,
            denied_by: self.tally.denied_by,
            took: self.first_assigned.map_or(Duration::ZERO, clock::since),
            changes: self.changes,
            changes_cut: self.changes_cut,
            copy: self.copy,
            bundle: self.bundle,
            restarts: self.restarts,
            backoff: self.backoff,
            detail: why.or(self.remark).map(Foreign::new),
        };
        (report, self.tell)
    }
}

/// What a task brings from an earlier start of the supervisor.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Sendings made.
    pub(crate) sent: u32,
    pub(crate) tally: Tally,
    /// Where it was worked last.
    pub(crate) last: Option<(SlotId, SessionId)>,
    /// The copy of its last attempt; what changed in it is not known.
    pub(crate) copy: Option<PathBuf>,
    /// The bundle of its last attempt.
    pub(crate) bundle: Option<PathBuf>,
    /// When it first began.
    pub(crate) begun: Option<Instant>,
}

/// The tasks of a run that have not ended, in whatever pools they are.
#[derive(Debug)]
pub(crate) struct OpenTasks {
    left: AtomicUsize,
    /// One of the run's tasks is not done.
    failed: AtomicBool,
}

impl OpenTasks {
    /// Of a run with so many open tasks; `failed` says whether one that ended is not done.
    pub(crate) fn new(left: usize, failed: bool) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(left),
            failed: AtomicBool::new(failed),
        })
    }

    /// Of a conversation, which does not end with a prompt.
    pub(crate) fn of_conversation() -> Arc<Self> {
        Self::new(usize::MAX, false)
    }

    /// A task ended. With the last one the run does: then its code.
    pub(crate) fn ended(&self, outcome: TaskOutcome) -> Option<u8> {
        if outcome != TaskOutcome::Done {
            self.failed.store(true, Ordering::Release);
        }
        let was = self.left.fetch_sub(1, Ordering::AcqRel);
        (was == 1).then(|| u8::from(self.failed.load(Ordering::Acquire)))
    }
}

/// What an attempt means for its task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is over.
    Ended(TaskOutcome, Option<String>),
    /// The prompt was never written: the task goes back to the head of its queue.
    Unbegun,
    /// The child died in the turn.
    Lost(String),
    /// The turn completed and the check did not pass.
    CheckFailed(String),
}

/// Pure. `closing`: no new task starts any more.
pub(super) fn verdict(attempt: &Attempt, closing: bool) -> After {
    if let Some(why) = &attempt.failure
        && attempt.end.is_none()
    {
        return After::Ended(TaskOutcome::Failed, Some(why.clone()));
    }
    let Some(turn) = attempt.turn.filter(|_| attempt.begun) else {
        let why = || Some("the run was cancelled before the task began".to_owned());
        return if closing || attempt.cancelled {
            After::Ended(TaskOutcome::Skipped, why())
        } else {
            After::Unbegun
        };
    };
    let check_passed = attempt.check.as_ref().map(CheckResult::passed);
    let found = outcome::of_turn(turn, &attempt.tally, check_passed, attempt.cancelled);
    match found {
        TaskOutcome::Lost => After::Lost(attempt.detail()),
        TaskOutcome::Failed if check_passed == Some(false) => After::CheckFailed(attempt.detail()),
        TaskOutcome::Done => After::Ended(found, None),
        _ => After::Ended(found, Some(attempt.detail()).filter(|why| !why.is_empty())),
    }
}
