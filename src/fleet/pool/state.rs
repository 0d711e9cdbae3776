//! What a pool knows, and how tasks meet slots.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::oneshot;

use super::ending::unbegun;
use super::queue::Queue;
use super::slot::{Kept, Occupied, Slot};
use super::{ActiveTask, Opener, PoolMsg};
use crate::fleet::clock::{self, now_us};
use crate::fleet::notice::Notice;
use crate::fleet::session::{Attempt, Files, SessionMsg, SessionRef, Work};
use crate::fleet::setup::{PoolShared, Shared};
use crate::journal::Write;
use crate::lifecycle;
use crate::lifecycle::pause::{MayStart, Pause};
use crate::lifecycle::state::SlotEvent;
use crate::model::{RunId, SessionId, SlotState};
use crate::telemetry::event::child::SlotStateChanged;
use crate::telemetry::event::task::{EndedFrom, TaskStarted};

/// Its state.
pub(crate) struct PoolState {
    pub(super) myself: ActorRef<PoolMsg>,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<PoolShared>,
    pub(super) slots: Vec<Slot>,
    pub(super) queue: Queue,
    /// Tasks that come after others which are not done.
    pub(super) blocked: Vec<ActiveTask>,
    /// How it stands to its provider's limits.
    pub(super) pause: Pause,
    /// The session whose task tries whether the provider takes requests again.
    pub(super) probe: Option<SessionId>,
    /// A slot's session ends as soon as it has nothing to do.
    pub(super) dismisses: bool,
    /// Slots whose child was told to go, because they get no task any more.
    pub(super) unloading: BTreeSet<u16>,
    /// Clients that wait for a slot.
    pub(super) openers: VecDeque<Opener>,
    /// How many slots a conversation has: a pool without one does nothing for them.
    pub(super) held: usize,
    /// No new task starts.
    pub(super) cancelled: bool,
    /// Nothing starts, and the pool ends with its last session.
    pub(super) stopping: bool,
}

impl Drop for PoolState {
    /// No session outlives its pool, and no child its session.
    fn drop(&mut self) {
        for (session, _) in self.slots.iter().filter_map(Slot::occupant) {
            session.close();
        }
    }
}

impl PoolState {
    /// Ends every waiting task.
    fn end_waiting(&mut self, why: &str) {
        let blocked = std::mem::take(&mut self.blocked);
        let waiting = self.queue.take_all().into_iter().chain(blocked);
        let ended = waiting.map(|task| unbegun(task, why)).collect();
        self.end(ended, EndedFrom::Queue);
    }

