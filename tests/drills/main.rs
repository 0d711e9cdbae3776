//! The program itself as people and agents meet it, with real processes, namespaces, containers and files.
//!
//! Nothing here links the library: what is tested is what is installed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

/// Where `tests/run` shows this directory to other users. Paths are compiled in, and cargo does not
/// notice that a directory is built at another place: this variable makes it compile the tests again.
const _: Option<&str> = option_env!("MARSHAL_TESTS_PLACE");

#[path = "../support/chat_client.rs"]
mod chat_client;
#[allow(dead_code, reason = "the tests of the store use all of it")]
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/drill.rs"]
mod drill;
#[path = "../support/editor.rs"]
mod editor;
#[path = "../support/engines.rs"]
mod engines;
#[path = "../support/git_server.rs"]
mod git_server;
#[path = "../support/programs.rs"]
mod programs;
#[path = "../support/provider.rs"]
mod provider;
#[path = "../support/screen.rs"]
mod screen;

mod agents;
mod api;
mod cli;
mod conformance;
mod dashboard;
mod deploy;
mod editor_clients;
mod fleet;
mod http_clients;
mod postgres;
mod skillpilot;
mod ssh;
