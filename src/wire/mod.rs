//! Bytes in, bytes out: the encodings of every stream that the program reads or writes.
//!
//! Floor 1. Must know no IO, no process and no clock.

pub mod shim;
