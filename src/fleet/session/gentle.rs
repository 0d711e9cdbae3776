//! A person stops a turn: a tool call that runs may end first, for a bounded time, so that it leaves
//! nothing half done.
//!
//! Must not know who the person is.

use tokio::task::AbortHandle;

use super::SessionMsg;
use super::state::{Phase, SessionState};
use crate::limits;

pub use crate::model::STOPPED;

/// The wait for a tool call after a stop.
#[derive(Debug, Default)]
pub(super) struct Grace(Option<AbortHandle>);

impl Grace {
    /// There is nothing to wait for any more.
    pub(super) fn over(&mut self) {
        if let Some(timer) = self.0.take() {
            timer.abort();
        }
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.over();
    }
}

impl SessionState {
    /// Ends the turn for a person: now, or when no tool call runs any more.
    pub(super) fn stopped_by_person(&mut self) {
        if !self.has_task || self.ending.is_some() || self.grace.0.is_some() {
            return;
        }
        if self.phase != Phase::Turn || self.turn.is_some() || !self.works_with_a_tool() {
            return self.cancel(STOPPED);
        }
        let (to, task) = (self.myself.clone(), self.task_number);
        let waits = tokio::spawn(async move {
            tokio::time::sleep(limits::TOOL_GRACE).await;
            let _ = to.send_message(SessionMsg::GraceOver(task));
        });
        self.grace.0 = Some(waits.abort_handle());
    }

    /// A call that waits for somebody's word does not run.
    fn works_with_a_tool(&self) -> bool {
        let questions = self.pending.values().map(|of| of.members.len());
        let waiting = questions.sum::<usize>() + self.delegated.len();
        self.asks.calls.len() > waiting
    }

    /// A tool call ended: the one that a stop waited for, perhaps.
    pub(super) fn tool_ended_in_grace(&mut self) {
        if self.grace.0.is_some() && !self.works_with_a_tool() {
            self.grace.over();
            self.cancel(STOPPED);
        }
    }

    /// It was waited for long enough.
    pub(super) fn grace_over(&mut self, task: u64) {
        if self.grace.0.is_some() && task == self.task_number {
            self.grace.over();
            self.cancel(STOPPED);
        }
    }
}
