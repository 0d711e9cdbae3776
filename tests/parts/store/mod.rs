//! The store of workspaces' files: one suite on SQLite and on a real PostgreSQL, which the tests
//! start for themselves, and what befalls each of them.

mod load;
mod postgres;
mod sqlite;
mod suite;
