//! What bounds a pool's work beside its slots: the bounds of runs, and budgets of the pool that are
//! spent.
//!
//! Must not count anything.

use super::ending::end_unstarted;
use super::slot::{RetainedSession, Slot};
use super::state::PoolState;
use crate::clock::now_us;
use crate::session::SessionMsg;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::{BudgetAction, ExitClass, RunId, SlotState};
use marshal_telemetry::event::child::SlotParked;
use marshal_telemetry::event::task::TaskLocation;

impl PoolState {
    /// None of a run's tasks begins any more: those that wait end, with the reason.
    pub(super) fn end_run_tasks(&mut self, run: &RunId, why: &str, cancels: bool) {
        let ended = self.queue.take_all_if(|task| task.run == *run);
        let ended = ended
            .into_iter()
            .map(|task| end_unstarted(task, why))
            .collect();
        self.end_tasks(ended, TaskLocation::Queue);
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
    pub(super) fn park_if_budget_spent(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let spent = self.pool.ledger.spent_budget();
        let Some(spent) = spent.filter(|spent| spent.action == BudgetAction::Park) else {
            return;
        };
        let is_free = |slot: &Slot| {
            let is_kept = slot.retained.as_ref();
            let has_actor = is_kept.is_some_and(|kept| !matches!(kept, RetainedSession::Stored(_)));
            slot.state == SlotState::Unloaded
                && slot.work.is_none()
                && slot.conversation.is_none()
                && !has_actor
        };
        for index in 0..self.pool.config.max_size {
            if is_free(&self.slots[usize::from(index)]) {
                self.park_slot_for_budget(index, &spent.to_string());
            }
        }
    }

    /// Parks a slot without a child until a person restarts it.
    pub(super) fn park_slot_for_budget(&mut self, index: u16, why: &str) {
        let slot = self.slots[usize::from(index)].id.clone();
        let reason = why.to_owned();
        self.submit_write(Write::SlotParked {
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
        self.apply_slot_event(index, SlotEvent::Parked, Some(reason));
    }
}
