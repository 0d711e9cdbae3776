//! SkillPilot's file control plane: the forms of its files, a Runner that is driven by files alone, with real tools
//! at real terminals, and pools of such tools in walls.
//!
//! Needs tclsh and python3, and root for the walls.

#![allow(clippy::expect_used, reason = "a test ends with its first failure")]

#[allow(dead_code, reason = "shared with the tests of the fleet")]
#[path = "../fleet/drill.rs"]
mod drill;
mod formats;
mod hardening;
mod kills;
mod many;
mod pools;
mod recovery;
mod session;
mod tools;
