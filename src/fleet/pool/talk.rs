//! Conversations in a pool: which slot belongs to which client, and the prompts that wait for it.
//!
//! Must not know what a prompt says, or who the client is.

use std::collections::VecDeque;
use std::path::PathBuf;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::ending::unbegun;
use super::slot::{Kept, Slot};
use super::state::PoolState;
use crate::fleet::approver::{Approver, Said};
use crate::fleet::conversation::{Grant, OpenError};
use crate::fleet::session::{OfChat, SessionMsg, StoredSession, TalkArgs, Work};
use crate::fleet::setting::SetReply;
use crate::journal::Write;
use crate::lifecycle::state::SlotEvent;
use crate::limits;
use crate::model::{AskId, Event, RunId, SessionId, Setting, SlotState, TaskOutcome};
use crate::telemetry::event::task::EndedFrom;

/// What clients want of a pool.
#[derive(Debug)]
pub(crate) enum Talk {
    /// A slot for a conversation.
    Open(Box<Opener>),
    /// Where the stream of a conversation stands, now that nobody else writes it.
    Stands(Box<StoredSession>),
    /// A prompt, already durable.
    Prompt {
        /// Of which conversation.
        session: SessionId,
        /// The prompt.
        task: Box<ActiveTask>,
    },
    /// A person's answer to an ask.
    Answer {
        /// Of which conversation.
        session: SessionId,
        /// Which ask.
        ask: AskId,
        /// What came back.
        said: Said,
    },
    /// The client wants its session's child to run, so that it says what it offers.
    Warm {
        /// Of which conversation.
        session: SessionId,
        /// Told, or dropped, when the child is ready or will not be.
        ready: oneshot::Sender<()>,
    },
    /// Something is to be set in the session.
    Set {
        /// Of which conversation.
        session: SessionId,
        /// What.
        setting: Setting,
        /// Who waits for the answer.
        reply: SetReply,
    },
    /// An event of the supervisor's own is to go into the stream, with what goes with it.
    Note {
        /// Of which conversation.
        session: SessionId,
        /// What is told.
        event: Box<Event>,
        /// What goes with it.
        rows: Vec<Write>,
        /// Told when it is durable; dropped when nobody knows whether it will be.
        done: oneshot::Sender<()>,
    },
    /// A person stops the turn that runs; a tool call may end first.
    Interrupt {
        /// Of which conversation.
        session: SessionId,
    },
    /// The client goes.
    Leave {
        /// Which conversation.
        session: SessionId,
        /// Told when its child is gone and its slot is free.
        done: Option<oneshot::Sender<()>>,
    },
}

/// A client that waits for a slot.
#[derive(Debug)]
pub(crate) struct Opener {
    pub(crate) session: SessionId,
    pub(crate) run: RunId,
    /// The client's directory in the workspace.
    pub(crate) within: PathBuf,
    /// What there is of it already.
    pub(crate) stored: Option<StoredSession>,
    pub(crate) approver: Approver,
    pub(crate) chat: Option<OfChat>,
    /// Told the slot; closed when the client waits no longer.
    pub(crate) reply: oneshot::Sender<Result<Grant, OpenError>>,
}

/// A slot's conversation, from its opening until its client has left.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) session: SessionId,
    run: RunId,
    within: PathBuf,
    approver: Approver,
    chat: Option<OfChat>,
    /// The session's actor was started: what is not kept since is over.
    begun: bool,
    /// What there was of it when it was opened.
    stored: Option<StoredSession>,
    pub(super) waiting: VecDeque<ActiveTask>,
    /// The client has left; these wait for the slot to be free.
    leaving: Option<Vec<oneshot::Sender<()>>>,
}

impl Held {
    pub(super) const fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// What its session's actor is started with.
    pub(super) fn args(&self) -> TalkArgs {
        TalkArgs {
            run: self.run.clone(),
            within: self.within.clone(),
            approver: self.approver.clone(),
            chat: self.chat.clone(),
        }
    }

    /// The session is about to get its actor; gives what there was of it.
    pub(super) fn begin(&mut self) -> Option<StoredSession> {
        self.begun = true;
        self.stored.take()
    }

    /// Why the next prompt cannot be worked, if so. `kept` is what the slot has of the session.
    fn is_over(&self, kept: Option<&Kept>) -> bool {
        self.begun && kept.is_none()
    }
}

