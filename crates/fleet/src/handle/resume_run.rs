//! Resuming a run that an earlier start of the supervisor left unfinished.
//!
//! Ended tasks are reported again. Queued tasks are queued again. A task in flight is handled by
//! its pool's `on_crash`, because the end of the supervisor counts as a crash. One commit records
//! all of this before a slot gets a task. Must not know what a slot does with a task.
//!
//! The reports of ended tasks come from their rows (`fleet/report.rs`). A subscriber gets them
//! before everything else (`engine/api/run_stream.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::run_bounds;
use crate::budgets::RunLimits;
use crate::clock::now_us;
use crate::fleet_event::{FleetEvent, TaskReport};
use crate::messages::PoolMsg;
use crate::pool::{ActiveTask, OpenTasks, PriorAttempts, RunSummary, may_be_sent_again};
use crate::run_history::{AttemptRecord, ENDED, RUNNING, RunHistory};
use crate::session::{CheckResult, LandRequest, LandingResult, OwnCheck, Tally, outcome};
use crate::{FleetHandle, PoolEntry, SubmitError, clock, run_history, session};
use marshal_config::{OnCrash, Pool, SessionScope, WorkspaceMode};
use marshal_journal::{StoredTask, TaskChange, Write, codec};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    INTERRUPTED_BY_STOP, PoolName, RunId, SlotId, TaskId, TaskOutcome, TaskSpec, TurnOutcome,
    UntrustedText,
};
use marshal_telemetry::event::task::{TaskEnded, TaskLocation, TaskQueued};

/// The detail of a task that was lost in flight, if its events give none.
const LOST: &str = "the supervisor ended while this ran";

/// A run that this fleet has resumed.
#[derive(Debug)]
pub struct ResumedRun {
    /// All tasks of the run, in their original order.
    pub tasks: Vec<TaskId>,
    /// The reports of tasks that had ended before or end with this resume, in the order of their
    /// ends.
    pub ended: Vec<Arc<TaskReport>>,
    /// The reports of the other tasks, each once; the channel closes after the last.
    pub reports: mpsc::Receiver<Arc<TaskReport>>,
}

/// Why a run was not resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeRunError {
    /// The journal has no such run.
    #[error("there is no run {0} in the journal")]
    NoSuchRun(RunId),
    /// Each of its tasks has ended.
    #[error("run {0} has ended: it has no unfinished task")]
    Finished(RunId),
    /// This start of the supervisor runs it already.
    #[error("run {0} is running already")]
    AlreadyRunning(RunId),
    /// Its stored form cannot be read.
    #[error("run {run} cannot be read: {why}")]
    Unreadable {
        /// The run's id.
        run: RunId,
        /// The cause.
        why: String,
    },
    /// Its tasks do not fit into the queues, or could not be journalled.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// How one task is resumed.
enum ResumeAction {
    /// It was queued and is queued again.
    Queue,
    /// It was in flight and is sent again.
    Retry,
    /// It ends now, with this outcome and detail.
    End(TaskOutcome, Option<String>),
}

/// A task that has not ended: its row, and the sum of its attempts.
struct UnfinishedTask {
    pool: PoolName,
    spec: TaskSpec,
    row: StoredTask,
    past: PriorAttempts,
    /// The time of its last event.
    last_at_us: Option<i64>,
}

/// Everything that a resume will do, before any of it is done.
#[derive(Default)]
struct ResumePlan {
    tasks: Vec<TaskId>,
    /// Tasks that had ended, with the times of their ends in microseconds since the Unix epoch.
    ended: Vec<(i64, Arc<TaskReport>)>,
    /// Tasks that end with this resume.
    over: Vec<Arc<TaskReport>>,
    waiting: Vec<UnfinishedTask>,
    writes: Vec<Write>,
}

