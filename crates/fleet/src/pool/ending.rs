//! The end of an attempt: the next state of its slot and the end or retry of its task.

use std::sync::Arc;
use std::time::Duration;

use super::shares::WorkKind;
use super::slot::RetainedSession;
use super::state::PoolState;
use super::task::{self, ActiveTask};
use crate::channel::ChannelEnd;
use crate::clock::{self, now_us};
use crate::fleet_event::{FleetEvent, SlotView, TaskReport};
use crate::messages::PoolMsg;
use crate::notification::Notification;
use crate::session::Attempt;
use crate::setup::Shared;
use marshal_config::OnCrash;
use marshal_dialect::lifecycle::restart::{self, RestartDecision};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::{Commit, Refusal, TaskChange, Write};
use marshal_model::limits::LANDING_ROUNDS;
use marshal_model::{
    ExitClass, ExitStatus, PoolName, RunId, TaskOutcome, TurnOutcome, UntrustedText,
};
use marshal_telemetry::event::child::{ChildRestarted, SlotParked};
use marshal_telemetry::event::task::{TaskEnded, TaskLocation, TaskQueued};
use marshal_telemetry::labels::RestartCause;

impl PoolState {
    /// A session ended its attempt: updates the slot, then ends or requeues the task.
    pub(super) fn attempt_ended(&mut self, attempt: &Attempt) {
        let index = attempt.index;
        let Some(slot) = self.slot(index) else { return };
        if slot.work.as_ref().map(|work| &work.session) != Some(&attempt.session) {
            return;
        }
        let Some(assignment) = slot.work.take() else {
            return;
        };
        let mut task = assignment.task;
        if attempt.begun {
            task.sent += 1;
        }
        let slot_id = slot.id.clone();
        if slot.conversation.is_none() {
            self.shares.end(WorkKind::Task, clock::now());
        }
        let code = attempt.end.as_ref().and_then(|end| end.status);
        let idle = attempt.idle_session.as_ref();
        self.shared.slots.update(&slot_id, |view| {
            view.task = None;
            // The view keeps an idle session, so that no sweep removes its home and copy.
            if idle.is_none() {
                view.session = None;
            }
            if idle.is_none_or(|idle| !idle.has_child) {
                view.pid = None;
            }
            view.last_exit_code = code.map(ExitStatus::shell_code).or(view.last_exit_code);
        });
        if let Some(stored) = &attempt.given_back {
            self.slots[usize::from(index)].retained = Some(RetainedSession::Stored(stored.clone()));
            let session = Some(stored.session.clone());
            let change = |view: &mut SlotView| view.session = session;
            self.shared.slots.update(&slot_id, change);
        }
        if attempt.idle_session.is_some() {
            self.slots[usize::from(index)].retained = Some(RetainedSession::Idle {
                actor: assignment.actor,
                session: attempt.session.clone(),
            });
        }
        if attempt.turn == Some(TurnOutcome::Completed) {
            self.slots[usize::from(index)].history.turn_completed();
        }
        let has_child = idle.is_some_and(|idle| idle.has_child);
        // A conversation's prompt is not requeued on a rate limit: its person waits and sees the
        // error.
        let in_conversation = self.slots[usize::from(index)].conversation.is_some();
        let limit = attempt.limit.filter(|_| !Self::must_not_retry(&task));
        let (limit, conversation_limit) = if in_conversation {
            (None, limit)
        } else {
            (limit, None)
        };
        if let Some(limit) = conversation_limit {
            self.pause_for(&slot_id, limit);
        }
        let action = match &attempt.end {
            // A child that ends because of a rate limit is no failure of its slot.
            Some(_) if limit.is_some() => {
                self.apply_slot_event(index, SlotEvent::GoneToRest, None);
                ChildEndAction::default()
            }
            Some(end) => self.handle_child_end(index, end),
            None if has_child => ChildEndAction::default(),
            None => {
                self.apply_slot_event(index, SlotEvent::GoneToRest, None);
                ChildEndAction::default()
            }
        };
        let action = match &attempt.park_reason {
            Some(why) if !has_child && action.park_reason.is_none() => {
                self.park_slot_for_budget(index, why);
                action
            }
            _ => action,
        };
        task.add_attempt(&slot_id, attempt);
        if let Some(after) = action.backoff {
            task.restarts += 1;
            task.backoff += after;
        }
        let approval = attempt
            .awaits_approval
            .clone()
            .filter(|_| !Self::must_not_retry(&task));
        if self.goes_back_to_its_agent(&task, attempt) {
            return self.send_back(index, task, attempt);
        }
        let is_sent_again = if let Some(approval) = approval {
            self.requeue_for_approval(index, task, approval);
            false
        } else if let Some(limit) = limit {
            self.handle_rate_limit(task, &slot_id, &attempt.session, limit);
            false
        } else {
            self.finish_probe(attempt);
            self.finish_or_retry_task(task, attempt, action.park_reason)
        };
        if let Some(idle) = idle {
            self.keep_or_close_session(index, idle, attempt.end.is_some(), is_sent_again);
        }
        self.notify_restart_waiters(index, has_child);
    }

