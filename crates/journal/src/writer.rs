//! The single writing thread: batches, retries, health.
//!
//! A failed batch is kept and retried until it is durable. Only damage, or a close that reached its
//! timeout, ends the thread earlier.

use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;
use tokio::sync::watch;

use super::audit::ChainHead;
use super::commit::CommitResult;
use super::health::{DiskSpace, Health};
use super::queue::{NextBatch, Queue};
use super::retention::Retention;
use super::schema;
use super::store::{BatchEntry, CommitFailure, Store};
use marshal_model::limits;
use marshal_telemetry::event::journal::{
    AuditHead, JournalError, JournalFailed, JournalMeters, JournalRecovered, JournalTrimmed,
};

/// Measures the free space; replaced in tests.
pub type SpaceProbe = Box<dyn Fn(&Path) -> std::io::Result<DiskSpace> + Send>;

/// How to handle an error of SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StorageFailure {
    /// Another process has the lock: the writer must wait.
    Locked,
    /// The disk fails.
    Disk(JournalError),
    /// The database is damaged.
    Corrupt,
}

/// Commits that become durable together, and the time of their first failure.
pub(super) struct Batch {
    pub(super) entries: Vec<BatchEntry>,
    failing_since: Option<Instant>,
}

impl Batch {
    pub(super) fn new(store: &Store, commits: Vec<super::Commit>) -> Self {
        Self {
            entries: store.build_entries(commits),
            failing_since: None,
        }
    }
}

pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) queue: Arc<Queue>,
    pub(super) health: watch::Sender<Health>,
    pub(super) head: Arc<Mutex<ChainHead>>,
    /// Counts the batches that changed approvals.
    pub(super) approvals: watch::Sender<u64>,
    pub(super) meters: JournalMeters,
    pub(super) file: PathBuf,
    pub(super) space: SpaceProbe,
    pub(super) monitor: FileMonitor,
    pub(super) retention: Retention,
    /// The free space below which new work is refused, in bytes.
    pub(super) min_free: u64,
}

/// The state of the check that the writer makes once a second.
pub(super) struct FileMonitor {
    /// The device and inode of the database when it was opened.
    identity: (u64, u64),
    last_check: Option<Instant>,
    last_head_log: Option<Instant>,
    shortage: Option<String>,
}

impl FileMonitor {
    pub(super) fn new(file: &Path) -> std::io::Result<Self> {
        let meta = std::fs::symlink_metadata(file)?;
        Ok(Self {
            identity: (meta.dev(), meta.ino()),
            last_check: None,
            last_head_log: None,
            shortage: None,
        })
    }
}

/// Reports the end of the thread to the waiting caller, also after a panic.
struct FinishGuard(Arc<Queue>);

impl Drop for FinishGuard {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Writer {
    /// The thread's body.
    pub(super) fn run(mut self) {
        let finish = FinishGuard(Arc::clone(&self.queue));
        while self.check_file() {
            let wait = if self.retention.is_busy() {
                limits::RETENTION_PAUSE
            } else {
                limits::JOURNAL_CHECK_INTERVAL
            };
            match self.queue.take_batch(limits::JOURNAL_BATCH, wait) {
                NextBatch::Batch(commits) => {
                    if !self.commit_batch(commits) {
                        break;
                    }
                }
                NextBatch::Idle => {}
                NextBatch::Closed => break,
            }
            self.run_retention();
        }
        self.log_audit_head();
        let meters = self.meters.clone();
        let queue = Arc::clone(&self.queue);
        // Closes the database before the end of the thread is reported.
        drop(self);
        meters.set_backlog(queue.backlog());
        drop(finish);
    }

