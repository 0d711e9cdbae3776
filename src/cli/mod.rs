//! The command line: what a person types, and what they read.
//!
//! Floor 6. Owns arguments, progress, tables, result files, exit codes and signals. Foreign text
//! reaches an output only through `model::foreign`.

pub mod args;
pub mod board;
pub mod control_client;
pub mod doors;
pub mod exit;
pub mod progress;
pub mod results;
pub mod run;
pub mod signals;
pub mod streams;
pub mod table;
pub mod tasks;
pub mod up;

pub use exit::Exit;
pub use signals::{Signal, Signals};
pub use streams::Streams;
