//! The script agent as its controller sees it: the real binary over real pipes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod acp;
mod acp_load;
mod acp_sessions;
mod behaviour;
mod claude;
mod client;
mod codex;
mod controller;
mod drills;
mod ledgers;
mod load;
mod loaf;
mod memory;
mod steps;
