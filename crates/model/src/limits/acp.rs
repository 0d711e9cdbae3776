//! The limits of what an agent that speaks ACP says of itself, and of the files in a prompt.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Permission requests of one channel beyond [`super::OPEN_PERMISSION_REQUESTS`] that are denied at
/// once, before the channel is faulted: an agent with so many requests waits for no answer.
pub const EXCESS_PERMISSION_REQUESTS: u32 = 1024;

/// Tool servers of one pool.
pub const MCP_SERVERS: usize = 32;

/// Logins, modes, models, options and choices that are read of one message of an agent. Each list
/// is shown to a person at a fault.
pub const ADVERTISED_ITEMS: usize = 256;

/// Bytes of a description that an agent gives of a command, an option or a login.
pub const ADVERTISED_TEXT_BYTES: usize = 1024;

/// Requests that keep a silent agent awake and bring no word of it, before it counts as hung.
pub const KEEPALIVE_MISSES: u32 = 3;

/// How long an agent that has loaded a session must have said nothing before it is prompted, if it
/// told none of the session's past before it said that it was loaded: some tell it right afterwards.
pub const REPLAY_QUIET: Duration = Duration::from_millis(250);

/// How long that may go on.
pub const REPLAY_TIMEOUT: Duration = Duration::from_secs(20);

/// Denials that are reported in front of a session's next prompt; further ones are only counted.
pub const DENIALS_REPORTED: usize = 16;

/// Bytes of one such denial.
pub const DENIAL_BYTES: usize = 512;

/// Files that one task may name for its prompt.
pub const TASK_FILES: usize = 64;

/// Bytes of all files together that one prompt holds.
pub const EMBEDDED_BYTES: usize = 512 << 10;
