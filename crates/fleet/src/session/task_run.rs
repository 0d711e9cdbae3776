//! The state of one attempt at a task: a new value for each, so that nothing of an earlier one is
//! left in it.

use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use super::{CheckResult, RateLimit, Tally};
use crate::channel::ChannelEnd;
use crate::clock;
use marshal_model::{PermissionRequestId, TurnOutcome};

/// A running attempt.
#[derive(Default)]
pub(super) struct TaskRun {
    /// Whether its prompt is journalled.
    pub(super) accepted: bool,
    /// When the prompt was written.
    pub(super) begun: Option<Instant>,
    /// How the turn ended.
    pub(super) turn: Option<TurnEnd>,
    /// Why the turn must end, if not by itself; the first reason is kept.
    pub(super) ending: Option<(TurnOutcome, String)>,
    /// The turn was cancelled, and a tool call had no result when it ended: what it started may still
    /// run.
    pub(super) leaves_tool: bool,
    /// How the child ended.
    pub(super) end: Option<ChannelEnd>,
    pub(super) check: Option<CheckResult>,
    /// Set when the turn failed because the provider limits requests.
    pub(super) limit: Option<RateLimit>,
    /// The approval for which the child was stopped and the task queued again.
    pub(super) released: Option<PermissionRequestId>,
    pub(super) halt: Option<Halt>,
    /// Why it could not start or go on.
    pub(super) failure: Option<String>,
    pub(super) tally: Tally,
    /// The grace period of a running tool call after a person stopped the turn.
    pub(super) grace: Option<AbortOnDropHandle<()>>,
}

/// How a turn ended.
pub(super) struct TurnEnd {
    pub(super) outcome: TurnOutcome,
    /// Why not well.
    pub(super) detail: Option<String>,
}

/// How a task was cut short; the later variant covers the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Halt {
    /// Its child was stopped, but not the task.
    Stopped,
    /// The task was cancelled.
    Cancelled,
}

impl TaskRun {
    /// Cuts the task short.
    pub(super) fn halt(&mut self, how: Halt) {
        self.halt = self.halt.max(Some(how));
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.halt == Some(Halt::Cancelled)
    }

    /// Whether its turn has ended, or must end.
    pub(super) const fn turn_is_over(&self) -> bool {
        self.turn.is_some() || self.ending.is_some()
    }

    /// How long the turn has run.
    pub(super) fn turn_time(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, clock::since)
    }

    /// The reason why the turn must end; an earlier one stays.
    pub(super) fn end_with(&mut self, outcome: TurnOutcome, why: String) {
        self.ending.get_or_insert((outcome, why));
    }
}
