//! The command line: what a person types, and what they see.
//!
//! Floor 7. Owns arguments, progress, tables, result files, exit codes and signals. Must not
//! decide anything about agents. Foreign text reaches an output only through `model::foreign`.

pub mod acp;
pub mod agents;
pub mod args;
mod asks;
pub mod audit;
pub mod board;
mod chat;
pub mod command;
mod config_command;
pub mod config_file;
pub mod continuing;
pub mod control_client;
pub mod diagnostic;
pub mod doctor;
pub mod doors;
mod editor;
pub mod engines;
pub mod event_text;
pub mod events;
pub mod exit;
mod file_store;
mod http_client;
mod ls;
mod manual;
mod mcp;
mod orders;
pub mod overlay;
mod own_cases;
pub mod plan;
mod policies;
pub mod policy;
pub mod programs;
pub mod progress;
mod prompt;
pub mod report;
pub mod results;
pub mod run;
pub mod run_bounds;
pub mod runner;
pub mod script_agent;
pub mod script_model;
pub mod secrets;
pub mod show;
pub mod signals;
pub mod since;
pub mod start;
pub mod state_dir;
pub mod streams;
pub mod table;
mod take;
pub mod tasks;
pub mod trust;
pub mod up;
pub mod walls;
mod watching;

pub use exit::Exit;
pub use signals::{Signal, Signals};
pub use streams::Streams;
