//! Errors of the store, for its callers, and the classes of database errors.
//!
//! No text here contains a password: a message names the server without one.

use super::name::{FilePath, NameError};
use super::version::Version;

/// Why a store operation failed. Nothing was written, unless [`StoreError::Unreachable`] says that
/// this is unknown.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The workspace was never registered.
    #[error("workspace {0:?} is not registered")]
    NoWorkspace(String),
    /// Another supervisor registered the workspace, for another directory.
    #[error(
        "workspace {workspace:?} belongs to another supervisor of this store, for {theirs}; here it is {ours}: give it another name here; if both are the same directory (for example on NFS) or that supervisor no longer exists, set `shared = true` in [workspace.{workspace}] wherever it is used"
    )]
    WorkspaceTaken {
        /// The workspace.
        workspace: String,
        /// The directory that it was registered for.
        theirs: String,
        /// The directory that it names here.
        ours: String,
    },
    /// There is no such file.
    #[error("there is no file {0:?}")]
    NoFile(String),
    /// The file has no such version, or no longer has it.
    #[error(
        "file {path:?} has no version {v}: it never existed, or was removed by the retention limits"
    )]
    NoVersion {
        /// The file's path or id.
        path: String,
        /// The version.
        v: u64,
    },
    /// The content of the version is not stored.
    #[error("version {v} of {path:?} has no content: {why}")]
    NoContent {
        /// The file's path or id.
        path: String,
        /// The version.
        v: u64,
        /// Why it is not stored.
        why: &'static str,
    },
    /// The base of the write is not the current version.
    #[error(
        "{path:?} has changed: its current version is {}, made by {} ({}); read it and write again",
        current.v, current.origin.author.kind, current.cause
    )]
    Stale {
        /// The file's path.
        path: FilePath,
        /// The current version.
        current: Box<Version>,
    },
    /// The base of the write is a version of a file that does not exist.
    #[error("the base is version {v} of {path:?}, but that file does not exist")]
    NoBase {
        /// The path.
        path: FilePath,
        /// The version that was named.
        v: u64,
    },
    /// The target of a rename exists.
    #[error("file {0:?} already exists")]
    Exists(FilePath),
    /// A parameter of the request is outside its bounds.
    #[error("{0}")]
    InvalidRequest(&'static str),
    /// The connection string cannot be used. The message omits its text, which may contain a
    /// password.
    #[error("the store's connection string {0}")]
    Connection(&'static str),
    /// The store's files are accessible to others, belong to another user, or cannot be created.
    #[error("{path}: {detail}")]
    InsecureFile {
        /// The file's path.
        path: String,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// A newer program wrote the database.
    #[error(
        "{place} has store version {found}, and this marshal supports {known}: use the newer marshal, or another database"
    )]
    Newer {
        /// The database.
        place: String,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The disk is full.
    #[error("{place} cannot write because its disk is full ({detail}): nothing was written")]
    Full {
        /// The database.
        place: String,
        /// What the database reported.
        detail: String,
    },
    /// Another transaction holds a lock for too long.
    #[error("{place} is locked by another process ({detail}): nothing was written")]
    Locked {
        /// The database.
        place: String,
        /// What the database reported.
        detail: String,
    },
    /// The server cannot be reached.
    #[error(
        "{place} cannot be reached ({detail}): {}",
        if *unknown { "the write may have succeeded: check before you write again" } else { "nothing was written" }
    )]
    Unreachable {
        /// The database.
        place: String,
        /// The last error.
        detail: String,
        /// Whether a commit was in progress when the server was lost.
        unknown: bool,
    },
    /// The stored data is inconsistent.
    #[error("{place} is damaged ({detail}): restore it from a backup")]
    Corrupt {
        /// The database.
        place: String,
        /// What is inconsistent.
        detail: String,
    },
    /// Any other database error.
    #[error("{place} reported an error: {detail}")]
    Database {
        /// The database.
        place: String,
        /// What the database reported.
        detail: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the database is to blame, not the request.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Full { .. }
                | Self::Locked { .. }
                | Self::Unreachable { .. }
                | Self::Corrupt { .. }
                | Self::Database { .. }
                | Self::Newer { .. }
                | Self::InsecureFile { .. }
                | Self::Connection(_)
                | Self::Closed
        )
    }
}

/// The class of a database error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DbErrorKind {
    /// Another transaction holds a lock.
    Locked,
    /// The disk is full.
    Full,
    /// The server is lost, or accepts no connections now.
    Unreachable,
    /// The server rolled the transaction back in favour of another one: retry.
    Retry,
    /// The stored data is inconsistent.
    Corrupt,
    /// Anything else; a retry would fail again.
    Other,
}

/// A failure of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DbError {
    pub(super) kind: DbErrorKind,
    pub(super) detail: String,
}

impl DbError {
    pub(super) fn new(kind: DbErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }

    pub(super) fn corrupt(detail: impl Into<String>) -> Self {
        Self::new(DbErrorKind::Corrupt, detail)
    }

    /// The error for the caller. `unknown`: a commit was in progress.
    pub(super) fn into_store_error(self, place: &str, unknown: bool) -> StoreError {
        let place = place.to_owned();
        let detail = self.detail;
        if unknown {
            return StoreError::Unreachable {
                place,
                detail,
                unknown,
            };
        }
        match self.kind {
            DbErrorKind::Locked | DbErrorKind::Retry => StoreError::Locked { place, detail },
            DbErrorKind::Full => StoreError::Full { place, detail },
            DbErrorKind::Unreachable => StoreError::Unreachable {
                place,
                detail,
                unknown,
            },
            DbErrorKind::Corrupt => StoreError::Corrupt { place, detail },
            DbErrorKind::Other => StoreError::Database { place, detail },
        }
    }
}

/// Why a transaction is undone.
#[derive(Debug)]
pub(super) enum TransactionError {
    /// The request is refused; the same request would be refused again.
    Refused(StoreError),
    /// The database failed.
    Database(DbError),
}

impl From<StoreError> for TransactionError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<DbError> for TransactionError {
    fn from(trouble: DbError) -> Self {
        Self::Database(trouble)
    }
}
