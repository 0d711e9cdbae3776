//! The state of one attempt at a task: a new value for each, so that nothing of an earlier one is
//! left in it.

use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use crate::channel::ChannelEnd;
use crate::clock;
use crate::session::{CheckResult, RateLimit, Tally};
use marshal_model::{PermissionRequestId, TurnOutcome};

/// A running attempt.
#[derive(Default)]
pub(crate) struct TaskRun {
    /// Whether its prompt is journalled.
    pub(crate) accepted: bool,
    /// When the prompt was written.
    pub(crate) begun: Option<Instant>,
    /// How the turn ended.
    pub(crate) turn: Option<TurnEnd>,
    /// Why the turn must end, if not by itself; the first reason is kept.
    pub(crate) ending: Option<(TurnOutcome, String)>,
    /// The turn was cancelled, and a tool call had no result when it ended: what it started may still
    /// run.
    pub(crate) leaves_tool: bool,
    /// How the child ended.
    pub(crate) end: Option<ChannelEnd>,
    pub(crate) check: Option<CheckResult>,
    /// Set when the turn failed because the provider limits requests.
    pub(crate) limit: Option<RateLimit>,
    /// The approval for which the child was stopped and the task queued again.
    pub(crate) released: Option<PermissionRequestId>,
    pub(crate) halt: Option<Halt>,
    /// Why it could not start or go on.
    pub(crate) failure: Option<String>,
    pub(crate) tally: Tally,
    /// The spent budget because of which the slot parks when the task has ended.
    pub(crate) park_reason: Option<String>,
    /// The grace period of a running tool call after a person stopped the turn.
    pub(crate) grace: Option<AbortOnDropHandle<()>>,
}

/// How a turn ended.
pub(crate) struct TurnEnd {
    pub(crate) outcome: TurnOutcome,
    /// Why not well.
    pub(crate) detail: Option<String>,
}

/// How a task was cut short; the later variant covers the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Halt {
    /// Its child was stopped, but not the task.
    Stopped,
    /// The task was cancelled.
    Cancelled,
}

impl TaskRun {
    /// Cuts the task short.
    pub(crate) fn halt(&mut self, how: Halt) {
        self.halt = self.halt.max(Some(how));
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.halt == Some(Halt::Cancelled)
    }

    /// Whether its turn has ended, or must end.
    pub(crate) const fn turn_is_over(&self) -> bool {
        self.turn.is_some() || self.ending.is_some()
    }

    /// How long the turn has run.
    pub(crate) fn turn_time(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, clock::since)
    }

    /// The reason why the turn must end; an earlier one stays.
    pub(crate) fn end_with(&mut self, outcome: TurnOutcome, why: String) {
        self.ending.get_or_insert((outcome, why));
    }
}
