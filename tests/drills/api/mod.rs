//! The fleet's resources over HTTP, by a real daemon: each route good and bad, the OpenAPI document and
//! what a foreign checker says of it.
//!
//! Pools run without a sandbox, so that all of it works as any user.

pub(crate) mod api_daemon;
mod document;
mod errors;
mod reading;
mod runs;
mod sockets;
mod streams;
mod writing;