    /// Makes a step of retention. A failed step is left to the next pass; the next commit reports a
    /// failing disk.
    fn run_retention(&mut self) {
        match self.retention.run_step(self.store.conn(), super::now_us()) {
            Ok(None) => {}
            Ok(Some(removed)) => {
                self.meters.record_removed(removed.sessions, removed.events);
                if removed.sessions > 0 || removed.cut.is_some() {
                    JournalTrimmed {
                        sessions: removed.sessions,
                        events: removed.events,
                        cut: removed
                            .cut
                            .as_ref()
                            .map(|cut| (cut.link, cut.hash.as_str())),
                    }
                    .emit();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the journal's retention failed; the next pass retries it");
            }
        }
    }

    /// Makes a batch durable, however long it takes. Returns `false` if the thread must end.
    fn commit_batch(&mut self, commits: Vec<super::Commit>) -> bool {
        let mut batch = Batch::new(&self.store, commits);
        while let Err(trouble) = self.try_commit(&mut batch) {
            self.drop_withdrawn(&mut batch, trouble);
            if trouble == StorageFailure::Corrupt || !self.wait_and_retry(trouble) {
                return false;
            }
        }
        self.notify_callers(batch.entries);
        true
    }

    /// Tries once to make a batch durable. Commits that break the order are left out.
    pub(super) fn try_commit(&mut self, batch: &mut Batch) -> Result<(), StorageFailure> {
        let written = loop {
            self.meters.set_backlog(self.queue.backlog());
            match self.store.commit(&mut batch.entries) {
                Ok(written) => break written,
                Err(CommitFailure::LeftOut(_, violation)) => {
                    self.meters.record_error(JournalError::Rejected);
                    JournalFailed {
                        reason: JournalError::Rejected,
                        detail: &violation.to_string(),
                    }
                    .emit();
                }
                Err(CommitFailure::Database(error)) => {
                    let trouble = classify(&error);
                    let first = batch.failing_since.is_none();
                    batch.failing_since.get_or_insert_with(Instant::now);
                    self.report_failure(trouble, &error, first);
                    return Err(trouble);
                }
            }
        };
        if let Some(since) = batch.failing_since {
            JournalRecovered {
                after: since.elapsed(),
                waiting_rows: self.queue.backlog(),
            }
            .emit();
        }
        self.publish_health(None);
        self.meters
            .record_commit(written.events, written.bytes, written.commit_took);
        Ok(())
    }

    /// Gives commits back that their callers no longer wait for. Only where nothing of the batch
    /// can have reached the disk: after a failed sync, nobody knows.
    pub(super) fn drop_withdrawn(&self, batch: &mut Batch, trouble: StorageFailure) {
        let is_unwritten = matches!(
            trouble,
            StorageFailure::Locked | StorageFailure::Disk(JournalError::Full)
        );
        if !is_unwritten {
            return;
        }
        let all = std::mem::take(&mut batch.entries).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|entry| entry.commit.is_withdrawn());
        batch.entries = kept;
        let gone: Vec<_> = gone.into_iter().map(|entry| entry.commit).collect();
        let rows = gone.iter().map(super::Commit::row_count).sum();
        self.queue.shrink_batch(rows);
        for commit in gone.into_iter().chain(self.queue.take_withdrawn()) {
            call_back(commit, CommitResult::Withdrawn);
        }
        self.meters.set_backlog(self.queue.backlog());
    }

    /// Notifies the callers of a durable batch.
    pub(super) fn notify_callers(&mut self, batch: Vec<BatchEntry>) {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner) = self.store.head().clone();
        self.queue.finish_batch();
        self.meters.set_backlog(self.queue.backlog());
        let mut written = batch.iter().filter(|entry| entry.violation.is_none());
        if written.any(|entry| entry.commit.changes_approvals()) {
            self.approvals.send_modify(|count| *count += 1);
        }
        for entry in batch {
            let outcome = entry.outcome();
            call_back(entry.commit, outcome);
        }
    }

    /// Records a failure and classifies it.
    fn report_failure(&mut self, trouble: StorageFailure, error: &rusqlite::Error, first: bool) {
        let reason = error.to_string();
        let (kind, health) = match trouble {
            StorageFailure::Locked => (JournalError::Busy, Health::Stalled { reason }),
            StorageFailure::Disk(kind) => (kind, Health::ReadOnly { reason }),
            StorageFailure::Corrupt => (JournalError::Corrupt, Health::Corrupt { reason }),
        };
        self.meters.record_error(kind);
        if first {
            JournalFailed {
                reason: kind,
                detail: &health.to_string(),
            }
            .emit();
        }
        self.publish_health(Some(health));
    }

    /// Waits, and reconnects where the old connection may be unusable.
    fn wait_and_retry(&mut self, trouble: StorageFailure) -> bool {
        // For a lock, SQLite has waited already.
        let wait = match trouble {
            StorageFailure::Locked => Duration::ZERO,
            _ => limits::JOURNAL_BUSY_TIMEOUT,
        };
        if !self.queue.wait_before_retry(wait) {
            return false;
        }
        if trouble != StorageFailure::Locked
            && let Ok(conn) = schema::connect(&self.file, limits::JOURNAL_BUSY_TIMEOUT)
        {
            self.store.reconnect(conn);
        }
        self.check_file()
    }

