//! What people order of a pool while it runs: that tasks wait, or come after others, how many slots
//! work, the end of one task, of one turn or of one session.
//!
//! How tasks flow and how many slots work stands in what the fleet shares of the pool; it lasts until
//! the supervisor ends. Must not know who orders.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::ending::unbegun;
use super::slot::{Kept, Slot};
use super::state::PoolState;
use crate::fleet::commands::{CommandError, CommandOrder, CommandReply};
use crate::fleet::needs::{MayBegin, may_begin};
use crate::fleet::orders::{OrderError, Ordered};
use crate::fleet::session::SessionMsg;
use crate::lifecycle::state::has_child;
use crate::model::{RunId, SessionId, TaskId};
use crate::telemetry::event::task::EndedFrom;

/// Why a task that waited will never begin.
const TASK_CANCELLED: &str = "the task was cancelled before it began";

/// See the head of this file.
#[derive(Debug)]
pub(crate) enum Order {
    /// How tasks flow, or how many slots work, has changed.
    Changed,
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
        order: Arc<CommandOrder>,
        /// Who waits for the answer.
        reply: CommandReply,
    },
}

impl PoolState {
    pub(super) fn ordered(&mut self, order: Order, done: oneshot::Sender<Ordered>) {
        let came_to = match order {
            Order::Changed => {
                self.unloading.clear();
                Ok(())
            }
            Order::CancelTask { run, task } => {
                let is_it = |of: &ActiveTask| of.run == run && of.spec.id == task;
                match self.cancel_those(is_it, TASK_CANCELLED) {
                    0 => Err(OrderError::NotHere),
                    _ => Ok(()),
                }
            }
            Order::Interrupt(session) => self.interrupt(&session),
            Order::StopSession(session) => self.stop_session(&session),
            Order::Command {
                session,
                order,
                reply,
            } => self.command_session(&session, order, reply),
        };
        let _ = done.send(came_to);
    }

    /// Takes tasks in: those that come after others wait for them.
    pub(super) fn take_in(&mut self, tasks: Vec<ActiveTask>) {
        let has_needs = |task: &ActiveTask| !task.needs.is_empty();
        let (blocked, free): (Vec<_>, Vec<_>) = tasks.into_iter().partition(has_needs);
        self.queue.extend(free);
        if !blocked.is_empty() {
            self.blocked.extend(blocked);
            self.need_over();
        }
    }

    /// Looks which tasks may begin now, and which never will.
    pub(super) fn need_over(&mut self) {
        let (mut free, mut ended) = (Vec::new(), Vec::new());
        for mut task in std::mem::take(&mut self.blocked) {
            match may_begin(&mut task.needs) {
                MayBegin::Yes => free.push(task),
                MayBegin::NotYet => self.blocked.push(task),
                MayBegin::Never(why) => ended.push(unbegun(task, &why)),
            }
        }
        self.queue.extend(free);
        self.end(ended, EndedFrom::Queue);
    }

    /// The slot that a session is in.
    fn of_session(&mut self, session: &SessionId) -> Option<&mut Slot> {
        let is_in = |slot: &&mut Slot| match (&slot.kept, slot.occupant()) {
            (_, Some((_, current))) => current == session,
            (Some(Kept::Stored(stored)), None) => stored.session == *session,
            _ => slot.holds(session),
        };
        self.slots.iter_mut().find(is_in)
    }

    fn interrupt(&mut self, session: &SessionId) -> Ordered {
        let slot = self.of_session(session).ok_or(OrderError::NotHere)?;
        let work = slot.work.as_mut().ok_or(OrderError::NoTurn)?;
        work.task.cancelled = true;
        let _ = work.actor.send_message(SessionMsg::Cancel);
        Ok(())
    }

    fn stop_session(&mut self, session: &SessionId) -> Ordered {
        let slot = self.of_session(session).ok_or(OrderError::NotHere)?;
        if slot.held.is_some() {
            return Err(OrderError::Clients);
        }
        slot.dismissed = Some(session.clone());
        if let Some(work) = slot.work.as_mut() {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Cancel);
            let _ = work.actor.send_message(SessionMsg::Stop { now: false });
        }
        self.dismisses = true;
        Ok(())
    }

    fn command_session(
        &mut self,
        session: &SessionId,
        order: Arc<CommandOrder>,
        reply: CommandReply,
    ) -> Ordered {
        let slot = self.of_session(session).ok_or(OrderError::NotHere)?;
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
    pub(super) fn clear_out(&mut self) {
        let unloads = self.pool.unloads(self.pool.config.size - 1);
        if !unloads && !self.dismisses {
            return;
        }
        self.dismisses = false;
        for index in 0..self.pool.config.size {
            let Some(slot) = self.slots.get_mut(usize::from(index)) else {
                break;
            };
            if slot.work.is_some() || slot.held.is_some() {
                self.dismisses |= slot.dismissed.is_some();
                self.unloading.remove(&index);
                continue;
            }
            let is_dismissed = match (slot.dismissed.take(), &slot.kept) {
                (Some(gone), Some(Kept::Waiting { session, .. })) => gone == *session,
                (Some(gone), Some(Kept::Stored(stored))) => gone == stored.session,
                _ => false,
            };
            if is_dismissed {
                self.close_for_good(index);
                continue;
            }
            let unloads = self.pool.unloads(index) && has_child(slot.state);
            if let Some(Kept::Waiting { actor, .. }) = &slot.kept
                && unloads
                && self.unloading.insert(index)
            {
                let _ = actor.send_message(SessionMsg::Stop { now: false });
            }
        }
    }
}