    /// Notifies the callers of a restart that the old child has ended; nothing while one runs.
    pub(super) fn notify_restart_waiters(&mut self, index: u16, has_child: bool) {
        let waiting = self
            .slot(index)
            .filter(|_| !has_child)
            .map(|slot| std::mem::take(&mut slot.restart_waiters));
        for done in waiting.into_iter().flatten() {
            let _ = done.send(());
        }
    }

    /// Decides on a restart after a child's end: backoff, park or nothing.
    pub(super) fn handle_child_end(&mut self, index: u16, end: &ChannelEnd) -> ChildEndAction {
        let now = clock::now();
        let restart = self.pool.config.restart.clone();
        let slot = &mut self.slots[usize::from(index)];
        let by_hand = !slot.restart_waiters.is_empty();
        let lifetime = slot.spawned_at.take().map_or(Duration::ZERO, |at| now - at);
        if end.class.is_requested() || by_hand || self.is_draining {
            if by_hand {
                self.log_restart(index, RestartCause::Manual, Duration::ZERO);
            }
            self.apply_slot_event(index, SlotEvent::GoneToRest, None);
            return ChildEndAction::default();
        }
        slot.down_since.get_or_insert(now);
        // No failure of the agent: it only does not have that session, which ends.
        if end.not_resumed {
            self.apply_slot_event(index, SlotEvent::GoneToRest, None);
            return ChildEndAction::default();
        }
        let failure = restart::ChildEnd {
            class: end.class,
            status: end.status,
            was_ready: end.was_ready,
            is_unrecoverable: end.is_permanent,
            lifetime,
            detail: end.detail.clone(),
        };
        let random = self.shared.ambient.random_fraction();
        let decision = restart::decide_restart(&mut slot.history, &failure, &restart, now, random);
        self.submit_write(Write::SlotFailure {
            slot: self.slots[usize::from(index)].id.clone(),
            class: end.class,
            at_us: now_us(),
            detail: end.detail.clone(),
        });
        match decision {
            RestartDecision::Start { after } => {
                self.log_restart(index, cause(end.class), after);
                self.start_backoff(index, after, &end.detail);
                ChildEndAction {
                    backoff: Some(after),
                    park_reason: None,
                }
            }
            RestartDecision::Park { reason } => {
                self.submit_write(Write::SlotParked {
                    slot: self.slots[usize::from(index)].id.clone(),
                    class: end.class,
                    at_us: now_us(),
                    reason: reason.clone(),
                });
                SlotParked {
                    slot: &self.slots[usize::from(index)].id,
                    class: end.class,
                    reason: &reason,
                }
                .emit();
                self.shared.hooks.notify(&Notification::SlotParked {
                    slot: self.slots[usize::from(index)].id.clone(),
                    class: end.class,
                    reason: UntrustedText::new(reason.clone()),
                });
                self.apply_slot_event(index, SlotEvent::Parked, Some(reason.clone()));
                ChildEndAction {
                    backoff: None,
                    park_reason: Some(reason),
                }
            }
            RestartDecision::NoRestart => {
                self.apply_slot_event(index, SlotEvent::GoneToRest, None);
                ChildEndAction::default()
            }
        }
    }

