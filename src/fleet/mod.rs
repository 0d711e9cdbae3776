//! The fleet: stub of this branch, replaced at the merge by the real one.

pub mod notice;

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};

pub use notice::{ChangeKind, FileChange, Notice, SlotView, TaskReport};

use crate::model::{Foreign, RunId, SlotId, TaskSpec};

/// The stderr of a slot's child: what is kept, and what comes.
#[derive(Debug)]
pub struct LogTail {
    /// The last lines, oldest first.
    pub backlog: Vec<Foreign>,
    /// Lines as they come.
    pub live: broadcast::Receiver<Foreign>,
}

/// Whether the fleet can take work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It cannot, for these reasons.
    NotReady(Vec<String>),
}

/// How the fleet is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// By the stop ladder.
    Graceful,
    /// By the kill at once.
    Now,
}

/// Why tasks were not taken in.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// A task names a pool that does not exist.
    #[error("task {task}: {why}")]
    Pool {
        /// The task.
        task: String,
        /// Why.
        why: String,
    },
    /// Too many.
    #[error("more than that at once")]
    TooMany,
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// No such slot.
#[derive(Debug, thiserror::Error)]
#[error("there is no slot {0}")]
pub struct NoSuchSlot(pub SlotId);

/// The running fleet.
#[derive(Clone, Debug)]
pub struct FleetHandle;

#[expect(clippy::unused_async, reason = "stub")]
impl FleetHandle {
    /// Takes tasks in.
    pub async fn submit(
        &self,
        _run: RunId,
        _command: &'static str,
        _tasks: Vec<TaskSpec>,
    ) -> Result<mpsc::Receiver<Arc<TaskReport>>, SubmitError> {
        Err(SubmitError::Stopping)
    }
    /// Notices.
    pub fn watch(&self) -> broadcast::Receiver<Notice> {
        broadcast::channel(1).1
    }
    /// Slots.
    pub fn slots(&self) -> Vec<SlotView> {
        Vec::new()
    }
    /// Logs.
    pub fn logs(&self, _slot: &SlotId) -> Option<LogTail> {
        None
    }
    /// Restart.
    pub async fn restart(&self, slot: SlotId) -> Result<(), NoSuchSlot> {
        Err(NoSuchSlot(slot))
    }
    /// Readiness.
    pub fn readiness(&self) -> Readiness {
        Readiness::Ready
    }
    /// Cancels a run.
    pub fn cancel(&self, _run: &RunId) {}
    /// Cancels all.
    pub fn cancel_all(&self) {}
    /// Stops.
    pub async fn stop(&self, _how: Stop) {}
}
