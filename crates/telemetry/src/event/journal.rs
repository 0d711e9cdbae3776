//! The journal: commits, failures, the audit chain's head.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::string_enum;

string_enum!(
    /// Why the journal could not write, or left something out.
    JournalError {
        /// A write failed.
        Write = "write",
        /// A sync failed.
        Sync = "sync",
        /// The disk is full, or nearly.
        Full = "full",
        /// Another process holds the database.
        Busy = "busy",
        /// The database is damaged or gone.
        Corrupt = "corrupt",
        /// A commit broke the order of its session, or another rule of the rows.
        Rejected = "rejected",
    }
);

/// The journal's handles; every batch touches them.
#[derive(Clone)]
pub struct JournalMeters {
    events: Counter,
    bytes: Counter,
    commit: Histogram,
    batch: Histogram,
    backlog: Gauge,
    size: Gauge,
    removed_sessions: Counter,
    removed_events: Counter,
    errors: Vec<Counter>,
}

impl Default for JournalMeters {
    fn default() -> Self {
        Self::new()
    }
}

impl JournalMeters {
    /// Makes the handles, with the recorder of the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self {
            events: counter(&names::JOURNAL_EVENTS, &[]),
            bytes: counter(&names::JOURNAL_BYTES, &[]),
            commit: histogram(&names::JOURNAL_FSYNC, &[]),
            batch: histogram(&names::JOURNAL_BATCH, &[]),
            backlog: gauge(&names::JOURNAL_BACKLOG, &[]),
            size: gauge(&names::JOURNAL_SIZE, &[]),
            removed_sessions: counter(&names::JOURNAL_REMOVED_SESSIONS, &[]),
            removed_events: counter(&names::JOURNAL_REMOVED_EVENTS, &[]),
            errors: JournalError::ALL
                .iter()
                .map(|error| counter(&names::JOURNAL_ERRORS, &[error.word()]))
                .collect(),
        }
    }

    /// A batch is durable. Not logged: there are thousands a second.
    pub fn record_commit(&self, events: u64, bytes: u64, took: Duration) {
        self.events.increment(events);
        self.bytes.increment(bytes);
        self.commit.record(took);
        self.batch.record(events as f64);
    }

    /// Rows that wait.
    pub fn set_backlog(&self, rows: usize) {
        self.backlog.set(rows as f64);
    }

    /// The files' size.
    pub fn set_size(&self, bytes: u64) {
        self.size.set(bytes as f64);
    }

    /// Retention removed so much.
    pub fn record_removed(&self, sessions: u64, events: u64) {
        self.removed_sessions.increment(sessions);
        self.removed_events.increment(events);
    }

    /// One more failure.
    pub fn record_error(&self, error: JournalError) {
        if let Some(counter) = self.errors.get(error as usize) {
            counter.increment(1);
        }
    }
}

/// The journal began to fail, or left a commit out. Counted by [`JournalMeters::record_error`], which
/// also counts every retry.
#[derive(Debug)]
pub struct JournalFailed<'a> {
    /// Why.
    pub reason: JournalError,
    /// What was said, and what it means.
    pub detail: &'a str,
}

impl JournalFailed<'_> {
    /// Logs.
    pub fn emit(self) {
        if self.reason == JournalError::Busy {
            tracing::warn!(reason = %self.reason, detail = self.detail, "journal stalled: what was accepted is kept and retried");
        } else {
            tracing::error!(reason = %self.reason, detail = self.detail, "journal failed");
        }
    }
}

/// The journal writes again; nothing was lost.
#[derive(Debug)]
pub struct JournalRecovered {
    /// After how long.
    pub after: Duration,
    /// How many rows waited.
    pub waiting_rows: usize,
}

impl JournalRecovered {
    /// Logs.
    pub fn emit(self) {
        tracing::info!(after = ?self.after, kept = self.waiting_rows, "journal writes again");
    }
}

/// The end of the audit chain: only what is told outside the chain shows a cut or a rewrite.
#[derive(Debug)]
pub struct AuditHead<'a> {
    /// How many records there are.
    pub link: u64,
    /// The last one's hash.
    pub hash: &'a str,
}

impl AuditHead<'_> {
    /// Logs.
    pub fn emit(self) {
        tracing::info!(link = self.link, hash = self.hash, "audit head");
    }
}

/// Retention removed what is kept no longer. Counted by [`JournalMeters::record_removed`]. Where the audit
/// chain was cut, the log keeps the witness of what it led to.
#[derive(Debug)]
pub struct JournalTrimmed<'a> {
    /// Sessions removed.
    pub sessions: u64,
    /// Their events.
    pub events: u64,
    /// Number and hash of the last audit record that was removed.
    pub cut: Option<(u64, &'a str)>,
}

impl JournalTrimmed<'_> {
    /// Logs.
    pub fn emit(self) {
        let (link, hash) = self.cut.unwrap_or_default();
        tracing::info!(
            sessions = self.sessions,
            events = self.events,
            cut_link = link,
            cut_hash = hash,
            "old sessions removed from the journal"
        );
    }
}
