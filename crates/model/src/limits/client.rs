//! The limits of client methods: files, terminals.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Bytes of the texts that wait to be written, in one channel's open requests to its client; the
/// requests themselves are as many as asks may be ([`super::OPEN_PERMISSION_REQUESTS`]).
pub const CLIENT_OPEN_BYTES: usize = 4 << 20;

/// Bytes of a text file that an agent may read or write through its client, and of one excerpt.
/// JSON makes six times as many of it at worst, which fits in [`super::STDIN_BYTES`].
pub const CLIENT_FILE_BYTES: usize = 1 << 20;

/// Bytes of a larger file that are looked through for the lines that an agent wants of it.
pub const CLIENT_SCAN_BYTES: u64 = 64 << 20;

/// The longest path in a request of an agent to its client: Linux' PATH_MAX.
pub const CLIENT_PATH_BYTES: usize = 4096;

/// Files of one session that are read or written for its agent at the same time.
pub const CLIENT_FILES: usize = 2;

/// How long one file may take to be read or written; the process that does it ends itself then.
pub const CLIENT_FILE_TIMEOUT: Duration = Duration::from_secs(10);

/// Terminals of one session at the same time.
pub const TERMINALS: usize = 16;

/// Bytes that are kept of what one terminal's command writes, whatever the agent wishes.
pub const TERMINAL_BYTES: usize = 1 << 20;

/// Bytes of the output of one terminal's command that watchers and the journal get. A build
/// that writes a gigabyte must not cost its session the journal's quota.
pub const TERMINAL_REPORTED_BYTES: usize = 1 << 20;

/// Bytes read at once from a terminal's command and reported in one event.
pub const TERMINAL_CHUNK_BYTES: usize = 16 << 10;

/// How long the end of what a terminal's command wrote is read after its end.
pub const TERMINAL_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
