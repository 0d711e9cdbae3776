//! A task in the pool: its specification, and the sum of its attempts.
//!
//! For its pool a task has begun when its prompt is written to the agent. For the journal, and so
//! for a resumed run, it has begun when `prompt_accepted` is durable. A run ends in the commit of
//! its last task's end (`OpenTasks`, written by `ending.rs`). If a resumed run has no task left to
//! run, it ends in the commit of the resume.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::budgets::{JobPermit, RunLimits};
use crate::clock;
use crate::fleet_event::{FileChange, LandedWork, RepoBundle, TaskBranch, TaskReport};
use crate::handle::task_dependencies::TaskDependency;
use crate::notification::Notification;
use crate::session::{Attempt, CheckResult, LandingResult, Tally, outcome};
use marshal_model::limits::PRIORITY_STEP;
use marshal_model::{
    PermissionRequestId, PoolName, RunId, SessionId, SlotId, TaskOutcome, TaskSpec, UntrustedText,
};
use marshal_sandbox::workspace::branch::bundle_header::ObjectId;

/// A task that has not ended.
#[derive(Debug)]
pub(crate) struct ActiveTask {
    pub(crate) run: RunId,
    pub(crate) spec: TaskSpec,
    /// How often its prompt may be sent, without the retry of a crash.
    pub(crate) attempts: u32,
    /// Receives its report; has capacity for every task of the run.
    pub(crate) report_sender: mpsc::Sender<Arc<TaskReport>>,
    /// Counts the open tasks of its run, to tell when the run ends.
    pub(crate) open_tasks: Arc<OpenTasks>,
    pub(crate) queued: Instant,
    /// Its place in the queue: its arrival in microseconds, moved by its priority.
    pub(crate) rank: i64,
    pub(crate) first_assigned: Option<Instant>,
    /// Its run was cancelled: it is not sent again.
    pub(crate) cancelled: bool,
    /// Its turn was cancelled because the supervisor stops: it goes on at the next start.
    pub(crate) is_interrupted: bool,
    /// The approval that it waits for, and the index of the slot whose session requested it.
    pub(crate) awaits_approval: Option<(PermissionRequestId, u16)>,
    /// Its dependencies that are not done.
    pub(crate) dependencies: Vec<TaskDependency>,
    /// Its permit in a run that limits its concurrent tasks, while it runs.
    pub(crate) job_permit: Option<JobPermit>,
    /// How often its prompt was sent.
    pub(crate) sent: u32,
    /// How often its child ended during the turn.
    pub(crate) lost: u32,
    pub(crate) restarts: u32,
    pub(crate) backoff: Duration,
    tally: Tally,
    last: Option<(SlotId, SessionId)>,
    changes: Vec<FileChange>,
    changes_cut: bool,
    copy: Option<PathBuf>,
    bundle: Option<PathBuf>,
    repos: Vec<RepoBundle>,
    branch: Option<TaskBranch>,
    check: Option<bool>,
    /// What its work landed as.
    landed: Option<ObjectId>,
    /// What its session is told to do, because its work did not land.
    pub(crate) follow_up: Option<String>,
    /// How often its session was told so.
    pub(crate) landing_rounds: u32,
    /// A note about its branch, for the report's detail.
    remark: Option<String>,
}

impl ActiveTask {
    pub(crate) fn new(
        run: RunId,
        spec: TaskSpec,
        attempts: u32,
        report_sender: mpsc::Sender<Arc<TaskReport>>,
        open_tasks: Arc<OpenTasks>,
    ) -> Self {
        Self {
            rank: rank(clock::now_us(), spec.priority),
            run,
            spec,
            attempts,
            report_sender,
            open_tasks,
            queued: clock::now(),
            first_assigned: None,
            cancelled: false,
            is_interrupted: false,
            awaits_approval: None,
            dependencies: Vec::new(),
            job_permit: None,
            sent: 0,
            lost: 0,
            restarts: 0,
            backoff: Duration::ZERO,
            tally: Tally::default(),
            last: None,
            changes: Vec::new(),
            changes_cut: false,
            copy: None,
            bundle: None,
            repos: Vec::new(),
            branch: None,
            check: None,
            landed: None,
            follow_up: None,
            landing_rounds: 0,
            remark: None,
        }
    }

