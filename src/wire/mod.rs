//! Bytes in, bytes out: framing and the JSON of the wire.
//!
//! Floor 1. Owns how lines are cut out of a byte stream and what makes a line a message at all.
//! Must not know any protocol, process or clock.

pub mod json;
pub mod ndjson;
//! Bytes in, bytes out: the encodings of every stream that the program reads or writes.
//!
//! Floor 1. Must know no IO, no process and no clock.

pub mod shim;
