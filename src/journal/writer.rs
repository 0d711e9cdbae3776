//! The one thread that writes: batches, retries, health.
//!
//! A batch that fails is kept and tried again until it is durable; only damage, or a close whose
//! time is over, ends the thread before that.

use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;
use tokio::sync::watch;

use super::audit::Head;
use super::health::{Health, Space};
use super::queue::{Queue, Taken};
use super::retention::Retention;
use super::schema;
use super::store::{Entry, Failure, Store};
use crate::limits;
use crate::telemetry::event::journal::{
    AuditHead, JournalError, JournalFailed, JournalMeters, JournalRecovered, JournalTrimmed,
};

/// Asks how much room there is; replaced in tests.
pub type SpaceProbe = Box<dyn Fn(&Path) -> std::io::Result<Space> + Send>;

/// What a failure of SQLite means for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Another process holds the lock: only time helps.
    Locked,
    /// The disk refuses.
    Disk(JournalError),
    /// The database is damaged.
    Corrupt,
}

/// Commits that become durable together, and since when they do not.
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    failing_since: Option<Instant>,
}

impl Batch {
    pub(super) fn of(store: &Store, commits: Vec<super::Commit>) -> Self {
        Self {
            entries: store.batch(commits),
            failing_since: None,
        }
    }
}

pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) queue: Arc<Queue>,
    pub(super) health: watch::Sender<Health>,
    pub(super) head: Arc<Mutex<Head>>,
    /// Counts the batches that changed questions.
    pub(super) questions: watch::Sender<u64>,
    pub(super) meters: JournalMeters,
    pub(super) file: PathBuf,
    pub(super) space: SpaceProbe,
    pub(super) watchman: Watchman,
    pub(super) retention: Retention,
    /// Free space below which nothing new is taken, in bytes.
    pub(super) min_free: u64,
}

/// What the writer looks at once a second, and when it did so last.
pub(super) struct Watchman {
    /// Device and inode of the database when it was opened.
    identity: (u64, u64),
    looked: Option<Instant>,
    head_told: Option<Instant>,
    shortage: Option<String>,
}

impl Watchman {
    pub(super) fn new(file: &Path) -> std::io::Result<Self> {
        let meta = std::fs::symlink_metadata(file)?;
        Ok(Self {
            identity: (meta.dev(), meta.ino()),
            looked: None,
            head_told: None,
            shortage: None,
        })
    }
}