impl FleetHandle {
    /// Resumes an unfinished run; returns when its plan is durable. Each task of the run is
    /// reported once, including those that had ended.
    ///
    /// # Errors
    /// [`ResumeRunError`]; nothing was changed.
    pub async fn resume_run(&self, run: RunId) -> Result<ResumedRun, ResumeRunError> {
        let shared = &self.0.shared;
        if shared.is_draining() {
            return Err(SubmitError::Stopping.into());
        }
        let (journal, state, wanted) = (
            shared.journal.clone(),
            Arc::clone(&shared.state),
            run.clone(),
        );
        let epoch = journal.epoch();
        let reading = move || run_history::read_run_history(&journal, &state, &wanted);
        let read = shared.ambient.run_blocking(reading).await;
        let history = read
            .map_err(|_| SubmitError::Stopping)?
            .map_err(|error| unreadable(&run, error))?
            .ok_or_else(|| ResumeRunError::NoSuchRun(run.clone()))?;
        if history.run.epoch == epoch {
            return Err(ResumeRunError::AlreadyRunning(run));
        }
        let has_ended = history.tasks.iter().all(|(row, _)| row.state == ENDED);
        if has_ended && history.run.ended_at_us.is_some() {
            return Err(ResumeRunError::Finished(run));
        }
        let mut history = history;
        self.make_missing_branches(&mut history).await;
        Box::pin(self.land_missing_branches(&mut history)).await;
        let (bounds, spent) = self.resume_run_bounds(&run).await?;
        let limits = self.start_run_limits(&run, bounds, spent);
        let mut plan = self.plan_resume(&run, history)?;
        plan.writes.push(run_bounds::to_row(&run, &bounds));
        let (report_sender, reports) = mpsc::channel(plan.waiting.len().max(1));
        let mut waiting = self.take_queued_tasks(&run, &mut plan, &report_sender, limits.clone());
        for task in waiting.values_mut().flatten() {
            task.dependencies = self.resolve_dependencies(&task.spec, false).await?;
        }
        self.reserve_queue_places(&waiting)?;
        if let Err(error) = self.commit_durably(plan.writes).await {
            for (pool, tasks) in &waiting {
                self.release_queue_places(pool, tasks.len());
            }
            return Err(error.into());
        }
        self.notify_tasks_ended(&plan.over);
        if waiting.is_empty() {
            self.notify_run_ended(&run, &plan.ended, &plan.over);
        }
        plan.ended.sort_by_key(|(at_us, _)| *at_us);
        let mut ended: Vec<_> = plan.ended.into_iter().map(|(_, report)| report).collect();
        ended.extend(plan.over);
        self.requeue_tasks(&run, waiting)?;
        if let Some(limits) = limits {
            limits.notify_if_spent();
        }
        Ok(ResumedRun {
            tasks: plan.tasks,
            ended,
            reports,
        })
    }

    /// Makes the branches of turns whose end is durable, and after which the supervisor was killed before
    /// it had made them.
    async fn make_missing_branches(&self, history: &mut RunHistory) {
        for (row, attempts) in &mut history.tasks {
            let pool = PoolName::new(&row.pool).ok();
            let entry = pool.as_ref().and_then(|pool| self.0.pools.get(pool));
            let (Some(entry), Some(pool), Some(index)) = (entry, pool, row.slot) else {
                continue;
            };
            let Some(last) = attempts.last_mut().filter(|_| row.state == RUNNING) else {
                continue;
            };
            let spec = codec::read_spec(&row.id, &row.prompt, &row.spec).ok();
            let config = &entry.shared.config;
            // A bundle that is there may be that of an earlier turn, which did not land. It is made
            // again in any case: nobody wrote down what is in it.
            let lands = spec.as_ref().is_some_and(|spec| spec.land.is_some());
            let is_clone = config.workspace.mode == WorkspaceMode::Worktree;
            // But the bundle of a session with several tasks may have what a later one left.
            let is_shared = config.options.session == SessionScope::Slot && last.bundle.is_some();
            if !is_clone || is_shared || last.turn.is_none() || last.copy.is_none() {
                continue;
            }
            let check = spec.as_ref().and_then(|spec| spec.check.as_ref());
            let has_check = !check.unwrap_or(&config.check).is_empty();
            let is_done = last_outcome(Some(last), has_check).0 == TaskOutcome::Done;
            let is_result = is_done && !lands;
            let slot = SlotId { pool, index };
            let (shared, session) = (&self.0.shared, &last.session);
            let pool = &entry.shared;
            match Box::pin(session::recover_branches(
                shared, pool, slot, session, is_result,
            ))
            .await
            {
                Ok(made) => last.record_branches(made),
                Err(error) => {
                    let why = format!("its branch could not be bundled ({error})");
                    last.landing = lands.then_some(LandingResult::Failed(why));
                    tracing::warn!(%session, %error, "the branch of a killed supervisor's session could not be bundled");
                }
            }
        }
    }

