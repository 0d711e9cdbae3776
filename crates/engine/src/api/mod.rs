//! The interfaces of the supervisor to its clients: HTTP, on an address and on a Unix socket.
//!
//! Owns the wire formats and the resource limits of each client. Must not know the command line. A
//! slow or silent client never slows the fleet: it lags, is notified of that, and is disconnected
//! in the end.

pub mod acp;
mod approval_events;
pub mod approval_routes;
pub mod approvals;
mod catch_up;
mod chat_streams;
pub mod conversation_protocol;
mod conversation_stream;
pub mod exec_protocol;
pub mod failure;
pub mod file_plane;
pub mod guard;
pub mod history;
pub mod http;
pub mod json_lines;
pub mod listing;
pub mod logins;
pub mod policies;
pub mod policy_routes;
pub mod process_stats;
pub mod run_stream;
pub mod runs;
pub mod service;
pub mod task_body;
pub mod task_rules;
pub mod time;
pub mod tokens;
pub mod unix_socket;
pub mod v1;
mod web_socket;

pub use service::{Fleet, Refusal, SupervisorKind};

#[cfg(any(test, feature = "test-fixtures"))]
pub mod test_fixtures;
