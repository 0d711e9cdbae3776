//! A pool's state, and the assignment of tasks to slots.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ractor::{ActorId, ActorRef};
use tokio::sync::oneshot;

use super::ending::end_unstarted;
use super::queue::Queue;
use super::shares::{Shares, WorkKind};
use super::slot::{Assignment, RetainedSession, Slot};
use super::{ActiveTask, SlotRequest};
use crate::clock::{self, now_us};
use crate::fleet_event::FleetEvent;
use crate::live_actor::LiveActor;
use crate::messages::{PoolMsg, SessionMsg};
use crate::session::{Attempt, PromptFiles, Work};
use crate::setup::{PoolShared, Shared};
use marshal_dialect::lifecycle;
use marshal_dialect::lifecycle::pause::{MayStart, Pause};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::{RunId, SessionId, SlotState, UntrustedText};
use marshal_telemetry::event::child::SlotStateChanged;
use marshal_telemetry::event::task::{TaskLocation, TaskStarted};

/// The state of a Pool.
pub(crate) struct PoolState {
    pub(super) myself: ActorRef<PoolMsg>,
    pub(super) _alive: LiveActor,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    pub(super) slots: Vec<Slot>,
    pub(super) queue: Queue,
    /// Who gets the next free slot while tasks and conversations wait.
    pub(super) shares: Shares,
    /// Tasks whose dependencies are not all done.
    pub(super) blocked: Vec<ActiveTask>,
    /// The pause because of the provider's rate limits.
    pub(super) pause: Pause,
    /// The session of the probe task, which tests whether the provider accepts requests again.
    pub(super) probe: Option<SessionId>,
    /// Whether some slot may have a session or a child that ends as soon as it is idle.
    pub(super) must_check_slots: bool,
    /// Slots whose child was told to stop, because they receive no tasks any more.
    pub(super) unloading: BTreeSet<u16>,
    /// Clients that wait for a slot.
    pub(super) slot_requests: VecDeque<SlotRequest>,
    /// How many slots belong to a conversation; at 0, the scheduler skips conversations.
    pub(super) conversation_count: usize,
    /// Whether nothing starts any more; see `drain.rs`.
    pub(super) is_draining: bool,
    /// Whether running turns were interrupted, because the supervisor stops.
    pub(super) is_interrupted: bool,
    /// Whether the pool stops: it drains, and ends with its last session.
    pub(super) stopping: bool,
}