    /// Lands the work of turns whose end is durable, and after which the supervisor was killed before it
    /// had landed, or had recorded that.
    async fn land_missing_branches(&self, history: &mut RunHistory) {
        for (row, attempts) in &mut history.tasks {
            let pool = PoolName::new(&row.pool).ok();
            let entry = pool.as_ref().and_then(|pool| self.0.pools.get(pool));
            let spec = codec::read_spec(&row.id, &row.prompt, &row.spec).ok();
            let (Some(entry), Some(pool), Some(index), Some(spec)) = (entry, pool, row.slot, spec)
            else {
                continue;
            };
            let check = spec.check.as_ref().unwrap_or(&entry.shared.config.check);
            let has_check = !check.is_empty();
            let is_done = matches!(
                last_outcome(attempts.last(), has_check),
                (TaskOutcome::Done, ..)
            );
            let last = attempts.last_mut().filter(|_| row.state == RUNNING);
            let (Some(last), Some(onto), true) = (last, spec.land.clone(), is_done) else {
                continue;
            };
            if last.bundle.is_none() || last.landing.is_some() {
                continue;
            }
            let (shared, slot) = (&self.0.shared, SlotId { pool, index });
            let request = LandRequest {
                session: last.session.clone(),
                clones: shared.state.copies().path().to_owned(),
                onto,
                allow: Vec::new(),
                check: OwnCheck::of_task(spec.check, spec.land.as_deref()),
                cancelled: CancellationToken::new(),
            };
            let landed = session::land_bundles(shared, &entry.shared, slot, request).await;
            last.landing = Some(LandingResult::from(landed));
        }
    }

    /// Chooses the action for every task of the run.
    fn plan_resume(&self, run: &RunId, history: RunHistory) -> Result<ResumePlan, ResumeRunError> {
        let mut plan = ResumePlan::default();
        plan.writes.push(Write::RunResumed { run: run.clone() });
        for (row, attempts) in history.tasks {
            let id = TaskId::new(&row.id).map_err(|error| unreadable(run, error))?;
            plan.tasks.push(id);
            if row.state == ENDED {
                let report = TaskReport::from_row(run, &row).map_err(|e| unreadable(run, e))?;
                let at_us = row.ended_at_us.unwrap_or(0);
                plan.ended.push((at_us, Arc::new(report)));
                continue;
            }
            let spec = codec::read_spec(&row.id, &row.prompt, &row.spec)
                .map_err(|error| unreadable(run, error))?;
            let pool = PoolName::new(&row.pool).map_err(|error| unreadable(run, error))?;
            let action = choose_resume_action(self.0.pools.get(&pool), &spec, &row, &attempts);
            let task = UnfinishedTask::new(pool, spec, row, attempts);
            match action {
                ResumeAction::Queue => plan.waiting.push(task),
                ResumeAction::Retry => {
                    let attempts = task.row.attempts;
                    plan.change(run, &task.spec.id, TaskChange::Requeued { attempts });
                    plan.waiting.push(task);
                }
                ResumeAction::End(outcome, why) => plan.end(task.into_report(run, outcome, why)),
            }
        }
        if plan.waiting.is_empty() {
            plan.writes.push(Write::RunEnded {
                run: run.clone(),
                at_us: now_us(),
                code: u8::from(plan.has_failed()),
            });
        }
        Ok(plan)
    }

