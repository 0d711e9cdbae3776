//! What becomes of a slot and of a task when an attempt is over.

use std::sync::Arc;
use std::time::Duration;

use super::PoolMsg;
use super::slot::Kept;
use super::state::PoolState;
use super::task::{self, ActiveTask};
use crate::config::OnCrash;
use crate::fleet::channel::ChannelEnd;
use crate::fleet::clock::{self, now_us};
use crate::fleet::notice::{Notice, SlotView};
use crate::fleet::session::Attempt;
use crate::fleet::told::Told;
use crate::journal::{Commit, Refusal, TaskChange, Write};
use crate::lifecycle::restart::{self, Next};
use crate::lifecycle::state::SlotEvent;
use crate::model::{ExitClass, ExitStatus, Foreign, TaskOutcome, TurnOutcome};
use crate::telemetry::event::child::{ChildRestarted, SlotParked};
use crate::telemetry::event::task::{EndedFrom, TaskEnded, TaskQueued};
use crate::telemetry::sets::RestartCause;

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
        let stays = attempt.stays.as_ref();
        self.shared.slots.change(&slot_id, |view| {
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
            self.slots[usize::from(index)].kept = Some(Kept::Stored(stored.clone()));
            let session = Some(stored.session.clone());
            let change = |view: &mut SlotView| view.session = session;
            self.shared.slots.change(&slot_id, change);
        }
        if attempt.stays.is_some() {
            self.slots[usize::from(index)].kept = Some(Kept::Waiting {
                actor: occupied.actor,
                session: attempt.session.clone(),
            });
        }
        if attempt.turn == Some(TurnOutcome::Completed) {
            self.slots[usize::from(index)].history.turn_completed();
        }
        let has_child = stays.is_some_and(|stays| stays.has_child);
        // A person who waits for an answer is told of the limit instead.
        let is_held = self.slots[usize::from(index)].held.is_some();
        let limit = attempt.limit.filter(|_| !self.is_closing(&task));
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
                self.change(index, SlotEvent::GoneToRest, None);
                Follows::default()
            }
            Some(end) => self.child_ended(index, end),
            None if has_child => Follows::default(),
            None => {
                self.change(index, SlotEvent::GoneToRest, None);
                Follows::default()
            }
        };
        let follows = match &attempt.parks {
            Some(why) if !has_child && follows.parked.is_none() => {
                self.park_for_budget(index, why);
                follows
            }
            _ => follows,
        };
        task.take_in(&slot_id, attempt);
        if let Some(after) = follows.backoff {
            task.restarts += 1;
            task.backoff += after;
        }
        let waits = attempt.waits.clone().filter(|_| !self.is_closing(&task));
        let is_sent_again = if let Some(ask) = waits {
            self.released(index, task, ask);
            false
        } else if let Some(limit) = limit {
            self.limited(task, &slot_id, &attempt.session, limit);
            false
        } else {
            self.tried(attempt);
            self.what_of_the_task(task, attempt, follows.parked)
        };
        if let Some(stays) = stays {
            self.what_of_the_session(index, stays, attempt.end.is_some(), is_sent_again);
        }
        self.old_child_is_gone(index, has_child);
    }

    /// Tells who waits for the old child's end.
    pub(super) fn old_child_is_gone(&mut self, index: u16, has_child: bool) {
        let waiting = self
            .slot(index)
            .filter(|_| !has_child)
            .map(|slot| std::mem::take(&mut slot.restarted));
        for done in waiting.into_iter().flatten() {
            let _ = done.send(());
        }
    }

    /// Restart decision.
    pub(super) fn child_ended(&mut self, index: u16, end: &ChannelEnd) -> Follows {
        let now = clock::now();
        let restart = self.pool.config.restart.clone();
        let slot = &mut self.slots[usize::from(index)];
        let by_hand = !slot.restarted.is_empty();
        let lived = slot.spawned_at.take().map_or(Duration::ZERO, |at| now - at);
        if end.class.is_wanted() || by_hand || self.stopping || self.cancelled {
            if by_hand {
                self.restarted(index, RestartCause::Manual, Duration::ZERO);
            }
            self.change(index, SlotEvent::GoneToRest, None);
            return Follows::default();
        }
        slot.down_since.get_or_insert(now);
        // Nothing is wrong with the agent: it only does not have that session, which is over.
        if end.not_resumed {
            self.change(index, SlotEvent::GoneToRest, None);
            return Follows::default();
        }
        let failure = restart::End {
            class: end.class,
            status: end.status,
            was_ready: end.was_ready,
            hopeless: end.hopeless,
            lived,
            detail: end.detail.clone(),
        };
        let random = self.shared.ambient.fraction();
        let next = restart::decide(&mut slot.history, &failure, &restart, now, random);
        self.submit(Write::SlotFailure {
            slot: self.slots[usize::from(index)].id.clone(),
            class: end.class,
            at_us: now_us(),
            detail: end.detail.clone(),
        });
        match next {
            Next::Start { after } => {
                self.restarted(index, cause(end.class), after);
                self.back_off(index, after, &end.detail);
                Follows {
                    backoff: Some(after),
                    parked: None,
                }
            }
            Next::Park { reason } => {
                self.submit(Write::SlotParked {
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
                self.shared.hooks.tell(&Told::Parked {
                    slot: self.slots[usize::from(index)].id.clone(),
                    class: end.class,
                    reason: Foreign::new(reason.clone()),
                });
                self.change(index, SlotEvent::Parked, Some(reason.clone()));
                Follows {
                    backoff: None,
                    parked: Some(reason),
                }
            }
            Next::Rest => {
                self.change(index, SlotEvent::GoneToRest, None);
                Follows::default()
            }
        }
    }

    pub(super) fn restarted(&self, index: u16, cause: RestartCause, delay: Duration) {
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

    pub(super) fn back_off(&mut self, index: u16, after: Duration, why: &str) {
        let slot = &mut self.slots[usize::from(index)];
        slot.round += 1;
        let round = slot.round;
        self.change(index, SlotEvent::GoneToBackoff, Some(why.to_owned()));
        let to = self.myself.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = to.send_message(PoolMsg::BackoffOver { index, round });
        });
    }

    pub(super) fn backoff_over(&mut self, index: u16, round: u64) {
        if self.slot(index).is_some_and(|slot| slot.round == round) {
            self.change(index, SlotEvent::BackoffOver, None);
            self.load_at_once(index);
        }
    }

    /// Ends the task or puts it back; `true` if it is to be sent again, in a fresh session.
    pub(super) fn what_of_the_task(
        &mut self,
        task: ActiveTask,
        attempt: &Attempt,
        parked: Option<String>,
    ) -> bool {
        let closing = self.is_closing(&task);
        let more = task.sent < task.attempts && !closing;
        let again = match task::verdict(attempt, closing) {
            task::After::Ended(outcome, why) => {
                self.end_one(task, outcome, why);
                return false;
            }
            task::After::Unbegun => match parked {
                // Nobody else should suffer what parked this slot: the task ends with its reason.
                Some(reason) => {
                    self.end_one(task, TaskOutcome::Failed, Some(reason));
                    return false;
                }
                None => false,
            },
            task::After::Lost(why) => {
                let retry = self.pool.config.restart.on_crash == OnCrash::Retry && more;
                if !retry {
                    self.end_one(task, TaskOutcome::Lost, Some(why));
                    return false;
                }
                true
            }
            task::After::CheckFailed(why) => {
                if !more {
                    self.end_one(task, TaskOutcome::Failed, Some(why));
                    return false;
                }
                true
            }
        };
        self.put_back(attempt.index, task);
        again
    }

    /// Whether this task is not sent again, whatever became of it.
    pub(super) fn is_closing(&self, task: &ActiveTask) -> bool {
        self.cancelled || self.stopping || task.cancelled || task.open.is_over()
    }

    /// Puts a task back before those that wait with it.
    pub(super) fn put_back(&mut self, index: u16, mut task: ActiveTask) {
        self.submit(Write::TaskUpdated {
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
        task.place = None;
        self.wait_again(index, task);
    }

    pub(super) fn end_one(&self, task: ActiveTask, outcome: TaskOutcome, why: Option<String>) {
        self.end(vec![(task, outcome, why)], EndedFrom::Slot);
    }

    /// Ends tasks, in one commit: their ends are told only when they are durable.
    pub(super) fn end(&self, tasks: Vec<Ending>, from: EndedFrom) {
        if tasks.is_empty() {
            return;
        }
        self.pool.left(tasks.len());
        let mut writes = Vec::with_capacity(tasks.len());
        let mut told = Vec::with_capacity(tasks.len());
        let mut runs = Vec::new();
        for (task, outcome, why) in tasks {
            TaskEnded {
                pool: &self.pool.config.name,
                task: &task.spec.id,
                outcome,
                detail: &Foreign::new(why.clone().unwrap_or_default()).show(300),
                from,
            }
            .emit();
            let over = task.open.ended(&self.pool.config.name, outcome);
            let (report, tell) = task.into_report(&self.pool.config.name, outcome, why);
            let detail = report.detail.as_ref().map(|detail| detail.raw().to_owned());
            writes.push(Write::TaskUpdated {
                run: report.run.clone(),
                task: report.task.clone(),
                at_us: now_us(),
                change: TaskChange::Ended {
                    outcome,
                    detail: detail.unwrap_or_default(),
                    result: report.column(),
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
                runs.push(over.told(report.run.clone()));
            }
            told.push((Arc::new(report), tell));
        }
        let shared = Arc::clone(&self.shared);
        let commit = Commit::of(writes).then(move |_| {
            // Before the last report: who has that may end the fleet.
            for run in &runs {
                shared.hooks.tell(run);
            }
            for (report, tell) in told {
                shared.needs.over(&report.run, &report.task, report.outcome);
                shared.tell(Notice::Ended(Arc::clone(&report)));
                // Its channel has a place for every task of its run.
                let _ = tell.try_send(report);
            }
        });
        self.hand_over(commit);
    }

    pub(super) fn submit(&self, write: Write) {
        self.hand_over(Commit::of(vec![write]));
    }

    /// Gives a commit to the journal; one that is refused is offered again until it is taken.
    fn hand_over(&self, commit: Commit) {
        let Err(refused) = self.shared.journal.submit(commit) else {
            return;
        };
        let journal = self.shared.journal.clone();
        tokio::spawn(async move {
            let mut refused = refused;
            while refused.reason != Refusal::Closed {
                tokio::time::sleep(AGAIN).await;
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
pub(super) struct Follows {
    /// The slot's next child waits for so long.
    pub(super) backoff: Option<Duration>,
    /// A person must look, and why.
    pub(super) parked: Option<String>,
}

/// A task at its end: how, and why.
pub(super) type Ending = (ActiveTask, TaskOutcome, Option<String>);

/// The end of a task that waits: `skipped` if it never began, else what its last attempt was.
pub(super) fn unbegun(task: ActiveTask, why: &str) -> Ending {
    let outcome = match task.sent {
        0 => TaskOutcome::Skipped,
        _ => TaskOutcome::Lost,
    };
    (task, outcome, Some(why.to_owned()))
}

/// How long to wait before offering a refused commit again.
const AGAIN: Duration = Duration::from_millis(100);

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
