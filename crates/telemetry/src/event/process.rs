//! The supervisor itself: actors, background tasks, the metrics page.

use std::time::Duration;

use crate::labels::ActorKind;
use crate::meters::{counter, gauge, histogram};
use crate::names;

/// A live actor. Dropping it means that the actor has ended, or has panicked.
#[derive(Debug)]
pub struct LiveActor(ActorKind);

impl LiveActor {
    /// Counts an actor as alive.
    #[must_use]
    pub fn new(kind: ActorKind) -> Self {
        gauge(&names::ACTORS, &[kind.as_str()]).increment(1.0);
        Self(kind)
    }
}

impl Drop for LiveActor {
    fn drop(&mut self) {
        let kind = self.0.as_str();
        gauge(&names::ACTORS, &[kind]).decrement(1.0);
        if std::thread::panicking() {
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
