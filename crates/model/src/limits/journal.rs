//! The journal and its readers, its retention, the audit, and the remote store.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

use super::LINE_BYTES;

/// Commits that wait for the journal's writer. Every session has at most [`SESSION_COMMITS`] under
/// way; the rest are the program's own rows.
pub const JOURNAL_QUEUE: usize = 64 << 10;

/// The most events in one database transaction.
pub const JOURNAL_BATCH: usize = 4096;

/// How long the journal's writer waits for a locked database before it reports a stall.
pub const JOURNAL_BUSY_TIMEOUT: Duration = Duration::from_millis(250);

/// How long a request waits for another one of its chat, which the journal may hold up.
pub const CHAT_LOCK: Duration = Duration::from_secs(1);

/// How long a request waits until the journal has its rows, before it takes them back: a client
/// that waits longer has given up.
pub const JOURNAL_ANSWER: Duration = Duration::from_millis(2500);

/// How long it then waits for the journal to give them back: some of its waits for a lock or a disk.
pub const JOURNAL_WITHDRAWAL: Duration = Duration::from_secs(1);

/// How long any other request waits for a journal or a store that fails, before it is answered
/// without.
pub const OUTAGE_ANSWER: Duration = Duration::from_millis(4500);

/// The time between two questions whether the store's database answers again.
pub const STORE_PROBE: Duration = Duration::from_secs(2);

/// How long opening the journal waits for another process that holds its database.
pub const JOURNAL_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Free space, in bytes, below which the journal takes no new work.
pub const JOURNAL_FREE_BYTES: u64 = 1 << 30;

/// What one session may journal, in bytes of event bodies, before its child is stopped.
pub const SESSION_JOURNAL_BYTES: u64 = 256 << 20;

/// How often the journal looks at the free space and at its file.
pub const JOURNAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Pages of the write-ahead log before they are copied back into the database: 16 MiB, so that a
/// flood causes one copy every few thousand commits instead of every hundred.
pub const JOURNAL_WAL_PAGES: u32 = 4096;

/// What is left of the write-ahead log's file after it was copied back, in bytes.
pub const JOURNAL_WAL_LIMIT_BYTES: u64 = 64 << 20;

/// Databases up to this size, in bytes, are read through at start to find damage early.
pub const JOURNAL_CHECKED_BYTES: u64 = 64 << 20;

/// How long a slot's failures are kept: longer than every restart window that makes sense.
pub const SLOT_FAILURES_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// How often the audit chain's head goes to the log.
pub const AUDIT_HEAD_INTERVAL: Duration = Duration::from_secs(3600);

/// Live events that a subscriber may lag behind before it is notified of a gap.
pub const BROADCAST_EVENTS: usize = 4096;

/// Bytes of events that live notices may hold, all together. Beyond it they say only that there is
/// something, and watchers read it from the journal: a watcher that does not read pins no more.
pub const BROADCAST_BYTES: usize = 32 << 20;

/// What one live notice costs beside its events, in bytes: ids, a slot's note, its place.
pub const NOTICE_BYTES: usize = 1024;

/// Bytes of events that a watcher who lagged reads from the journal at once; one larger event is
/// read alone.
pub const CATCH_UP_BYTES: usize = 1 << 20;

/// Events in one such reading.
pub const CATCH_UP_EVENTS: u32 = 1024;

/// How long a shutdown waits for the journal.
pub const JOURNAL_CLOSE: Duration = Duration::from_secs(10);

/// What the journal's writer holds of its own, in bytes: SQLite's cache of 2 MiB a connection, the
/// encoded body of one event, the statements.
pub const JOURNAL_BATCH_BYTES: usize = 4 * (2 << 20) + 6 * LINE_BYTES;

/// Commits of one session that are under way to the disk at the same time; what comes meanwhile
/// goes with the next one.
pub const SESSION_COMMITS: usize = 4;

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
pub const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(3);

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

/// Audit records that are read at once: each may have an input of 64 KiB and facts as large.
pub const AUDIT_PAGE: usize = 64;

/// Paths of a request whose ends are on record with it.
pub const FACT_PATHS: usize = 64;

/// Bytes of one line of an exported audit, or of a file of labelled requests: an input is at most
/// 64 KiB, and its facts repeat it.
pub const AUDIT_LINE_BYTES: usize = 1 << 20;

/// Different requests that `policy learn` proposes rules for, and that the report explains: each is
/// evaluated under several policies.
pub const LEARN_GROUPS: usize = 200;

/// Requests that a proposal is tried on; the newest count.
pub const LEARN_REQUESTS: usize = 20_000;

/// Rows of each list of the report.
pub const REPORT_ROWS: usize = 20;

/// Bytes of a file of labelled requests, or of a command that is read from standard input.
pub const CASES_BYTES: usize = 256 << 20;
