//! TOML text -> checked configuration.
pub mod types;
pub use types::*;
