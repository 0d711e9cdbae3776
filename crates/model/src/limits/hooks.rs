//! The limits of hooks: how often, how long, how much.

use std::time::Duration;

/// Hooks that a configuration may have.
pub const HOOKS: usize = 16;

/// The shortest time between two messages of one hook about one pool. Events in between are
/// delayed, counted, and sent then.
pub const HOOK_MIN_INTERVAL: Duration = Duration::from_secs(60);

/// For one message to an address: connecting, TLS, sending it and reading the answer.
pub const HOOK_POST: Duration = Duration::from_secs(5);

/// Bytes of an answer's body that are read; the connection is closed at that.
pub const HOOK_ANSWER_BYTES: usize = 64 << 10;

/// Bytes of the head of an answer.
pub const HOOK_HEAD_BYTES: usize = 16 << 10;

/// Waits before an undelivered message is sent again; so it is sent at most once more than there
/// are waits.
pub const HOOK_RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// The longest time that a command may take, as a configuration may have it.
pub const HOOK_COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of what a command writes that are kept, to be logged.
pub const HOOK_OUTPUT_BYTES: usize = 4 << 10;

/// Arguments of a command, the program included.
pub const HOOK_ARGUMENTS: usize = 64;

/// Bytes of a message. A pipe that nobody reads yet takes as many.
pub const HOOK_MESSAGE_BYTES: usize = 48 << 10;

/// How long the supervisor's end waits for the delivery of all messages.
pub const HOOK_FLUSH_TIMEOUT: Duration = Duration::from_secs(20);

/// The shortest secret that a message is signed with, in bytes.
pub const HOOK_SECRET_BYTES: usize = 16;

/// Characters of a permission request that are stored for a message.
pub const HOOK_SUBJECT_CHARS: usize = 1000;
