//! Parts of the library with real processes, sockets and namespaces.
//!
//! Each area is run by itself (`tests/run AREA`): a process has one table of metrics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

/// Where `tests/run` shows this directory to other users. Paths are compiled in, and cargo does not
/// notice that a directory is built at another place: this variable makes it compile the tests again.
const _: Option<&str> = option_env!("MARSHAL_TESTS_PLACE");

#[path = "../support/children.rs"]
mod children;
#[path = "../support/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "the drills use all of it")]
#[path = "../support/drill.rs"]
mod drill;
#[path = "../support/engines.rs"]
mod engines;
#[path = "../support/programs.rs"]
mod programs;
#[path = "../support/provider.rs"]
mod provider;

mod bare_root;
mod egress;
mod guest;
mod process;
mod routes;
mod sandbox;
mod sim;
mod store;
