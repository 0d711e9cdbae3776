//! Orders of an operator to a running pool: pause, drain or resize it, and end one task, turn or
//! session. Also tasks with dependencies.
//!
//! The pool's phase and width are in `PoolShared` and last until the supervisor ends. Must not know
//! who the caller is.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::ending::end_unstarted;
use super::slot::{RetainedSession, Slot};
use super::state::PoolState;
use crate::handle::commands::{CommandError, CommandReply, CommandRequest};
use crate::handle::exec::{ExecError, PendingExec};
use crate::handle::operator::{OperatorError, OperatorResult};
use crate::handle::task_dependencies::{DependencyStatus, check_dependencies};
use crate::messages::SessionMsg;
use marshal_dialect::lifecycle::state::has_child;
use marshal_model::{RunId, SessionId, TaskId};
use marshal_telemetry::event::task::TaskLocation;

/// The detail of a queued task that was cancelled.
const TASK_CANCELLED: &str = "the task was cancelled before it began";

/// An order of an operator; see the head of this file.
#[derive(Debug)]
pub(crate) enum OperatorRequest {
    /// The pool's phase or width has changed.
    PhaseOrWidthChanged,
    /// Cancels one queued or running task.
    CancelTask {
        /// The task's run.
        run: RunId,
        /// The task's id.
        task: TaskId,
    },
    /// Cancels a session's turn; the session continues if it can.
    Interrupt(SessionId),
    /// Ends a session.
    StopSession(SessionId),
    /// Sends a session's agent one of its own commands.
    Command {
        /// The session's id.
        session: SessionId,
        /// The command.
        order: Arc<CommandRequest>,
        /// Receives the agent's answer.
        reply: CommandReply,
    },
    /// Runs a command of a client in the sandbox of a slot's agent.
    Exec {
        /// The slot's index.
        index: u16,
        /// The command.
        pending: Box<PendingExec>,
    },
}

impl PoolState {
    pub(super) fn handle_operator_request(
        &mut self,
        order: OperatorRequest,
        done: oneshot::Sender<OperatorResult>,
    ) {
        let result = match order {
            OperatorRequest::PhaseOrWidthChanged => {
                self.unloading.clear();
                // Slots beyond the new width may have idle children.
                self.must_check_slots = true;
                Ok(())
            }
            OperatorRequest::CancelTask { run, task } => {
                let matches = |other: &ActiveTask| other.run == run && other.spec.id == task;
                match self.cancel_matching(matches, TASK_CANCELLED) {
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
            OperatorRequest::Exec { index, pending } => {
                self.exec_in_slot(index, pending);
                Ok(())
            }
        };
        let _ = done.send(result);
    }

    /// Queues tasks; those with dependencies are blocked until these are done.
    pub(super) fn add_tasks(&mut self, tasks: Vec<ActiveTask>) {
        let has_dependencies = |task: &ActiveTask| !task.dependencies.is_empty();
        let (blocked, free): (Vec<_>, Vec<_>) = tasks.into_iter().partition(has_dependencies);
        self.queue.extend(free);
        if !blocked.is_empty() {
            self.blocked.extend(blocked);
            self.recheck_blocked_tasks();
        }
    }

    /// Queues blocked tasks whose dependencies are done, and ends those with a failed dependency.
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

    /// The slot that has this session.
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
        let _ = work
            .actor
            .send_message(SessionMsg::cancel("its turn was stopped by command"));
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
            let _ = work
                .actor
                .send_message(SessionMsg::cancel("its session was stopped by command"));
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
        }
        self.must_check_slots = true;
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

    fn exec_in_slot(&self, index: u16, pending: Box<PendingExec>) {
        let slot = self.slots.get(usize::from(index));
        let Some((actor, session)) = slot.and_then(Slot::occupant) else {
            return pending.refuse(ExecError::NoAgent);
        };
        if pending
            .order
            .session
            .as_ref()
            .is_some_and(|of| of != session)
        {
            return pending.refuse(ExecError::OtherSession);
        }
        let _ = actor.send_message(SessionMsg::Exec(pending));
    }

    /// Ends idle sessions that an operator stopped. Also stops idle children of slots that receive
    /// no tasks any more, because the pool drains or its width is smaller.
    pub(super) fn close_unneeded_sessions(&mut self) {
        let unloads = self.pool.must_unload(self.pool.config.size - 1);
        if !unloads && !self.must_check_slots {
            return;
        }
        self.must_check_slots = false;
        // Not the configured size: the pool may have been wider until now.
        for index in 0..self.pool.config.max_size {
            let Some(slot) = self.slots.get_mut(usize::from(index)) else {
                break;
            };
            if slot.work.is_some() || slot.conversation.is_some() {
                self.must_check_slots |=
                    slot.stopping_session.is_some() || self.pool.must_unload(index);
                self.unloading.remove(&index);
                continue;
            }
            let must_end = match (slot.stopping_session.take(), &slot.retained) {
                (Some(stopped), Some(RetainedSession::Idle { session, .. })) => stopped == *session,
                (Some(stopped), Some(RetainedSession::Stored(stored))) => stopped == stored.session,
                _ => false,
            };
            if must_end {
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
