//! Agents that other people wrote, from npm and PyPI, behind the supervisor: in the default sandbox,
//! without a network but for a route, driven by the rehearsal model.
//!
//! `tests/run` installs them below `target/tools/agents`, with Debian's node and python3 of `/usr`.
//! One works at a time: the largest needs most of a gigabyte. What was seen of each is the table in
//! `docs/agents.md`, which is compared with every run; `MARSHAL_AGENTS_TABLE=write` writes it anew.

#![allow(clippy::expect_used, reason = "a test ends with its first failure")]

mod bench;
#[path = "../fleet/chat_client.rs"]
#[allow(dead_code, reason = "tests of chats use more of it")]
mod chat_client;
mod claude_code;
mod client;
mod codex;
mod codex_schema;
mod directories;
#[path = "../fleet/drill.rs"]
#[allow(dead_code, reason = "drills of the fleet use more of it")]
mod drill;
mod engine_tools;
mod five;
mod gemini;
mod mcp;
mod pi;
mod proxies;
mod sdk;
mod shell_facts;
mod table;
mod together;
