//! Bounds on a pool's work besides its slots: the bounds of runs, and spent budgets of the pool.
//!
//! Must not count anything.

use super::ActiveTask;
use super::ending::end_unstarted;
use super::slot::{RetainedSession, Slot};
use super::state::PoolState;
use crate::clock::now_us;
use crate::messages::SessionMsg;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_journal::Write;
use marshal_model::{BudgetAction, ExitClass, RunId, SlotState};
use marshal_telemetry::event::child::SlotParked;
use marshal_telemetry::event::task::{TaskLeft, TaskLocation};

impl PoolState {
    /// Ends the queued tasks of a run that reached a bound; with `cancels` also its running ones.
    pub(super) fn end_run_tasks(&mut self, run: &RunId, why: &str, cancels: bool) {
        let ended = self
            .queue
            .take_all_if(|task| task.run == *run)
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
            let _ = work.actor.send_message(SessionMsg::cancel(why));
        }
    }

    /// Leaves the queued tasks of a run in the journal, for a later start.
    pub(super) fn suspend(&mut self, run: &RunId) {
        let working = self.slots.iter().filter_map(|slot| slot.work.as_ref());
        for work in working.filter(|work| work.task.run == *run) {
            work.task.open_tasks.suspend();
        }
        let mut waiting = Vec::from(self.queue.take_all_if(|task| task.run == *run));
        waiting.extend(self.blocked.extract_if(.., |task| task.run == *run));
        for task in waiting {
            task.open_tasks.suspend();
            self.leave_task(&task);
        }
    }

    /// Drops a queued task of a suspended run; its row in the journal stays queued.
    pub(super) fn leave_task(&self, task: &ActiveTask) {
        self.pool.release_tasks(1);
        TaskLeft {
            pool: &self.pool.config.name,
            task: &task.spec.id,
        }
        .emit();
    }

    /// Parks every free slot if a budget of the pool is spent whose action is to park.
    pub(super) fn park_if_budget_spent(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let spent = self.pool.ledger.spent_budget();
        let Some(spent) = spent.filter(|spent| spent.action == BudgetAction::Park) else {
            return;
        };
        let is_free = |slot: &Slot| {
            let retained = slot.retained.as_ref();
            let has_actor =
                retained.is_some_and(|session| !matches!(session, RetainedSession::Stored(_)));
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
