//! The orderly end of a pool: nothing starts, what waits is left to the next start, and running turns
//! may end for a while.
//!
//! Must not know why the supervisor stops.

use tokio::time::sleep;

use super::state::PoolState;
use crate::Stop;
use crate::messages::{PoolMsg, SessionMsg};
use marshal_model::INTERRUPTED_BY_STOP;

impl PoolState {
    /// Starts nothing any more. A turn that has begun may end within `stop.drain`.
    pub(super) fn drain(&mut self) {
        if std::mem::replace(&mut self.is_draining, true) {
            return;
        }
        for work in self.slots.iter().filter_map(|slot| slot.work.as_ref()) {
            let _ = work.actor.send_message(SessionMsg::Drain);
        }
        let (to, time) = (self.myself.clone(), self.pool.config.drain);
        tokio::spawn(async move {
            sleep(time).await;
            let _ = to.send_message(PoolMsg::DrainEnded);
        });
    }

    /// Cancels the running turns, because the supervisor does not wait any longer.
    pub(super) fn interrupt_turns(&mut self) {
        if std::mem::replace(&mut self.is_interrupted, true) {
            return;
        }
        for work in self.slots.iter_mut().filter_map(|slot| slot.work.as_mut()) {
            work.task.is_interrupted = true;
            let why = SessionMsg::cancel(INTERRUPTED_BY_STOP);
            let _ = work.actor.send_message(why);
        }
    }

    /// Leaves the queued and blocked tasks in the journal, for the next start.
    pub(super) fn leave_waiting(&mut self) {
        for task in self.take_waiting() {
            self.leave_task(&task);
        }
    }

    /// Ends the pool as soon as its sessions have ended.
    pub(super) fn stop(&mut self, how: Stop) {
        self.stopping = true;
        self.drain();
        match how {
            Stop::Drain => {}
            Stop::Interrupt => self.interrupt_turns(),
            Stop::Kill => {
                for work in self.slots.iter().filter_map(|slot| slot.work.as_ref()) {
                    let _ = work.actor.send_message(SessionMsg::Stop { now: true });
                }
            }
        }
        for index in 0..self.pool.config.max_size {
            self.close(index, how == Stop::Kill);
        }
    }
}
