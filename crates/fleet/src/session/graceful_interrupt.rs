//! A person stops a turn: a tool call that runs may end first, for a bounded time, so that it leaves
//! nothing half done.
//!
//! Must not know who the person is.

use tokio::task::AbortHandle;

use super::SessionMsg;
use super::state::{Phase, SessionState};
use marshal_model::limits;

pub use marshal_model::STOPPED_BY_PERSON;

/// The wait for a tool call after a stop.
#[derive(Debug, Default)]
pub(super) struct ToolGrace(Option<AbortHandle>);

impl ToolGrace {
    /// There is nothing to wait for any more.
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
    /// Ends the turn for a person: now, or when no tool call runs any more.
    pub(super) fn interrupt_gracefully(&mut self) {
        if !self.has_task || self.ending.is_some() || self.grace.0.is_some() {
            return;
        }
        if self.phase != Phase::Turn || self.turn.is_some() || !self.is_tool_running() {
            return self.cancel(STOPPED_BY_PERSON);
        }
        let (to, task) = (self.myself.clone(), self.task_number);
        let waits = tokio::spawn(async move {
            tokio::time::sleep(limits::TOOL_GRACE).await;
            let _ = to.send_message(SessionMsg::GraceEnded(task));
        });
        self.grace.0 = Some(waits.abort_handle());
    }

    /// A call that waits for somebody's word does not run.
    fn is_tool_running(&self) -> bool {
        let questions = self.pending.values().map(|of| of.requests.len());
        let waiting = questions.sum::<usize>() + self.delegated.len();
        self.requests.calls.len() > waiting
    }

    /// A tool call ended: the one that a stop waited for, perhaps.
    pub(super) fn check_grace(&mut self) {
        if self.grace.0.is_some() && !self.is_tool_running() {
            self.grace.cancel();
            self.cancel(STOPPED_BY_PERSON);
        }
    }

    /// It was waited for long enough.
    pub(super) fn grace_ended(&mut self, task: u64) {
        if self.grace.0.is_some() && task == self.task_number {
            self.grace.cancel();
            self.cancel(STOPPED_BY_PERSON);
        }
    }
}
