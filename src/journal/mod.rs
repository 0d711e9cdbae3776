//! Stub.
pub mod codec;