impl PoolState {
    /// Removes and returns every queued or blocked task.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = ActiveTask> + use<> {
        let blocked = std::mem::take(&mut self.blocked);
        self.queue.take_all().into_iter().chain(blocked)
    }

    /// Ends every queued or blocked task.
    fn end_waiting(&mut self, why: &str) {
        let waiting = self.take_waiting();
        let ended = waiting.map(|task| end_unstarted(task, why)).collect();
        self.end_tasks(ended, TaskLocation::Queue);
    }

    pub(super) fn slot(&mut self, index: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))
    }

    /// Changes a slot's state by the state table, and publishes the change.
    pub(super) fn apply_slot_event(&mut self, index: u16, change: SlotEvent, note: Option<String>) {
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
        self.shared.slots.update(&id, |view| {
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
        self.shared.notify_subscribers(FleetEvent::SlotChanged {
            slot: id,
            state,
            note,
        });
    }

    pub(super) fn slot_changed(
        &mut self,
        index: u16,
        session: &SessionId,
        change: SlotEvent,
        pid: Option<u32>,
    ) {
        let Some(slot) = self.slot(index) else { return };
        if slot.occupant().map(|(_, current)| current) != Some(session) {
            return;
        }
        match change {
            SlotEvent::Spawned => slot.spawned_at = Some(clock::now()),
            SlotEvent::Ready => {
                slot.down_since = None;
            }
            _ => {}
        }
        if let Some(slot) = self.slot(index) {
            let id = slot.id.clone();
            if change == SlotEvent::Spawned {
                self.shared.slots.update(&id, |view| view.pid = pid);
            }
        }
        self.apply_slot_event(index, change, None);
    }

    /// Assigns queued tasks to free slots; ends tasks that no slot can run.
    pub(super) fn schedule(&mut self) {
        self.pause.advance(clock::now());
        self.note_waiting();
        self.schedule_conversations();
        let is_parked = |slot: &Slot| slot.state == SlotState::Parked;
        let width = usize::from(self.pool.width());
        if self.is_draining {
            self.leave_waiting();
        } else if self.slots.iter().take(width).all(is_parked) {
            self.end_waiting("every slot of the pool is parked");
        } else {
            self.park_if_budget_spent();
            self.assign_tasks();
        }
        let waiting = self.note_waiting();
        self.pool.slot_demand.set_waiting(waiting);
        self.close_unneeded_sessions();
        self.queue.shrink();
        let oldest = self.queue.front().map(|task| task.queued);
        self.pool.set_oldest_queued(oldest);
    }

    /// How many tasks could begin now if slots were free.
    fn startable_tasks(&self) -> usize {
        match self.pause.may_start() {
            MayStart::None => 0,
            MayStart::Probe => self.queue.startable().min(1),
            MayStart::All => self.queue.startable(),
        }
    }

    /// Notes which kinds of work wait for a slot; returns how much does.
    fn note_waiting(&mut self) -> usize {
        let is_open = !self.is_draining && self.pool.is_slot_enabled(0);
        let conversations = if is_open { self.slot_requests.len() } else { 0 };
        let tasks = if is_open { self.startable_tasks() } else { 0 };
        let now = clock::now();
        self.shares.set_waiting(tasks > 0, conversations > 0, now);
        tasks + conversations
    }

    /// Gives a free slot, for which a conversation waits, to a task whose turn it is; `false` if it is
    /// the conversation's.
    pub(super) fn assign_fairly(&mut self, index: u16) -> bool {
        if self.shares.next() == WorkKind::Conversation || self.startable_tasks() == 0 {
            return false;
        }
        match self.next_task_for(index) {
            Some(task) => {
                self.assign(index, task);
                true
            }
            None => false,
        }
    }

    /// Assigns work to each free slot: its next prompt if it belongs to a conversation, otherwise
    /// the first suitable task of the queue.
    fn assign_tasks(&mut self) {
        for index in 0..self.pool.config.max_size {
            if self.queue.is_empty() && self.conversation_count == 0 {
                break;
            }
            let slot = &mut self.slots[usize::from(index)];
            if !slot.is_idle() {
                continue;
            }
            let next = match &mut slot.conversation {
                Some(conversation) => conversation.waiting_prompts.pop_front(),
                None if !self.pool.is_slot_enabled(usize::from(index)) => None,
                None if self.pause.may_start() == MayStart::None => None,
                None => self.next_task_for(index),
            };
            if let Some(task) = next {
                self.assign(index, task);
            }
        }
    }

    pub(super) fn assign(&mut self, index: u16, mut task: ActiveTask) {
        if self.slots[usize::from(index)].conversation.is_none() {
            self.shares.begin(WorkKind::Task, clock::now());
        }
        let slot = &mut self.slots[usize::from(index)];
        let mut retained = slot.retained.take();
        let mut session = None;
        let in_conversation = slot.conversation.is_some();
        if let Some(conversation) = &mut slot.conversation {
            session = Some(conversation.session.clone());
            let stored = conversation.begin_session();
            retained = retained.or(stored.map(RetainedSession::Stored));
        }
        let session = session.unwrap_or_else(|| match &retained {
            Some(
                RetainedSession::Idle { session, .. } | RetainedSession::Closing { session, .. },
            ) => session.clone(),
            Some(RetainedSession::Stored(stored)) => stored.session.clone(),
            None => self.shared.new_session_id(),
        });
        // Published before its home and copy exist: otherwise a sweep could remove them as
        // leftovers.
        let working = Some(session.clone());
        self.shared
            .slots
            .update(&slot.id, |view| view.session = working);
        let now = clock::now();
        task.first_assigned.get_or_insert(now);
        let attempt = task.sent + 1;
        let work = Work {
            slot: slot.id.clone(),
            session: session.clone(),
            run: task.run.clone(),
            task: task.spec.id.clone(),
            attempt,
            prompt: match &task.follow_up {
                Some(follow_up) => UntrustedText::new(follow_up.clone()),
                None => task.spec.prompt.clone(),
            },
            files: PromptFiles::new(&task.spec.files, &task.spec.embedded_files),
            // A conversation's prompt names the client's directory, not a workspace to copy.
            workspace: task.spec.workspace.clone().filter(|_| !in_conversation),
            // Fewer conflicts than from HEAD.
            base: task
                .spec
                .land
                .as_ref()
                .map(|land| format!("refs/heads/{land}")),
            land: task.spec.land.clone(),
            check: task.spec.check.clone(),
            layer: task.spec.policy_layer.clone(),
            assigned_at: now,
            down_since: slot.down_since,
            limits: task.open_tasks.limits.clone(),
            probe: !in_conversation && self.pause.may_start() == MayStart::Probe,
        };
        let probe = work.probe.then(|| session.clone());
        let slot_id = slot.id.clone();
        // A conversation does not replace a session of the pool.
        let instead_of = if in_conversation {
            None
        } else {
            slot.unloadable_session.take()
        };
        let actor = self.dispatch_work(work, retained, instead_of);
        if probe.is_some() {
            self.pause.start_probe();
            self.probe = probe;
        }
        self.shared.notify_subscribers(FleetEvent::TaskAssigned {
            run: task.run.clone(),
            task: task.spec.id.clone(),
            slot: slot_id.clone(),
            session: session.clone(),
            attempt,
        });
        TaskStarted {
            slot: &slot_id,
            task: &task.spec.id,
            attempt,
            waited: clock::since(task.queued),
        }
        .emit();
        let id = Some(task.spec.id.clone());
        self.shared.slots.update(&slot_id, |view| view.task = id);
        self.slots[usize::from(index)].work = Some(Assignment {
            actor,
            session,
            task,
        });
        if self.slots[usize::from(index)].state != SlotState::Ready {
            self.apply_slot_event(index, SlotEvent::StartBegun, None);
        }
    }

    pub(super) fn restart(&mut self, index: u16, done: oneshot::Sender<()>) {
        let Some(slot) = self.slot(index) else { return };
        let has_history =
            slot.state == SlotState::Parked || slot.history.ages(clock::now()).next().is_some();
        slot.history.reset();
        slot.round += 1;
        let (id, state) = (slot.id.clone(), slot.state);
        let has_child = slot.work.is_some() || lifecycle::state::has_child(state);
        if let Some((actor, _)) = slot.occupant().filter(|_| has_child) {
            let _ = actor.send_message(SessionMsg::Stop { now: false });
            slot.restart_waiters.push(done);
        } else {
            let change = match state {
                SlotState::BackingOff => SlotEvent::BackoffOver,
                _ => SlotEvent::Unparked,
            };
            self.apply_slot_event(index, change, None);
            let _ = done.send(());
        }
        if has_history {
            self.submit_write(Write::SlotFailuresCleared { slot: id });
        }
    }

    pub(super) fn cancel(&mut self, run: &RunId) {
        self.cancel_matching(|task| task.run == *run, CANCELLED);
    }

    /// Cancels the matching tasks and returns their number. `why` is the detail of queued ones.
    pub(super) fn cancel_matching(
        &mut self,
        matches: impl Fn(&ActiveTask) -> bool + Copy,
        why: &str,
    ) -> usize {
        let mut count = 0;
        for work in self.slots.iter_mut().filter_map(|slot| slot.work.as_mut()) {
            if matches(&work.task) {
                count += 1;
                work.task.cancelled = true;
                let _ = work
                    .actor
                    .send_message(SessionMsg::cancel("the run was cancelled"));
            }
        }
        let mut ended: Vec<ActiveTask> = self.queue.take_all_if(matches).into();
        ended.extend(self.blocked.extract_if(.., |task| matches(task)));
        let prompts = self.take_matching_prompts(matches);
        let ended = ended
            .into_iter()
            .chain(prompts)
            .map(|task| end_unstarted(task, why))
            .collect::<Vec<_>>();
        count += ended.len();
        self.end_tasks(ended, TaskLocation::Queue);
        count
    }

    /// A session ended without a report: its task is lost, and its child is killed with its keeper.
    pub(super) fn session_lost(&mut self, who: ActorId, why: &str) {
        let free = self.slots.iter().find_map(|slot| {
            let (actor, session) = slot.occupant()?;
            let works = slot.work.is_some();
            actor
                .get_id()
                .eq(&who)
                .then(|| (slot.id.index, session.clone(), works))
        });
        match free {
            Some((index, session, true)) => {
                self.attempt_ended(&Attempt::internal(index, session, why));
            }
            Some((index, session, false)) => self.session_closed(index, &session, None),
            None => {}
        }
    }
}

/// The detail of a queued task whose run was cancelled.
pub(super) const CANCELLED: &str = "the run was cancelled before the task began";
