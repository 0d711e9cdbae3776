//! Pool: N slots that share one agent command, and the tasks that wait for them.
//!
//! Owns the queue, the slots' states, their restart history and what becomes of a task whose
//! attempt ended. Must not know protocols, processes or permission requests.

mod slot;
mod task;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, ActorRuntime, SupervisionEvent};
use tokio::sync::oneshot;

pub(crate) use slot::Slot;
pub(crate) use task::ActiveTask;

use super::notice::Notice;
use super::session::{Attempt, Session, SessionArgs, SessionMsg, Work};
use super::setup::{PoolShared, Shared, now_us};
use crate::config::OnCrash;
use crate::journal::{Commit, TaskChange, Write};
use crate::lifecycle::restart::{self, Next};
use crate::lifecycle::state::SlotEvent;
use crate::model::{
    ExitClass, ExitStatus, Foreign, RunId, SessionId, SlotState, TaskOutcome, TurnOutcome,
};
use crate::telemetry::event::child::{ChildReady, ChildRestarted, SlotParked, SlotStateChanged};
use crate::telemetry::event::task::{EndedFrom, PoolSampled, TaskEnded, TaskQueued, TaskStarted};
use crate::telemetry::sets::RestartCause;

/// What a Pool hears.
#[derive(Debug)]
pub(crate) enum PoolMsg {
    /// Tasks, already durable, wait for a slot.
    Submit(Vec<ActiveTask>),
    /// A slot's session moved on.
    Slot {
        /// Which slot.
        index: u16,
        /// Which session says so: a late word of an earlier one is no news.
        session: SessionId,
        /// What happened.
        change: SlotEvent,
        /// The process, where one was started.
        pid: Option<u32>,
    },
    /// A session is over.
    AttemptEnded(Box<Attempt>),
    /// A slot's backoff is over.
    BackoffOver {
        /// Which slot.
        index: u16,
        /// Which backoff: a restart by hand makes an earlier one void.
        round: u64,
    },
    /// End the slot's child, if one runs, and start afresh; unparks.
    Restart {
        /// Which slot.
        index: u16,
        /// Told when the old child, and its whole tree, are gone.
        done: oneshot::Sender<()>,
    },
    /// Start no new task, cancel running turns: of one run, or of all and for good.
    Cancel(Option<RunId>),
    /// A session's actor is gone, with or without a report.
    SessionGone {
        /// Which actor.
        who: ActorId,
        /// Why, if it failed.
        why: String,
    },
    /// End every child, then the pool.
    Stop {
        /// Without the ladder.
        now: bool,
    },
}

/// What a Pool is started with.
pub(crate) struct PoolArgs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
}

/// N slots and a queue.
pub(crate) struct Pool;

