//! The SQLite store: events, permission requests with their verdicts, tasks, runs, chats, slot
//! failures.
//!
//! Layer 3. Owns all state that must survive the process. A commit is reported durable only when it
//! is (WAL, synchronous FULL). Must not know children, protocols or actors. Callers submit
//! [`Commit`]s without waiting. One thread writes them in groups and notifies each caller, in the
//! order of submission.
//!
//! A failed write loses nothing: the batch is kept and retried, and [`Journal::health`] reports the
//! failure. Callers are limited by their credits, which return only when a commit is durable. Only
//! damage ends the journal; a caller that sees [`Health::Corrupt`] must end the process.

mod approvals;
mod audit;
mod chats;
pub mod codec;
mod columns;
mod commit;
mod conversations;
mod error;
mod health;
mod lookup;
mod pages;
mod queue;
mod reader;
mod records;
mod recovery;
mod report_queries;
mod resumable;
mod retention;
mod rows;
mod schema;
mod spend;
mod stepper;
mod store;
mod turn_queries;
mod unfinished;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use marshal_model::limits;
use marshal_telemetry::event::journal::JournalMeters;

pub use approvals::{ApprovalAnswer, ApprovalChange, ApprovalRow, StoredApproval};
pub use audit::ChainHead;
pub use chats::{
    ChatMessage, ChatRow, ChatViolation, ChatWrite, PlanItem, PlanReview, PlanWrite, Speaker,
    StoredChat, StoredTurn, TurnRow,
};
pub use commit::{
    CONVERSATION_COMMAND, Commit, CommitResult, PolicyEvaluation, RefusedCommit, SessionRow,
    TaskChange, TaskRow, Withdrawal, Write,
};
pub use conversations::StoredConversation;
pub use error::{OpenError, ReadError, Refusal, Violation};
pub use health::{DiskSpace, Health};
pub use lookup::IdKind;
pub use pages::{SessionQuery, TaskQuery};
pub use reader::{
    Reader, RunSession, SlotFailures, StoredEvent, StoredPermissionRequest, StoredRun,
    StoredSession, StoredTask,
};
pub use records::{AuditQuery, AuditRecord, ChainProof, RecordIdentity};
pub use recovery::RecoveryReport;
pub use report_queries::CrashCount;
pub use resumable::ResumableSession;
pub use retention::RetentionLimits;
pub use schema::{FILE_NAME, VERSION as SCHEMA_VERSION};
pub use spend::{Period, SpendRow, StoredSpend};
#[doc(hidden)]
pub use stepper::{Step, Stepper};
pub use turn_queries::{LastCheck, LastTurn};
pub use unfinished::{ParkedSlot, TaskMatch};
pub use writer::SpaceProbe;

/// A handle of the journal; clones share it. When the last clone is dropped, the writer finishes
/// the queue and ends.
#[derive(Clone)]
pub struct Journal(Arc<Inner>);

struct Inner {
    queue: Arc<queue::Queue>,
    health: watch::Receiver<Health>,
    approvals: watch::Receiver<u64>,
    head: Arc<Mutex<ChainHead>>,
    epoch: u64,
    file: PathBuf,
    recovered: RecoveryReport,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Journal({}, epoch {})",
            self.0.file.display(),
            self.0.epoch
        )
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The journal's limits: how long rows stay, and how much free space it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalOptions {
    /// The limits of retention; `None` keeps everything for ever.
    pub retention: Option<RetentionLimits>,
    /// The free space, in bytes, below which the journal refuses new work.
    pub min_free: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            retention: None,
            min_free: limits::JOURNAL_FREE_BYTES,
        }
    }
}

/// A close that ended before all rows were durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{writes} journal rows could not be made durable in time")]
pub struct CloseTimeout {
    /// Accepted rows that are not durable.
    pub writes: usize,
}

