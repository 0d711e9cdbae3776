//! The store of workspaces' files: one suite on SQLite and on a real PostgreSQL, which the tests
//! start for themselves, and what befalls each of them.

#![allow(clippy::expect_used, reason = "a test ends with its first failure")]

mod cluster;
mod load;
mod postgres;
mod sqlite;
mod suite;
