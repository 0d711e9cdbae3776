//! An approver or client stops a turn: a running tool call may end first, for a bounded time, so
//! that it leaves nothing half done.
//!
//! Must not know who stopped the turn.

use tokio::task::AbortHandle;

use super::SessionMsg;
use super::state::{Phase, SessionState};
use marshal_model::limits;

pub use marshal_model::STOPPED_BY_PERSON;

/// The grace period of a running tool call after a stop.
#[derive(Debug, Default)]
pub(super) struct ToolGrace(Option<AbortHandle>);

impl ToolGrace {
    /// Ends the grace period.
    pub(super) fn cancel(&mut self) {
        if let Some(timer) = self.0.take() {
            timer.abort();
        }
    }
}

impl Drop for ToolGrace {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl SessionState {
    /// Ends the turn: now, or when no tool call runs any more.
    pub(super) fn interrupt_gracefully(&mut self) {
        if !self.has_task || self.ending.is_some() || self.grace.0.is_some() {
            return;
        }
        if self.phase != Phase::Turn || self.turn.is_some() || !self.is_tool_running() {
            return self.cancel(STOPPED_BY_PERSON);
        }
        let (to, task) = (self.myself.clone(), self.task_number);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(limits::TOOL_GRACE).await;
            let _ = to.send_message(SessionMsg::GraceEnded(task));
        });
        self.grace.0 = Some(timer.abort_handle());
    }

    /// Whether a tool call runs. A call that waits for an approval or the delegate does not run.
    fn is_tool_running(&self) -> bool {
        let approvals = self.pending.values().map(|item| item.requests.len());
        let waiting = approvals.sum::<usize>() + self.delegated.len();
        self.requests.calls.len() > waiting
    }

    /// Ends the turn if a stop waited for the tool call that just ended.
    pub(super) fn check_grace(&mut self) {
        if self.grace.0.is_some() && !self.is_tool_running() {
            self.grace.cancel();
            self.cancel(STOPPED_BY_PERSON);
        }
    }

    /// Ends the turn when the grace period has passed.
    pub(super) fn grace_ended(&mut self, task: u64) {
        if self.grace.0.is_some() && task == self.task_number {
            self.grace.cancel();
            self.cancel(STOPPED_BY_PERSON);
        }
    }
}
