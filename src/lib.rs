//! `marshal`: runs many AI agents on one host, each in its own sandbox, judges what they ask for
//! by policy, restarts what crashes, and remembers everything that happened.
//!
//! The floors, the words and the two walks stand in `ARCHITECTURE.md`.

pub mod api;
pub mod chat;
pub mod cli;
pub mod config;
pub mod delegate;
pub mod dialect;
pub mod egress;
pub mod fleet;
pub mod journal;
pub mod launch;
pub mod lifecycle;
pub mod limits;
pub mod mcp;
pub mod model;
pub mod plan;
pub mod policy;
pub mod proxy;
pub mod relay;
pub mod route;
pub mod sandbox;
pub mod skillpilot;
pub mod store;
pub mod telemetry;
pub mod toolserver;
pub mod wire;
