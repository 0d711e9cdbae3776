//! Every bound of the program, as a named constant with its unit and its reason.
//!
//! Floor 0. A queue, buffer, retry or wait takes its bound from here or from a checked
//! configuration key, never from a number in place.

use std::time::Duration;

/// The longest line read from a child, in bytes, newline excluded. A longer one is a protocol
/// fault: 50 MiB is what the Python ACP SDK accepts, far above any line seen from a real agent.
pub const LINE_BYTES: usize = 8 << 20;

/// How much is read from one child before the others get their turn, in bytes.
pub const READ_BUDGET_BYTES: usize = 256 << 10;

/// The size of one read from a child's stdout, in bytes; allocated when bytes are there.
pub const READ_CHUNK_BYTES: usize = 64 << 10;

/// Credits of one session: frames that were read from the child and are not yet durable.
pub const CREDIT_FRAMES: usize = 4096;

/// Credits of one session: bytes that were read from the child and are not yet durable. A line
/// takes at most this many credits, so that a line longer than the credits can pass alone.
pub const CREDIT_BYTES: usize = 2 << 20;

/// Messages that wait for a child's stdin, answers and stops excluded.
pub const STDIN_QUEUE: usize = 32;

/// Places in the stdin queue kept for answers, cancels and goodbyes.
pub const STDIN_RESERVED: usize = 32;

/// Commits that wait for the journal's writer. Every session has at most [`CREDIT_FRAMES`] frames
/// under way, handed over in chunks; the rest are the program's own rows.
pub const JOURNAL_QUEUE: usize = 64 << 10;

/// The most events in one database transaction.
pub const JOURNAL_BATCH: usize = 4096;

/// How long the journal's writer waits for a locked database before it says that it is stalled.
pub const JOURNAL_BUSY: Duration = Duration::from_millis(250);

/// How long a client's lines may wait for the control socket, and their size in bytes.
pub const CONTROL_LINE_BYTES: usize = 16 << 20;

/// The longest line that a client of the control socket takes, in bytes: an event of
/// [`LINE_BYTES`] in JSON, where a control byte takes six.
pub const CONTROL_TOLD_BYTES: usize = 6 * LINE_BYTES + (1 << 20);

/// Clients of the control socket at the same time; one more is told to come again.
pub const CONTROL_CONNECTIONS: usize = 64;

/// How long a client of the control socket may take for one request, and how long it may leave
/// what it is told unread, before it is dropped.
pub const CONTROL_WAIT: Duration = Duration::from_secs(30);

/// Runs that are over and can still be watched by a client of the daemon.
pub const CONTROL_RUNS_KEPT: usize = 8;

/// Live events that a subscriber may lag behind before it is told so.
pub const BROADCAST_EVENTS: usize = 4096;

/// Lines kept of a child's stderr, attached to its failure.
pub const STDERR_LINES: usize = 50;

/// Bytes kept of one stderr line.
pub const STDERR_LINE_BYTES: usize = 4 << 10;

/// Prompts that wait in one session's queue.
pub const SESSION_QUEUE: usize = 16;

/// Tasks that wait in one pool's queue.
pub const POOL_QUEUE: usize = 100_000;

/// Bytes of a task file, and of a prompt.
pub const TASK_FILE_BYTES: usize = 64 << 20;
/// Bytes of one prompt.
pub const PROMPT_BYTES: usize = 1 << 20;
/// Sendings that one task may ask for.
pub const TASK_ATTEMPTS: u32 = 100;
/// Words in the argv of one task's check.
pub const CHECK_WORDS: usize = 256;
/// Errors of task files that are listed one by one.
pub const TASK_ERRORS: usize = 100;

/// How long the command line waits, after everything was killed, for the last reports.
pub const KILLED_WAIT: Duration = Duration::from_secs(5);

/// Open permission requests of one session before the next is denied.
pub const ASKS_PER_SESSION: usize = 4;

/// Bytes of an ask's input that are stored and judged; a larger one is denied.
pub const ASK_INPUT_BYTES: usize = 64 << 10;

/// Slots in one pool.
pub const POOL_SLOTS: u16 = 2048;

/// A copy's limits: bytes and files.
pub const COPY_BYTES: u64 = 2 << 30;
/// Files in a copy.
pub const COPY_FILES: u64 = 200_000;
/// How long a copy is kept after its task.
pub const COPY_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often old copies are swept.
pub const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// How often the sizes of homes and copies are measured while quotas do not exist.
pub const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// The size limit of a session's home, in bytes.
pub const HOME_BYTES: u64 = 4 << 30;

/// Open HTTP connections; further ones wait to be accepted.
pub const HTTP_CONNECTIONS: usize = 256;
/// Bytes of one HTTP request's head.
pub const HTTP_HEAD_BYTES: usize = 16 << 10;
/// Bytes of one HTTP request's body: no page takes one, so this only says what is read over.
pub const HTTP_BODY_BYTES: u64 = 64 << 10;
/// How long a client may take for a request's head, and stay idle between two requests. Longer
/// than the usual scrape interval of 15 s, so that a scraper keeps its connection.
pub const HTTP_HEAD_WAIT: Duration = Duration::from_secs(30);
/// How long one HTTP connection may live, so that a client that reads nothing holds no place.
pub const HTTP_CONNECTION_LIFE: Duration = Duration::from_secs(300);
/// How long a shutdown waits for open HTTP requests.
pub const HTTP_DRAIN: Duration = Duration::from_secs(2);

/// How long a shutdown waits for the journal.
pub const JOURNAL_CLOSE: Duration = Duration::from_secs(10);

/// How long the sandbox shim may take from its start until it reports.
pub const SHIM_START: Duration = Duration::from_secs(20);

/// The largest message on the shim's control socket, in bytes.
pub const SHIM_MESSAGE_BYTES: usize = 1 << 20;

/// Concurrent spawns of the whole fleet: more only wait for each other's page tables.
pub const SPAWNS_AT_ONCE: usize = 4;

/// Threads that copy workspaces and homes at the same time.
pub const COPIES_AT_ONCE: usize = 2;

/// The most memory, in bytes, that the events of one session can hold between its child's stdout
/// and the disk: the credits, one line being assembled with its successor, one read chunk, and
/// what each frame costs beside its bytes.
#[must_use]
pub const fn session_bytes() -> usize {
    CREDIT_BYTES * PARSED_FACTOR
        + CREDIT_FRAMES * FRAME_OVERHEAD_BYTES
        + 2 * LINE_BYTES
        + READ_CHUNK_BYTES
}

/// A parsed event's strings, its encoded row and the database's page cache copy, against the
/// bytes that were read.
pub const PARSED_FACTOR: usize = 4;

/// What one frame costs beside its bytes: the event's enum, its stamp, the queue's place.
pub const FRAME_OVERHEAD_BYTES: usize = 1024;
