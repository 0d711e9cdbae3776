//! How long the journal keeps what has ended, and how it is removed.

use std::time::Duration;

/// The database's size, in bytes, beyond which the oldest ended sessions are removed.
pub const JOURNAL_BYTES: u64 = 8 << 30;

/// How long an ended session is kept.
pub const JOURNAL_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// How often the journal looks for sessions that are kept no longer.
pub const RETENTION_INTERVAL: Duration = Duration::from_secs(60);

/// How long one step of a removal may hold the writer.
pub const RETENTION_STEP: Duration = Duration::from_millis(5);

/// The pause between two steps of a removal: commits go first, and a removal takes at most a
/// fifth of the writer's time.
pub const RETENTION_PAUSE: Duration = Duration::from_millis(20);

/// Events, requests or tasks that one statement of a removal takes.
pub const RETENTION_ROWS: u32 = 64;

/// Ended sessions that one step of a removal looks at: those of unfinished runs are passed over.
pub const RETENTION_SESSIONS: u32 = 64;

/// Pages that one statement gives back to the file system: 1 MiB.
pub const RETENTION_PAGES: u32 = 256;

/// Empty pages that the database keeps for its next rows: 4 MiB.
pub const RETENTION_SPARE_PAGES: u64 = 1024;
