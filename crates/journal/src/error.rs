//! The journal's errors, one type for each kind of caller.

use std::path::PathBuf;

use super::chats::ChatViolation;
use marshal_model::{EventId, PermissionRequestId, RunId, SessionId, TaskId, TurnId};

/// An error when a journal is opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is missing, or cannot be created or read.
    #[error("state directory {path}: {source}")]
    Directory {
        /// The state directory.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Other users can access the directory or a file of the journal.
    #[error(
        "{path} has mode {mode:04o}: others could read or change the journal; run `chmod {wanted:o} {path}`"
    )]
    InsecureMode {
        /// The directory or file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The required permission bits.
        wanted: u32,
    },
    /// The directory belongs to another user.
    #[error(
        "{path} belongs to uid {owner}, but this supervisor runs as uid {own}: chown it, or run as its owner"
    )]
    Owner {
        /// The directory or file.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
        /// The user id of this process.
        own: u32,
    },
    /// An older program wrote the database.
    #[error(
        "{path} has schema version {found}, this marshal needs {known}: move the state directory away, or use the marshal that wrote it"
    )]
    Older {
        /// The database.
        path: PathBuf,
        /// The schema version in the file.
        found: i64,
        /// The schema version of this program.
        known: i64,
    },
    /// A newer program wrote the database.
    #[error(
        "{path} has schema version {found}, this marshal knows {known}: use the newer marshal, or move the file away"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// The schema version in the file.
        found: i64,
        /// The schema version of this program.
        known: i64,
    },
    /// The file is a database of another program.
    #[error("{path} is a database of another program: move it away")]
    ForeignDatabase {
        /// The file.
        path: PathBuf,
    },
    /// The database is damaged.
    #[error(
        "{path} is damaged ({detail}): restore it from a backup, or move it away to start anew"
    )]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// SQLite's description of the damage.
        detail: String,
    },
    /// Another process has the database locked.
    #[error(
        "{path} is locked by another process ({detail}): end it, for example an open sqlite3 transaction"
    )]
    Locked {
        /// The database.
        path: PathBuf,
        /// SQLite's error text.
        detail: String,
    },
    /// Any other error of SQLite.
    #[error("{path}: {source}")]
    Database {
        /// The database.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The writer's thread could not be started.
    #[error("the journal's thread could not be started: {0}")]
    Thread(std::io::Error),
}

/// Why a commit was not accepted. Nothing of it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is at its limit: the caller exceeded its credits.
    #[error("the journal's queue is full")]
    Full,
    /// The commit begins new work and the journal is read-only.
    #[error("the journal is read-only and accepts no new work")]
    ReadOnly,
    /// The journal is closed, or its database is damaged.
    #[error("the journal is closed")]
    Closed,
}

/// Why an accepted commit was left out. This is always a bug in this program, never a fault of the
/// disk. Nothing of the commit was written; the rest of its batch was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An event does not continue its session's stream.
    #[error(
        "session {session} has {last} events, but the next has seq {got}: no further events are written"
    )]
    Gap {
        /// The session. Every later commit with an event of it is rejected as [`Self::Broken`].
        session: SessionId,
        /// The session's last durable seq.
        last: u64,
        /// The seq of the event.
        got: u64,
    },
    /// An event has the epoch of another start of the supervisor.
    #[error("event {0} does not belong to epoch {1}")]
    Epoch(EventId, u64),
    /// An earlier event of the session caused a [`Self::Gap`].
    #[error("session {0} has a gap in its events: no further events are written")]
    Broken(SessionId),
    /// An event of a session that was never begun.
    #[error("session {0} was never begun")]
    NoSession(SessionId),
    /// A verdict without an open permission request.
    #[error("permission request {0} is not open")]
    RequestNotOpen(PermissionRequestId),
    /// A change of a task that was never queued.
    #[error("task {task} of run {run} was never queued")]
    NoTask {
        /// The task's run.
        run: RunId,
        /// The task's id.
        task: TaskId,
    },
    /// The end of a run that was never begun.
    #[error("run {0} was never begun")]
    NoRun(RunId),
    /// A write that the chat does not allow.
    #[error("chat {chat}: {fault}")]
    Chat {
        /// The chat.
        chat: SessionId,
        /// The violation.
        fault: ChatViolation,
    },
    /// A change of a turn that was never accepted.
    #[error("turn {0} was never accepted")]
    NoTurn(TurnId),
    /// The database rejects a row: it exists already, or it is too large.
    #[error("the database rejects a row: {0}")]
    Row(String),
}

/// An error when the journal is read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// SQLite failed.
    #[error("the journal cannot be read: {0}")]
    Database(#[from] rusqlite::Error),
    /// A stored event cannot be decoded.
    #[error(transparent)]
    Codec(#[from] super::codec::CodecError),
    /// A column has a value that no version of this program writes.
    #[error("the journal has {text:?} where a {what} should be")]
    InvalidValue {
        /// A description of the expected value.
        what: &'static str,
        /// The value in the column.
        text: String,
    },
    /// The chain of audit records is broken.
    #[error("audit record {link} does not continue the chain: {detail}")]
    Chain {
        /// The link of the first record that does not fit.
        link: u64,
        /// The mismatch.
        detail: String,
    },
}
