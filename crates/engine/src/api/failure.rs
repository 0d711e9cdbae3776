//! Why a request about an approval or of a conversation failed.
//!
//! Must not know how a client is answered.

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The request is malformed.
    BadRequest,
    /// The client may not do that.
    NotPermitted,
    /// The approval does not exist.
    NoSuchApproval,
    /// The approval has ended, or differs from the one that was answered.
    ApprovalEnded,
    /// It cannot be carried out now.
    Refused,
}

/// A failure that is sent to a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind, for programs.
    pub code: Code,
    /// The message, for people: what is wrong and what to do. Safe to display.
    pub message: String,
}

impl Failure {
    /// Creates a failure.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}
