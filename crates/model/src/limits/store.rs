//! The limits of the store of workspaces' files.

use std::time::Duration;

/// The longest path of a file below its workspace, in bytes: short enough for an index row of every
/// database.
pub const STORE_PATH_BYTES: usize = 1024;

/// The longest name of an agent or a person, and the longest id of a turn or a task, in bytes.
pub const STORE_NAME_BYTES: usize = 256;

/// The largest content that is kept, in bytes; of a larger one only digest and size are.
pub const STORE_CONTENT_BYTES: usize = 16 << 20;

/// The most that one row of content holds, in bytes.
pub const STORE_CHUNK_BYTES: usize = 1 << 20;

/// Rows of one page of a list or a history.
pub const STORE_PAGE: u32 = 200;

/// Writes in the queue of an SQLite store; further callers wait for a place.
pub const STORE_QUEUE: usize = 256;

/// Content of writes that wait for that writer, in bytes: four of the largest.
pub const STORE_QUEUE_BYTES: usize = 4 * STORE_CONTENT_BYTES;

/// Writes that become durable together.
pub const STORE_BATCH: usize = 64;

/// Content that becomes durable together, in bytes; a larger single write goes alone.
pub const STORE_BATCH_BYTES: usize = STORE_CONTENT_BYTES;

/// Reads of an SQLite store at once; each has a thread and a connection.
pub const STORE_READERS: usize = 4;

/// How long SQLite waits for another process's lock.
pub const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections to a PostgreSQL server.
pub const STORE_CONNECTIONS: usize = 4;

/// How long a connection to a PostgreSQL server may take to come about.
pub const STORE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one try of a write or a read may take on a PostgreSQL server.
pub const STORE_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait on a PostgreSQL server for a row that another transaction changes.
pub const STORE_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// For how long a write or a read is tried again while the server is gone.
pub const STORE_RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// The first and the longest pause between two tries.
pub const STORE_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Versions that one sweep removes; the next goes on.
pub const STORE_SWEEP: u32 = 500;

/// Files that are gone, and of which one sweep removes everything.
pub const STORE_SWEEP_FILES: u32 = 50;

/// Rows of paths without a file that one sweep removes.
pub const STORE_SWEEP_PATHS: u32 = 5000;

/// Empty pages of an SQLite store that one sweep gives back to the file system: 64 MiB.
pub const STORE_VACUUM_PAGES: u32 = 16_384;

/// The longest text that is compared line by line, in bytes.
pub const STORE_DIFF_BYTES: usize = 1 << 20;

/// Content up to this many bytes is compared and hashed inline; larger content in a blocking
/// thread.
pub const STORE_INLINE_BYTES: u64 = 64 << 10;

/// The longest difference that is given, in bytes.
pub const STORE_DIFF_OUTPUT_BYTES: usize = 256 << 10;

/// How long a comparison may look for the shortest difference; then it takes a coarser one.
pub const STORE_DIFF_TIMEOUT: Duration = Duration::from_millis(500);

/// The largest file of a workspace that is read for its digest, in bytes; a larger one has no
/// versions.
pub const STORE_MEASURED_BYTES: u64 = 256 << 20;

/// Locks that serialise writers of one file in this process; several files share one.
pub const FILE_LOCKS: usize = 64;

/// Files of which is known what version a session saw last; the oldest of them are forgotten.
pub const FILES_SEEN: usize = 16_384;

/// Those of one session: a busy one does not make the others forget.
pub const FILES_SEEN_OF_SESSION: usize = 2048;

/// Sessions of which it is remembered one by one that they forgot a file; older ones are taken to
/// have.
pub const FILES_FORGETFUL_SESSIONS: usize = 4096;

/// How old a file must be that was to take another one's place, before it is taken for one that a
/// kill left there.
pub const LEFTOVER_AGE: Duration = Duration::from_secs(60);

/// Directories of one workspace that are looked through for such files.
pub const LEFTOVER_DIRS: usize = 10_000;

/// Sweeps of old versions one after the other; the next hour goes on.
pub const STORE_SWEEPS: u32 = 100;

/// How long a turn's end may search for files that bypassed the supervisor.
pub const OBSERVE_TIMEOUT: Duration = Duration::from_secs(30);
