//! SkillPilot's file control plane: the forms of its files, a Runner that is driven by files alone, with real tools
//! at real terminals, and pools of such tools in a sandbox.
//!
//! Needs tclsh and python3, and root for the sandbox.

mod chats;
mod hardening;
mod interrupts;
mod kills;
mod many;
mod pools;
mod recovery;
mod session;
mod tools;
