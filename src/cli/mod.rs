//! The command line: what a person types, and what they see.
//!
//! Floor 6. Owns arguments, progress, tables, exit codes and signals. Must not decide anything
//! about agents.

pub mod config_file;
pub mod diagnostic;
pub mod script_agent;
pub mod state_dir;