/// Its state.
pub(crate) struct PoolState {
    myself: ActorRef<PoolMsg>,
    shared: Arc<Shared>,
    pool: Arc<PoolShared>,
    slots: Vec<Slot>,
    queue: VecDeque<ActiveTask>,
    /// No new task starts.
    cancelled: bool,
    /// Nothing starts, and the pool ends with its last session.
    stopping: bool,
}

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<PoolMsg>,
        args: PoolArgs,
    ) -> Result<PoolState, ActorProcessingErr> {
        let PoolArgs { shared, pool } = args;
        let slots = (0..pool.config.size)
            .map(|index| Slot::new(&pool.config, index))
            .collect();
        Ok(PoolState {
            myself,
            shared,
            pool,
            slots,
            queue: VecDeque::new(),
            cancelled: false,
            stopping: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMsg::Submit(tasks) => state.queue.extend(tasks),
            PoolMsg::Slot {
                index,
                session,
                change,
                pid,
            } => state.slot_moved(index, &session, change, pid),
            PoolMsg::AttemptEnded(attempt) => state.attempt_ended(&attempt),
            PoolMsg::BackoffOver { index, round } => state.backoff_over(index, round),
            PoolMsg::Restart { index, done } => state.restart(index, done),
            PoolMsg::Cancel(run) => state.cancel(run.as_ref()),
            PoolMsg::Stop { now } => state.stop(now),
            PoolMsg::SessionGone { who, why } => state.session_gone(who, &why),
        }
        state.settle();
        if state.stopping && state.slots.iter().all(Slot::is_free) {
            myself.stop(None);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<PoolMsg>,
        event: SupervisionEvent,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        // The end of an actor overtakes its last messages: look only after those.
        let (who, why) = match event {
            SupervisionEvent::ActorFailed(who, error) => {
                tracing::error!(pool = %state.pool.config.name, %error, "a session failed");
                (who, error.to_string())
            }
            SupervisionEvent::ActorTerminated(who, _, _) => {
                (who, "the session ended without a report".to_owned())
            }
            _ => return Ok(()),
        };
        let _ = myself.send_message(PoolMsg::SessionGone {
            who: who.get_id(),
            why,
        });
        Ok(())
    }
}

impl PoolState {
    fn slot(&mut self, index: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))
    }

    /// Moves a slot by the table, and shows it.
    fn change(&mut self, index: u16, change: SlotEvent, note: Option<String>) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        let from = slot.state;
        if !slot.apply(change) {
            return;
        }
        let (id, state) = (slot.id.clone(), slot.state);
        SlotStateChanged {
            slot: &id,
            from: Some(from),
            to: Some(state),
        }
        .emit();
        let (note_shown, started) = (note.clone(), change == SlotEvent::Spawned);
        self.shared.slots.change(&id, |view| {
            view.state = state;
            view.note = note_shown;
            view.up = matches!(
                state,
                SlotState::Ready | SlotState::Busy | SlotState::Cancelling
            );
            if started {
                view.started_at = Some(now_us() as f64 / 1e6);
            }
        });
        self.shared.tell(Notice::Slot {
            slot: id,
            state,
            note,
        });
    }

    fn slot_moved(&mut self, index: u16, session: &SessionId, change: SlotEvent, pid: Option<u32>) {
        let Some(slot) = self.slot(index) else { return };
        let current = slot.work.as_ref().map(|work| &work.session);
        if current != Some(session) {
            return;
        }
        match change {
            SlotEvent::Spawned => slot.spawned_at = Some(Instant::now()),
            SlotEvent::Ready => {
                let downtime = slot.down_since.take().map(|at| at.elapsed());
                ChildReady {
                    slot: &slot.id,
                    session,
                    protocol: "",
                    version: None,
                    took: slot.asked_at.map_or(Duration::ZERO, |at| at.elapsed()),
                    downtime,
                }
                .emit();
            }
            _ => {}
        }
        if let Some(slot) = self.slot(index) {
            let id = slot.id.clone();
            if change == SlotEvent::Spawned {
                self.shared.slots.change(&id, |view| view.pid = pid);
            }
        }
        self.change(index, change, None);
    }

    /// Gives waiting tasks to free slots; ends what nobody will work.
    fn settle(&mut self) {
        if self.cancelled || self.stopping {
            while let Some(task) = self.queue.pop_front() {
                self.end_unbegun(task, TaskOutcome::Skipped, CANCELLED);
            }
        } else if self
            .slots
            .iter()
            .all(|slot| slot.state == SlotState::Parked)
        {
            while let Some(task) = self.queue.pop_front() {
                self.end_unbegun(
                    task,
                    TaskOutcome::Skipped,
                    "every slot of the pool is parked",
                );
            }
        } else {
            for index in 0..self.pool.config.size {
                if self.queue.is_empty() {
                    break;
                }
                if self.slots[usize::from(index)].is_idle() {
                    self.assign(index);
                }
            }
        }
        let oldest = self
            .queue
            .front()
            .map_or(Duration::ZERO, |task| task.queued.elapsed());
        PoolSampled {
            pool: &self.pool.config.name,
            oldest_task: oldest,
            oldest_ask: Duration::ZERO,
        }
        .emit();
    }

    fn assign(&mut self, index: u16) {
        let Some(mut task) = self.queue.pop_front() else {
            return;
        };
        let slot = &mut self.slots[usize::from(index)];
        let session = fresh_session_id();
        // Known before its home and copy are made, so that no sweep takes them for leftovers.
        let working = Some(session.clone());
        self.shared
            .slots
            .change(&slot.id, |view| view.session = working);
        let now = Instant::now();
        task.first_assigned.get_or_insert(now);
        let attempt = task.sent + 1;
        TaskStarted {
            slot: &slot.id,
            task: &task.spec.id,
            attempt,
            waited: task.queued.elapsed(),
        }
        .emit();
        let work = Work {
            slot: slot.id.clone(),
            session: session.clone(),
            run: task.run.clone(),
            task: task.spec.id.clone(),
            attempt,
            prompt: task.spec.prompt.clone(),
            workspace: task.spec.workspace.clone(),
            check: task.spec.check.clone(),
        };
        let args = SessionArgs {
            pool_ref: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            work,
        };
        slot.asked_at = Some(now);
        let slot_id = slot.id.clone();
        let cell = self.myself.get_cell();
        match ActorRuntime::spawn_linked_instant(None, Session, args, cell) {
            Ok((actor, _)) => {
                self.shared.tell(Notice::Assigned {
                    run: task.run.clone(),
                    task: task.spec.id.clone(),
                    slot: slot_id.clone(),
                    session: session.clone(),
                    attempt,
                });
                self.submit(Write::TaskUpdated {
                    run: task.run.clone(),
                    task: task.spec.id.clone(),
                    at_us: now_us(),
                    change: TaskChange::Begun {
                        attempt,
                        slot: slot_id.clone(),
                        session: session.clone(),
                    },
                });
                let id = Some(task.spec.id.clone());
                self.shared.slots.change(&slot_id, |view| view.task = id);
                self.slots[usize::from(index)].work = Some(slot::Occupied {
                    actor,
                    session,
                    task,
                });
                self.change(index, SlotEvent::StartBegun, None);
            }
            Err(error) => {
                tracing::error!(slot = %slot_id, %error, "a session could not be started");
                self.end_unbegun(task, TaskOutcome::Failed, "a session could not be started");
            }
        }
    }

    fn submit(&self, write: Write) {
        if let Err(refused) = self.shared.journal.submit(Commit::of(vec![write])) {
            tracing::error!(reason = %refused.reason, "a row was not journalled");
        }
    }

    /// A session is over: what of its slot, and what of its task?
    fn attempt_ended(&mut self, attempt: &Attempt) {
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
        self.shared.slots.change(&slot_id, |view| {
            view.task = None;
            view.session = None;
            view.pid = None;
            view.last_exit_code = code.map(ExitStatus::shell_code).or(view.last_exit_code);
        });
        let parked = self.child_ended(index, attempt, &mut task);
        task.take_in(&slot_id, attempt);
        self.what_of_the_task(task, attempt, parked);
        let done = self.slot(index).and_then(|slot| slot.restarted.take());
        if let Some(done) = done {
            let _ = done.send(());
        }
    }

    /// Restart decision. Gives the reason if the slot parks.
    fn child_ended(
        &mut self,
        index: u16,
        attempt: &Attempt,
        task: &mut ActiveTask,
    ) -> Option<String> {
        let now = Instant::now();
        let restart = self.pool.config.restart.clone();
        let slot = &mut self.slots[usize::from(index)];
        if attempt.turn == Some(TurnOutcome::Completed) {
            slot.history.turn_completed();
        }
        let Some(end) = &attempt.end else {
            self.change(index, SlotEvent::GoneToRest, None);
            return None;
        };
        let by_hand = slot.restarted.is_some();
        let lived = slot.spawned_at.take().map_or(Duration::ZERO, |at| now - at);
        if end.class.is_wanted() || by_hand || self.stopping || self.cancelled {
            if by_hand {
                self.restarted(index, RestartCause::Manual, Duration::ZERO);
            }
            self.change(index, SlotEvent::GoneToRest, None);
            return None;
        }
        slot.down_since.get_or_insert(now);
        let failure = restart::End {
            class: end.class,
            status: end.status,
            was_ready: end.was_ready,
            lived,
            detail: end.detail.clone(),
        };
        let random = rand::random::<f64>();
        let next = restart::decide(&mut slot.history, &failure, &restart, now, random);
        self.submit(Write::SlotFailure {
            slot: self.slots[usize::from(index)].id.clone(),
            class: end.class,
            at_us: now_us(),
            detail: end.detail.clone(),
        });
        match next {
            Next::Start { after } => {
                task.restarts += 1;
                task.backoff += after;
                self.restarted(index, cause(end.class), after);
                self.back_off(index, after, &end.detail);
                None
            }
            Next::Park { reason } => {
                SlotParked {
                    slot: &self.slots[usize::from(index)].id,
                    class: end.class,
                    reason: &reason,
                }
                .emit();
                self.change(index, SlotEvent::Parked, Some(reason.clone()));
                Some(reason)
            }
            Next::Rest => {
                self.change(index, SlotEvent::GoneToRest, None);
                None
            }
        }
    }

    fn restarted(&self, index: u16, cause: RestartCause, delay: Duration) {
        let slot = &self.slots[usize::from(index)];
        let spent = slot.history.ages(Instant::now()).count();
        let budget = self.pool.config.restart.budget;
        ChildRestarted {
            slot: &slot.id,
            cause,
            delay,
            budget_left: budget.saturating_sub(u32::try_from(spent).unwrap_or(u32::MAX)),
        }
        .emit();
    }

    fn back_off(&mut self, index: u16, after: Duration, why: &str) {
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

    fn backoff_over(&mut self, index: u16, round: u64) {
        if self.slot(index).is_some_and(|slot| slot.round == round) {
            self.change(index, SlotEvent::BackoffOver, None);
        }
    }

    fn what_of_the_task(&mut self, task: ActiveTask, attempt: &Attempt, parked: Option<String>) {
        let closing = self.cancelled || self.stopping || task.cancelled;
        let more = task.sent < task.attempts && !closing;
        let again = match task::verdict(attempt, closing) {
            task::After::Ended(outcome, why) => return self.end(task, outcome, why),
            task::After::Unbegun => match parked {
                // Nobody else should suffer what parked this slot: the task ends with its reason.
                Some(reason) => return self.end(task, TaskOutcome::Failed, Some(reason)),
                None => true,
            },
            task::After::Lost(why) => {
                let retry = self.pool.config.restart.on_crash == OnCrash::Retry && more;
                if !retry {
                    return self.end(task, TaskOutcome::Lost, Some(why));
                }
                true
            }
            task::After::CheckFailed(why) => {
                if !more {
                    return self.end(task, TaskOutcome::Failed, Some(why));
                }
                true
            }
        };
        if again {
            self.submit(Write::TaskUpdated {
                run: task.run.clone(),
                task: task.spec.id.clone(),
                at_us: now_us(),
                change: TaskChange::Requeued,
            });
            TaskQueued {
                pool: &self.pool.config.name,
                task: &task.spec.id,
            }
            .emit();
            self.queue.push_front(task);
        }
    }

    /// Ends a task that waits in the queue.
    fn end_unbegun(&self, task: ActiveTask, outcome: TaskOutcome, why: &str) {
        self.end_from(task, outcome, Some(why.to_owned()), EndedFrom::Queue);
    }

    fn end(&self, task: ActiveTask, outcome: TaskOutcome, why: Option<String>) {
        self.end_from(task, outcome, why, EndedFrom::Slot);
    }

    /// A task's end is told only when it is durable.
    fn end_from(
        &self,
        task: ActiveTask,
        outcome: TaskOutcome,
        why: Option<String>,
        from: EndedFrom,
    ) {
        TaskEnded {
            pool: &self.pool.config.name,
            task: &task.spec.id,
            outcome,
            detail: &Foreign::new(why.clone().unwrap_or_default()).show(300),
            from,
        }
        .emit();
        let (report, tell) = task.into_report(&self.pool.config.name, outcome, why);
        let report = Arc::new(report);
        let shared = Arc::clone(&self.shared);
        let write = Write::TaskUpdated {
            run: report.run.clone(),
            task: report.task.clone(),
            at_us: now_us(),
            change: TaskChange::Ended {
                outcome,
                detail: report
                    .detail
                    .as_ref()
                    .map_or_else(String::new, |d| d.raw().to_owned()),
                result: String::new(),
            },
        };
        let commit = Commit::of(vec![write]).then(move |_| {
            shared.tell(Notice::Ended(Arc::clone(&report)));
            // Its channel has a place for every task of its run.
            let _ = tell.try_send(report);
        });
        if let Err(refused) = self.shared.journal.submit(commit) {
            tracing::error!(reason = %refused.reason, "a task's end was not journalled");
        }
    }

    fn restart(&mut self, index: u16, done: oneshot::Sender<()>) {
        let Some(slot) = self.slot(index) else { return };
        slot.history.forgive();
        slot.round += 1;
        if let Some(work) = &slot.work {
            slot.restarted = Some(done);
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
            return;
        }
        let was_parked = slot.state == SlotState::Parked;
        let id = slot.id.clone();
        if was_parked {
            self.submit(Write::SlotForgiven { slot: id });
        }
        self.change(index, SlotEvent::Unparked, None);
        let _ = done.send(());
    }

    fn cancel(&mut self, run: Option<&RunId>) {
        self.cancelled |= run.is_none();
        let meant = |task: &ActiveTask| run.is_none_or(|run| task.run == *run);
        for work in self.slots.iter_mut().filter_map(|slot| slot.work.as_mut()) {
            if meant(&work.task) {
                work.task.cancelled = true;
                let _ = work.actor.send_message(SessionMsg::Cancel);
            }
        }
        let waiting = std::mem::take(&mut self.queue);
        let (ended, stay): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(meant);
        self.queue = stay;
        for task in ended {
            self.end_unbegun(task, TaskOutcome::Skipped, CANCELLED);
        }
    }

    fn stop(&mut self, now: bool) {
        self.stopping = true;
        for work in self.slots.iter().filter_map(|slot| slot.work.as_ref()) {
            let _ = work.actor.send_message(SessionMsg::Stop { now });
        }
    }

    /// A session ended without a word: its task is lost, its children die with its keeper.
    fn session_gone(&mut self, who: ActorId, why: &str) {
        let gone = self.slots.iter().find_map(|slot| {
            let work = slot.work.as_ref()?;
            (work.actor.get_id() == who).then(|| (slot.id.index, work.session.clone()))
        });
        if let Some((index, session)) = gone {
            self.attempt_ended(&Attempt::internal(index, session, why));
        }
    }
}

/// Why a task that waited will never begin.
const CANCELLED: &str = "the run was cancelled before the task began";

/// The label of `marshal_child_restarts_total{cause}`.
const fn cause(class: ExitClass) -> RestartCause {
    match class {
        ExitClass::OutOfMemory => RestartCause::Oom,
        ExitClass::HandshakeTimeout => RestartCause::Hang,
        ExitClass::ProtocolFault | ExitClass::VersionRefused => RestartCause::Protocol,
        ExitClass::SpawnFailed => RestartCause::Spawn,
        _ => RestartCause::Crash,
    }
}

fn fresh_session_id() -> SessionId {
    let id = uuid::Uuid::now_v7().to_string();
    SessionId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
}