    pub(super) fn log_restart(&self, index: u16, cause: RestartCause, delay: Duration) {
        let slot = &self.slots[usize::from(index)];
        let spent = slot.history.ages(clock::now()).count();
        let budget = self.pool.config.restart.budget;
        ChildRestarted {
            slot: &slot.id,
            cause,
            delay,
            budget_left: budget.saturating_sub(u32::try_from(spent).unwrap_or(u32::MAX)),
        }
        .emit();
    }

    pub(super) fn start_backoff(&mut self, index: u16, after: Duration, why: &str) {
        let slot = &mut self.slots[usize::from(index)];
        slot.round += 1;
        let round = slot.round;
        self.apply_slot_event(index, SlotEvent::GoneToBackoff, Some(why.to_owned()));
        let to = self.myself.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = to.send_message(PoolMsg::BackoffEnded { index, round });
        });
    }

    pub(super) fn backoff_ended(&mut self, index: u16, round: u64) {
        if self.slot(index).is_some_and(|slot| slot.round == round) {
            self.apply_slot_event(index, SlotEvent::BackoffOver, None);
            self.restart_permanent_child(index);
        }
    }

    /// Ends the task or requeues it; `true` if its prompt is sent again, in a new session.
    pub(super) fn finish_or_retry_task(
        &mut self,
        mut task: ActiveTask,
        attempt: &Attempt,
        parked: Option<String>,
    ) -> bool {
        let closing = Self::must_not_retry(&task);
        let more = task.may_be_sent_again() && !closing;
        // Nothing of a conversation is sent again: its person sees the end and decides.
        let retries = self.pool.config.restart.on_crash == OnCrash::Retry
            && self.slots[usize::from(attempt.index)]
                .conversation
                .is_none();
        let again = match task::classify_attempt(attempt, closing, task.is_interrupted) {
            task::AttemptResult::Ended(outcome, why) => {
                self.end_task(task, outcome, why);
                return false;
            }
            task::AttemptResult::NotStarted => match parked {
                // Another slot would probably park for the same reason, so the task ends with it.
                Some(reason) => {
                    self.end_task(task, TaskOutcome::Failed, Some(reason));
                    return false;
                }
                None => false,
            },
            task::AttemptResult::Interrupted(why) if !retries => {
                self.end_task(task, TaskOutcome::Cancelled, Some(why));
                return false;
            }
            task::AttemptResult::Interrupted(_) => {
                task.sent = task.sent.saturating_sub(1);
                true
            }
            task::AttemptResult::Lost(why) => {
                task.lost += 1;
                if !retries || closing || !task.may_be_sent_again() {
                    self.end_task(task, TaskOutcome::Lost, Some(why));
                    return false;
                }
                true
            }
            task::AttemptResult::CheckFailed(why) => {
                if !more {
                    self.end_task(task, TaskOutcome::Failed, Some(why));
                    return false;
                }
                true
            }
            // Another agent begins with what landed meanwhile.
            task::AttemptResult::NotLanded(why) => {
                let can_be_repaired = Self::follow_up(&task, attempt).is_some();
                if closing || !can_be_repaired || task.landing_rounds >= LANDING_ROUNDS {
                    self.end_task(task, TaskOutcome::Failed, Some(why));
                    return false;
                }
                task.landing_rounds += 1;
                true
            }
        };
        self.requeue_task(attempt.index, task);
        again
    }

    /// Whether the agent is told why its work did not land: in the same session, whose child runs.
    fn goes_back_to_its_agent(&self, task: &ActiveTask, attempt: &Attempt) -> bool {
        let has_child = attempt.end.is_none()
            && attempt
                .idle_session
                .as_ref()
                .is_some_and(|idle| idle.has_child);
        let slot = &self.slots[usize::from(attempt.index)];
        has_child
            && slot.is_idle()
            && !self.stopping
            && !self.is_draining
            && !Self::must_not_retry(task)
            && task.landing_rounds < LANDING_ROUNDS
            && Self::follow_up(task, attempt).is_some()
    }

    fn follow_up(task: &ActiveTask, attempt: &Attempt) -> Option<String> {
        let onto = task.spec.land.as_deref()?;
        match (&attempt.survey.landing, &attempt.check) {
            (Some(landing), _) => landing.prompt(onto),
            (None, Some(check)) => check.prompt(),
            (None, None) => None,
        }
    }

    /// Prompts the session of the task once more.
    fn send_back(&mut self, index: u16, mut task: ActiveTask, attempt: &Attempt) {
        task.landing_rounds += 1;
        task.follow_up = Self::follow_up(&task, attempt);
        self.submit_write(Write::TaskUpdated {
            run: task.run.clone(),
            task: task.spec.id.clone(),
            at_us: now_us(),
            change: TaskChange::Requeued {
                attempts: task.sent,
            },
        });
        self.assign(index, task);
    }

    /// Whether this task must end now instead of being sent again.
    pub(super) fn must_not_retry(task: &ActiveTask) -> bool {
        task.cancelled || task.open_tasks.is_over()
    }

    /// Journals that a task is queued again, and puts it before the others of its priority.
    pub(super) fn requeue_task(&mut self, index: u16, mut task: ActiveTask) {
        self.submit_write(Write::TaskUpdated {
            run: task.run.clone(),
            task: task.spec.id.clone(),
            at_us: now_us(),
            change: TaskChange::Requeued {
                attempts: task.sent,
            },
        });
        TaskQueued {
            pool: &self.pool.config.name,
            task: &task.spec.id,
        }
        .emit();
        task.queued = clock::now();
        // Another session gets the task itself.
        task.follow_up = None;
        task.job_permit = None;
        if task.open_tasks.is_suspended() {
            return self.leave_task(&task);
        }
        self.requeue_front(index, task);
    }

    pub(super) fn end_task(&self, task: ActiveTask, outcome: TaskOutcome, why: Option<String>) {
        self.end_tasks(vec![(task, outcome, why)], TaskLocation::Slot);
    }

    /// Ends tasks in one commit; their ends are published only when they are durable.
    pub(super) fn end_tasks(&self, tasks: Vec<TaskEnd>, from: TaskLocation) {
        if tasks.is_empty() {
            return;
        }
        self.pool.release_tasks(tasks.len());
        let mut writes = Vec::with_capacity(tasks.len());
        let mut reports = Vec::with_capacity(tasks.len());
        let mut runs = Vec::new();
        let mut paused = Vec::new();
        for (task, outcome, why) in tasks {
            TaskEnded {
                pool: &self.pool.config.name,
                task: &task.spec.id,
                outcome,
                detail: &UntrustedText::new(why.clone().unwrap_or_default())
                    .escape_for_display(300),
                from,
            }
            .emit();
            let open_tasks = Arc::clone(&task.open_tasks);
            let progress = open_tasks.record_end(&self.pool.config.name, outcome);
            let (report, sender) = task.into_report(&self.pool.config.name, outcome, why);
            let detail = report.detail.as_ref().map(|detail| detail.raw().to_owned());
            writes.push(Write::TaskUpdated {
                run: report.run.clone(),
                task: report.task.clone(),
                at_us: now_us(),
                change: TaskChange::Ended {
                    outcome,
                    detail: detail.unwrap_or_default(),
                    result: report.as_column(),
                },
            });
            // In a run that spans pools, this commit may come before the commit with the end of
            // another pool's task. That is safe: a run with an open task counts as unfinished.
            if progress.is_paused_now {
                paused.push((PausedRun::after(&report), open_tasks));
            }
            if let Some(summary) = progress.ended {
                writes.push(Write::RunEnded {
                    run: report.run.clone(),
                    at_us: now_us(),
                    code: summary.code(),
                });
                runs.push(summary.into_notification(report.run.clone()));
            }
            reports.push((Arc::new(report), sender));
        }
        let shared = Arc::clone(&self.shared);
        let commit = Commit::new(writes).with_callback(move |_| {
            // Before the last report, because its receiver may stop the fleet.
            for run in &runs {
                shared.hooks.notify(run);
            }
            for (report, sender) in reports {
                shared
                    .dependencies
                    .record_outcome(&report.run, &report.task, report.outcome);
                shared.notify_subscribers(FleetEvent::TaskEnded(Arc::clone(&report)));
                // The channel has capacity for every task of the run.
                let _ = sender.try_send(report);
            }
            for (run, open_tasks) in paused {
                shared.paused_runs.add(run.run.clone(), open_tasks);
                shared.announce_pause(run);
            }
        });
        self.submit_commit(commit);
    }

    pub(super) fn submit_write(&self, write: Write) {
        self.submit_commit(Commit::new(vec![write]));
    }

    /// Submits a commit to the journal; retries a refused one until it is accepted.
    fn submit_commit(&self, commit: Commit) {
        let Err(refused) = self.shared.journal.submit(commit) else {
            return;
        };
        let journal = self.shared.journal.clone();
        tokio::spawn(async move {
            let mut refused = refused;
            while refused.reason != Refusal::Closed {
                tokio::time::sleep(RETRY_DELAY).await;
                match journal.submit(*refused.commit) {
                    Ok(()) => return,
                    Err(again) => refused = again,
                }
            }
            tracing::error!("state changes of a pool were not journalled: the journal is closed");
        });
    }
}

