//! A slot's session between tasks, with `session = "slot"`: how the next task gets to it, and when
//! it is closed.
//!
//! Must not know how a session loads itself again.
//!
//! What becomes of a slot's session:
//!
//! - After a turn it waits, with its child, for the next task.
//! - When its child ends, by `restart` or after `timeouts.idle`, it waits without one. The next task loads
//!   it in a new child; with `permanent` a child is started at once.
//! - When two children in a row ended before they had loaded it, or the agent cannot load it, it is over
//!   (`session/next_task.rs`). The next task begins a new session.
//! - With the end of the run that `run` works, it is over.
//! - When the daemon stops or is killed, it is left. `fleet/resume_sessions.rs` gives it to its slot at the next
//!   start, and its stream goes on at its durable end.
//!
//! A session goes on without its child only if the agent can load it and the restart kind is not
//! `temporary`. A prompt that is sent again gets a fresh session. One without an end keeps its home and
//! copy: the sweep asks the journal which these are (`journal/resumable.rs`).

use std::sync::Arc;

use tokio::sync::oneshot;

use super::slot::RetainedSession;
use super::state::PoolState;
use crate::channel::ChannelEnd;
use crate::clock::now_us;
use crate::session::{
    self, Attempt, IdleSession, SessionArgs, SessionMsg, SessionRef, StoredSession, Work,
};
use marshal_config::RestartKind;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::{ExitStatus, SessionId, SlotState};

impl PoolState {
    /// Gives work to the session that waits for it, or to a new one.
    pub(super) fn dispatch_work(
        &self,
        work: Work,
        kept: Option<RetainedSession>,
        instead_of: Option<(SessionId, String)>,
    ) -> SessionRef {
        match kept {
            // One whose actor is gone says so by its end; the task is then seen to be lost.
            Some(RetainedSession::Idle { actor, .. } | RetainedSession::Closing { actor, .. }) => {
                let _ = actor.send_message(SessionMsg::NextTask(Box::new(work)));
                actor
            }
            Some(RetainedSession::Stored(stored)) => {
                self.start_session(work, None, Some(stored), None)
            }
            None => self.start_session(work, instead_of, None, None),
        }
    }

    /// Begins a session. `warm`: before it has a task, for a client that is told when its child is
    /// ready.
    pub(super) fn start_session(
        &self,
        work: Work,
        instead_of: Option<(SessionId, String)>,
        stored: Option<StoredSession>,
        warm: Option<oneshot::Sender<()>>,
    ) -> SessionRef {
        let slot = self.slots.get(usize::from(work.slot.index));
        let held = slot.and_then(|slot| slot.conversation.as_ref());
        session::start(SessionArgs {
            pool_ref: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            conversation: held.map(super::conversations::SlotConversation::args),
            work,
            replaces: instead_of,
            stored,
            child_ready: warm,
        })
    }

    /// What becomes of a session that waits after its task: it goes on if its child lives, or if
    /// it can be loaded in another one and the pool restarts its children.
    pub(super) fn keep_or_close_session(
        &mut self,
        index: u16,
        stays: &IdleSession,
        child_ended: bool,
        is_sent_again: bool,
    ) {
        let held = self.slot(index).and_then(|slot| slot.conversation.as_ref());
        let is_left = held.is_some_and(super::conversations::SlotConversation::is_leaving);
        let is_held = held.is_some();
        // A conversation's next child is started because a person prompts.
        let restarts = is_held || self.pool.config.restart.kind != RestartKind::Temporary;
        let goes_on = stays.has_child && !child_ended || stays.can_load && restarts;
        if let Some(why) = &stays.not_loaded
            && !goes_on
            && let Some(slot) = self.slot(index)
        {
            let session = slot.occupant().map(|(_, session)| session.clone());
            slot.unloadable_session = session.map(|session| (session, why.clone()));
        }
        if self.stopping || is_sent_again || is_left || !goes_on {
            let for_good = if is_held {
                !stays.can_load
            } else {
                self.ends_permanently(stays) || is_sent_again
            };
            self.close_session(index, for_good, false);
        } else if child_ended && !is_held {
            self.restart_permanent_child(index);
        }
    }

