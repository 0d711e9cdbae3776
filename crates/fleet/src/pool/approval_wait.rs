//! Tasks that wait for a person without a child: which may begin again, and when they are over.
//!
//! Must not know what is asked, nor what the answer is.

use super::ActiveTask;
use super::slot::Slot;
use super::state::PoolState;
use crate::approval_registry::{AnswerRecipient, ApprovalRegistry};
use marshal_model::{PermissionRequestId, SlotState, TaskOutcome};

impl PoolState {
    /// A task's turn was ended because it waits for a person: no attempt is counted.
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

    /// The first task that this slot may begin.
    pub(super) fn next_task_for(&mut self, index: u16) -> Option<ActiveTask> {
        let (questions, slots) = (&self.shared.approvals, &self.slots);
        let width = self.pool.width();
        let meant = |task: &ActiveTask| {
            // A slot that gets no tasks any more gives them to another one.
            let of = task.awaits_approval.as_ref().map(|(_, of)| *of);
            may_start(
                questions,
                slots,
                task,
                index,
                of.is_some_and(|of| of >= width),
            )
        };
        let mut task = self.queue.take_next(meant)?;
        task.awaits_approval = None;
        Some(task)
    }

    /// A question that a task may wait for has an answer, or nobody gave one in time.
    pub(super) fn approval_ended(&mut self, expired: Option<&PermissionRequestId>) {
        let Some(expired) = expired else { return };
        while let Some(task) = self.queue.take_awaiting(expired) {
            let why = format!(
                "a person would have to allow what it asked, and nobody answered ask {expired} in time"
            );
            self.end_task(task, TaskOutcome::Denied, Some(why));
        }
    }
}

/// Whether what a task waits for has come; then it belongs to the session that asked.
fn may_start(
    questions: &ApprovalRegistry,
    slots: &[Slot],
    task: &ActiveTask,
    index: u16,
    is_gone: bool,
) -> bool {
    let Some((approval, of)) = &task.awaits_approval else {
        return true;
    };
    match questions.get(approval).map(|open| open.recipient) {
        Some(AnswerRecipient::Orphaned(None)) => false,
        Some(AnswerRecipient::Orphaned(Some(_)) | AnswerRecipient::Session(_)) => {
            let slot = slots.get(usize::from(*of));
            // In a slot where nothing starts any more it would wait for ever.
            index == *of || is_gone || slot.is_none_or(|slot| slot.state == SlotState::Parked)
        }
        // It is over with its session: another one asks anew.
        None => true,
    }
}
