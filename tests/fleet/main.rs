//! The whole program, from its command line to its database: real children in real namespaces.
//!
//! Needs root for most of it, because a root supervisor's walls differ; what an ordinary user sees
//! is run under an unprivileged uid from here.

#![allow(clippy::expect_used, reason = "a test ends with its first failure")]

mod acp;
mod caches;
mod client_attacks;
mod client_methods;
mod continuing;
mod crashes;
mod deadlines;
mod directories;
mod drill;
mod editor;
mod editor_clients;
mod editor_manners;
mod editor_returns;
mod editor_settings;
mod editors;
mod endings;
#[allow(dead_code, reason = "shared with the tests of the sandbox")]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#[path = "../support/engines.rs"]
mod engine_support;
mod engines;
mod escapes;
mod first_run;
mod full_disk;
mod kill;
mod limits;
mod listing;
mod misbehaving;
mod orders;
#[allow(dead_code, reason = "the tests of routes use more of it")]
#[path = "../support/provider.rs"]
mod provider;
mod routes;
mod sizes;
mod slots;
mod stall;
mod stress;
mod survivors;
mod versions;
mod worktrees;
