//! The writer without its thread: a simulation decides when the disk works, and how.
//!
//! Only the thread and the waits are replaced. Batches, transactions, health and callbacks are the
//! writer's own. Must not decide what a failure means.

use std::time::Duration;

use super::queue::NextBatch;
use super::schema;
use super::writer::{Batch, StorageFailure, Writer};

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// This many commits became durable, and their callers were notified.
    Durable(usize),
    /// No commit waited.
    Idle,
    /// The disk failed; the batch is kept for the next step.
    Refused,
    /// The journal is closed, or its file is damaged.
    Closed,
}

/// Makes steps instead of a thread. When it is dropped, waiting commits stay unwritten, as at the
/// end of the process.
pub struct Stepper {
    writer: Writer,
    /// A batch that the disk refused, and the failure.
    refused_batch: Option<(Batch, StorageFailure)>,
    is_full: bool,
}

impl std::fmt::Debug for Stepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stepper(of {})", self.writer.file.display())
    }
}

impl Stepper {
    pub(super) fn new(writer: Writer) -> Self {
        let stepper = Self {
            writer,
            refused_batch: None,
            is_full: false,
        };
        stepper.configure_connection();
        stepper
    }

    /// A lock of another process must not cost real time here.
    fn configure_connection(&self) {
        let conn = self.writer.store.connection();
        let _ = conn.busy_timeout(Duration::ZERO);
        let most = if self.is_full {
            // The page limit is the current page count, so that an insert finds no room.
            conn.pragma_query_value(None, "page_count", |row| row.get::<_, u32>(0))
                .unwrap_or(1)
        } else {
            u32::MAX - 1
        };
        let _ = conn.pragma_update_and_check(None, "max_page_count", most, |_| Ok(()));
    }

    /// Waits until a commit is ready for a step.
    pub async fn wait_for_work(&mut self) {
        if self.refused_batch.is_none() && self.writer.queue.is_empty() {
            self.writer.queue.wait_for_commit().await;
        }
    }

    /// Simulates a full disk: the database cannot grow until it is unset.
    pub fn set_full(&mut self, full: bool) {
        self.is_full = full;
        self.configure_connection();
    }

    /// Makes commits of up to `most` rows, but at least one commit, durable in one transaction, or
    /// fails them together.
    pub fn step(&mut self, most: usize) -> Step {
        self.writer.force_check();
        if !self.writer.check_file() {
            return Step::Closed;
        }
        let mut batch = match self.refused_batch.take() {
            Some((batch, trouble)) => {
                self.reconnect(trouble);
                batch
            }
            None => match self.writer.queue.take_batch(most, Duration::ZERO) {
                NextBatch::Batch(commits) => Batch::new(&self.writer.store, commits),
                NextBatch::Idle => return Step::Idle,
                NextBatch::Closed => return Step::Closed,
            },
        };
        match self.writer.try_commit(&mut batch) {
            Ok(()) => {
                let commits = batch.entries.len();
                self.writer.notify_callers(batch.entries);
                Step::Durable(commits)
            }
            Err(StorageFailure::Corrupt) => Step::Closed,
            Err(trouble) => {
                self.writer.drop_withdrawn(&mut batch, trouble);
                self.refused_batch = Some((batch, trouble));
                Step::Refused
            }
        }
    }

    /// Reconnects as the thread does before it retries.
    fn reconnect(&mut self, trouble: StorageFailure) {
        if trouble != StorageFailure::Locked
            && let Ok(conn) = schema::connect(&self.writer.file, Duration::ZERO)
        {
            self.writer.store.reconnect(conn);
            self.configure_connection();
        }
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.writer.queue.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Commit, Health, Journal, Write};
    use marshal_model::{PoolName, RunId, SlotId};

    fn stepped(dir: &std::path::Path) -> (Journal, Stepper) {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir, mode).expect("a private directory");
        Journal::open_stepped(dir, crate::tests::roomy(), 1).expect("a journal")
    }

    fn commit(notified: &Arc<AtomicUsize>) -> Commit {
        let slot = SlotId {
            pool: PoolName::new("p").expect("a name"),
            index: 0,
        };
        let notified = Arc::clone(notified);
        Commit::new(vec![Write::SlotFailuresCleared { slot }]).with_callback(move |_| {
            notified.fetch_add(1, Ordering::Relaxed);
        })
    }

    #[test]
    fn nothing_is_durable_before_a_step_and_what_waits_dies_with_the_stepper() {
        let dir = tempfile::tempdir().expect("a directory");
        let (journal, mut stepper) = stepped(dir.path());
        let notified = Arc::new(AtomicUsize::new(0));
        assert_eq!(stepper.step(10), Step::Idle);
        for _ in 0..3 {
            journal.submit(commit(&notified)).expect("room");
        }
        assert_eq!(
            (journal.backlog(), notified.load(Ordering::Relaxed)),
            (3, 0)
        );
        assert_eq!(stepper.step(2), Step::Durable(2));
        assert_eq!(notified.load(Ordering::Relaxed), 2);
        drop(stepper);
        assert_eq!(notified.load(Ordering::Relaxed), 2);
        assert!(journal.submit(commit(&notified)).is_err());
    }

    #[test]
    fn a_full_disk_refuses_and_the_same_batch_is_durable_once_there_is_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let (journal, mut stepper) = stepped(dir.path());
        let notified = Arc::new(AtomicUsize::new(0));
        stepper.set_full(true);
        let many = |command| Write::RunBegun {
            run: RunId::new(&uuid::Uuid::new_v4().to_string()).expect("an id"),
            command,
            at_us: 1,
        };
        let counter = Arc::clone(&notified);
        let rows = (0..2000).map(|_| many("run")).collect();
        let commit = Commit::new(rows).with_callback(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        journal.submit(commit).expect("room");
        for _ in 0..2 {
            assert_eq!(stepper.step(1), Step::Refused);
            assert!(matches!(
                *journal.health().borrow(),
                Health::ReadOnly { .. }
            ));
        }
        stepper.set_full(false);
        assert_eq!(stepper.step(1), Step::Durable(1));
        assert_eq!(notified.load(Ordering::Relaxed), 1);
        assert!(journal.health().borrow().is_ok());
    }
}
