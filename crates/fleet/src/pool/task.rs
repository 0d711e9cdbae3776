//! A task on its way through the pool: what it asked for, what its attempts added up to.
//!
//! For its pool a task has begun when its prompt is written to the agent. For the journal, and so for
//! whoever continues the run, it has begun when `prompt_accepted` is durable. A run ends in the commit of
//! its last task's end (`OpenTasks`, written by `ending.rs`). If nothing waits when a run is taken up, it
//! ends in that commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::budgets::{JobPermit, RunLimits};
use crate::clock;
use crate::fleet_event::{FileChange, TaskReport};
use crate::notification::Notification;
use crate::session::{Attempt, CheckResult, Tally, outcome};
use crate::task_dependencies::TaskDependency;
use marshal_model::{
    PermissionRequestId, PoolName, RunId, SessionId, SlotId, TaskOutcome, TaskSpec, UntrustedText,
};

/// A task that is not over.
#[derive(Debug)]
pub(crate) struct ActiveTask {
    pub(crate) run: RunId,
    pub(crate) spec: TaskSpec,
    /// How many sendings may be made.
    pub(crate) attempts: u32,
    /// Who waits for its report; has a place for every task of the run.
    pub(crate) report_sender: mpsc::Sender<Arc<TaskReport>>,
    /// What says when its run is over.
    pub(crate) open_tasks: Arc<OpenTasks>,
    pub(crate) queued: Instant,
    pub(crate) first_assigned: Option<Instant>,
    /// Its run was cancelled: it is not sent again.
    pub(crate) cancelled: bool,
    /// It waits for the answer to this question, which the session of that slot put.
    pub(crate) awaits_approval: Option<(PermissionRequestId, u16)>,
    /// What it comes after, as far as that is not done.
    pub(crate) dependencies: Vec<TaskDependency>,
    /// Its place among the tasks of its run that are worked, while it is.
    pub(crate) job_permit: Option<JobPermit>,
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
            report_sender: tell,
            open_tasks: open,
            queued: clock::now(),
            first_assigned: None,
            cancelled: false,
            awaits_approval: None,
            dependencies: Vec::new(),
            job_permit: None,
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

    /// Has it come after others.
    pub(crate) fn with_dependencies(mut self, needs: Vec<TaskDependency>) -> Self {
        self.dependencies = needs;
        self
    }

    /// Takes its place among those of its run; `false` if it may not begin now.
    pub(super) fn acquire_job(&mut self) -> bool {
        let Some(limits) = &self.open_tasks.limits else {
            return true;
        };
        self.job_permit = limits.acquire_job();
        self.job_permit.is_some()
    }

    /// Goes on from what an earlier start of the supervisor did.
    pub(crate) fn with_prior_attempts(mut self, past: PriorAttempts) -> Self {
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
    pub(super) fn add_attempt(&mut self, slot: &SlotId, attempt: &Attempt) {
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
            approvals: self.tally.approvals,
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
            detail: why.or(self.remark).map(UntrustedText::new),
        };
        (report, self.report_sender)
    }
}

/// What a task brings from an earlier start of the supervisor.
#[derive(Debug, Default)]
pub(crate) struct PriorAttempts {
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
    so_far: Mutex<RunSummary>,
    /// What bounds the run, if anything does.
    pub(crate) limits: Option<Arc<RunLimits>>,
}

/// What a run came to.
#[derive(Debug, Default)]
pub(crate) struct RunSummary {
    failed: bool,
    pools: BTreeSet<PoolName>,
    tasks: BTreeMap<TaskOutcome, u64>,
}

impl RunSummary {
    /// A task of a pool ended.
    pub(crate) fn add(&mut self, pool: &PoolName, outcome: TaskOutcome) {
        self.failed |= outcome != TaskOutcome::Done;
        *self.tasks.entry(outcome).or_default() += 1;
        if !self.pools.contains(pool) {
            self.pools.insert(pool.clone());
        }
    }

    /// 0 if every task is done.
    pub(crate) const fn code(&self) -> u8 {
        self.failed as u8
    }

    /// What people are told of it.
    pub(crate) fn into_notification(self, run: RunId) -> Notification {
        Notification::RunEnded {
            run,
            code: self.code(),
            pools: self.pools,
            tasks: self.tasks,
        }
    }
}

impl OpenTasks {
    /// Of a run with so many open tasks; `failed` says whether one that ended is not done.
    pub(crate) fn new(left: usize, failed: bool) -> Arc<Self> {
        Self::with_limits(left, failed, None)
    }

    /// The same of a run with such bounds.
    pub(crate) fn with_limits(
        left: usize,
        failed: bool,
        limits: Option<Arc<RunLimits>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(left),
            so_far: Mutex::new(RunSummary {
                failed,
                ..RunSummary::default()
            }),
            limits,
        })
    }

    /// Whether no task of the run begins any more, because of what bounds it.
    pub(crate) fn is_over(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.is_over())
    }

    /// Whether a task of the run that began now might get a place.
    pub(super) fn has_free_job(&self) -> bool {
        let limits = self.limits.as_ref();
        limits.is_none_or(|limits| limits.has_free_job())
    }

    /// Of a conversation, which does not end with a prompt.
    pub(crate) fn for_conversation() -> Arc<Self> {
        Self::new(usize::MAX, false)
    }

    /// A task of a pool ended. With the last one the run does.
    pub(crate) fn record_end(&self, pool: &PoolName, outcome: TaskOutcome) -> Option<RunSummary> {
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.add(pool, outcome);
        let was = self.left.fetch_sub(1, Ordering::AcqRel);
        (was == 1).then(|| std::mem::take(&mut *so_far))
    }
}

/// What an attempt means for its task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    /// It is over.
    Ended(TaskOutcome, Option<String>),
    /// The prompt was never written: the task goes back to the head of its queue.
    NotStarted,
    /// The child died in the turn.
    Lost(String),
    /// The turn completed and the check did not pass.
    CheckFailed(String),
}

/// Pure. `closing`: no new task starts any more.
pub(super) fn classify_attempt(attempt: &Attempt, closing: bool) -> AttemptResult {
    if let Some(why) = &attempt.failure
        && attempt.end.is_none()
    {
        return AttemptResult::Ended(TaskOutcome::Failed, Some(why.clone()));
    }
    let Some(turn) = attempt.turn.filter(|_| attempt.begun) else {
        let why = || Some("the run was cancelled before the task began".to_owned());
        return if closing || attempt.cancelled {
            AttemptResult::Ended(TaskOutcome::Skipped, why())
        } else {
            AttemptResult::NotStarted
        };
    };
    let check_passed = attempt.check.as_ref().map(CheckResult::passed);
    let found = outcome::from_turn(turn, &attempt.tally, check_passed, attempt.cancelled);
    match found {
        TaskOutcome::Lost => AttemptResult::Lost(attempt.detail()),
        TaskOutcome::Failed if check_passed == Some(false) => {
            AttemptResult::CheckFailed(attempt.detail())
        }
        TaskOutcome::Done => AttemptResult::Ended(found, None),
        _ => AttemptResult::Ended(found, Some(attempt.detail()).filter(|why| !why.is_empty())),
    }
}
