//! The limits of the tools that the supervisor gives to agents.
//!
//! As in `limits.rs`, each has its unit and its reason.

/// Connections of one child to its tools at the same time: an agent has one, its helpers one each.
pub const TOOL_CONNECTIONS: usize = 4;

/// Concurrent calls of one connection. Some wait for a person.
pub const TOOL_CALLS: usize = 8;

/// The longest line of a call, in bytes: the content of a file, with what JSON adds to it.
pub const TOOL_LINE_BYTES: usize = 2 << 20;

/// Messages in one batch of a protocol version that has batches.
pub const TOOL_BATCH: usize = 32;

/// Bytes of a question to a person, and of a plan's step.
pub const TOOL_TEXT_BYTES: usize = 4 << 10;

/// Proposed answers of one question, and bytes of each.
pub const TOOL_OPTIONS: usize = 8;
/// See [`TOOL_OPTIONS`].
pub const TOOL_OPTION_BYTES: usize = 200;

/// What one child's connections hold at most beside the texts of their calls, in bytes: a line
/// that is not whole yet and its successor, and one answer being written.
pub const TOOL_BUFFER_BYTES: usize = TOOL_CONNECTIONS * 3 * TOOL_LINE_BYTES;