    /// Moves the waiting tasks out of the plan, grouped by pool.
    fn take_queued_tasks(
        &self,
        run: &RunId,
        plan: &mut ResumePlan,
        report_sender: &mpsc::Sender<Arc<TaskReport>>,
        limits: Option<Arc<RunLimits>>,
    ) -> BTreeMap<PoolName, Vec<ActiveTask>> {
        let open = OpenTasks::with_limits(
            plan.waiting.len(),
            plan.has_failed(),
            limits,
            self.0.shared.config.supervisor.pause_after_denied(),
        );
        let mut by_pool: BTreeMap<PoolName, Vec<ActiveTask>> = BTreeMap::new();
        for unfinished in std::mem::take(&mut plan.waiting) {
            let entry = self.0.pools.get(&unfinished.pool);
            let attempts = attempts_of(entry, &unfinished.spec);
            let open = Arc::clone(&open);
            let reports = report_sender.clone();
            let task = ActiveTask::new(run.clone(), unfinished.spec, attempts, reports, open)
                .with_prior_attempts(unfinished.past);
            by_pool.entry(unfinished.pool).or_default().push(task);
        }
        by_pool
    }

    /// Notifies people that the run ended, because no task of it is left to run.
    fn notify_run_ended(
        &self,
        run: &RunId,
        ended: &[(i64, Arc<TaskReport>)],
        over: &[Arc<TaskReport>],
    ) {
        let mut summary = RunSummary::default();
        for report in ended.iter().map(|(_, report)| report).chain(over) {
            summary.add(&report.pool, report.outcome);
        }
        self.0
            .shared
            .hooks
            .notify(&summary.into_notification(run.clone()));
    }

    fn notify_tasks_ended(&self, over: &[Arc<TaskReport>]) {
        for report in over {
            let needs = &self.0.shared.dependencies;
            needs.record_outcome(&report.run, &report.task, report.outcome);
            let detail = report
                .detail
                .as_ref()
                .map(|detail| detail.escape_for_display(300));
            TaskEnded {
                pool: &report.pool,
                task: &report.task,
                outcome: report.outcome,
                detail: &detail.unwrap_or_default(),
                from: TaskLocation::Slot,
            }
            .emit();
            self.0
                .shared
                .notify_subscribers(FleetEvent::TaskEnded(Arc::clone(report)));
        }
    }

    fn requeue_tasks(
        &self,
        run: &RunId,
        waiting: BTreeMap<PoolName, Vec<ActiveTask>>,
    ) -> Result<(), SubmitError> {
        for (pool, tasks) in waiting {
            for task in &tasks {
                let task = &task.spec.id;
                TaskQueued { pool: &pool, task }.emit();
                self.0.shared.notify_subscribers(FleetEvent::TaskQueued {
                    run: run.clone(),
                    task: task.clone(),
                    pool: pool.clone(),
                });
            }
            if let Some(entry) = self.0.pools.get(&pool) {
                let sent = entry.actor.send_message(PoolMsg::Submit(tasks));
                sent.map_err(|_| SubmitError::Stopping)?;
            }
        }
        Ok(())
    }
}

fn unreadable(run: &RunId, error: impl std::fmt::Display) -> ResumeRunError {
    ResumeRunError::Unreadable {
        run: run.clone(),
        why: error.to_string(),
    }
}

impl ResumePlan {
    fn has_failed(&self) -> bool {
        let ended = self.ended.iter().map(|(_, report)| report);
        let mut all = ended.chain(&self.over);
        all.any(|report| report.outcome != TaskOutcome::Done)
    }