    /// Sets its dependencies.
    pub(crate) fn with_dependencies(mut self, needs: Vec<TaskDependency>) -> Self {
        self.dependencies = needs;
        self
    }

    /// Acquires a job permit of its run; `false` if it may not begin now.
    pub(super) fn acquire_job(&mut self) -> bool {
        if self.open_tasks.is_held() {
            return false;
        }
        let Some(limits) = &self.open_tasks.limits else {
            return true;
        };
        self.job_permit = limits.acquire_job();
        self.job_permit.is_some()
    }

    /// Sets the state that earlier starts of the supervisor left.
    pub(crate) fn with_prior_attempts(mut self, past: PriorAttempts) -> Self {
        self.rank = rank(past.queued_at_us, self.spec.priority);
        self.sent = past.sent;
        self.lost = past.lost;
        self.tally = past.tally;
        self.last = past.last;
        self.copy = past.copy;
        self.bundle = past.bundle;
        self.repos = past.repos;
        self.branch = past.branch;
        self.check = past.check;
        self.remark = past.remark;
        self.landed = past.landed;
        self.changes_cut = self.copy.is_some();
        self.first_assigned = past.begun;
        self
    }

    /// Whether its prompt may be sent again.
    pub(super) fn may_be_sent_again(&self) -> bool {
        may_be_sent_again(self.sent, self.lost, self.attempts)
    }

    /// Adds the results of an attempt.
    pub(super) fn add_attempt(&mut self, slot: &SlotId, attempt: &Attempt) {
        self.tally.add(attempt.tally.clone());
        self.last = Some((slot.clone(), attempt.session.clone()));
        self.changes.clone_from(&attempt.survey.changes);
        self.changes_cut = attempt.survey.cut;
        self.copy.clone_from(&attempt.survey.copy);
        self.bundle.clone_from(&attempt.survey.returned.bundle);
        self.repos.clone_from(&attempt.survey.returned.repos);
        self.branch.clone_from(&attempt.survey.returned.branch);
        self.check = attempt.check.as_ref().map(CheckResult::passed);
        let landing = attempt.survey.landing.as_ref();
        if let (Some(branch), Some(lines)) =
            (&mut self.branch, landing.and_then(LandingResult::lines))
        {
            // Without what others landed meanwhile, which the agent may have put below its own.
            branch.lines = Some(lines);
        }
        self.landed = landing.and_then(LandingResult::commit).cloned();
        self.remark.clone_from(&attempt.survey.returned.remark);
    }

    /// Ends the task: returns its report and where to send it.
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
            approvals: self.tally.approval_requests,
            unasked: self.tally.unasked,
            answer: self.tally.answer(),
            usage: self.tally.usage,
            cost: self.tally.cost,
            denied_by: self.tally.denied_by,
            took: self.first_assigned.map_or(Duration::ZERO, clock::since),
            changes: self.changes,
            changes_cut: self.changes_cut,
            copy: self.copy,
            bundle: self.bundle,
            repos: self.repos,
            branch: self.branch,
            check: self.check,
            landed: self
                .landed
                .zip(self.spec.land)
                .map(|(commit, branch)| LandedWork {
                    branch,
                    commit: commit.to_string(),
                }),
            restarts: self.restarts,
            backoff: self.backoff,
            detail: why.or(self.remark).map(UntrustedText::new),
        };
        (report, self.report_sender)
    }
}

/// The place in the queue of a task that arrived at this time. A level of priority is worth
/// [`PRIORITY_STEP`] of waiting.
fn rank(arrived_us: i64, priority: i8) -> i64 {
    let step = i64::try_from(PRIORITY_STEP.as_micros()).unwrap_or(i64::MAX);
    arrived_us - i64::from(priority) * step
}

/// Whether a prompt that was sent this often, with so many of them lost in a crash, may be sent
/// again. The first crash does not count against the attempts.
pub(crate) fn may_be_sent_again(sent: u32, lost: u32, attempts: u32) -> bool {
    sent.saturating_sub(lost.min(1)) < attempts
}

