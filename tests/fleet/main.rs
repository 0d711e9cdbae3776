//! The whole program, from its command line to its database: real children in real namespaces.
//!
//! Needs root for most of it, because a root supervisor's walls differ; what an ordinary user sees
//! is run under an unprivileged uid from here.

#![allow(clippy::expect_used, reason = "a test ends with its first failure")]

mod acp;
mod agent_commands;
mod asks;
mod asks_doors;
mod asks_kept;
mod budgets;
mod caches;
mod chat_client;
mod chat_terminal;
mod chats;
mod chats_kept;
mod chats_marks;
mod chats_storms;
mod chats_tour;
mod claude;
mod client_attacks;
mod client_methods;
#[allow(dead_code, reason = "the tests of the store use more of it")]
#[path = "../store/cluster.rs"]
mod cluster;
mod codex;
mod continuing;
mod crashes;
mod custom;
mod deadlines;
mod delegate;
mod delegate_late;
mod directories;
mod door;
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
mod engine_tools;
mod engines;
mod escapes;
mod fails_closed;
mod file_plane;
mod file_plane_changes;
mod file_plane_kept;
mod file_plane_odd;
mod file_plane_travel;
mod files;
mod files_put;
mod first_run;
mod full_disk;
mod hooks;
mod kill;
mod learning;
mod limits;
mod listing;
mod loaf;
mod mcp_rules;
mod misbehaving;
mod morning;
mod native;
mod night;
mod orders;
mod plan_ends;
mod plan_guards;
mod plan_runs;
mod plans;
mod policies;
#[allow(dead_code, reason = "the tests of routes use more of it")]
#[path = "../support/provider.rs"]
mod provider;
mod reload;
mod reload_writing;
mod rounds;
mod routes;
mod secrets;
mod session_pages;
mod sizes;
mod slots;
mod stall;
mod stress;
mod survivors;
mod trusted;
mod versions;
mod worktrees;
