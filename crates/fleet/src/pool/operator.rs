//! What people order of a pool while it runs: that tasks wait, or come after others, how many slots
//! work, the end of one task, of one turn or of one session.
//!
//! How tasks flow and how many slots work stands in what the fleet shares of the pool; it lasts until
//! the supervisor ends. Must not know who orders.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::ending::end_unstarted;
use super::slot::{RetainedSession, Slot};
use super::state::PoolState;
use crate::commands::{CommandError, CommandReply, CommandRequest};
use crate::operator::{OperatorError, OperatorResult};
use crate::session::SessionMsg;
use crate::task_dependencies::{DependencyStatus, check_dependencies};
use marshal_dialect::lifecycle::state::has_child;
use marshal_model::{RunId, SessionId, TaskId};
use marshal_telemetry::event::task::TaskLocation;

/// Why a task that waited will never begin.
const TASK_CANCELLED: &str = "the task was cancelled before it began";

/// See the head of this file.
#[derive(Debug)]
pub(crate) enum OperatorRequest {
    /// How tasks flow, or how many slots work, has changed.
    PhaseChanged,
    /// The end of one task, which waits or is worked.
    CancelTask {
        /// Its run.
        run: RunId,
        /// Its id.
        task: TaskId,
    },
    /// The end of a session's turn; the session goes on where it can.
    Interrupt(SessionId),
    /// The end of a session.
    StopSession(SessionId),
    /// A command of its agent's own.
    Command {
        /// For which.
        session: SessionId,
        /// Which.
        order: Arc<CommandRequest>,
        /// Who waits for the answer.
        reply: CommandReply,
    },
}

impl PoolState {
    pub(super) fn handle_operator_request(
        &mut self,
        order: OperatorRequest,
        done: oneshot::Sender<OperatorResult>,
    ) {
        let came_to = match order {
            OperatorRequest::PhaseChanged => {
                self.unloading.clear();
                Ok(())
            }
            OperatorRequest::CancelTask { run, task } => {
                let is_it = |of: &ActiveTask| of.run == run && of.spec.id == task;
                match self.cancel_matching(is_it, TASK_CANCELLED) {
                    0 => Err(OperatorError::NotInPool),
                    _ => Ok(()),
                }
            }
            OperatorRequest::Interrupt(session) => self.interrupt(&session),
            OperatorRequest::StopSession(session) => self.stop_session(&session),
            OperatorRequest::Command {
                session,
                order,
                reply,
            } => self.command_session(&session, order, reply),
        };
        let _ = done.send(came_to);
    }

    /// Takes tasks in: those that come after others wait for them.
    pub(super) fn add_tasks(&mut self, tasks: Vec<ActiveTask>) {
        let has_needs = |task: &ActiveTask| !task.dependencies.is_empty();
        let (blocked, free): (Vec<_>, Vec<_>) = tasks.into_iter().partition(has_needs);
        self.queue.extend(free);
        if !blocked.is_empty() {
            self.blocked.extend(blocked);
            self.recheck_blocked_tasks();
        }
    }

    /// Looks which tasks may begin now, and which never will.
    pub(super) fn recheck_blocked_tasks(&mut self) {
        let (mut free, mut ended) = (Vec::new(), Vec::new());
        for mut task in std::mem::take(&mut self.blocked) {
            match check_dependencies(&mut task.dependencies) {
                DependencyStatus::Met => free.push(task),
                DependencyStatus::Waiting => self.blocked.push(task),
                DependencyStatus::Failed(why) => ended.push(end_unstarted(task, &why)),
            }
        }
        self.queue.extend(free);
        self.end_tasks(ended, TaskLocation::Queue);
    }

    /// The slot that a session is in.
    fn slot_of_session(&mut self, session: &SessionId) -> Option<&mut Slot> {
        let is_in = |slot: &&mut Slot| match (&slot.retained, slot.occupant()) {
            (_, Some((_, current))) => current == session,
            (Some(RetainedSession::Stored(stored)), None) => stored.session == *session,
            _ => slot.has_conversation(session),
        };
        self.slots.iter_mut().find(is_in)
    }

    fn interrupt(&mut self, session: &SessionId) -> OperatorResult {
        let slot = self
            .slot_of_session(session)
            .ok_or(OperatorError::NotInPool)?;
        let work = slot.work.as_mut().ok_or(OperatorError::NoTurn)?;
        work.task.cancelled = true;
        let _ = work.actor.send_message(SessionMsg::Cancel);
        Ok(())
    }

    fn stop_session(&mut self, session: &SessionId) -> OperatorResult {
        let slot = self
            .slot_of_session(session)
            .ok_or(OperatorError::NotInPool)?;
        if slot.conversation.is_some() {
            return Err(OperatorError::OwnedByClient);
        }
        slot.stopping_session = Some(session.clone());
        if let Some(work) = slot.work.as_mut() {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Cancel);
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
        }
        self.has_stopping_sessions = true;
        Ok(())
    }

    fn command_session(
        &mut self,
        session: &SessionId,
        order: Arc<CommandRequest>,
        reply: CommandReply,
    ) -> OperatorResult {
        let slot = self
            .slot_of_session(session)
            .ok_or(OperatorError::NotInPool)?;
        match slot.occupant() {
            Some((actor, _)) => {
                let _ = actor.send_message(SessionMsg::Command { order, reply });
            }
            None => {
                let _ = reply.send(Err(CommandError::NoAgent));
            }
        }
        Ok(())
    }

    /// Ends sessions that were dismissed, and has children that nobody needs go: of slots that get no
    /// task any more because the pool drains or works with fewer.
    pub(super) fn close_unneeded_sessions(&mut self) {
        let unloads = self.pool.must_unload(self.pool.config.size - 1);
        if !unloads && !self.has_stopping_sessions {
            return;
        }
        self.has_stopping_sessions = false;
        for index in 0..self.pool.config.size {
            let Some(slot) = self.slots.get_mut(usize::from(index)) else {
                break;
            };
            if slot.work.is_some() || slot.conversation.is_some() {
                self.has_stopping_sessions |= slot.stopping_session.is_some();
                self.unloading.remove(&index);
                continue;
            }
            let is_dismissed = match (slot.stopping_session.take(), &slot.retained) {
                (Some(gone), Some(RetainedSession::Idle { session, .. })) => gone == *session,
                (Some(gone), Some(RetainedSession::Stored(stored))) => gone == stored.session,
                _ => false,
            };
            if is_dismissed {
                self.close_permanently(index);
                continue;
            }
            let unloads = self.pool.must_unload(index) && has_child(slot.state);
            if let Some(RetainedSession::Idle { actor, .. }) = &slot.retained
                && unloads
                && self.unloading.insert(index)
            {
                let _ = actor.send_message(SessionMsg::Stop { now: false });
            }
        }
    }
}