/// A task's state from earlier starts of the supervisor.
#[derive(Debug, Default)]
pub(crate) struct PriorAttempts {
    /// When it was queued first.
    pub(crate) queued_at_us: i64,
    /// How often its prompt was sent.
    pub(crate) sent: u32,
    /// How often it was lost in a crash, with the end of the supervisor.
    pub(crate) lost: u32,
    pub(crate) tally: Tally,
    /// The slot and session of its last attempt.
    pub(crate) last: Option<(SlotId, SessionId)>,
    /// The copy of its last attempt; the changes in it are unknown.
    pub(crate) copy: Option<PathBuf>,
    /// The bundle of its last attempt.
    pub(crate) bundle: Option<PathBuf>,
    /// Those of further repositories.
    pub(crate) repos: Vec<RepoBundle>,
    /// The branch in it.
    pub(crate) branch: Option<TaskBranch>,
    /// Whether the check of its last attempt passed.
    pub(crate) check: Option<bool>,
    /// A note about its branch.
    pub(crate) remark: Option<String>,
    /// What its work landed as.
    pub(crate) landed: Option<ObjectId>,
    /// When its first attempt began.
    pub(crate) begun: Option<Instant>,
}

/// The open tasks of a run, over all pools.
#[derive(Debug)]
pub(crate) struct OpenTasks {
    left: AtomicUsize,
    so_far: Mutex<RunSummary>,
    /// The run's bounds, if it has any.
    pub(crate) limits: Option<Arc<RunLimits>>,
    /// The number of denied tasks in a row that pause the run; `None`: nothing does.
    pause_after: Option<u32>,
    /// Whether no task begins until the policies are loaded again.
    is_paused: AtomicBool,
    /// Whether no task begins until the run is continued: what waits is left in the journal.
    is_suspended: AtomicBool,
}

/// What the end of a task means for its run.
#[derive(Debug)]
pub(crate) struct RunProgress {
    /// The run's result, if it was the last task.
    pub(crate) ended: Option<RunSummary>,
    /// Whether the run is paused now, because its last tasks were denied.
    pub(crate) is_paused_now: bool,
}

/// The result of a run so far.
#[derive(Debug, Default)]
pub(crate) struct RunSummary {
    failed: bool,
    denied_in_a_row: u32,
    pools: BTreeSet<PoolName>,
    tasks: BTreeMap<TaskOutcome, u64>,
}

impl RunSummary {
    /// Adds the end of a task.
    pub(crate) fn add(&mut self, pool: &PoolName, outcome: TaskOutcome) {
        self.failed |= outcome != TaskOutcome::Done;
        self.denied_in_a_row = match outcome {
            TaskOutcome::Denied => self.denied_in_a_row.saturating_add(1),
            // These say nothing about the policy.
            TaskOutcome::Skipped | TaskOutcome::Cancelled => self.denied_in_a_row,
            _ => 0,
        };
        *self.tasks.entry(outcome).or_default() += 1;
        if !self.pools.contains(pool) {
            self.pools.insert(pool.clone());
        }
    }

    /// The run's exit code: 0 if every task is done, else 1.
    pub(crate) const fn code(&self) -> u8 {
        self.failed as u8
    }

    /// The notification that the run ended.
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
    /// For a run with `left` open tasks. `failed`: an ended task of it is not done.
    pub(crate) fn new(left: usize, failed: bool) -> Arc<Self> {
        Self::with_limits(left, failed, None, None)
    }

