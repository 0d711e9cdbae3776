//! The fleet: stub of this branch, replaced at the merge by the real one.

pub mod notice;

pub use notice::{ChangeKind, FileChange, Notice, SlotView, TaskReport};

use crate::model::Foreign;

/// The stderr of a slot's child: what is kept, and what comes.
#[derive(Debug)]
pub struct LogTail {
    /// The last lines, oldest first; at most `limits::STDERR_LINES`.
    pub backlog: Vec<Foreign>,
    /// Lines as they come; a slow reader lags and is told so.
    pub live: tokio::sync::broadcast::Receiver<Foreign>,
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
