//! The bounded queue between the callers and the writer's thread.
//!
//! A mutex and a condition variable. Callers never wait. The writer takes all waiting commits at
//! once, so that commits form groups while the disk is busy.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::commit::{Commit, RefusedCommit};
use super::error::Refusal;

/// What [`Queue::take_batch`] returns.
#[derive(Debug)]
pub(super) enum NextBatch {
    /// At least one commit, in the order of submission.
    Batch(Vec<Commit>),
    /// No commit came in time.
    Idle,
    /// The queue is closed and empty.
    Closed,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Commit>,
    /// Rows in `waiting`.
    writes: usize,
    /// Rows that the writer took and did not finish.
    in_progress: usize,
    closing: bool,
    /// The writer must stop retrying.
    abandoned: bool,
    /// The writer has ended.
    finished: bool,
}

pub(super) struct Queue {
    bound: usize,
    state: Mutex<State>,
    /// Wakes the writer.
    commit_waiting: Condvar,
    /// Wakes the [`Stepper`](super::Stepper), which is no thread.
    commit_arrived: Notify,
    /// Wakes the caller that waits for the writer's end.
    writer_ended: Condvar,
}

impl Queue {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            bound,
            state: Mutex::default(),
            commit_waiting: Condvar::new(),
            commit_arrived: Notify::new(),
            writer_ended: Condvar::new(),
        }
    }

    /// A panic while the lock is held cannot leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, commit: Commit) -> Result<(), RefusedCommit> {
        let mut state = self.lock();
        if state.closing || state.finished {
            return Err(RefusedCommit::new(commit, Refusal::Closed));
        }
        if state.waiting.len() >= self.bound {
            return Err(RefusedCommit::new(commit, Refusal::Full));
        }
        state.writes += commit.row_count();
        let was_empty = state.waiting.is_empty();
        state.waiting.push_back(commit);
        drop(state);
        if was_empty {
            self.commit_waiting.notify_one();
            self.commit_arrived.notify_one();
        }
        Ok(())
    }

    /// Waits until a commit is in the queue, or was added since the last call.
    pub(super) async fn wait_for_commit(&self) {
        self.commit_arrived.notified().await;
    }

    /// Waits at most `wait` for commits and takes up to `max_rows` rows, but always at least one
    /// commit.
    pub(super) fn take_batch(&self, max_rows: usize, wait: Duration) -> NextBatch {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        while state.waiting.is_empty() {
            if state.closing {
                return NextBatch::Closed;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return NextBatch::Idle;
            }
            state = self
                .commit_waiting
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let mut batch = Vec::new();
        let mut writes = 0;
        while let Some(next) = state.waiting.front() {
            if !batch.is_empty() && writes + next.row_count() > max_rows {
                break;
            }
            writes += next.row_count();
            batch.extend(state.waiting.pop_front());
        }
        state.writes -= writes;
        state.in_progress = writes;
        if state.waiting.is_empty() {
            // A stall may have made the queue large; this returns the memory.
            state.waiting.shrink_to(1024);
        }
        NextBatch::Batch(batch)
    }

    /// Removes the waiting commits that their callers have taken back.
    pub(super) fn take_withdrawn(&self) -> Vec<Commit> {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.waiting);
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(Commit::is_withdrawn);
        state.waiting = kept;
        state.writes -= gone.iter().map(Commit::row_count).sum::<usize>();
        gone.into()
    }

    /// The writer gave this many rows of its batch back.
    pub(super) fn shrink_batch(&self, rows: usize) {
        self.lock().in_progress -= rows;
    }

    /// The writer finished its batch.
    pub(super) fn finish_batch(&self) {
        self.lock().in_progress = 0;
    }

    /// Whether no commit waits; one without rows is none in [`Self::backlog`].
    pub(super) fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// Rows that were accepted and are not yet durable.
    pub(super) fn backlog(&self) -> usize {
        let state = self.lock();
        state.writes + state.in_progress
    }

    /// Refuses further commits; the writer finishes the queue.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.commit_waiting.notify_all();
    }

    /// Waits before a retry. Returns `false` if the writer must give up.
    pub(super) fn wait_before_retry(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if state.abandoned {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self
                .commit_waiting
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The writer has ended: further commits are refused and waiting ones are dropped.
    pub(super) fn finish(&self) {
        let mut state = self.lock();
        state.finished = true;
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        // Outside the lock: dropping a commit's permit may run any code.
        drop(dropped);
        self.writer_ended.notify_all();
    }

    /// Waits for the writer's end; after `timeout` it makes the writer give up. Returns the number
    /// of rows that are not durable.
    pub(super) fn wait_for_writer(&self, timeout: Duration) -> Result<(), usize> {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.finished {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.abandoned = true;
                let lost = state.writes + state.in_progress;
                drop(state);
                self.commit_waiting.notify_all();
                return Err(lost);
            }
            state = self
                .writer_ended
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        match state.writes + state.in_progress {
            0 => Ok(()),
            lost => Err(lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Write;
    use marshal_model::{PoolName, SlotId};

    fn commit(writes: usize) -> Commit {
        let slot = SlotId {
            pool: PoolName::new("p").expect("name"),
            index: 0,
        };
        Commit::new(vec![Write::SlotFailuresCleared { slot }; writes])
    }

    #[test]
    fn the_queue_refuses_what_goes_beyond_its_bound() {
        let queue = Queue::new(2);
        assert!(queue.push(commit(1)).is_ok());
        assert!(queue.push(commit(1)).is_ok());
        assert_eq!(
            queue.push(commit(1)).map_err(|r| r.reason),
            Err(Refusal::Full)
        );
        assert_eq!(queue.backlog(), 2);
    }

    #[test]
    fn a_batch_never_splits_a_commit_and_never_starves_a_large_one() {
        let queue = Queue::new(8);
        for n in [3, 3, 9] {
            queue.push(commit(n)).expect("room");
        }
        let sizes = |taken| match taken {
            NextBatch::Batch(batch) => batch.iter().map(|c| c.writes.len()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(sizes(queue.take_batch(6, Duration::ZERO)), [3, 3]);
        assert_eq!(queue.backlog(), 15, "what was taken still counts");
        queue.finish_batch();
        assert_eq!(sizes(queue.take_batch(6, Duration::ZERO)), [9]);
        queue.finish_batch();
        assert!(matches!(
            queue.take_batch(6, Duration::ZERO),
            NextBatch::Idle
        ));
        queue.close();
        assert!(matches!(
            queue.take_batch(6, Duration::ZERO),
            NextBatch::Closed
        ));
        assert_eq!(
            queue.push(commit(1)).map_err(|r| r.reason),
            Err(Refusal::Closed)
        );
    }
}
