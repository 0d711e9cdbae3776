//! The engine behind the command line: chats that outlive their agents, and the HTTP API over a fleet.

pub mod api;
pub mod chat;
mod journal_error;

pub use journal_error::JournalError;
