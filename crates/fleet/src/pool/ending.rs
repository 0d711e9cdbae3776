//! What becomes of a slot and of a task when an attempt is over.

use std::sync::Arc;
use std::time::Duration;

use super::PoolMsg;
use super::slot::RetainedSession;
use super::state::PoolState;
use super::task::{self, ActiveTask};
use crate::channel::ChannelEnd;
use crate::clock::{self, now_us};
use crate::fleet_event::{FleetEvent, SlotView};
use crate::notification::Notification;
use crate::session::Attempt;
use marshal_config::OnCrash;
use marshal_dialect::lifecycle::restart::{self, RestartDecision};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::{Commit, Refusal, TaskChange, Write};
use marshal_model::{ExitClass, ExitStatus, TaskOutcome, TurnOutcome, UntrustedText};
use marshal_telemetry::event::child::{ChildRestarted, SlotParked};
use marshal_telemetry::event::task::{TaskEnded, TaskLocation, TaskQueued};
use marshal_telemetry::labels::RestartCause;

impl PoolState {
    /// A session is over: what of its slot, and what of its task?
    pub(super) fn attempt_ended(&mut self, attempt: &Attempt) {
        let index = attempt.index;
        let Some(slot) = self.slot(index) else { return };
        if slot.work.as_ref().map(|work| &work.session) != Some(&attempt.session) {
            return;
        }
        let Some(occupied) = slot.work.take() else {
            return;
        };
        let mut task = occupied.task;
        if attempt.begun {
            task.sent += 1;
        }
        let slot_id = slot.id.clone();
        let code = attempt.end.as_ref().and_then(|end| end.status);
        let stays = attempt.idle_session.as_ref();
        self.shared.slots.update(&slot_id, |view| {
            view.task = None;
            // A session that waits still needs its home and copy.
            if stays.is_none() {
                view.session = None;
            }
            if stays.is_none_or(|stays| !stays.has_child) {
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
                actor: occupied.actor,
                session: attempt.session.clone(),
            });
        }
        if attempt.turn == Some(TurnOutcome::Completed) {
            self.slots[usize::from(index)].history.turn_completed();
        }
        let has_child = stays.is_some_and(|stays| stays.has_child);
        // A person who waits for an answer is told of the limit instead.
        let is_held = self.slots[usize::from(index)].conversation.is_some();
        let limit = attempt.limit.filter(|_| !self.must_not_retry(&task));
        let (limit, told) = if is_held {
            (None, limit)
        } else {
            (limit, None)
        };
        if let Some(told) = told {
            self.pause_for(&slot_id, told);
        }
        let follows = match &attempt.end {
            // A child that ends because its provider limits requests is no failure of its slot.
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
        let follows = match &attempt.park_reason {
            Some(why) if !has_child && follows.park_reason.is_none() => {
                self.park_slot_for_budget(index, why);
                follows
            }
            _ => follows,
        };
        task.add_attempt(&slot_id, attempt);
        if let Some(after) = follows.backoff {
            task.restarts += 1;
            task.backoff += after;
        }
        let waits = attempt
            .awaits_approval
            .clone()
            .filter(|_| !self.must_not_retry(&task));
        let is_sent_again = if let Some(approval) = waits {
            self.requeue_for_approval(index, task, approval);
            false
        } else if let Some(limit) = limit {
            self.handle_rate_limit(task, &slot_id, &attempt.session, limit);
            false
        } else {
            self.finish_probe(attempt);
            self.finish_or_retry_task(task, attempt, follows.park_reason)
        };
        if let Some(stays) = stays {
            self.keep_or_close_session(index, stays, attempt.end.is_some(), is_sent_again);
        }
        self.notify_restart_waiters(index, has_child);
    }

    /// Tells who waits for the old child's end.
    pub(super) fn notify_restart_waiters(&mut self, index: u16, has_child: bool) {
        let waiting = self
            .slot(index)
            .filter(|_| !has_child)
            .map(|slot| std::mem::take(&mut slot.restart_waiters));
        for done in waiting.into_iter().flatten() {
            let _ = done.send(());
        }
    }

    /// Restart decision.
    pub(super) fn handle_child_end(&mut self, index: u16, end: &ChannelEnd) -> ChildEndAction {
        let now = clock::now();
        let restart = self.pool.config.restart.clone();
        let slot = &mut self.slots[usize::from(index)];
        let by_hand = !slot.restart_waiters.is_empty();
        let lived = slot.spawned_at.take().map_or(Duration::ZERO, |at| now - at);
        if end.class.is_requested() || by_hand || self.stopping || self.cancelled {
            if by_hand {
                self.log_restart(index, RestartCause::Manual, Duration::ZERO);
            }
            self.apply_slot_event(index, SlotEvent::GoneToRest, None);
            return ChildEndAction::default();
        }
        slot.down_since.get_or_insert(now);
        // Nothing is wrong with the agent: it only does not have that session, which is over.
        if end.not_resumed {
            self.apply_slot_event(index, SlotEvent::GoneToRest, None);
            return ChildEndAction::default();
        }
        let failure = restart::ChildEnd {
            class: end.class,
            status: end.status,
            was_ready: end.was_ready,
            is_unrecoverable: end.is_permanent,
            lifetime: lived,
            detail: end.detail.clone(),
        };
        let random = self.shared.ambient.random_fraction();
        let next = restart::decide_restart(&mut slot.history, &failure, &restart, now, random);
        self.submit_write(Write::SlotFailure {
            slot: self.slots[usize::from(index)].id.clone(),
            class: end.class,
            at_us: now_us(),
            detail: end.detail.clone(),
        });
        match next {
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

    /// Ends the task or puts it back; `true` if it is to be sent again, in a fresh session.
    pub(super) fn finish_or_retry_task(
        &mut self,
        task: ActiveTask,
        attempt: &Attempt,
        parked: Option<String>,
    ) -> bool {
        let closing = self.must_not_retry(&task);
        let more = task.sent < task.attempts && !closing;
        let again = match task::classify_attempt(attempt, closing) {
            task::AttemptResult::Ended(outcome, why) => {
                self.end_task(task, outcome, why);
                return false;
            }
            task::AttemptResult::NotStarted => match parked {
                // Nobody else should suffer what parked this slot: the task ends with its reason.
                Some(reason) => {
                    self.end_task(task, TaskOutcome::Failed, Some(reason));
                    return false;
                }
                None => false,
            },
            task::AttemptResult::Lost(why) => {
                let retry = self.pool.config.restart.on_crash == OnCrash::Retry && more;
                if !retry {
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
        };
        self.requeue_task(attempt.index, task);
        again
    }

    /// Whether this task is not sent again, whatever became of it.
    pub(super) fn must_not_retry(&self, task: &ActiveTask) -> bool {
        self.cancelled || self.stopping || task.cancelled || task.open_tasks.is_over()
    }

    /// Puts a task back before those that wait with it.
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
        task.job_permit = None;
        self.requeue_front(index, task);
    }

    pub(super) fn end_task(&self, task: ActiveTask, outcome: TaskOutcome, why: Option<String>) {
        self.end_tasks(vec![(task, outcome, why)], TaskLocation::Slot);
    }

    /// Ends tasks, in one commit: their ends are told only when they are durable.
    pub(super) fn end_tasks(&self, tasks: Vec<TaskEnd>, from: TaskLocation) {
        if tasks.is_empty() {
            return;
        }
        self.pool.release_tasks(tasks.len());
        let mut writes = Vec::with_capacity(tasks.len());
        let mut told = Vec::with_capacity(tasks.len());
        let mut runs = Vec::new();
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
            let over = task.open_tasks.record_end(&self.pool.config.name, outcome);
            let (report, tell) = task.into_report(&self.pool.config.name, outcome, why);
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
            // A run that spans pools may get its end before a task of another pool has: a run with
            // an open task counts as unfinished all the same.
            if let Some(over) = over {
                writes.push(Write::RunEnded {
                    run: report.run.clone(),
                    at_us: now_us(),
                    code: over.code(),
                });
                runs.push(over.into_notification(report.run.clone()));
            }
            told.push((Arc::new(report), tell));
        }
        let shared = Arc::clone(&self.shared);
        let commit = Commit::new(writes).with_callback(move |_| {
            // Before the last report: who has that may end the fleet.
            for run in &runs {
                shared.hooks.notify(run);
            }
            for (report, tell) in told {
                shared
                    .dependencies
                    .record_outcome(&report.run, &report.task, report.outcome);
                shared.notify_subscribers(FleetEvent::TaskEnded(Arc::clone(&report)));
                // Its channel has a place for every task of its run.
                let _ = tell.try_send(report);
            }
        });
        self.submit_commit(commit);
    }

    pub(super) fn submit_write(&self, write: Write) {
        self.submit_commit(Commit::new(vec![write]));
    }

    /// Gives a commit to the journal; one that is refused is offered again until it is taken.
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
            tracing::error!("rows were not journalled: the journal is closed");
        });
    }
}

/// What follows on a child's end.
#[derive(Debug, Default)]
pub(super) struct ChildEndAction {
    /// The slot's next child waits for so long.
    pub(super) backoff: Option<Duration>,
    /// A person must look, and why.
    pub(super) park_reason: Option<String>,
}

/// A task at its end: how, and why.
pub(super) type TaskEnd = (ActiveTask, TaskOutcome, Option<String>);

/// The end of a task that waits: `skipped` if it never began, else what its last attempt was.
pub(super) fn end_unstarted(task: ActiveTask, why: &str) -> TaskEnd {
    let outcome = match task.sent {
        0 => TaskOutcome::Skipped,
        _ => TaskOutcome::Lost,
    };
    (task, outcome, Some(why.to_owned()))
}

/// How long to wait before offering a refused commit again.
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