impl PoolState {
    pub(super) fn talk(&mut self, talk: Talk) {
        match talk {
            Talk::Open(opener) => self.openers.push_back(*opener),
            Talk::Stands(stored) => {
                let slot = self
                    .slots
                    .iter_mut()
                    .find(|slot| slot.holds(&stored.session));
                if let Some(held) = slot.and_then(|slot| slot.held.as_mut())
                    && !held.begun
                {
                    held.stored = Some(*stored);
                }
            }
            Talk::Prompt { session, task } => self.prompted(&session, *task),
            Talk::Answer { session, ask, said } => {
                self.tell_session(&session, SessionMsg::Answered { ask, said });
            }
            Talk::Warm { session, ready } => self.warm(&session, ready),
            Talk::Set {
                session,
                setting,
                reply,
            } => self.tell_session(&session, SessionMsg::Set { setting, reply }),
            Talk::Note {
                session,
                event,
                rows,
                done,
            } => self.tell_session(&session, SessionMsg::Note { event, rows, done }),
            Talk::Interrupt { session } => self.interrupted(&session),
            Talk::Leave { session, done } => self.leave(&session, done),
        }
    }

    /// What nobody gets is dropped.
    fn tell_session(&self, session: &SessionId, message: SessionMsg) {
        let slot = self.slots.iter().find(|slot| slot.holds(session));
        if let Some((actor, _)) = slot.and_then(Slot::occupant) {
            let _ = actor.send_message(message);
        }
    }

    /// Starts a conversation's first child before there is a prompt. Whatever prevents it is told
    /// with the prompt.
    fn warm(&mut self, session: &SessionId, ready: oneshot::Sender<()>) {
        if self.cancelled || self.stopping {
            return;
        }
        let Some(at) = self.slots.iter().position(|slot| slot.holds(session)) else {
            return;
        };
        let slot = &mut self.slots[at];
        let (index, is_idle) = (slot.id.index, slot.is_idle());
        let id = slot.id.clone();
        let Some(held) = &mut slot.held else { return };
        if !is_idle || held.begun || held.is_leaving() {
            return;
        }
        let stored = held.begin();
        let work = Work::before_the_first(id, session.clone(), held.run.clone());
        let actor = self.begin(work, None, stored, Some(ready));
        self.slots[at].kept = Some(Kept::Waiting {
            actor,
            session: session.clone(),
        });
        self.change(index, SlotEvent::StartBegun, None);
    }

    fn prompted(&mut self, session: &SessionId, task: ActiveTask) {
        let slot = self.slots.iter_mut().find(|slot| slot.holds(session));
        match slot.and_then(|slot| slot.held.as_mut()) {
            Some(held) if !held.is_leaving() => held.waiting.push_back(task),
            _ => self.end(vec![unbegun(task, LEFT)], EndedFrom::Queue),
        }
    }

