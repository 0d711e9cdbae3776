//! The errors of chats, for clients.
//!
//! Must not know how errors are sent.

use crate::JournalError;
use marshal_fleet::{OpenError, SubmitError};

/// Why a request failed. Each message says what happened and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The resource does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request names something that does not exist, or is invalid.
    #[error("{0}")]
    Unprocessable(String),
    /// The chat's state does not allow the request.
    #[error("{0}")]
    Conflict(String),
    /// Too many messages are waiting.
    #[error("{0}")]
    Full(String),
    /// The supervisor cannot accept the request now.
    #[error("{0}")]
    Unavailable(String),
}

impl From<OpenError> for ChatError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Directory(_) | OpenError::NoPool { .. } => {
                Self::Unprocessable(error.to_string())
            }
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<JournalError> for ChatError {
    fn from(error: JournalError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<SubmitError> for ChatError {
    fn from(error: SubmitError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
