//! What a person types: the commands of the binary.
//!
//! Floor 6.

pub mod script_agent;