    /// Like [`Self::new`], for a run with these bounds, which so many denied tasks in a row pause.
    pub(crate) fn with_limits(
        left: usize,
        failed: bool,
        limits: Option<Arc<RunLimits>>,
        pause_after: Option<u32>,
    ) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(left),
            so_far: Mutex::new(RunSummary {
                failed,
                ..RunSummary::default()
            }),
            limits,
            pause_after,
            is_paused: AtomicBool::new(false),
            is_suspended: AtomicBool::new(false),
        })
    }

    /// Leaves what has not begun to a later start.
    pub(super) fn suspend(&self) {
        self.is_suspended.store(true, Ordering::Release);
    }

    /// Whether what has not begun is left to a later start.
    pub(super) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Acquire)
    }

    /// Ends a pause.
    pub(crate) fn unpause(&self) {
        self.lock().denied_in_a_row = 0;
        self.is_paused.store(false, Ordering::Release);
    }

    /// Whether no task may begin, whatever the bounds are.
    fn is_held(&self) -> bool {
        self.is_paused.load(Ordering::Acquire) || self.is_suspended()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RunSummary> {
        self.so_far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a bound of the run was reached, so that no task of it begins any more.
    pub(crate) fn is_over(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.is_over())
    }

    /// Whether a task of the run might get a job permit now.
    pub(super) fn has_free_job(&self) -> bool {
        let limits = self.limits.as_ref();
        !self.is_held() && limits.is_none_or(|limits| limits.has_free_job())
    }

    /// For a conversation, whose run does not end with its last prompt.
    pub(crate) fn for_conversation() -> Arc<Self> {
        Self::new(usize::MAX, false)
    }

    /// Records the end of a task.
    pub(crate) fn record_end(&self, pool: &PoolName, outcome: TaskOutcome) -> RunProgress {
        let mut so_far = self.lock();
        so_far.add(pool, outcome);
        let was = self.left.fetch_sub(1, Ordering::AcqRel);
        let is_full = Some(so_far.denied_in_a_row) == self.pause_after;
        let is_paused_now = was > 1 && is_full && !self.is_paused.swap(true, Ordering::AcqRel);
        RunProgress {
            ended: (was == 1).then(|| std::mem::take(&mut *so_far)),
            is_paused_now,
        }
    }
}

/// The result of an attempt for its task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    /// The task ends with this outcome and detail.
    Ended(TaskOutcome, Option<String>),
    /// The prompt was not written: the task returns to the head of the queue.
    NotStarted,
    /// The child ended during the turn.
    Lost(String),
    /// The turn completed and the check did not pass.
    CheckFailed(String),
    /// The turn completed, and its work did not land.
    NotLanded(String),
    /// The supervisor stopped during the turn or its check.
    Interrupted(String),
}

/// Pure. `closing`: the task must not be sent again. `is_interrupted`: its turn was cancelled because
/// the supervisor stops.
pub(super) fn classify_attempt(
    attempt: &Attempt,
    closing: bool,
    is_interrupted: bool,
) -> AttemptResult {
    if let Some(why) = &attempt.failure
        && attempt.end.is_none()
    {
        return AttemptResult::Ended(TaskOutcome::Failed, Some(why.clone()));
    }
    let Some(turn) = attempt.turn.filter(|_| attempt.begun) else {
        let why = || Some("the run was cancelled before the task began".to_owned());
        return if closing || attempt.cancelled && !is_interrupted {
            AttemptResult::Ended(TaskOutcome::Skipped, why())
        } else {
            AttemptResult::NotStarted
        };
    };
    let check_passed = attempt.passed();
    let outcome = outcome::from_turn(turn, &attempt.tally, check_passed, attempt.cancelled);
    match outcome {
        // The check ran with what the agent left.
        TaskOutcome::Done | TaskOutcome::Failed if attempt.survey.protection_fault().is_some() => {
            AttemptResult::Ended(TaskOutcome::Failed, Some(attempt.detail()))
        }
        TaskOutcome::Lost => AttemptResult::Lost(attempt.detail()),
        TaskOutcome::Cancelled if is_interrupted && !closing => {
            AttemptResult::Interrupted(attempt.detail())
        }
        TaskOutcome::Failed if check_passed == Some(false) => match &attempt.survey.landing {
            None => AttemptResult::CheckFailed(attempt.detail()),
            Some(_) => AttemptResult::NotLanded(attempt.detail()),
        },
        TaskOutcome::Done => AttemptResult::Ended(outcome, None),
        _ => AttemptResult::Ended(
            outcome,
            Some(attempt.detail()).filter(|why| !why.is_empty()),
        ),
    }
}