/// A run whose tasks are denied one after the other: a person should look at the policy.
struct PausedRun {
    run: RunId,
    pool: PoolName,
    rules: Vec<String>,
}

impl PausedRun {
    /// The run is paused after this task.
    fn after(last: &TaskReport) -> Self {
        Self {
            run: last.run.clone(),
            pool: last.pool.clone(),
            rules: last.denied_by.clone(),
        }
    }
}

impl Shared {
    fn announce_pause(&self, paused: PausedRun) {
        let PausedRun { run, pool, rules } = paused;
        tracing::warn!(run = %run, "the run is paused: its last tasks were denied");
        self.hooks.notify(&Notification::RunPaused {
            run: run.clone(),
            pool: pool.clone(),
            rules: rules.clone(),
        });
        self.notify_subscribers(FleetEvent::RunPaused { run, pool, rules });
    }
}

/// The decision after a child's end.
#[derive(Debug, Default)]
pub(super) struct ChildEndAction {
    /// The backoff before the slot's next child.
    pub(super) backoff: Option<Duration>,
    /// Why the slot was parked, if it was.
    pub(super) park_reason: Option<String>,
}

/// An ended task with its outcome and detail.
pub(super) type TaskEnd = (ActiveTask, TaskOutcome, Option<String>);

/// The end of a queued task: `skipped` if its prompt was never sent, else `lost`.
pub(super) fn end_unstarted(task: ActiveTask, why: &str) -> TaskEnd {
    let outcome = match task.sent {
        0 => TaskOutcome::Skipped,
        _ => TaskOutcome::Lost,
    };
    (task, outcome, Some(why.to_owned()))
}

/// The delay before a refused commit is submitted again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The label of `marshal_child_restarts_total{cause}`.
const fn cause(class: ExitClass) -> RestartCause {
    match class {
        ExitClass::OutOfMemory => RestartCause::Oom,
        ExitClass::HandshakeTimeout => RestartCause::Hang,
        ExitClass::ProtocolFault | ExitClass::NeedsSetup | ExitClass::VersionRefused => {
            RestartCause::Protocol
        }
        ExitClass::SpawnFailed => RestartCause::Spawn,
        _ => RestartCause::Crash,
    }
}
