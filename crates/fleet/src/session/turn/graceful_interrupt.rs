//! An approver or client stops a turn: a running tool call may end first, for a bounded time, so
//! that it leaves nothing half done.
//!
//! Must not know who stopped the turn.

use tokio_util::task::AbortOnDropHandle;

use crate::messages::SessionMsg;
use crate::session::state::{Phase, SessionState};
use marshal_model::limits;

pub use marshal_model::STOPPED_BY_PERSON;

impl SessionState {
    /// Ends the turn: now, or when no tool call runs any more.
    pub(crate) fn interrupt_gracefully(&mut self) {
        let waits = matches!(self.phase, Phase::Turn) && self.permissions.is_tool_running();
        let Some(task) = &mut self.task else { return };
        if task.ending.is_some() || task.grace.is_some() {
            return;
        }
        if !waits || task.turn.is_some() {
            return self.cancel(STOPPED_BY_PERSON);
        }
        let (to, number) = (self.myself.clone(), self.task_number);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(limits::TOOL_GRACE).await;
            let _ = to.send_message(SessionMsg::GraceEnded(number));
        });
        task.grace = Some(AbortOnDropHandle::new(timer));
    }

    /// Ends the turn if a stop waited for the tool call that just ended.
    pub(crate) fn check_grace(&mut self) {
        if !self.permissions.is_tool_running() {
            self.grace_ended(self.task_number);
        }
    }

    /// Ends the turn, if it is in its grace period.
    pub(crate) fn grace_ended(&mut self, number: u64) {
        let task = self.task.as_mut().filter(|_| number == self.task_number);
        if task.and_then(|task| task.grace.take()).is_some() {
            self.cancel(STOPPED_BY_PERSON);
        }
    }
}
