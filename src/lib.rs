//! `marshal`: runs many AI agents on one host, each in its own sandbox, judges what they ask for
//! by policy, restarts what crashes, and remembers everything that happened.
//!
//! The layers, the words and the two flows stand in `ARCHITECTURE.md`.

pub mod cli;

/// Which build this is. The file of the helper binary of the same build contains these bytes.
pub const BUILD: &str = concat!("marshal-shim of build ", env!("MARSHAL_BUILD"), ".");
