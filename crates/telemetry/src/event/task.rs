//! Tasks and the queues that they wait in.

use std::time::Duration;

use crate::labels::QueueRefusal;
use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::{PoolName, SlotId, TaskId, TaskOutcome};

/// A task waits for a slot: new, or put back.
#[derive(Debug)]
pub struct TaskQueued<'a> {
    /// Where.
    pub pool: &'a PoolName,
    /// Which.
    pub task: &'a TaskId,
}

impl TaskQueued<'_> {
    /// Logs and counts as waiting.
    pub fn emit(self) {
        gauge(&names::QUEUE_TASKS, &[self.pool.as_str()]).increment(1.0);
        tracing::debug!(pool = %self.pool, task = %self.task, "task queued");
    }
}

/// A task left the queue for a slot.
#[derive(Debug)]
pub struct TaskStarted<'a> {
    /// Where.
    pub slot: &'a SlotId,
    /// Which.
    pub task: &'a TaskId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How long it waited.
    pub waited: Duration,
}

impl TaskStarted<'_> {
    /// Logs and observes.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        gauge(&names::QUEUE_TASKS, &[pool]).decrement(1.0);
        histogram(&names::QUEUE_WAIT, &[pool]).record(self.waited);
        tracing::info!(slot = %self.slot, task = %self.task, attempt = self.attempt, waited = ?self.waited, "task started");
    }
}

/// Where a task ended.
#[derive(Debug, Clone, Copy)]
pub enum TaskLocation {
    /// In a slot.
    Slot,
    /// In the queue, so that the queue is shorter now.
    Queue,
}

/// A task ended.
#[derive(Debug)]
pub struct TaskEnded<'a> {
    /// Its pool.
    pub pool: &'a PoolName,
    /// Which.
    pub task: &'a TaskId,
    /// How.
    pub outcome: TaskOutcome,
    /// Why, in our words.
    pub detail: &'a str,
    /// Where it was.
    pub from: TaskLocation,
}

impl TaskEnded<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.pool.as_str();
        counter(&names::TASKS, &[pool, self.outcome.word()]).increment(1);
        if matches!(self.from, TaskLocation::Queue) {
            gauge(&names::QUEUE_TASKS, &[pool]).decrement(1.0);
        }
        tracing::info!(pool, task = %self.task, outcome = %self.outcome, detail = self.detail, "task ended");
    }
}

/// A task was not taken.
#[derive(Debug)]
pub struct QueueRejected<'a> {
    /// By which pool.
    pub pool: &'a PoolName,
    /// Which.
    pub task: &'a TaskId,
    /// Why.
    pub reason: QueueRefusal,
}

impl QueueRejected<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.pool.as_str();
        counter(&names::QUEUE_REJECTED, &[pool, self.reason.word()]).increment(1);
        tracing::warn!(pool, task = %self.task, reason = %self.reason, "task refused");
    }
}

/// What was seen of a pool's waiting work just before a scrape.
#[derive(Debug)]
pub struct PoolSampled<'a> {
    /// Which.
    pub pool: &'a PoolName,
    /// The age of its oldest waiting task; zero if none waits.
    pub oldest_task: Duration,
    /// The age of its oldest waiting ask; zero if none waits.
    pub oldest_request: Duration,
}

impl PoolSampled<'_> {
    /// Sets the gauges.
    pub fn emit(self) {
        let pool = self.pool.as_str();
        gauge(&names::QUEUE_OLDEST, &[pool]).set(self.oldest_task);
        gauge(&names::PERMISSION_OLDEST, &[pool]).set(self.oldest_request);
    }
}
