//! One struct per event; `emit` makes its log line and its metrics, so that they cannot drift.
//!
//! Counters that change with every line of a child are in [`super::meters`], without logs.

pub mod budget;
pub mod chat;
pub mod child;
pub mod egress;
pub mod file_plane;
pub mod hook;
pub mod http;
pub mod journal;
pub mod permission;
pub mod policy;
pub mod process;
pub mod route;
pub mod store;
pub mod task;
pub mod turn;

/// The most columns of a foreign text in a log line.
const WIDTH: usize = 300;
