//! `marshal`: runs many AI agents on one host, each in its own sandbox. It decides their permission
//! requests by policy, restarts agents that crash, and records every event in a journal.
//!
//! `ARCHITECTURE.md` explains the layers, the terms and the two flows.

pub mod cli;

/// Identifies the build. The helper binary of the same build contains the same bytes.
pub const BUILD: &str = concat!("marshal-shim of build ", env!("MARSHAL_BUILD"), ".");
