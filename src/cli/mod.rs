//! The command line: arguments, progress, tables, result files, exit codes and signals.
//!
//! Layer 7. Must not decide anything about agents. Untrusted text reaches an output only through
//! `model::untrusted`.

pub mod acp;
pub mod agents;
mod approvals;
pub mod args;
pub mod audit;
pub mod board;
mod chat;
pub mod command;
mod config_command;
pub mod config_file;
pub mod continuing;
mod daemon_commands;
pub mod diagnostic;
pub mod doctor;
mod editor;
pub mod engines;
pub mod event_text;
pub mod events;
pub mod exec;
pub mod exit;
mod file_store;
mod help;
mod http_client;
mod init;
mod land;
mod land_onto;
pub mod listeners;
mod login;
mod ls;
mod manual;
mod mcp;
pub mod outside;
mod overlay;
pub mod plan;
mod policies;
pub mod policy;
mod policy_test_dir;
mod policy_watch;
pub mod programs;
pub mod progress;
mod project;
mod prompt;
mod registries;
pub mod report;
pub mod results;
pub mod run;
pub mod run_bounds;
pub mod run_results;
pub mod sandbox_command;
#[cfg(feature = "rehearsal")]
mod script_model;
pub mod secrets;
mod session_diff;
mod short_ids;
pub mod show;
pub mod signals;
pub mod since;
mod sleep_lock;
pub mod start;
pub mod state_dir;
pub mod streams;
pub mod supervisor_client;
pub mod table;
pub mod task_commands;
pub mod tasks;
mod terminal;
pub mod trust;
mod trust_store;
mod uid_block;
pub mod up;

pub use exit::Exit;
pub use signals::{Signal, Signals};
pub use streams::Streams;
