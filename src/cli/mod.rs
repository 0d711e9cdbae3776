//! The command line: what people type, and what they are shown.
//!
//! Floor 6. Must not decide anything about agents, tasks or walls.

pub mod config_file;
pub mod diagnostic;
pub mod state_dir;
