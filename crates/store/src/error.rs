//! What can go wrong with the store, as its callers meet it, and what a database's trouble means.
//!
//! No text here has a password: what a connection is told of is its place, without one.

use super::name::{FilePath, NameError};
use super::version::Version;

/// Why the store did not do what it was asked. Nothing of it was written, unless
/// [`StoreError::Gone`] says that this is not known.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A name that cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The workspace was never registered.
    #[error("workspace {0:?} is not registered")]
    NoWorkspace(String),
    /// Another supervisor has the workspace, for a directory of its own.
    #[error(
        "workspace {workspace:?} belongs to another supervisor of this store, for {theirs}; here it is {ours}: give it another name here, or, if both are one directory (such as NFS) or that supervisor is no more, set `shared = true` in [workspace.{workspace}] wherever it is used"
    )]
    WorkspaceTaken {
        /// The workspace.
        workspace: String,
        /// What it was registered for.
        theirs: String,
        /// What it is here.
        ours: String,
    },
    /// There is no such file.
    #[error("there is no file {0:?}")]
    NoFile(String),
    /// The file has no such version, or no longer.
    #[error("file {path:?} has no version {v}: it was never made, or is kept no longer")]
    NoVersion {
        /// The file's path or id.
        path: String,
        /// The version.
        v: u64,
    },
    /// The version holds no content.
    #[error("version {v} of {path:?} holds no content: {why}")]
    NoContent {
        /// The file's path or id.
        path: String,
        /// The version.
        v: u64,
        /// Why not.
        why: &'static str,
    },
    /// The write was made from another version than the current one.
    #[error(
        "{path:?} has changed: its current version is {}, made by {} ({}); read it and write again",
        current.v, current.origin.author.kind, current.cause
    )]
    Stale {
        /// The file's path.
        path: FilePath,
        /// What it is now.
        current: Box<Version>,
    },
    /// A write was made from a version of a file that is not there at all.
    #[error("there is no file {path:?} of which version {v} could be the base")]
    NoBase {
        /// The path.
        path: FilePath,
        /// The version that was named.
        v: u64,
    },
    /// A rename to where another file is.
    #[error("there is a file {0:?} already")]
    Exists(FilePath),
    /// A bound of a request is beyond what is allowed.
    #[error("{0}")]
    InvalidRequest(&'static str),
    /// The connection string cannot be used. Says nothing of its text, which may hold a password.
    #[error("the store's connection string {0}")]
    Connection(&'static str),
    /// The files of the store are open to others, or belong to somebody else, or cannot be made.
    #[error("{path}: {detail}")]
    InsecureFile {
        /// Which.
        path: String,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// A newer program wrote the database.
    #[error(
        "{place} has store version {found}, this marshal knows {known}: use the newer marshal, or another database"
    )]
    Newer {
        /// Which.
        place: String,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The disk is full.
    #[error("{place} takes no more, its disk is full ({detail}): nothing was written")]
    Full {
        /// Which.
        place: String,
        /// What it said.
        detail: String,
    },
    /// Somebody else holds a lock for too long.
    #[error("{place} is locked by somebody else ({detail}): nothing was written")]
    Locked {
        /// Which.
        place: String,
        /// What it said.
        detail: String,
    },
    /// The server cannot be reached.
    #[error(
        "{place} cannot be reached ({detail}): {}",
        if *unknown { "whether it was written is not known, look before it is written again" } else { "nothing was written" }
    )]
    Unreachable {
        /// Which.
        place: String,
        /// What was met last.
        detail: String,
        /// A commit was under way when the server went.
        unknown: bool,
    },
    /// What is stored does not fit together.
    #[error("{place} is damaged ({detail}): restore it from a backup")]
    Corrupt {
        /// Which.
        place: String,
        /// What was found.
        detail: String,
    },
    /// Everything else that a database refuses.
    #[error("{place} refuses: {detail}")]
    Database {
        /// Which.
        place: String,
        /// What it said.
        detail: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// What a failure of a database means for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DbErrorKind {
    /// Somebody else holds a lock.
    Locked,
    /// The disk is full.
    Full,
    /// The server went, or takes nobody now.
    Unreachable,
    /// The server undid our transaction in favour of another: once more.
    Retry,
    /// What is stored does not fit together.
    Corrupt,
    /// Anything else; it would come again.
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

    /// What a caller is told. `unknown`: a commit was under way.
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
