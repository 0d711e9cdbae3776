//! The fleet's resources over HTTP, by a real daemon: each route good and bad, the OpenAPI document and
//! what a foreign checker says of it.
//!
//! Pools run without walls, so that all of it works as any user.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

mod acting;
mod document;
mod door;
#[allow(
    dead_code,
    reason = "shared with the tests of the whole fleet, which use all of it"
)]
#[path = "../fleet/drill.rs"]
mod drill;
mod looking;
mod refusing;
mod schemathesis;
mod sockets;
mod streams;
