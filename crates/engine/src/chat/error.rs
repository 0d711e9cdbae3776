//! Why something was not done for a client of a chat.
//!
//! Must not know how a client is told.

use marshal_fleet::{OpenError, SubmitError};

/// Why something was not done. Each says what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// What was sent names something that is not there.
    #[error("{0}")]
    Unprocessable(String),
    /// It does not go with how the chat stands.
    #[error("{0}")]
    Conflict(String),
    /// Too much waits already.
    #[error("{0}")]
    Full(String),
    /// The supervisor cannot take it now.
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

impl From<SubmitError> for ChatError {
    fn from(error: SubmitError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
