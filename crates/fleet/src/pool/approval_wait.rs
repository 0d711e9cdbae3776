//! Tasks that wait for an approval without a child: when they begin again, and when they end.
//!
//! Must not know the permission request, nor the answer.

use super::ActiveTask;
use super::slot::Slot;
use super::state::PoolState;
use crate::approval_registry::{AnswerRecipient, ApprovalRegistry};
use marshal_model::{PermissionRequestId, SlotState, TaskOutcome};

impl PoolState {
    /// Requeues a task whose turn ended because it waits for a person. No attempt is counted.
    pub(super) fn requeue_for_approval(
        &mut self,
        index: u16,
        mut task: ActiveTask,
        approval: PermissionRequestId,
    ) {
        task.sent = task.sent.saturating_sub(1);
        task.awaits_approval = Some((approval, index));
        self.requeue_task(index, task);
    }

    /// Takes the first queued task that this slot may begin.
    pub(super) fn next_task_for(&mut self, index: u16) -> Option<ActiveTask> {
        let (approvals, slots) = (&self.shared.approvals, &self.slots);
        let width = self.pool.width();
        let matches = |task: &ActiveTask| {
            // If the slot of the approval receives no tasks any more, another slot takes the task.
            let owner = task.awaits_approval.as_ref().map(|(_, slot)| *slot);
            may_start(
                approvals,
                slots,
                task,
                index,
                owner.is_some_and(|owner| owner >= width),
            )
        };
        let mut task = self.queue.take_next(matches)?;
        task.awaits_approval = None;
        Some(task)
    }

    /// An approval was answered or expired. If it expired, the tasks that wait for it end.
    pub(super) fn approval_ended(&mut self, expired: Option<&PermissionRequestId>) {
        let Some(expired) = expired else { return };
        while let Some(task) = self.queue.take_awaiting(expired) {
            let why = format!(
                "it needed a person's permission, and nobody answered approval {expired} in time"
            );
            self.end_task(task, TaskOutcome::Denied, Some(why));
        }
    }
}

/// Whether a task may begin in slot `index`. A task whose approval was answered belongs to the slot
/// whose session requested it, because that session uses the answer. `is_gone`: that slot receives
/// no tasks any more.
fn may_start(
    approvals: &ApprovalRegistry,
    slots: &[Slot],
    task: &ActiveTask,
    index: u16,
    is_gone: bool,
) -> bool {
    let Some((approval, owner)) = &task.awaits_approval else {
        return true;
    };
    match approvals.get(approval).map(|open| open.recipient) {
        Some(AnswerRecipient::Orphaned(None)) => false,
        Some(AnswerRecipient::Orphaned(Some(_)) | AnswerRecipient::Session(_)) => {
            let slot = slots.get(usize::from(*owner));
            // A parked slot starts nothing, so the task would wait for ever.
            index == *owner || is_gone || slot.is_none_or(|slot| slot.state == SlotState::Parked)
        }
        // The approval ended with its session; a new session requests it again.
        None => true,
    }
}