impl Journal {
    /// Opens the journal in a state directory. Creates the directory (0700) if it is missing, gives
    /// the process a new epoch, and writes the missing ends of turns, permission requests and
    /// sessions that earlier epochs left open. Tasks and the sessions of slots stay as they are.
    ///
    /// The caller must own the directory's lock: one supervisor a state directory.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_with_probe(dir, Box::new(DiskSpace::measure))
    }

    /// [`Self::open`] with another probe for free space.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open_with_probe(dir: &Path, space: SpaceProbe) -> Result<Self, OpenError> {
        Self::open_with_options(dir, JournalOptions::default(), space)
    }

    /// [`Self::open_with_probe`] with other limits.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open_with_options(
        dir: &Path,
        rules: JournalOptions,
        space: SpaceProbe,
    ) -> Result<Self, OpenError> {
        let (journal, writer) = Self::prepare(dir, rules, space, now_us())?;
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Thread)?;
        Ok(journal)
    }

    /// [`Self::open_with_probe`] without the thread, for simulations: nothing becomes durable until
    /// the [`Stepper`] makes a step. `at_us` is the time of this start.
    ///
    /// # Errors
    /// [`OpenError`]
    #[doc(hidden)]
    pub fn open_stepped(
        dir: &Path,
        space: SpaceProbe,
        at_us: i64,
    ) -> Result<(Self, Stepper), OpenError> {
        let (journal, writer) = Self::prepare(dir, JournalOptions::default(), space, at_us)?;
        Ok((journal, Stepper::new(writer)))
    }

    /// Opens the database, ends what earlier epochs left open, and connects the parts.
    fn prepare(
        dir: &Path,
        rules: JournalOptions,
        space: SpaceProbe,
        at_us: i64,
    ) -> Result<(Self, writer::Writer), OpenError> {
        let file = schema::prepare_file(dir)?;
        let (conn, epoch) = schema::open(&file, at_us)?;
        let named = |source| schema::describe_open_error(&file, source);
        let (open, recovered) = recovery::plan_recovery(&conn, epoch, at_us).map_err(named)?;
        let mut store = store::Store::new(conn, epoch).map_err(named)?;
        store.commit_all(open).map_err(named)?;
        let watchman = writer::FileMonitor::new(&file).map_err(|source| OpenError::Directory {
            path: file.clone(),
            source,
        })?;
        let queue = Arc::new(queue::Queue::new(limits::JOURNAL_QUEUE));
        let head = Arc::new(Mutex::new(store.head().clone()));
        let free_space = space(&file).ok();
        let shortage = free_space.and_then(|space| space.shortage(rules.min_free));
        let (health, receiver) = watch::channel(match shortage {
            Some(reason) => Health::ReadOnly { reason },
            None => Health::Ok,
        });
        let (questions, changed) = watch::channel(0);
        let writer = writer::Writer {
            store,
            queue: Arc::clone(&queue),
            approvals: questions,
            health,
            head: Arc::clone(&head),
            meters: JournalMeters::new(),
            file: file.clone(),
            space,
            monitor: watchman,
            retention: retention::Retention::new(rules.retention, epoch),
            min_free: rules.min_free,
        };
        let journal = Self(Arc::new(Inner {
            queue,
            health: receiver,
            approvals: changed,
            head,
            epoch,
            file,
            recovered,
        }));
        Ok((journal, writer))
    }

    /// The epoch of this start of the supervisor: greater than that of every earlier start.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// Submits a commit without waiting. An accepted commit becomes durable, in the order of
    /// submission, however long the disk fails. Only damage or the end of the process prevents it.
    ///
    /// # Errors
    /// [`RefusedCommit`], with the commit in it. [`Refusal::ReadOnly`] affects only commits that
    /// begin new work (`RunBegun`, `TaskQueued`, a chat's `Create` and `Accept`).
    pub fn submit(&self, commit: Commit) -> Result<(), RefusedCommit> {
        if commit.begins_new_work() && self.0.health.borrow().is_read_only() {
            return Err(RefusedCommit::new(commit, Refusal::ReadOnly));
        }
        self.0.queue.push(commit)
    }

    /// The journal's health, now and at every change.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.0.health.clone()
    }

    /// A counter that grows whenever a change of approvals becomes durable.
    #[must_use]
    pub fn approvals_changed(&self) -> watch::Receiver<u64> {
        self.0.approvals.clone()
    }

    /// The number of rows that are accepted and not yet durable.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.0.queue.backlog()
    }

    /// The durable end of the audit chain.
    #[must_use]
    pub fn audit_head(&self) -> ChainHead {
        self.0
            .head
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Counts of what earlier epochs left open, as found when the journal was opened.
    #[must_use]
    pub fn recovery_report(&self) -> RecoveryReport {
        self.0.recovered
    }

    /// A reader with a connection of its own.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn reader(&self) -> Result<Reader, OpenError> {
        Reader::open_file(&self.0.file)
    }

    /// The database's path.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.0.file
    }

    /// Refuses further commits and waits until everything is durable and the database is closed.
    /// Blocks the thread, for at most `timeout`.
    ///
    /// # Errors
    /// [`CloseTimeout`] if rows were not durable in time; they are given up.
    pub fn close(&self, timeout: Duration) -> Result<(), CloseTimeout> {
        self.0.queue.close();
        self.0
            .queue
            .wait_for_writer(timeout)
            .map_err(|writes| CloseTimeout { writes })
    }
}

/// Microseconds since the Unix epoch.
fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
