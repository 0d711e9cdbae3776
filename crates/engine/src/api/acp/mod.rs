//! The Agent Client Protocol, version 1, from the agent's side: what an editor says, what it is told.
//!
//! Owns the wire form only: text in, words out, and back. Must not know sockets, processes or time.
//! Writes strictly what the protocol lists; reads leniently, but for what it would have to guess.

pub mod content;
pub mod incoming;
pub mod outgoing;
pub mod permission;
pub mod session_state;
pub mod tool_call;
pub mod update;

use crate::api::request::{Code, Failure};

/// The version that is spoken.
pub const VERSION: u32 = 1;

/// An error reply: a code of JSON-RPC or of the protocol, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// Its code.
    pub code: i32,
    /// What is wrong and what to do; safe to show.
    pub message: String,
}

impl RpcError {
    /// The line is no JSON.
    pub const PARSE_ERROR: i32 = -32700;
    /// It is no request.
    pub const INVALID_REQUEST: i32 = -32600;
    /// There is no such method.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The parameters are at fault.
    pub const INVALID_PARAMS: i32 = -32602;
    /// It cannot be done now.
    pub const INTERNAL_ERROR: i32 = -32603;
    /// There is no such session.
    pub const RESOURCE_NOT_FOUND: i32 = -32002;

    /// An error with its sentence.
    #[must_use]
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The parameters are at fault.
    #[must_use]
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    /// It cannot be done now.
    #[must_use]
    pub fn internal_error(message: impl Into<String>) -> Self {
        Self::new(Self::INTERNAL_ERROR, message)
    }

    /// There is no such session.
    #[must_use]
    pub fn session_not_found(id: &str) -> Self {
        let shown = marshal_model::untrusted::escape_for_display(id, 100);
        Self::new(
            Self::RESOURCE_NOT_FOUND,
            format!("there is no session {shown} here; open or load it first"),
        )
    }
}

impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        let code = match failure.code {
            Code::BadDirectory => Self::INVALID_PARAMS,
            Code::NoSuchSession => Self::RESOURCE_NOT_FOUND,
            _ => Self::INTERNAL_ERROR,
        };
        Self::new(code, failure.message)
    }
}
