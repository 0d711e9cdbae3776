//! Tasks and the queues that they wait in.

use std::time::Duration;

use crate::labels::QueueRefusal;
use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::{PoolName, SlotId, TaskId, TaskOutcome};

/// A task waits for a slot: it is new, or was put back.
#[derive(Debug)]
pub struct TaskQueued<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The task.
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
    /// The slot.
    pub slot: &'a SlotId,
    /// The task.
    pub task: &'a TaskId,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// How long the task waited.
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

/// Where a task was when it ended.
#[derive(Debug, Clone, Copy)]
pub enum TaskLocation {
    /// In a slot.
    Slot,
    /// In the queue, which is one task shorter now.
    Queue,
}

/// A task ended.
#[derive(Debug)]
pub struct TaskEnded<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The task.
    pub task: &'a TaskId,
    /// The outcome.
    pub outcome: TaskOutcome,
    /// The reason, in marshal's words.
    pub detail: &'a str,
    /// Where the task was.
    pub from: TaskLocation,
}

impl TaskEnded<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.pool.as_str();
        counter(&names::TASKS, &[pool, self.outcome.as_str()]).increment(1);
        if matches!(self.from, TaskLocation::Queue) {
            gauge(&names::QUEUE_TASKS, &[pool]).decrement(1.0);
        }
        tracing::info!(pool, task = %self.task, outcome = %self.outcome, detail = self.detail, "task ended");
    }
}

/// A queued task was left in the journal, for a later start.
#[derive(Debug)]
pub struct TaskLeft<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The task.
    pub task: &'a TaskId,
}

impl TaskLeft<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.pool.as_str();
        gauge(&names::QUEUE_TASKS, &[pool]).decrement(1.0);
        tracing::info!(pool, task = %self.task, "task left for a later start");
    }
}

/// A pool's queue refused a task.
#[derive(Debug)]
pub struct QueueRejected<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The task.
    pub task: &'a TaskId,
    /// The reason.
    pub reason: QueueRefusal,
}

impl QueueRejected<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.pool.as_str();
        counter(&names::QUEUE_REJECTED, &[pool, self.reason.as_str()]).increment(1);
        tracing::warn!(pool, task = %self.task, reason = %self.reason, "task refused");
    }
}

/// The waiting work of a pool, sampled just before a scrape.
#[derive(Debug)]
pub struct PoolSampled<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// The age of its oldest waiting task; zero if none waits.
    pub oldest_task: Duration,
    /// The age of its oldest pending permission request; zero if there is none.
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
