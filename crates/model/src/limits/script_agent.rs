//! The script agent.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Bytes of one tool's output that the script agent reports.
pub const AGENT_OUTPUT_BYTES: usize = 64 << 10;

/// How long the script agent lets one command run.
pub const AGENT_TOOL_TIME: Duration = Duration::from_secs(600);

/// The longest pause that a script may ask for.
pub const AGENT_SLEEP: Duration = Duration::from_secs(24 * 3600);

/// Files that one `search` step looks into, and how deep it goes.
pub const AGENT_SEARCH_FILES: usize = 20_000;

/// How deep one `search` step goes, in directories.
pub const AGENT_SEARCH_DEPTH: usize = 64;

/// The largest file that a `search` step looks into, in bytes.
pub const AGENT_SEARCH_FILE_BYTES: u64 = 4 << 20;

/// Permission requests of one `ask` step: each keeps one latency sample.
pub const AGENT_PERMISSION_REQUESTS: u64 = 1_000_000;

/// Sessions that a script agent has open, and that it looks through for a list: more is a client
/// that never stops opening.
pub const AGENT_SESSIONS: usize = 1024;

/// The largest file of a session that a script agent takes up again, in bytes.
pub const AGENT_SESSION_BYTES: u64 = 64 << 20;

/// Sessions on one page of a script agent's list.
pub const AGENT_SESSION_PAGE: usize = 50;

/// Bytes that the script agent puts into one write when it batches lines: a pipe's size.
pub const AGENT_WRITE_BYTES: usize = 64 << 10;
