//! A slot's session between tasks, with `session = "slot"`: how the next task gets to it, and when
//! it is closed.
//!
//! Must not know how a session loads itself again.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::slot::Kept;
use super::state::PoolState;
use crate::config::RestartKind;
use crate::fleet::channel::ChannelEnd;
use crate::fleet::clock::now_us;
use crate::fleet::session::{
    self, Attempt, SessionArgs, SessionMsg, SessionRef, Stays, StoredSession, Work,
};
use crate::journal::Write;
use crate::lifecycle::state::SlotEvent;
use crate::model::{ExitStatus, SessionId, SlotState};

impl PoolState {
    /// Gives work to the session that waits for it, or to a new one.
    pub(super) fn give(
        &self,
        work: Work,
        kept: Option<Kept>,
        instead_of: Option<(SessionId, String)>,
    ) -> SessionRef {
        match kept {
            // One whose actor is gone says so by its end; the task is then seen to be lost.
            Some(Kept::Waiting { actor, .. } | Kept::Closing { actor, .. }) => {
                let _ = actor.send_message(SessionMsg::Next(Box::new(work)));
                actor
            }
            Some(Kept::Stored(stored)) => self.begin(work, None, Some(stored), None),
            None => self.begin(work, instead_of, None, None),
        }
    }

    /// Begins a session. `warm`: before it has a task, for a client that is told when its child is
    /// ready.
    pub(super) fn begin(
        &self,
        work: Work,
        instead_of: Option<(SessionId, String)>,
        stored: Option<StoredSession>,
        warm: Option<oneshot::Sender<()>>,
    ) -> SessionRef {
        let slot = self.slots.get(usize::from(work.slot.index));
        let held = slot.and_then(|slot| slot.held.as_ref());
        session::start(SessionArgs {
            pool_ref: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            talk: held.map(super::talk::Held::args),
            work,
            instead_of,
            stored,
            warm,
        })
    }

    /// What becomes of a session that waits after its task: it goes on if its child lives, or if
    /// it can be loaded in another one and the pool restarts its children.
    pub(super) fn what_of_the_session(
        &mut self,
        index: u16,
        stays: &Stays,
        child_ended: bool,
        is_sent_again: bool,
    ) {
        let held = self.slot(index).and_then(|slot| slot.held.as_ref());
        let is_left = held.is_some_and(super::talk::Held::is_leaving);
        let is_held = held.is_some();
        // A conversation's next child is started because a person prompts.
        let restarts = is_held || self.pool.config.restart.kind != RestartKind::Temporary;
        let goes_on = stays.has_child && !child_ended || stays.can_load && restarts;
        if let Some(why) = &stays.not_loaded
            && !goes_on
            && let Some(slot) = self.slot(index)
        {
            let session = slot.occupant().map(|(_, session)| session.clone());
            slot.given_up = session.map(|session| (session, why.clone()));
        }
        if self.stopping || is_sent_again || is_left || !goes_on {
            let for_good = if is_held {
                !stays.can_load
            } else {
                self.ends_for_good(stays) || is_sent_again
            };
            self.close_as(index, for_good, false);
        } else if child_ended && !is_held {
            self.load_at_once(index);
        }
    }

    /// Whether a session that is closed now is over, or left to the next start.
    fn ends_for_good(&self, stays: &Stays) -> bool {
        !(self.stopping && self.shared.sessions_outlive && stays.can_load)
    }

    /// With `restart.kind = "permanent"` a child is started though no task waits.
    pub(super) fn load_at_once(&mut self, index: u16) {
        let unloads = self.pool.unloads(index);
        if self.pool.config.restart.kind != RestartKind::Permanent || self.stopping || unloads {
            return;
        }
        if let Some(slot) = self.slot(index)
            && slot.state == SlotState::Unloaded
            && let Some(Kept::Waiting { actor, .. }) = &slot.kept
        {
            let _ = actor.send_message(SessionMsg::Load);
            // Now, not when the session says so: a task that comes meanwhile waits for its child.
            self.change(index, SlotEvent::StartBegun, None);
        }
    }

    /// Closes the session that waits in a slot, because the pool stops.
    pub(super) fn close(&mut self, index: u16, now: bool) {
        let slot = self.slots.get(usize::from(index));
        let is_held = slot.is_some_and(|slot| slot.held.is_some());
        self.close_as(index, !self.shared.sessions_outlive && !is_held, now);
    }

    /// Closes a conversation's session so that it can be loaded again.
    pub(super) fn close_for_now(&mut self, index: u16) {
        self.close_as(index, false, false);
    }

    /// Ends a session that waits.
    pub(super) fn close_for_good(&mut self, index: u16) {
        self.close_as(index, true, false);
    }

    fn close_as(&mut self, index: u16, for_good: bool, now: bool) {
        let Some(slot) = self.slot(index) else { return };
        slot.kept = match slot.kept.take() {
            Some(Kept::Waiting { actor, session } | Kept::Closing { actor, session }) => {
                let _ = actor.send_message(SessionMsg::Close { for_good, now });
                Some(Kept::Closing { actor, session })
            }
            Some(Kept::Stored(stored)) if for_good => {
                let id = slot.id.clone();
                self.shared.slots.change(&id, |view| view.session = None);
                self.shared.questions.session_over(&stored.session);
                self.submit(Write::SessionEnded {
                    session: stored.session,
                    at_us: now_us(),
                    class: None,
                });
                return;
            }
            kept => kept,
        };
    }

    /// A session between tasks lost its child.
    pub(super) fn child_gone(
        &mut self,
        index: u16,
        session: &SessionId,
        end: &ChannelEnd,
        stays: &Stays,
    ) {
        let Some(slot) = self.slot(index) else { return };
        if slot.occupant().map(|(_, current)| current) != Some(session) {
            return;
        }
        let id = slot.id.clone();
        let code = end.status.map(ExitStatus::shell_code);
        self.shared.slots.change(&id, |view| {
            view.pid = None;
            view.last_exit_code = code.or(view.last_exit_code);
        });
        let follows = self.child_ended(index, end);
        self.task_on_its_way(index, follows.parked.is_some());
        self.what_of_the_session(index, stays, true, false);
        self.old_child_is_gone(index, false);
    }

    /// The session was given a task before it was known that its child is gone: it starts another
    /// one for it, unless the slot is parked now, and then the task goes back unspent.
    fn task_on_its_way(&mut self, index: u16, parked: bool) {
        let Some(slot) = self.slot(index) else { return };
        let Some(work) = &slot.work else { return };
        if parked {
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
        } else {
            // The wait, if there is one, is not for this child.
            slot.round += 1;
            self.change(index, SlotEvent::StartBegun, None);
        }
    }

    /// A session is closed: its slot is free for a new one.
    pub(super) fn session_closed(
        &mut self,
        index: u16,
        session: &SessionId,
        given_back: Option<StoredSession>,
    ) {
        let Some(slot) = self.slot(index) else { return };
        if slot.occupant().map(|(_, current)| current) != Some(session) {
            return;
        }
        if slot.work.is_some() {
            let why = "the session closed before its task began";
            let attempt = Attempt::internal(index, session.clone(), why);
            return self.attempt_ended(&attempt);
        }
        let stays = given_back.is_some();
        slot.kept = given_back.map(Kept::Stored);
        let (id, state) = (slot.id.clone(), slot.state);
        self.shared.slots.change(&id, |view| {
            if !stays {
                view.session = None;
            }
            view.pid = None;
        });
        if crate::lifecycle::state::has_child(state) {
            self.change(index, SlotEvent::GoneToRest, None);
        }
        self.old_child_is_gone(index, false);
    }
}
