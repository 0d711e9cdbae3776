//! What bounds a pool's work beside its slots: the bounds of runs, and budgets of the pool that are
//! spent.
//!
//! Must not count anything.

use super::ending::unbegun;
use super::slot::{Kept, Slot};
use super::state::PoolState;
use crate::fleet::clock::now_us;
use crate::fleet::session::SessionMsg;
use crate::journal::Write;
use crate::lifecycle::state::SlotEvent;
use crate::model::{ExitClass, RunId, SlotState, Then};
use crate::telemetry::event::child::SlotParked;
use crate::telemetry::event::task::EndedFrom;

impl PoolState {
    /// None of a run's tasks begins any more: those that wait end, with the reason.
    pub(super) fn run_over(&mut self, run: &RunId, why: &str, cancels: bool) {
        let ended = self.queue.take_all_if(|task| task.run == *run);
        let ended = ended.into_iter().map(|task| unbegun(task, why)).collect();
        self.end(ended, EndedFrom::Queue);
        if !cancels {
            return;
        }
        let working = self.slots.iter_mut().filter_map(|slot| slot.work.as_mut());
        for work in working.filter(|work| work.task.run == *run) {
            work.task.cancelled = true;
            let _ = work.actor.send_message(SessionMsg::Cancel);
        }
    }

    /// A budget of the pool is spent that parks: no free slot begins anything for it.
    pub(super) fn park_what_is_spent(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let spent = self.pool.ledger.spent();
        let Some(spent) = spent.filter(|spent| spent.then == Then::Park) else {
            return;
        };
        let is_free = |slot: &Slot| {
            let is_kept = slot.kept.as_ref();
            let has_actor = is_kept.is_some_and(|kept| !matches!(kept, Kept::Stored(_)));
            slot.state == SlotState::Unloaded
                && slot.work.is_none()
                && slot.held.is_none()
                && !has_actor
        };
        for index in 0..self.pool.config.max_size {
            if is_free(&self.slots[usize::from(index)]) {
                self.park_for_budget(index, &spent.to_string());
            }
        }
    }

    /// Parks a slot without a child until a person restarts it.
    pub(super) fn park_for_budget(&mut self, index: u16, why: &str) {
        let slot = self.slots[usize::from(index)].id.clone();
        let reason = why.to_owned();
        self.submit(Write::SlotParked {
            slot: slot.clone(),
            class: ExitClass::Budget,
            at_us: now_us(),
            reason: reason.clone(),
        });
        SlotParked {
            slot: &slot,
            class: ExitClass::Budget,
            reason: &reason,
        }
        .emit();
        self.change(index, SlotEvent::Parked, Some(reason));
    }
}
