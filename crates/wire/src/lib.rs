//! Bytes in, bytes out: framing, the JSON of the wire, the messages of the sandbox's helpers.
//!
//! Owns the encodings of every stream that the program reads or writes. Must not know any
//! protocol of an agent, any process, or a clock; does no IO.

pub mod engine;
pub mod files;
pub mod http;
pub mod json;
pub mod ndjson;
pub mod plan;
pub mod shim;
pub mod skillpilot;
pub mod terminal;
