//! Agents that other people wrote, from npm and PyPI, behind the supervisor: in the default sandbox,
//! without a network but for a route, driven by the rehearsal model.
//!
//! `tests/run` installs them below `target/tools/agents`, with Debian's node and python3 of `/usr`.
//! One works at a time: the largest needs most of a gigabyte. What was seen of each is the table in
//! `docs/agents.md`, which is compared with every run; `MARSHAL_AGENTS_TABLE=write` writes it anew.

mod bench;
mod bounded_run;
mod claude_code;
mod client;
mod clone_setup;
mod codex;
mod codex_schema;
mod directories;
mod engine_tools;
mod first_hour;
mod five;
mod gemini;
mod landing;
mod mcp;
mod no_preset;
mod pi;
mod proxies;
mod registries;
mod sdk;
mod shell_facts;
mod table;
mod together;
mod unattended;
