//! What is read from an agent, and sent to it: lines, credits, messages of the dialects, client methods.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

use super::{MANIFEST_PATH_BYTES, PROMPT_BYTES};

/// The longest line read from a child, in bytes, newline excluded. A longer one is a protocol
/// fault: far above any line seen from a real agent (about 11 KB), and small enough that every slot
/// may hold two.
pub const LINE_BYTES: usize = 8 << 20;

/// Bytes read from one child before the other children are read.
pub const READ_BUDGET_BYTES: usize = 256 << 10;

/// The size of one read from a child's stdout, in bytes; allocated only when data is available.
pub const READ_CHUNK_BYTES: usize = 64 << 10;

/// Credits of one session: frames that were read from the child and are not yet durable.
pub const CREDIT_FRAMES: usize = 4096;

/// Credits of one session: bytes that were read from the child and are not yet durable. A line
/// takes at most this many credits, so that a line longer than the credits can pass alone.
pub const CREDIT_BYTES: usize = 2 << 20;

/// Messages that wait for a child's stdin: a prompt, the answers to its open permission requests
/// ([`OPEN_PERMISSION_REQUESTS`]), a cancel and a goodbye fit.
pub const STDIN_QUEUE: usize = 2 * OPEN_PERMISSION_REQUESTS;

/// Bytes that wait for a child's stdin: a prompt of [`PROMPT_BYTES`] with [`EMBEDDED_BYTES`] of
/// files and what is told of denials, of which JSON makes six times as many at worst, and answers,
/// each of two ids of [`FOREIGN_ID_BYTES`].
pub const STDIN_BYTES: usize = 6
    * (PROMPT_BYTES + EMBEDDED_BYTES + DENIALS_REPORTED * DENIAL_BYTES)
    + 6 * TASK_FILES * 2 * MANIFEST_PATH_BYTES
    + STDIN_QUEUE * 16 * FOREIGN_ID_BYTES;

/// Tool calls that are listed of one session.
pub const TOOL_CALLS_LISTED: usize = 10_000;

/// Lines kept of a child's stderr, attached to its failure.
pub const STDERR_LINES: usize = 50;

/// Bytes kept of one stderr line.
pub const STDERR_LINE_BYTES: usize = 4 << 10;

/// Bytes of an answer's body in which a provider's announcement of a wait is looked for.
pub const RATE_LIMIT_BODY: usize = 16 << 10;

/// Bytes kept of a line that is no message, to show what it was.
pub const BAD_LINE_HEAD_BYTES: usize = 256;

/// Lines of one channel that are no messages, before the channel is faulted. A few lines of noise
/// are a library's warning; more are another program.
pub const BAD_LINES: u32 = 100;

/// The most bytes of text that adjacent pieces of an answer are merged into.
pub const MERGED_TEXT_BYTES: usize = 64 << 10;

/// The longest request or turn id that an agent may use, in bytes: ids are kept, lines are not.
pub const FOREIGN_ID_BYTES: usize = 1024;

/// Permission requests of one channel that are open in its dialect. Far above what a session lets
/// wait ([`super::APPROVALS_PER_SESSION`]); beyond it the dialect denies by itself.
pub const OPEN_PERMISSION_REQUESTS: usize = 64;

/// Request ids that a channel remembers, to deny one that comes again.
pub const REMEMBERED_REQUEST_IDS: usize = 4096;

/// Tool calls that an ACP channel remembers, to join a request that has only an id with its call.
pub const REMEMBERED_CALLS: usize = 256;

/// Bytes of the inputs of the calls that an ACP channel remembers; the oldest go first.
pub const REMEMBERED_CALLS_BYTES: usize = 1 << 20;

/// Bytes of such inputs that small messages may make be told again, beyond their own bytes, before
/// requests are answered or the turn ends.
pub const REPEATED_CALLS_BYTES: usize = 1 << 20;

/// Bytes of an ACP tool call's kind: the protocol's own have ten. A longer one is cut, and no tool.
pub const CALL_KIND_BYTES: usize = 128;

/// Bytes that are kept of an ACP tool call's title.
pub const CALL_TITLE_BYTES: usize = 4 << 10;

/// Bytes of one difference in an ACP tool call that are kept with its path; a longer one keeps
/// only the path, so that a large edit can still be judged.
pub const DIFF_BYTES: usize = 8 << 10;

/// Paths that one tool call may name before it cannot be judged.
pub const CALL_PATHS: usize = 256;

/// Options that are read of one ACP permission request.
pub const PERMISSION_OPTIONS: usize = 64;

/// Steps that are kept of an agent's plan.
pub const PLAN_ENTRIES: usize = 256;

/// Pages of an ACP agent's sessions that are asked for, to find the one to load again.
pub const SESSION_PAGES: u32 = 64;

/// Sessions that are read of one such page.
pub const SESSIONS_PER_PAGE: usize = 4096;

/// Tools that are kept of an agent's greeting.
pub const READY_TOOLS: usize = 1024;

/// Changed files that are kept of one turn's end: a line of 8 MiB could name a million.
pub const TURN_MUTATIONS: usize = 10_000;

/// Tool calls, and requests before their calls, that a turn keeps to match them.
pub const OPEN_CALLS: usize = 1024;

/// Permission requests of one channel beyond [`OPEN_PERMISSION_REQUESTS`] that are denied at
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

/// Bytes of the texts that wait to be written, in one channel's open requests to its client; the
/// requests themselves are as many as asks may be ([`OPEN_PERMISSION_REQUESTS`]).
pub const CLIENT_OPEN_BYTES: usize = 4 << 20;

/// Bytes of a text file that an agent may read or write through its client, and of one excerpt.
/// JSON makes six times as many of it at worst, which fits in [`STDIN_BYTES`].
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

/// Commands of clients (`marshal exec`) in the sandbox of one slot at the same time.
pub const SLOT_EXECS: usize = 4;

/// The same in all slots together.
pub const EXECS: usize = 32;

/// Words of such a command.
pub const EXEC_WORDS: usize = 256;

/// Bytes of all its words together.
pub const EXEC_WORDS_BYTES: usize = 16 << 10;

/// Bytes of its input or output in one message, and read at once.
pub const EXEC_CHUNK_BYTES: usize = 16 << 10;

/// Bytes that are still read from its outputs once it has ended or was killed: more than its pipes hold.
pub const EXEC_DRAIN_BYTES: usize = 1 << 20;

/// How long its client may leave output unread before the command is ended.
pub const EXEC_WRITE_TIMEOUT: Duration = Duration::from_secs(600);

/// How often its client is asked for a sign of life.
pub const EXEC_PING: Duration = Duration::from_secs(5);

/// How many of these a client may leave without an answer before it has gone.
pub const EXEC_MAX_MISSED_PONGS: u32 = 12;

/// How long the end of what a terminal's command wrote is read after its end.
pub const TERMINAL_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