    /// Whether a session that is closed now is over, or left to the next start.
    fn ends_permanently(&self, stays: &IdleSession) -> bool {
        !(self.stopping && self.shared.keeps_sessions && stays.can_load)
    }

    /// With `restart.kind = "permanent"` a child is started though no task waits.
    pub(super) fn restart_permanent_child(&mut self, index: u16) {
        let unloads = self.pool.must_unload(index);
        if self.pool.config.restart.kind != RestartKind::Permanent || self.stopping || unloads {
            return;
        }
        if let Some(slot) = self.slot(index)
            && slot.state == SlotState::Unloaded
            && let Some(RetainedSession::Idle { actor, .. }) = &slot.retained
        {
            let _ = actor.send_message(SessionMsg::Load);
            // Now, not when the session says so: a task that comes meanwhile waits for its child.
            self.apply_slot_event(index, SlotEvent::StartBegun, None);
        }
    }

    /// Closes the session that waits in a slot, because the pool stops.
    pub(super) fn close(&mut self, index: u16, now: bool) {
        let slot = self.slots.get(usize::from(index));
        let is_held = slot.is_some_and(|slot| slot.conversation.is_some());
        self.close_session(index, !self.shared.keeps_sessions && !is_held, now);
    }

    /// Closes a conversation's session so that it can be loaded again.
    pub(super) fn close_resumable(&mut self, index: u16) {
        self.close_session(index, false, false);
    }

    /// Ends a session that waits.
    pub(super) fn close_permanently(&mut self, index: u16) {
        self.close_session(index, true, false);
    }

    fn close_session(&mut self, index: u16, for_good: bool, now: bool) {
        let Some(slot) = self.slot(index) else { return };
        slot.retained = match slot.retained.take() {
            Some(
                RetainedSession::Idle { actor, session }
                | RetainedSession::Closing { actor, session },
            ) => {
                let _ = actor.send_message(SessionMsg::Close { for_good, now });
                Some(RetainedSession::Closing { actor, session })
            }
            Some(RetainedSession::Stored(stored)) if for_good => {
                let id = slot.id.clone();
                self.shared.slots.update(&id, |view| view.session = None);
                self.shared.approvals.remove_session(&stored.session);
                self.submit_write(Write::SessionEnded {
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
    pub(super) fn child_exited(
        &mut self,
        index: u16,
        session: &SessionId,
        end: &ChannelEnd,
        stays: &IdleSession,
    ) {
        let Some(slot) = self.slot(index) else { return };
        if slot.occupant().map(|(_, current)| current) != Some(session) {
            return;
        }
        let id = slot.id.clone();
        let code = end.status.map(ExitStatus::shell_code);
        self.shared.slots.update(&id, |view| {
            view.pid = None;
            view.last_exit_code = code.or(view.last_exit_code);
        });
        let follows = self.handle_child_end(index, end);
        self.handle_assigned_task(index, follows.park_reason.is_some());
        self.keep_or_close_session(index, stays, true, false);
        self.notify_restart_waiters(index, false);
    }

    /// The session was given a task before it was known that its child is gone: it starts another
    /// one for it, unless the slot is parked now, and then the task goes back unspent.
    fn handle_assigned_task(&mut self, index: u16, parked: bool) {
        let Some(slot) = self.slot(index) else { return };
        let Some(work) = &slot.work else { return };
        if parked {
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
        } else {
            // The wait, if there is one, is not for this child.
            slot.round += 1;
            self.apply_slot_event(index, SlotEvent::StartBegun, None);
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
        slot.retained = given_back.map(RetainedSession::Stored);
        let (id, state) = (slot.id.clone(), slot.state);
        self.shared.slots.update(&id, |view| {
            if !stays {
                view.session = None;
            }
            view.pid = None;
        });
        if marshal_dialect::lifecycle::state::has_child(state) {
            self.apply_slot_event(index, SlotEvent::GoneToRest, None);
        }
        self.notify_restart_waiters(index, false);
    }
}
