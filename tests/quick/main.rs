//! What needs nothing but the toolchain: the library's readers, dialects, policies and store, and the source itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod dialect;
mod fuzz;
mod policy;
mod skillpilot;
mod tidy;
