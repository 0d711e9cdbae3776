//! The limits of chats and their messages, and of the commands that people give to agents.

use std::time::Duration;

/// Bytes of one message.
pub const TURN_BYTES: usize = 256 << 10;

/// Messages of one chat that wait, beside the one that is worked.
pub const CHAT_QUEUE: u32 = 16;

/// Bytes of a chat's goal.
pub const CHAT_GOAL_BYTES: usize = 64 << 10;

/// Files that a chat may name at its beginning.
pub const CHAT_FILES: usize = 64;

/// Bytes of the path of one of them: as long as the kernel takes.
pub const CHAT_FILE_BYTES: usize = 4096;

/// Bytes of the key by which a client may send the same message twice.
pub const TURN_KEY_BYTES: usize = 255;

/// Bytes of the transcript for an agent that cannot resume.
pub const CHAT_TRANSCRIPT_BYTES: usize = 32 << 10;

/// Events, from a chat's end, in which they are looked for.
pub const CHAT_TRANSCRIPT_EVENTS: u64 = 100_000;

/// The most turns of a chat of the mode `autonomous`.
pub const CHAT_ROUNDS: u32 = 1000;

/// Bytes of the name of an agent's own command.
pub const COMMAND_NAME_BYTES: usize = 64;

/// How long an agent may take for one where `timeouts.control` is no bound.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of the output of a slash command that its sender gets; the journal has all of it.
pub const COMMAND_TEXT_BYTES: usize = 64 << 10;
