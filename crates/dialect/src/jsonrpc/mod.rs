//! JSON-RPC 2.0, one message a line: ACP, Codex and loaf speak it, and so does the tool server.
//!
//! Must not know any method. A protocol reads its lines with [`read`], and writes with
//! [`VERSIONED`] or [`UNVERSIONED`].

mod message;
mod own_requests;
mod write;

pub(crate) use message::{ErrorReply, Message, Outcome, RequestId, present, read};
pub(crate) use own_requests::OwnRequests;
pub(crate) use write::{INVALID_PARAMS, Nothing, UNVERSIONED, VERSIONED};
