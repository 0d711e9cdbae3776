//! The supervisor itself: actors, background tasks, the metrics page.

use std::time::Duration;

use crate::labels::ActorKind;
use crate::meters::{counter, gauge, histogram};
use crate::names;

/// An actor started.
#[derive(Debug)]
pub struct ActorStarted {
    /// The actor's kind.
    pub kind: ActorKind,
}

impl ActorStarted {
    /// Counts as alive.
    pub fn emit(self) {
        gauge(&names::ACTORS, &[self.kind.as_str()]).increment(1.0);
    }
}

/// An actor ended.
#[derive(Debug)]
pub struct ActorEnded {
    /// The actor's kind.
    pub kind: ActorKind,
    /// Whether its handler panicked.
    pub panicked: bool,
}

impl ActorEnded {
    /// Counts as gone, and logs a panic.
    pub fn emit(self) {
        let kind = self.kind.as_str();
        gauge(&names::ACTORS, &[kind]).decrement(1.0);
        if self.panicked {
            counter(&names::ACTOR_PANICS, &[kind]).increment(1);
            tracing::error!(kind, "an actor panicked");
        }
    }
}

/// A task or a thread panicked.
#[derive(Debug)]
pub struct TaskPanicked<'a> {
    /// The name of the thread.
    pub task: &'a str,
    /// The panic message and its place.
    pub failure: &'a str,
}

impl TaskPanicked<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::TASK_PANICS, &[]).increment(1);
        tracing::error!(task = self.task, failure = self.failure, "a task panicked");
    }
}

/// The metrics page was rendered.
#[derive(Debug)]
pub struct ScrapeServed {
    /// How long rendering took.
    pub took: Duration,
}

impl ScrapeServed {
    /// Observes.
    pub fn emit(self) {
        histogram(&names::SCRAPE_SECONDS, &[]).record(self.took);
    }
}