    fn change(&mut self, run: &RunId, task: &TaskId, change: TaskChange) {
        self.writes.push(Write::TaskUpdated {
            run: run.clone(),
            task: task.clone(),
            at_us: now_us(),
            change,
        });
    }

    fn end(&mut self, report: TaskReport) {
        let detail = report.detail.as_ref().map_or("", UntrustedText::raw);
        let change = TaskChange::Ended {
            outcome: report.outcome,
            detail: detail.to_owned(),
            result: report.as_column(),
        };
        self.change(&report.run, &report.task, change);
        self.over.push(Arc::new(report));
    }
}

impl UnfinishedTask {
    fn new(pool: PoolName, spec: TaskSpec, row: StoredTask, attempts: Vec<AttemptRecord>) -> Self {
        let mut past = PriorAttempts {
            queued_at_us: row.queued_at_us,
            sent: row.attempts,
            lost: lost_count(&attempts),
            ..PriorAttempts::default()
        };
        if let Some(last) = attempts.last() {
            let slot = row.slot.map(|index| SlotId {
                pool: pool.clone(),
                index,
            });
            past.last = slot.map(|slot| (slot, last.session.clone()));
            past.copy.clone_from(&last.copy);
            past.bundle.clone_from(&last.bundle);
            past.repos.clone_from(&last.repos);
            past.branch.clone_from(&last.branch);
            past.check = last.check.as_ref().map(CheckResult::passed);
            past.remark.clone_from(&last.remark);
            let landing = last.landing.as_ref();
            past.landed = landing.and_then(LandingResult::commit).cloned();
        }
        past.begun = row.begun_at_us.and_then(|at_us| {
            let ago = u64::try_from(now_us().saturating_sub(at_us)).unwrap_or(0);
            clock::now().checked_sub(Duration::from_micros(ago))
        });
        let last_at_us = attempts.last().and_then(|last| last.last_at_us);
        let mut tally = Tally::default();
        for attempt in attempts {
            tally.add(attempt.tally);
        }
        past.tally = tally;
        Self {
            pool,
            spec,
            row,
            past,
            last_at_us,
        }
    }

    /// The report of this task, which ends now.
    fn into_report(self, run: &RunId, outcome: TaskOutcome, why: Option<String>) -> TaskReport {
        let (unused_sender, _) = mpsc::channel(1);
        let open = OpenTasks::new(1, false);
        let worked = self
            .row
            .begun_at_us
            .zip(self.last_at_us)
            .and_then(|(from, to)| u64::try_from(to.saturating_sub(from)).ok());
        let task = ActiveTask::new(run.clone(), self.spec, 1, unused_sender, open)
            .with_prior_attempts(self.past);
        let (mut report, _) = task.into_report(&self.pool, outcome, why);
        report.took = Duration::from_micros(worked.unwrap_or(0));
        report
    }
}

/// How often a task's prompt may be sent.
fn attempts_of(entry: Option<&PoolEntry>, spec: &TaskSpec) -> u32 {
    let configured = entry.map(|entry| entry.shared.config.options.attempts);
    spec.attempts.or(configured).unwrap_or(1)
}

