//! The doors of the supervisor: HTTP on a loopback address and the control socket.
//!
//! Floor 6. Owns what clients see on the wire, and how much of the program one client can hold.
//! Must not know the command line. A slow or silent client never slows the fleet: it lags, is
//! told so, and is dropped in the end.

pub mod acp;
mod ask_events;
pub mod ask_pages;
pub mod asks;
mod catch_up;
mod chat_streams;
pub mod control;
mod conversation;
pub mod file_plane;
pub mod guard;
pub mod history;
pub mod http;
pub mod listing;
pub mod policies;
pub mod policy_pages;
pub mod process_stats;
pub mod reply;
pub mod request;
pub mod service;
pub mod talk;
pub mod task_rules;
pub mod tokens;
pub mod v1;
pub mod view;
pub mod watch;
mod web_socket;

pub use service::{Fleet, Refusal};

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod session_events_tests;
#[cfg(test)]
mod terminals;
#[cfg(test)]
pub(crate) mod testing;