    fn interrupted(&mut self, session: &SessionId) {
        let slot = self.slots.iter_mut().find(|slot| slot.holds(session));
        let Some(slot) = slot else { return };
        if let Some(work) = &mut slot.work {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Interrupt);
            return;
        }
        let held = slot.held.as_mut();
        let waiting = held.map(|held| std::mem::take(&mut held.waiting));
        let ended = waiting.into_iter().flatten();
        let ended = ended.map(|task| unbegun(task, super::state::CANCELLED));
        self.end(ended.collect(), EndedFrom::Queue);
    }

    fn leave(&mut self, session: &SessionId, done: Option<oneshot::Sender<()>>) {
        // Whoever has not got a slot yet gets none.
        self.openers.retain(|opener| opener.session != *session);
        let Some(at) = self.slots.iter().position(|slot| slot.holds(session)) else {
            return;
        };
        let slot = &mut self.slots[at];
        let index = slot.id.index;
        let Some(held) = &mut slot.held else { return };
        let is_new = held.leaving.is_none();
        held.leaving.get_or_insert_default().extend(done);
        if !is_new {
            return;
        }
        let waiting = std::mem::take(&mut held.waiting);
        if let Some(work) = &mut slot.work {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Cancel);
        }
        let has_work = slot.work.is_some();
        let ended = waiting.into_iter().map(|task| unbegun(task, LEFT));
        self.end(ended.collect(), EndedFrom::Queue);
        if !has_work {
            self.close_for_now(index);
        }
    }

    /// Gives slots to clients that wait, takes those back whose clients have left, and ends
    /// prompts that nobody will work.
    pub(super) fn settle_conversations(&mut self) {
        if self.held == 0 && self.openers.is_empty() {
            return;
        }
        let closing = self.cancelled || self.stopping;
        for slot in &mut self.slots {
            let is_free = slot.work.is_none()
                && !matches!(slot.kept, Some(Kept::Waiting { .. } | Kept::Closing { .. }));
            if !is_free || !slot.held.as_ref().is_some_and(Held::is_leaving) {
                continue;
            }
            slot.kept = None;
            self.held -= 1;
            let left = slot.held.take().and_then(|held| held.leaving);
            let id = slot.id.clone();
            self.shared.slots.change(&id, |view| view.session = None);
            for done in left.into_iter().flatten() {
                let _ = done.send(());
            }
        }
        self.openers.retain(|opener| !opener.reply.is_closed());
        while let Some(opener) = self.openers.pop_front() {
            if let Some(refusal) = self.refusal(&opener, closing) {
                let _ = opener.reply.send(Err(refusal));
                continue;
            }
            let is_open = |slot: &Slot| slot.holds(&opener.session);
            let has_room = |(at, slot): (usize, &Slot)| self.pool.gives_to(at) && slot.has_room();
            let mut slots = self.slots.iter().enumerate();
            let free = slots.position(has_room);
            let Some(at) = free.filter(|_| !self.slots.iter().any(is_open)) else {
                self.openers.push_front(opener);
                break;
            };
            self.hold(at, opener);
        }
        self.end_hopeless(closing);
    }

    /// Why a client gets no slot, however long it waits.
    fn refusal(&self, opener: &Opener, closing: bool) -> Option<OpenError> {
        let is_parked = |slot: &Slot| slot.state == SlotState::Parked;
        let is_taken = |slot: &Slot| {
            let held = slot.held.as_ref();
            held.is_some_and(|held| held.session == opener.session && !held.is_leaving())
        };
        let pool = &self.pool.config.name;
        if closing {
            Some(OpenError::Stopping)
        } else if self.slots.iter().any(is_taken) {
            Some(OpenError::Taken(opener.session.clone()))
        } else if self.slots.iter().all(is_parked) {
            let why = self.slots.first().map(|slot| slot.id.clone());
            let views = self.shared.slots.of_pool(pool);
            let note = views.into_iter().find_map(|view| view.note);
            let note = note.map_or_else(String::new, |note| format!(": {note}"));
            let slot = why.map_or_else(String::new, |slot| slot.to_string());
            Some(OpenError::NoSlot(format!(
                "every slot of pool {pool} is parked{note}; mend that, then `marshal restart {slot}`"
            )))
        } else if self.openers.len() >= limits::CONVERSATION_OPENERS {
            Some(OpenError::NoSlot(format!(
                "{} clients wait for a slot of pool {pool} already",
                self.openers.len()
            )))
        } else {
            None
        }
    }

    fn hold(&mut self, at: usize, opener: Opener) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        self.held += 1;
        let id = slot.id.clone();
        let (session, granted) = (opener.session.clone(), opener.session.clone());
        slot.held = Some(Held {
            session: opener.session,
            run: opener.run,
            within: opener.within,
            approver: opener.approver,
            chat: opener.chat,
            begun: false,
            stored: opener.stored,
            waiting: VecDeque::new(),
            leaving: None,
        });
        // Known before anything is made of it, so that no sweep takes that for leftovers.
        let working = Some(session);
        self.shared.slots.change(&id, |view| view.session = working);
        // If the client went away at this very moment, the grant comes back by itself.
        let _ = opener.reply.send(Ok(Grant {
            session: granted,
            slot: id,
            pool: self.myself.clone(),
            is_over: false,
        }));
    }

    /// Ends the prompts of conversations whose slot is parked, or whose session is over.
    fn end_hopeless(&mut self, closing: bool) {
        let mut ended = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.work.is_none()) {
            let Some(held) = &mut slot.held else { continue };
            let outcome = TaskOutcome::Failed;
            let why = if closing {
                let waiting = held.waiting.drain(..);
                ended.extend(waiting.map(|task| unbegun(task, super::state::CANCELLED)));
                continue;
            } else if slot.state == SlotState::Parked {
                let slot = &slot.id;
                let views = self.shared.slots.of_pool(&self.pool.config.name);
                let view = views.into_iter().find(|view| view.slot == *slot);
                let note = view.and_then(|view| view.note);
                let why = note.map_or_else(String::new, |note| format!(": {note}"));
                format!(
                    "slot {slot} is parked{why}; see `marshal logs {slot}`, mend it, then `marshal restart {slot}`"
                )
            } else if held.is_over(slot.kept.as_ref()) {
                "the conversation is over: its session has ended; open a new one".to_owned()
            } else {
                continue;
            };
            let waiting = held.waiting.drain(..);
            ended.extend(waiting.map(|task| (task, outcome, Some(why.clone()))));
        }
        self.end(ended, EndedFrom::Queue);
    }

    /// Takes the waiting prompts of a cancelled run.
    pub(super) fn cancelled_prompts(
        &mut self,
        meant: impl Fn(&ActiveTask) -> bool,
    ) -> Vec<ActiveTask> {
        let mut found = Vec::new();
        for held in self.slots.iter_mut().filter_map(|slot| slot.held.as_mut()) {
            let waiting = std::mem::take(&mut held.waiting);
            let (ends, stays): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(&meant);
            held.waiting = stays;
            found.extend(ends);
        }
        found
    }

    /// Puts a task back before those that wait with it.
    pub(super) fn wait_again(&mut self, index: u16, task: ActiveTask) {
        let held = self.slot(index).and_then(|slot| slot.held.as_mut());
        match held {
            Some(held) => held.waiting.push_front(task),
            None => self.queue.push_front(task),
        }
    }
}

const LEFT: &str = "the client left before the prompt was sent";