    /// Makes the next check due at once.
    pub(super) fn force_check(&mut self) {
        self.monitor.last_check = None;
    }

    /// Checks the free space and the file, at most once in [`limits::JOURNAL_CHECK_INTERVAL`].
    /// Returns `false` if the file was removed or replaced.
    pub(super) fn check_file(&mut self) -> bool {
        let due = |last: Option<Instant>, every| last.is_none_or(|last| last.elapsed() >= every);
        if !due(self.monitor.last_check, limits::JOURNAL_CHECK_INTERVAL) {
            return true;
        }
        self.monitor.last_check = Some(Instant::now());
        if due(self.monitor.last_head_log, limits::AUDIT_HEAD_INTERVAL) {
            self.log_audit_head();
        }
        let meta = std::fs::symlink_metadata(&self.file);
        let here = meta.as_ref().map(|meta| (meta.dev(), meta.ino())).ok();
        if here != Some(self.monitor.identity) {
            let health = Health::Corrupt {
                reason: format!(
                    "{} was removed or replaced while it was in use",
                    self.file.display()
                ),
            };
            self.meters.record_error(JournalError::Corrupt);
            JournalFailed {
                reason: JournalError::Corrupt,
                detail: &health.to_string(),
            }
            .emit();
            self.publish_health(Some(health));
            return false;
        }
        self.measure_size(meta.map_or(0, |meta| meta.len()));
        true
    }

    fn measure_size(&mut self, database: u64) {
        let mut wal = self.file.clone().into_os_string();
        wal.push("-wal");
        let wal = std::fs::symlink_metadata(&wal).map_or(0, |meta| meta.len());
        self.meters.set_size(database.saturating_add(wal));
        let shortage = match (self.space)(&self.file) {
            Ok(space) => space.shortage(self.min_free),
            // If the measurement fails, assume enough space; a failed write shows the shortage.
            Err(_) => None,
        };
        if shortage == self.monitor.shortage {
            return;
        }
        let began = shortage.is_some() && self.monitor.shortage.is_none();
        self.monitor.shortage = shortage;
        if let (true, Some(detail)) = (began, &self.monitor.shortage) {
            self.meters.record_error(JournalError::Full);
            JournalFailed {
                reason: JournalError::Full,
                detail,
            }
            .emit();
        }
        if !matches!(*self.health.borrow(), Health::Stalled { .. }) {
            self.publish_health(None);
        }
    }

    /// Publishes the health: the failure of the current batch, else a shortage, else
    /// [`Health::Ok`].
    fn publish_health(&self, trouble: Option<Health>) {
        let next = trouble.unwrap_or_else(|| match &self.monitor.shortage {
            Some(reason) => Health::ReadOnly {
                reason: reason.clone(),
            },
            None => Health::Ok,
        });
        self.health.send_if_modified(|health| {
            let changed = *health != next;
            if changed {
                *health = next;
            }
            changed
        });
    }

    fn log_audit_head(&mut self) {
        self.monitor.last_head_log = Some(Instant::now());
        let head = self.store.head();
        AuditHead {
            link: head.link,
            hash: &head.hash,
        }
        .emit();
    }
}

/// Calls a commit's callback and drops it. A panic in either must not end the journal.
fn call_back(mut commit: super::Commit, outcome: CommitResult) {
    let done = commit.callback.take();
    let result = catch_unwind(AssertUnwindSafe(|| {
        if let Some(done) = done {
            done(outcome);
        }
        drop(commit);
    }));
    if result.is_err() {
        tracing::error!("the callback of a journal commit panicked");
    }
}

fn classify(error: &rusqlite::Error) -> StorageFailure {
    /// Extended result codes of a failed fsync (sqlite.org/rescode.html).
    const FSYNC: [i32; 2] = [1034, 1290];
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StorageFailure::Locked,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StorageFailure::Corrupt,
        Some(ErrorCode::DiskFull) => StorageFailure::Disk(JournalError::Full),
        Some(ErrorCode::SystemIoFailure)
            if error
                .sqlite_error()
                .is_some_and(|e| FSYNC.contains(&e.extended_code)) =>
        {
            StorageFailure::Disk(JournalError::Sync)
        }
        _ => StorageFailure::Disk(JournalError::Write),
    }
}