/// Tells those who wait that the thread is gone, also after a panic.
struct Finish(Arc<Queue>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Writer {
    /// The thread's body.
    pub(super) fn run(mut self) {
        let finish = Finish(Arc::clone(&self.queue));
        while self.look() {
            let wait = if self.retention.is_busy() {
                limits::RETENTION_PAUSE
            } else {
                limits::JOURNAL_LOOK
            };
            match self.queue.take(limits::JOURNAL_BATCH, wait) {
                Taken::Batch(commits) => {
                    if !self.write(commits) {
                        break;
                    }
                }
                Taken::Idle => {}
                Taken::Closed => break,
            }
            self.forget();
        }
        self.tell_head();
        let meters = self.meters.clone();
        let queue = Arc::clone(&self.queue);
        // The database is closed before anybody is told that the thread is gone.
        drop(self);
        meters.backlog(queue.backlog());
        drop(finish);
    }

    /// Removes a little of what is kept no longer. What fails is left for the next pass: a disk
    /// that refuses is told by the next commit.
    fn forget(&mut self) {
        match self.retention.tend(self.store.conn(), super::now_us()) {
            Ok(None) => {}
            Ok(Some(removed)) => {
                self.meters.removed(removed.sessions, removed.events);
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
            Err(error) => tracing::debug!(%error, "nothing can be removed from the journal now"),
        }
    }

    /// Makes a batch durable, however long it takes. Gives `false` if the thread must end.
    fn write(&mut self, commits: Vec<super::Commit>) -> bool {
        let mut batch = Batch::of(&self.store, commits);
        while let Err(trouble) = self.try_write(&mut batch) {
            if trouble == Trouble::Corrupt || !self.wait_and_retry(trouble) {
                return false;
            }
        }
        self.finish_batch(batch.entries);
        true
    }

    /// Tries once to make a batch durable. What breaks the order is left out of it.
    pub(super) fn try_write(&mut self, batch: &mut Batch) -> Result<(), Trouble> {
        let written = loop {
            self.meters.backlog(self.queue.backlog());
            match self.store.commit(&mut batch.entries) {
                Ok(written) => break written,
                Err(Failure::Left(_, violation)) => {
                    self.meters.error(JournalError::Rejected);
                    JournalFailed {
                        reason: JournalError::Rejected,
                        detail: &violation.to_string(),
                    }
                    .emit();
                }
                Err(Failure::Database(error)) => {
                    let trouble = classify(&error);
                    let first = batch.failing_since.is_none();
                    batch.failing_since.get_or_insert_with(Instant::now);
                    self.fail(trouble, &error, first);
                    return Err(trouble);
                }
            }
        };
        if let Some(since) = batch.failing_since {
            JournalRecovered {
                after: since.elapsed(),
                kept: self.queue.backlog(),
            }
            .emit();
        }
        self.publish(None);
        self.meters
            .committed(written.events, written.bytes, written.commit_took);
        Ok(())
    }

    /// Tells everybody whose commit is in a batch that is durable.
    pub(super) fn finish_batch(&mut self, batch: Vec<Entry>) {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner) = self.store.head().clone();
        self.queue.done();
        self.meters.backlog(self.queue.backlog());
        let mut written = batch.iter().filter(|entry| entry.left.is_none());
        if written.any(|entry| entry.commit.is_of_questions()) {
            self.questions.send_modify(|count| *count += 1);
        }
        for mut entry in batch {
            let outcome = entry.outcome();
            let done = entry.commit.done.take();
            // What a caller's closure or a dropped permit does must not end the journal.
            let told = catch_unwind(AssertUnwindSafe(|| {
                if let Some(done) = done {
                    done(outcome);
                }
                drop(entry);
            }));
            if told.is_err() {
                tracing::error!("a caller of the journal panicked when it was told of its commit");
            }
        }
    }

    /// Records a failure and says what it means.
    fn fail(&mut self, trouble: Trouble, error: &rusqlite::Error, first: bool) {
        let reason = error.to_string();
        let (kind, health) = match trouble {
            Trouble::Locked => (JournalError::Busy, Health::Stalled { reason }),
            Trouble::Disk(kind) => (kind, Health::ReadOnly { reason }),
            Trouble::Corrupt => (JournalError::Corrupt, Health::Corrupt { reason }),
        };
        self.meters.error(kind);
        if first {
            JournalFailed {
                reason: kind,
                detail: &health.to_string(),
            }
            .emit();
        }
        self.publish(Some(health));
    }

    /// Waits, and takes a new connection where the old one may be spoilt.
    fn wait_and_retry(&mut self, trouble: Trouble) -> bool {
        // For a lock SQLite has waited already.
        let wait = match trouble {
            Trouble::Locked => Duration::ZERO,
            _ => limits::JOURNAL_BUSY,
        };
        if !self.queue.retry_after(wait) {
            return false;
        }
        if trouble != Trouble::Locked
            && let Ok(conn) = schema::connect(&self.file, limits::JOURNAL_BUSY)
        {
            self.store.reconnect(conn);
        }
        self.look()
    }

    /// Forgets when it looked, so that the next look is not put off.
    pub(super) fn look_again(&mut self) {
        self.watchman.looked = None;
    }

    /// Looks at the room and the file, at most once in [`limits::JOURNAL_LOOK`]. Gives `false` if
    /// the file is gone.
    pub(super) fn look(&mut self) -> bool {
        let due = |last: Option<Instant>, every| last.is_none_or(|last| last.elapsed() >= every);
        if !due(self.watchman.looked, limits::JOURNAL_LOOK) {
            return true;
        }
        self.watchman.looked = Some(Instant::now());
        if due(self.watchman.head_told, limits::AUDIT_HEAD_EVERY) {
            self.tell_head();
        }
        let meta = std::fs::symlink_metadata(&self.file);
        let here = meta.as_ref().map(|meta| (meta.dev(), meta.ino())).ok();
        if here != Some(self.watchman.identity) {
            let health = Health::Corrupt {
                reason: format!(
                    "{} was removed or replaced while it was in use",
                    self.file.display()
                ),
            };
            self.meters.error(JournalError::Corrupt);
            JournalFailed {
                reason: JournalError::Corrupt,
                detail: &health.to_string(),
            }
            .emit();
            self.publish(Some(health));
            return false;
        }
        self.measure(meta.map_or(0, |meta| meta.len()));
        true
    }

    fn measure(&mut self, database: u64) {
        let mut wal = self.file.clone().into_os_string();
        wal.push("-wal");
        let wal = std::fs::symlink_metadata(&wal).map_or(0, |meta| meta.len());
        self.meters.size(database.saturating_add(wal));
        let shortage = match (self.space)(&self.file) {
            Ok(space) => space.shortage(self.min_free),
            // What cannot be asked is no shortage; a write will tell.
            Err(_) => None,
        };
        if shortage == self.watchman.shortage {
            return;
        }
        let began = shortage.is_some() && self.watchman.shortage.is_none();
        self.watchman.shortage = shortage;
        if let (true, Some(detail)) = (began, &self.watchman.shortage) {
            self.meters.error(JournalError::Full);
            JournalFailed {
                reason: JournalError::Full,
                detail,
            }
            .emit();
        }
        if !matches!(*self.health.borrow(), Health::Stalled { .. }) {
            self.publish(None);
        }
    }

    /// Tells the health: the trouble of the batch at hand, else a shortage, else that all is well.
    fn publish(&self, trouble: Option<Health>) {
        let next = trouble.unwrap_or_else(|| match &self.watchman.shortage {
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

    fn tell_head(&mut self) {
        self.watchman.head_told = Some(Instant::now());
        let head = self.store.head();
        AuditHead {
            link: head.link,
            hash: &head.hash,
        }
        .emit();
    }
}

fn classify(error: &rusqlite::Error) -> Trouble {
    /// Extended result codes of a failed fsync (sqlite.org/rescode.html).
    const FSYNC: [i32; 2] = [1034, 1290];
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Trouble::Locked,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Trouble::Corrupt,
        Some(ErrorCode::DiskFull) => Trouble::Disk(JournalError::Full),
        Some(ErrorCode::SystemIoFailure)
            if error
                .sqlite_error()
                .is_some_and(|e| FSYNC.contains(&e.extended_code)) =>
        {
            Trouble::Disk(JournalError::Sync)
        }
        _ => Trouble::Disk(JournalError::Write),
    }
}
