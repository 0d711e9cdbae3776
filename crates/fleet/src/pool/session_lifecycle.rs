//! A slot's session between tasks, with `session = "slot"`: how it gets the next task, and when it
//! is closed.
//!
//! Must not know how a session loads itself again.
//!
//! The life of a slot's session:
//!
//! - After a turn it is idle, with its child, until the next task.
//! - When its child ends, by `restart` or after `timeouts.idle`, it is idle without one. The next task
//!   loads it in a new child; with `permanent` a child is started at once.
//! - When two children in a row ended before they had loaded it, or the agent cannot load it, it ends
//!   (`session/lifecycle/next_task.rs`). The next task begins a new session.
//! - Under `marshal run` it ends with the run.
//! - When the daemon stops or is killed, it is left. `fleet/resume_sessions.rs` gives it to its slot at
//!   the next start, and its stream continues at its durable end.
//!
//! A session continues without its child only if the agent can load it and the restart kind is not
//! `temporary`. A prompt that is sent again gets a new session. A session that has not ended keeps
//! its home and copy: the sweep reads these sessions from the journal (`journal/resumable.rs`).

use std::sync::Arc;

use tokio::sync::oneshot;

use super::slot::RetainedSession;
use super::state::PoolState;
use crate::channel::ChannelEnd;
use crate::clock::now_us;
use crate::messages::{SessionMsg, SessionRef};
use crate::session::{self, Attempt, IdleSession, SessionArgs, StoredSession, Work};
use marshal_config::{RestartKind, SessionScope};
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::{ExitStatus, SessionId, SlotState};

impl PoolState {
    /// Gives work to the slot's retained session, or to a new one.
    pub(super) fn dispatch_work(
        &self,
        work: Work,
        retained: Option<RetainedSession>,
        instead_of: Option<(SessionId, String)>,
    ) -> SessionRef {
        match retained {
            // If the session's task is gone, its `SessionGone` message ends the work as lost.
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

    /// Starts a session. With `child_ready` the session starts its child before it has a task, and notifies
    /// the client when the child is ready.
    pub(super) fn start_session(
        &self,
        work: Work,
        instead_of: Option<(SessionId, String)>,
        stored: Option<StoredSession>,
        child_ready: Option<oneshot::Sender<()>>,
    ) -> SessionRef {
        let slot = self.slots.get(usize::from(work.slot.index));
        let conversation = slot.and_then(|slot| slot.conversation.as_ref());
        session::start(SessionArgs {
            pool_ref: self.myself.clone(),
            shared: Arc::clone(&self.shared),
            pool: Arc::clone(&self.pool),
            conversation: conversation.map(super::conversations::SlotConversation::args),
            work,
            replaces: instead_of,
            stored,
            child_ready,
        })
    }

    /// Keeps or closes a session after its task. It is kept if its child runs, or if it can be
    /// loaded in a new child and the pool restarts its children.
    pub(super) fn keep_or_close_session(
        &mut self,
        index: u16,
        idle: &IdleSession,
        child_ended: bool,
        is_sent_again: bool,
    ) {
        let conversation = self.slot(index).and_then(|slot| slot.conversation.as_ref());
        let is_leaving =
            conversation.is_some_and(super::conversations::SlotConversation::is_leaving);
        let in_conversation = conversation.is_some();
        // A conversation's next child starts with a person's prompt, whatever the restart kind.
        let restarts = in_conversation || self.pool.config.restart.kind != RestartKind::Temporary;
        let continues = idle.has_child && !child_ended || idle.can_load && restarts;
        if let Some(why) = &idle.not_loaded
            && !continues
            && let Some(slot) = self.slot(index)
        {
            let session = slot.occupant().map(|(_, session)| session.clone());
            slot.unloadable_session = session.map(|session| (session, why.clone()));
        }
        // Only a task that lands keeps its session beyond its turn.
        let of_task = !in_conversation && self.pool.config.options.session == SessionScope::Task;
        if self.stopping || is_sent_again || is_leaving || of_task || !continues {
            let for_good = if in_conversation {
                !idle.can_load
            } else {
                self.ends_permanently(idle) || is_sent_again || of_task
            };
            self.close_session(index, for_good, false);
        } else if child_ended && !in_conversation {
            self.restart_permanent_child(index);
        }
    }

    /// Whether closing a session ends it, instead of leaving it to the next start.
    fn ends_permanently(&self, idle: &IdleSession) -> bool {
        !(self.stopping && self.shared.keeps_sessions && idle.can_load)
    }

    /// With `restart.kind = "permanent"`, starts a child even if no task is queued.
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
            // Set now and not when the session reports it, so that a task that arrives in between
            // waits for this child.
            self.apply_slot_event(index, SlotEvent::StartBegun, None);
        }
    }

    /// Closes a slot's idle session because the pool stops.
    pub(super) fn close(&mut self, index: u16, now: bool) {
        let slot = self.slots.get(usize::from(index));
        let in_conversation = slot.is_some_and(|slot| slot.conversation.is_some());
        self.close_session(index, !self.shared.keeps_sessions && !in_conversation, now);
    }

    /// Closes a conversation's idle session so that it can be loaded again.
    pub(super) fn close_resumable(&mut self, index: u16) {
        self.close_session(index, false, false);
    }

    /// Ends an idle session for good.
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
            other => other,
        };
    }

    /// A session between tasks lost its child.
    pub(super) fn child_exited(
        &mut self,
        index: u16,
        session: &SessionId,
        end: &ChannelEnd,
        idle: &IdleSession,
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
        let action = self.handle_child_end(index, end);
        self.handle_assigned_task(index, action.park_reason.is_some());
        self.keep_or_close_session(index, idle, true, false);
        self.notify_restart_waiters(index, false);
    }

    /// Handles a race: the session got a task before the pool knew that its child had ended. The
    /// session starts a new child for the task. If the slot is parked now, the task is requeued and
    /// no attempt is counted.
    fn handle_assigned_task(&mut self, index: u16, parked: bool) {
        let Some(slot) = self.slot(index) else { return };
        let Some(work) = &slot.work else { return };
        if parked {
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
        } else {
            // Invalidates a backoff: the task's child starts now.
            slot.round += 1;
            self.apply_slot_event(index, SlotEvent::StartBegun, None);
        }
    }

    /// A session is closed: its slot is free for a new one.
    pub(super) fn session_closed(
        &mut self,
        index: u16,
        session: &SessionId,
        returned: Option<StoredSession>,
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
        let is_retained = returned.is_some();
        slot.retained = returned.map(RetainedSession::Stored);
        let (id, state) = (slot.id.clone(), slot.state);
        self.shared.slots.update(&id, |view| {
            if !is_retained {
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
