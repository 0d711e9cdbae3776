//! Why the journal gave no answer to a reader of this crate.

use marshal_journal::{OpenError, ReadError};
use tokio::sync::AcquireError;
use tokio::task::JoinError;

/// Why the journal cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No further connection can be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The readers are closed, because the supervisor is stopping.
    #[error(transparent)]
    Closed(#[from] AcquireError),
    /// The thread that read has ended.
    #[error(transparent)]
    Thread(#[from] JoinError),
}
