//! The journal: commits, failures, the audit chain's head.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::string_enum;

string_enum!(
    /// Why the journal could not write, or left a commit out.
    JournalError {
        /// A write failed.
        Write = "write",
        /// A sync failed.
        Sync = "sync",
        /// The disk is full or almost full.
        Full = "full",
        /// Another process has locked the database.
        Busy = "busy",
        /// The database is damaged or missing.
        Corrupt = "corrupt",
        /// A commit broke the order of its session, or another rule of the rows.
        Rejected = "rejected",
    }
);

/// The journal's metric handles, made once because every batch uses them.
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
                .map(|error| counter(&names::JOURNAL_ERRORS, &[error.as_str()]))
                .collect(),
        }
    }

    /// Records a durable batch. Not logged, because there are thousands a second.
    pub fn record_commit(&self, events: u64, bytes: u64, took: Duration) {
        self.events.increment(events);
        self.bytes.increment(bytes);
        self.commit.record(took);
        self.batch.record(events as f64);
    }

    /// Sets the number of rows that wait.
    pub fn set_backlog(&self, rows: usize) {
        self.backlog.set(rows as f64);
    }

    /// Sets the size of the journal's files.
    pub fn set_size(&self, bytes: u64) {
        self.size.set(bytes as f64);
    }

    /// Records what retention removed.
    pub fn record_removed(&self, sessions: u64, events: u64) {
        self.removed_sessions.increment(sessions);
        self.removed_events.increment(events);
    }

    /// Counts a failure.
    pub fn record_error(&self, error: JournalError) {
        if let Some(counter) = self.errors.get(error as usize) {
            counter.increment(1);
        }
    }
}

/// The journal started to fail, or left a commit out. Counted by [`JournalMeters::record_error`],
/// which also counts every retry.
#[derive(Debug)]
pub struct JournalFailed<'a> {
    /// The reason.
    pub reason: JournalError,
    /// The database's error and what it means.
    pub detail: &'a str,
}

impl JournalFailed<'_> {
    /// Logs.
    pub fn emit(self) {
        if self.reason == JournalError::Busy {
            tracing::warn!(reason = %self.reason, detail = self.detail, "journal stalled: accepted rows stay in memory and are retried");
        } else {
            tracing::error!(reason = %self.reason, detail = self.detail, "journal failed");
        }
    }
}

/// The journal recovered; no row was lost.
#[derive(Debug)]
pub struct JournalRecovered {
    /// How long it could not write.
    pub after: Duration,
    /// The number of rows that waited.
    pub waiting_rows: usize,
}

impl JournalRecovered {
    /// Logs.
    pub fn emit(self) {
        tracing::info!(after = ?self.after, kept = self.waiting_rows, "journal recovered");
    }
}

/// The end of the audit chain. Only a copy outside the chain, such as this log line, reveals a cut
/// or a rewrite.
#[derive(Debug)]
pub struct AuditHead<'a> {
    /// The number of records in the chain.
    pub link: u64,
    /// The hash of the last record.
    pub hash: &'a str,
}

impl AuditHead<'_> {
    /// Logs.
    pub fn emit(self) {
        tracing::info!(link = self.link, hash = self.hash, "audit head");
    }
}

/// Retention removed old sessions. Counted by [`JournalMeters::record_removed`]. Where the audit
/// chain was cut, the log keeps the number and hash of the last removed record.
#[derive(Debug)]
pub struct JournalTrimmed<'a> {
    /// Sessions removed.
    pub sessions: u64,
    /// Events removed with them.
    pub events: u64,
    /// Number and hash of the last removed audit record; `None` if none was removed.
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
