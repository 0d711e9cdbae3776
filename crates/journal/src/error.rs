//! What can go wrong with the journal, as each caller meets it.

use std::path::PathBuf;

use super::chats::ChatViolation;
use marshal_model::{EventId, PermissionRequestId, RunId, SessionId, TaskId, TurnId};

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is missing, or cannot be made or read.
    #[error("state directory {path}: {source}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The directory or a file of the journal is open to others.
    #[error(
        "{path} has mode {mode:04o}: others could read or change the journal; run `chmod {wanted:o} {path}`"
    )]
    InsecureMode {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What they should be.
        wanted: u32,
    },
    /// The directory belongs to somebody else.
    #[error("{path} belongs to uid {owner}, this supervisor runs as uid {own}")]
    Owner {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        own: u32,
    },
    /// An older program wrote the database.
    #[error(
        "{path} has schema version {found}, this marshal needs {known}: move the state directory away, or use the marshal that wrote it"
    )]
    Older {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// A newer program wrote the database.
    #[error(
        "{path} has schema version {found}, this marshal knows {known}: use the newer marshal, or move the file away"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The file is a database of something else.
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
        /// What SQLite found.
        detail: String,
    },
    /// Another process holds the database.
    #[error(
        "{path} is locked by another process ({detail}): end it, for example an open sqlite3 transaction"
    )]
    Locked {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        detail: String,
    },
    /// Everything else that SQLite refuses.
    #[error("{path}: {source}")]
    Database {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The writer's thread could not be started.
    #[error("the journal's thread could not be started: {0}")]
    Thread(std::io::Error),
}

/// Why a commit was not accepted. Nothing of it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As many commits wait as may: the caller outran its credits.
    #[error("the journal's queue is full")]
    Full,
    /// The commit begins new work and the journal is read-only.
    #[error("the journal is read-only and takes no new work")]
    ReadOnly,
    /// The journal is closed, or its database is damaged.
    #[error("the journal is closed")]
    Closed,
}

/// Why an accepted commit was left out: a fault of this program, never of the disk. Nothing of
/// the commit was written, and the rest of its batch was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An event does not continue its session's stream.
    #[error("session {session} has {last} events, the next has seq {got}: it writes no more")]
    Gap {
        /// The session; every later commit with an event of it is refused as [`Self::Broken`].
        session: SessionId,
        /// The last durable seq.
        last: u64,
        /// The seq of the event.
        got: u64,
    },
    /// An event with the id of another start of the supervisor.
    #[error("event {0} does not belong to epoch {1}")]
    Epoch(EventId, u64),
    /// An earlier event of the session was a [`Self::Gap`].
    #[error("session {0} lost its order and writes no more")]
    Broken(SessionId),
    /// An event of a session that was never begun.
    #[error("session {0} was never begun")]
    NoSession(SessionId),
    /// A verdict without its permission request, or a second one.
    #[error("ask {0} is not open")]
    RequestNotOpen(PermissionRequestId),
    /// A change of a task that was never queued.
    #[error("task {task} of run {run} was never queued")]
    NoTask {
        /// Its run.
        run: RunId,
        /// Its id.
        task: TaskId,
    },
    /// The end of a run that was never begun.
    #[error("run {0} was never begun")]
    NoRun(RunId),
    /// What a chat does not allow.
    #[error("chat {chat}: {fault}")]
    Chat {
        /// Which.
        chat: SessionId,
        /// What.
        fault: ChatViolation,
    },
    /// A change of a turn that was never accepted.
    #[error("turn {0} was never accepted")]
    NoTurn(TurnId),
    /// A row that exists already, or is larger than the database can hold.
    #[error("the database refuses a row: {0}")]
    Row(String),
}

/// Why a reader could not answer.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// SQLite refused.
    #[error("the journal cannot be read: {0}")]
    Database(#[from] rusqlite::Error),
    /// A stored event cannot be understood.
    #[error(transparent)]
    Codec(#[from] super::codec::CodecError),
    /// A column holds what no version of this program wrote.
    #[error("the journal has {text:?} where a {what} should be")]
    InvalidValue {
        /// What was expected.
        what: &'static str,
        /// What is there.
        text: String,
    },
    /// The chain of audit records is broken.
    #[error("audit record {link} does not continue the chain: {detail}")]
    Chain {
        /// The first record that does not fit.
        link: u64,
        /// What does not fit.
        detail: String,
    },
}