    pub(super) fn slot(&mut self, index: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))
    }

    /// Moves a slot by the table, and shows it.
    pub(super) fn change(&mut self, index: u16, change: SlotEvent, note: Option<String>) {
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

    pub(super) fn slot_moved(
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
                self.shared.slots.change(&id, |view| view.pid = pid);
            }
        }
        self.change(index, change, None);
    }

    /// Gives waiting tasks to free slots; ends what nobody will work.
    pub(super) fn settle(&mut self) {
        self.settle_conversations();
        let is_parked = |slot: &Slot| slot.state == SlotState::Parked;
        let width = usize::from(self.pool.width());
        if self.cancelled || self.stopping {
            self.end_waiting(CANCELLED);
        } else if self.slots.iter().take(width).all(is_parked) {
            self.end_waiting("every slot of the pool is parked");
        } else {
            self.park_what_is_spent();
            self.give_out();
        }
        self.clear_out();
        self.queue.shrink();
        let oldest = self.queue.front().map(|task| task.queued);
        self.pool.waits_since(oldest);
    }

    /// Gives each free slot what waits for it: a conversation's its next prompt, another one the
    /// first task.
    fn give_out(&mut self) {
        self.pause.look(clock::now());
        for index in 0..self.pool.config.max_size {
            if self.queue.is_empty() && self.held == 0 {
                break;
            }
            let slot = &mut self.slots[usize::from(index)];
            if !slot.is_idle() {
                continue;
            }
            let next = match &mut slot.held {
                Some(held) => held.waiting.pop_front(),
                None if !self.pool.gives_to(usize::from(index)) => None,
                None if self.pause.may_start() == MayStart::None => None,
                None => self.next_for(index),
            };
            if let Some(task) = next {
                self.assign(index, task);
            }
        }
    }

    fn assign(&mut self, index: u16, mut task: ActiveTask) {
        let slot = &mut self.slots[usize::from(index)];
        let mut kept = slot.kept.take();
        let mut session = None;
        let is_held = slot.held.is_some();
        if let Some(held) = &mut slot.held {
            session = Some(held.session.clone());
            let stored = held.begin();
            kept = kept.or(stored.map(Kept::Stored));
        }
        let session = session.unwrap_or_else(|| match &kept {
            Some(Kept::Waiting { session, .. } | Kept::Closing { session, .. }) => session.clone(),
            Some(Kept::Stored(stored)) => stored.session.clone(),
            None => fresh_session_id(&self.shared),
        });
        // Known before its home and copy are made, so that no sweep takes them for leftovers.
        let working = Some(session.clone());
        self.shared
            .slots
            .change(&slot.id, |view| view.session = working);
        let now = clock::now();
        task.first_assigned.get_or_insert(now);
        let attempt = task.sent + 1;
        let work = Work {
            slot: slot.id.clone(),
            session: session.clone(),
            run: task.run.clone(),
            task: task.spec.id.clone(),
            attempt,
            prompt: task.spec.prompt.clone(),
            files: Files::of(&task.spec.files, &task.spec.embed),
            // A conversation's prompt names where its client is, not what is copied.
            workspace: task.spec.workspace.clone().filter(|_| !is_held),
            check: task.spec.check.clone(),
            layer: task.spec.policy_layer.clone(),
            asked: now,
            down_since: slot.down_since,
            limits: task.open.limits.clone(),
            probe: !is_held && self.pause.may_start() == MayStart::Probe,
        };
        let probe = work.probe.then(|| session.clone());
        let slot_id = slot.id.clone();
        // A conversation is nothing of the pool's own sessions.
        let instead_of = if is_held { None } else { slot.given_up.take() };
        let actor = self.give(work, kept, instead_of);
        if probe.is_some() {
            self.pause.probing();
            self.probe = probe;
        }
        self.shared.tell(Notice::Assigned {
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
        self.shared.slots.change(&slot_id, |view| view.task = id);
        self.slots[usize::from(index)].work = Some(Occupied {
            actor,
            session,
            task,
        });
        if self.slots[usize::from(index)].state != SlotState::Ready {
            self.change(index, SlotEvent::StartBegun, None);
        }
    }

    pub(super) fn restart(&mut self, index: u16, done: oneshot::Sender<()>) {
        let Some(slot) = self.slot(index) else { return };
        let is_remembered =
            slot.state == SlotState::Parked || slot.history.ages(clock::now()).next().is_some();
        slot.history.forgive();
        slot.round += 1;
        let (id, state) = (slot.id.clone(), slot.state);
        let has_child = slot.work.is_some() || lifecycle::state::has_child(state);
        if let Some((actor, _)) = slot.occupant().filter(|_| has_child) {
            let _ = actor.send_message(SessionMsg::Stop { now: false });
            slot.restarted.push(done);
        } else {
            let change = match state {
                SlotState::BackingOff => SlotEvent::BackoffOver,
                _ => SlotEvent::Unparked,
            };
            self.change(index, change, None);
            let _ = done.send(());
        }
        if is_remembered {
            self.submit(Write::SlotForgiven { slot: id });
        }
    }

    pub(super) fn cancel(&mut self, run: Option<&RunId>) {
        self.cancelled |= run.is_none();
        let meant = |task: &ActiveTask| run.is_none_or(|run| task.run == *run);
        self.cancel_those(meant, CANCELLED);
    }

    /// Ends the tasks that are meant; says how many those are. `why`: of those that wait.
    pub(super) fn cancel_those(
        &mut self,
        meant: impl Fn(&ActiveTask) -> bool + Copy,
        why: &str,
    ) -> usize {
        let mut found = 0;
        for work in self.slots.iter_mut().filter_map(|slot| slot.work.as_mut()) {
            if meant(&work.task) {
                found += 1;
                work.task.cancelled = true;
                let _ = work.actor.send_message(SessionMsg::Cancel);
            }
        }
        let mut ended: Vec<ActiveTask> = self.queue.take_all_if(meant).into();
        ended.extend(self.blocked.extract_if(.., |task| meant(task)));
        let prompts = self.cancelled_prompts(meant);
        let ended = ended
            .into_iter()
            .chain(prompts)
            .map(|task| unbegun(task, why))
            .collect::<Vec<_>>();
        found += ended.len();
        self.end(ended, EndedFrom::Queue);
        found
    }

    pub(super) fn stop(&mut self, now: bool) {
        self.stopping = true;
        for work in self.slots.iter().filter_map(|slot| slot.work.as_ref()) {
            let _ = work.actor.send_message(SessionMsg::Stop { now });
        }
        for index in 0..self.pool.config.max_size {
            self.close(index, now);
        }
    }

    /// A session ended without a word: its task is lost, its children die with its keeper.
    pub(super) fn session_gone(&mut self, who: &SessionRef, why: &str) {
        let gone = self.slots.iter().find_map(|slot| {
            let (actor, session) = slot.occupant()?;
            let works = slot.work.is_some();
            actor
                .is(who)
                .then(|| (slot.id.index, session.clone(), works))
        });
        match gone {
            Some((index, session, true)) => {
                self.attempt_ended(&Attempt::internal(index, session, why));
            }
            Some((index, session, false)) => self.session_closed(index, &session, None),
            None => {}
        }
    }
}

/// Why a task that waited will never begin.
pub(super) const CANCELLED: &str = "the run was cancelled before the task began";

fn fresh_session_id(shared: &Shared) -> SessionId {
    let id = shared.ambient.id().to_string();
    SessionId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
}
