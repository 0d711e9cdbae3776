//! Bytes in, bytes out: framing and the JSON of the wire.
//!
//! Floor 1. Owns how lines are cut out of a byte stream and what makes a line a message at all.
//! Must not know any protocol, process or clock.

pub mod json;
pub mod ndjson;