/// Chooses the action for a task that has not ended. `entry` is its pool, if it still exists.
fn choose_resume_action(
    entry: Option<&PoolEntry>,
    spec: &TaskSpec,
    row: &StoredTask,
    attempts: &[AttemptRecord],
) -> ResumeAction {
    if row.state != RUNNING {
        let missing = || {
            format!(
                "there is no pool {} in the configuration any more",
                row.pool
            )
        };
        return match entry {
            Some(_) => ResumeAction::Queue,
            None => ResumeAction::End(TaskOutcome::Failed, Some(missing())),
        };
    }
    let config = entry.map(|entry| &entry.shared.config);
    let check = spec.check.as_ref().or(config.map(|config| &config.check));
    let has_check = check.is_some_and(|argv| !argv.is_empty());
    let (sent, limit) = (row.attempts, attempts_of(entry, spec));
    let may_retry = |lost| entry.is_some() && may_be_sent_again(sent, lost, limit);
    let retries = config.is_some_and(|config| config.restart.on_crash == OnCrash::Retry);
    let lost = lost_count(attempts);
    match last_outcome(attempts.last(), has_check) {
        (TaskOutcome::Cancelled, _, Some(why)) if retries && why == INTERRUPTED_BY_STOP => {
            ResumeAction::Retry
        }
        (TaskOutcome::Lost, _, _) if retries && may_retry(lost.max(1)) => ResumeAction::Retry,
        (_, true, _) if may_retry(lost) => ResumeAction::Retry,
        (outcome, _, why) => {
            let remark = || config.and_then(|config| unmade_branch(config, attempts.last()?));
            ResumeAction::End(outcome, why.or_else(remark))
        }
    }
}

/// What is to be said of a clone whose branch the supervisor did not live to make.
fn unmade_branch(config: &Pool, last: &AttemptRecord) -> Option<String> {
    let is_clone = config.workspace.mode == WorkspaceMode::Worktree;
    let clone = last
        .copy
        .as_ref()
        .filter(|_| is_clone && last.bundle.is_none() && !last.is_without_commits)?;
    let clone = escape_for_display(&clone.display().to_string(), 400);
    Some(format!(
        "the supervisor ended before it looked for new commits; the clone is at {clone}"
    ))
}

/// How many of the attempts ended in a crash; one that the supervisor's end cut short counts too.
fn lost_count(attempts: &[AttemptRecord]) -> u32 {
    let is_lost = |attempt: &&AttemptRecord| match &attempt.turn {
        None | Some((TurnOutcome::Lost, _)) => true,
        Some(_) => false,
    };
    u32::try_from(attempts.iter().filter(is_lost).count()).unwrap_or(u32::MAX)
}

/// The state of a task whose prompt was accepted: its known outcome, whether its check failed, and
/// the detail. A turn whose end is durable counts as ended, whatever was left to do after it. Only
/// a check that did not end makes the task lost.
fn last_outcome(
    last: Option<&AttemptRecord>,
    has_check: bool,
) -> (TaskOutcome, bool, Option<String>) {
    let lost = |why: Option<String>| (TaskOutcome::Lost, false, why);
    let Some((last, (turn, why))) = last.and_then(|last| Some((last, last.turn.as_ref()?))) else {
        return lost(Some(LOST.to_owned()));
    };
    if *turn == TurnOutcome::Lost {
        return lost(why.clone().or_else(|| Some(LOST.to_owned())));
    }
    if *turn == TurnOutcome::Completed && has_check && last.check.is_none() {
        return lost(Some(
            "the supervisor ended before the check ended".to_owned(),
        ));
    }
    if *turn == TurnOutcome::Completed
        && let Some(path) = &last.quarantined
    {
        let path = path.escape_for_display(200);
        let why = format!(
            "{path} appeared, which other programs obey; it was taken out of the workspace"
        );
        return (TaskOutcome::Failed, false, Some(why));
    }
    if let Some(why) = last.landing.as_ref().and_then(LandingResult::fault) {
        return (TaskOutcome::Failed, false, Some(why));
    }
    let check_failed = last.check.as_ref().filter(|check| !check.passed());
    let passed = last.check.as_ref().map(CheckResult::passed);
    let outcome = outcome::from_turn(*turn, &last.tally, passed, false);
    let why = match (outcome, check_failed) {
        (TaskOutcome::Failed, Some(check)) => Some(check.describe()),
        (TaskOutcome::Done, _) => None,
        _ => why.clone(),
    };
    let is_check = outcome == TaskOutcome::Failed && check_failed.is_some();
    (outcome, is_check, why)
}
