//! The agent side of the Agent Client Protocol, version 1: the messages from and to an editor.
//!
//! Owns only the wire format. Must not know sockets, processes or time. It writes strictly what the
//! protocol lists, and reads leniently except where it would have to guess.

pub mod content;
pub mod incoming;
pub mod outgoing;
pub mod permission;
pub mod session_state;
pub mod tool_call;
pub mod update;

/// The protocol version.
pub const VERSION: u32 = 1;

/// An error reply: a code of JSON-RPC or of the protocol, and a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// The JSON-RPC error code.
    pub code: i32,
    /// What is wrong and what to do; safe to display.
    pub message: String,
}

impl RpcError {
    /// The line is not JSON.
    pub const PARSE_ERROR: i32 = -32700;
    /// The message is not a valid request.
    pub const INVALID_REQUEST: i32 = -32600;
    /// The method is unknown.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The parameters are invalid.
    pub const INVALID_PARAMS: i32 = -32602;
    /// The request cannot be carried out now.
    pub const INTERNAL_ERROR: i32 = -32603;
    /// The session does not exist.
    pub const RESOURCE_NOT_FOUND: i32 = -32002;

    /// Creates an error from its code and message.
    #[must_use]
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Creates an [`Self::INVALID_PARAMS`] error.
    #[must_use]
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    /// Creates an [`Self::INTERNAL_ERROR`] error.
    #[must_use]
    pub fn internal_error(message: impl Into<String>) -> Self {
        Self::new(Self::INTERNAL_ERROR, message)
    }

    /// Creates a [`Self::RESOURCE_NOT_FOUND`] error for a session.
    #[must_use]
    pub fn session_not_found(id: &str) -> Self {
        let shown = marshal_model::untrusted::escape_for_display(id, 100);
        Self::new(
            Self::RESOURCE_NOT_FOUND,
            format!("there is no session {shown} here; open or load it first"),
        )
    }
}
