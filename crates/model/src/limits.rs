//! Every limit of the program, as a named constant with its unit and its reason.
//!
//! A queue, buffer, retry or wait takes its limit from here or from a checked configuration key,
//! never from a literal number.

use std::time::Duration;

mod acp;
mod approvals;
mod audit;
mod budget;
mod chat;
mod chat_streams;
mod client;
mod delegate;
mod egress;
mod file_plane;
mod hooks;
mod http;
mod overlay;
mod plans;
mod policies;
mod probe;
mod retention;
mod route;
mod store;
mod tools;
mod trees;
pub use acp::*;
pub use approvals::*;
pub use audit::*;
pub use budget::*;
pub use chat::*;
pub use chat_streams::*;
pub use client::*;
pub use delegate::*;
pub use egress::*;
pub use file_plane::*;
pub use hooks::*;
pub use http::*;
pub use overlay::*;
pub use plans::*;
pub use policies::*;
pub use probe::*;
pub use retention::*;
pub use route::*;
pub use store::*;
pub use tools::*;
pub use trees::*;

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

/// Commits that wait for the journal's writer. Every session has at most [`SESSION_COMMITS`] under
/// way; the rest are the program's own rows.
pub const JOURNAL_QUEUE: usize = 64 << 10;

/// The most events in one database transaction.
pub const JOURNAL_BATCH: usize = 4096;

/// How long the journal's writer waits for a locked database before it reports a stall.
pub const JOURNAL_BUSY_TIMEOUT: Duration = Duration::from_millis(250);

/// How long opening the journal waits for another process that holds its database.
pub const JOURNAL_OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Free space, in bytes, below which the journal takes no new work.
pub const JOURNAL_FREE_BYTES: u64 = 1 << 30;

/// What one session may journal, in bytes of event bodies, before its child is stopped.
pub const SESSION_JOURNAL_BYTES: u64 = 256 << 20;

/// Free space, in percent of the file system, below which the journal takes no new work.
pub const JOURNAL_FREE_PERCENT: u64 = 5;

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

/// How long a client's lines may wait for the control socket, and their size in bytes.
pub const CONTROL_LINE_BYTES: usize = 16 << 20;

/// The longest line that a client of the control socket takes, in bytes: an event of
/// [`LINE_BYTES`] in JSON, where a control byte takes six.
pub const CONTROL_EVENT_LINE_BYTES: usize = 6 * LINE_BYTES + (1 << 20);

/// Clients of the control socket at the same time; one more is asked to retry.
pub const CONTROL_CONNECTIONS: usize = 64;

/// How long a client of the control socket may take for one request, and how long it may leave
/// what it is told unread, before it is dropped.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);

/// Ended runs that a client of the daemon can still watch.
pub const CONTROL_ENDED_RUNS: usize = 8;

/// How long a daemon waits for room in the queues before it offers an unfinished run again.
pub const RUN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

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

/// Tool calls that are listed of one session.
pub const TOOL_CALLS_LISTED: usize = 10_000;

/// Events in one such reading.
pub const CATCH_UP_EVENTS: u32 = 1024;

/// Lines kept of a child's stderr, attached to its failure.
pub const STDERR_LINES: usize = 50;

/// Bytes kept of one stderr line.
pub const STDERR_LINE_BYTES: usize = 4 << 10;

/// Prompts that wait in one conversation, beside the one that runs.
pub const CONVERSATION_QUEUE: usize = 16;

/// How long a client waits for a free slot before it is refused.
pub const CONVERSATION_SLOT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client that opens a conversation waits for what the agent says of itself.
pub const CONVERSATION_READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients that wait for a slot of one pool at the same time.
pub const CONVERSATION_OPENERS: usize = 64;

/// Conversations on one page of a list.
pub const CONVERSATION_PAGE: u32 = 50;

/// How long a conversation that nobody uses can be loaded: as long as the copy of a task is kept.
pub const CONVERSATION_RETENTION: Duration = COPY_RETENTION;

/// What is told of permission requests and waits for one client: beyond it a permission request is denied. Each open one
/// ([`APPROVALS_PER_SESSION`]) is told twice.
pub const CLIENT_APPROVAL_EVENTS: usize = 16 * APPROVALS_PER_SESSION;

/// The longest line that an editor may send, in bytes: a prompt of [`PROMPT_BYTES`], of which JSON
/// makes six times as many at worst, and what stands beside it.
pub const EDITOR_LINE_BYTES: usize = 8 << 20;

/// Bytes that wait for an editor that does not read; then its conversations wait.
pub const EDITOR_OUT_BYTES: usize = 16 << 20;

/// Lines that wait for an editor that does not read.
pub const EDITOR_OUT_LINES: usize = 256;

/// Conversations that one editor has open, or is opening.
pub const EDITOR_SESSIONS: usize = 32;

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
pub const KILLED_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Open permission requests of one session before the next is denied.
pub const APPROVALS_PER_SESSION: usize = 4;

/// Permission requests of one pool that wait for people before the next is denied.
pub const APPROVALS_PER_POOL: usize = 20;

/// How long before the agent's own timeout a permission request ends, so that its answer arrives in
/// time.
pub const APPROVAL_MARGIN: Duration = Duration::from_secs(5);

/// Bytes of a permission request's input that are stored and judged; a larger one is denied.
pub const PERMISSION_INPUT_BYTES: usize = 64 << 10;

/// Bytes of a configuration file.
pub const CONFIG_BYTES: usize = 1 << 20;
/// Faults of one configuration file that are shown; the rest are counted.
pub const CONFIG_ERRORS: usize = 50;
/// The longest duration in the configuration: added to any time of day, it overflows nothing.
pub const CONFIG_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest wait of one step of the stop ladder: a shutdown must end.
pub const STOP_WAIT: Duration = Duration::from_secs(3600);
/// The most children of one supervisor at the same time (`max_children`).
pub const MAX_CHILDREN: u16 = 4096;
/// How often one task's prompt may be sent.
pub const ATTEMPTS: u32 = 100;
/// Failures that a restart budget may allow in its window.
pub const RESTART_BUDGET: u32 = 100_000;
/// Words of one list in the configuration, and bytes of one of its texts (what Linux takes as one
/// argument or environment string, MAX_ARG_STRLEN, less its end).
pub const CONFIG_LIST: usize = 1024;
/// Bytes of one text in the configuration.
pub const CONFIG_TEXT_BYTES: usize = (128 << 10) - 1;

/// Bytes of one secret of a child's environment, well below what Linux takes as one string.
pub const SECRET_BYTES: usize = 64 << 10;

/// Bytes of a hint's pattern.
pub const HINT_PATTERN_BYTES: usize = 1024;
/// Bytes that a hint's pattern may take when it is compiled.
pub const HINT_REGEX_BYTES: usize = 256 << 10;
/// Bytes of a hint's text: one line of a table.
pub const HINT_TEXT_BYTES: usize = 500;
/// Bytes of an answer's body in which a provider's announcement of a wait is looked for.
pub const RATE_LIMIT_BODY: usize = 16 << 10;

/// Bytes of one message, or of one line of stderr, that hints are looked for in.
pub const HINT_MESSAGE_BYTES: usize = 4 << 10;

/// Slots in one pool.
pub const POOL_SLOTS: u16 = 2048;

/// A copy's limits: bytes and files.
pub const COPY_BYTES: u64 = 2 << 30;
/// Files in a copy.
pub const COPY_FILES: u64 = 200_000;
/// How long a copy is kept after its task.
pub const COPY_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often old copies are swept.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// How often, at most, one session's home and copy are measured while quotas do not exist; and how
/// often they are while its child says anything, or they grow, or the disk fills.
pub const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// The longest time between two such measurements, however quiet a child is.
pub const MEASURE_QUIET_INTERVAL: Duration = Duration::from_secs(80);
/// How often it is asked which sessions are to be measured, and how full the disk is.
pub const MEASURE_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The size limit of a session's home, in bytes.
pub const HOME_BYTES: u64 = 4 << 30;
/// The largest file that `home_files` may name, in bytes: settings and credentials, not data.
pub const HOME_FILE_BYTES: u64 = 64 << 20;
/// Levels of directories in a copy. Two descriptors a level are open while it is made.
pub const COPY_DEPTH: usize = 100;
/// Bytes of the list of a copy's files: 200,000 paths of 320 bytes.
pub const COPY_LIST_BYTES: usize = 64 << 20;
/// Entries that one walk over a tree looks at before it is cut.
pub const WALK_ENTRIES: u64 = 1_000_000;
/// Levels that one walk goes down before it is cut.
pub const WALK_DEPTH: usize = 16_384;
/// How long one walk over a tree may take before it is cut.
pub const WALK_TIME: Duration = Duration::from_secs(20);
/// Bytes of paths that one manifest of a workspace holds before it is cut.
pub const MANIFEST_BYTES: usize = 64 << 20;
/// The longest path in a manifest, in bytes: Linux' PATH_MAX.
pub const MANIFEST_PATH_BYTES: usize = 4096;
/// Changed files that a result names; further ones are only counted.
pub const CHANGES_LISTED: usize = 1000;
/// How long a supervisor waits while another one takes its block of uids.
pub const UIDS_TIMEOUT: Duration = Duration::from_secs(5);

/// Routes of one pool.
pub const POOL_ROUTES: usize = 16;
/// Sockets that listen inside one sandbox: its routes, and the egress proxy.
pub const POOL_PORTS: usize = POOL_ROUTES + 1;
/// The longest pause that a provider's announcement can bring about.
pub const RATE_LIMIT_ANNOUNCED: Duration = Duration::from_secs(24 * 3600);

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

/// How long a shutdown waits for the journal.
pub const JOURNAL_CLOSE: Duration = Duration::from_secs(10);

/// The default time for an ssh connection before it counts as refused.
pub const SSH_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The default time without a response of a remote host before its connection counts as lost: three
/// keepalive messages of the client without a reply.
pub const SSH_ALIVE_TIMEOUT: Duration = Duration::from_secs(45);

/// How long a child may take to read the first part of its stdin: the time to connect to a remote
/// host, and to read what the pipe cannot hold.
pub const PREAMBLE_WRITE: Duration = Duration::from_secs(60);

/// Bytes of all secrets that one child on a remote host gets on its input.
pub const SSH_SECRETS_BYTES: usize = 256 << 10;

/// How long the sandbox shim may take from its start until it reports.
pub const SHIM_START: Duration = Duration::from_secs(20);

/// The largest message on the shim's control socket, in bytes.
pub const SHIM_MESSAGE_BYTES: usize = 1 << 20;

/// How long a helper has to kill and reap everything after the order, before it gets SIGTERM, which
/// means the same.
pub const KILL_ORDER_GRACE: Duration = Duration::from_millis(500);

/// How long a helper has after that SIGTERM before it is killed itself.
pub const KILL_HELPER_GRACE: Duration = Duration::from_secs(2);

/// How long a helper tries to kill what an agent left before it reports it as left.
pub const KILL_LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long another program (bubblewrap, a container engine) may take to build a sandbox.
pub const ENGINE_START: Duration = Duration::from_secs(15);

/// How long any other command of a container engine may take.
pub const ENGINE_COMMAND: Duration = Duration::from_secs(10);

/// Bytes that are kept of what a container engine answers.
pub const ENGINE_OUTPUT_BYTES: usize = 64 << 10;

/// How long the monitor of a container that has ended may take to remove it, before its helper does.
pub const ENGINE_SETTLE: Duration = Duration::from_secs(5);

/// How long a helper may take to be sure that its container is gone, before it is killed itself.
pub const ENGINE_END: Duration = Duration::from_secs(45);

/// Orders (signals, ladder steps) that wait for a child's keeper; a kill needs no place.
pub const KEEPER_QUEUE: usize = 8;

/// Concurrent spawns of the whole fleet: more only wait for each other's page tables.
pub const CONCURRENT_SPAWNS: usize = 4;

/// Threads that do the fleet's file work at the same time: homes, copies, sizes, what changed. A
/// disk serves no more at once, and each thread keeps memory of its own for some time after.
pub const CONCURRENT_BLOCKING: usize = 4;

/// Threads of the runtime that may block: the fleet's, and as many again for the control socket,
/// pages of metrics and the journal's end.
pub const BLOCKING_THREADS: usize = 2 * CONCURRENT_BLOCKING;

/// Threads that copy workspaces and homes at the same time.
pub const CONCURRENT_COPIES: usize = 2;

/// The most memory, in bytes, that the events of one session can hold between its child's stdout
/// and the disk: the credits, one line being assembled with its successor, one read chunk, and
/// what each frame costs beside its bytes.
#[must_use]
pub const fn session_memory_bytes() -> usize {
    CREDIT_BYTES * PARSED_FACTOR
        + CREDIT_FRAMES * FRAME_OVERHEAD_BYTES
        + 2 * LINE_BYTES
        + READ_CHUNK_BYTES
}

/// The most memory, in bytes, that `sessions` sessions and `watchers` watchers of their events can
/// hold, beside the program itself: the ways from the children to the disk, open tool calls, and
/// what is told live or read again.
#[must_use]
pub const fn fleet_memory_bytes(sessions: usize, watchers: usize) -> usize {
    let session = session_memory_bytes()
        + OPEN_CALLS * PERMISSION_INPUT_BYTES
        + APPROVALS_PER_SESSION * REQUESTS_PER_APPROVAL * PERMISSION_INPUT_BYTES
        // As it came, without its secrets, and the document about it.
        + 3 * DELEGATED_PER_SESSION * PERMISSION_INPUT_BYTES
        + STDERR_LINES * STDERR_LINE_BYTES
        + STDIN_BYTES
        + CLIENT_OPEN_BYTES
        + TOOL_BUFFER_BYTES
        + CLIENT_FILES * CLIENT_FILE_BYTES
        + TERMINALS * (2 * TERMINAL_BYTES + TERMINAL_CHUNK_BYTES);
    let told = BROADCAST_BYTES + BROADCAST_EVENTS * NOTICE_BYTES;
    // A page, and the line that is made of it: of one event of a whole line at worst.
    let watcher = CATCH_UP_BYTES + LINE_BYTES * PARSED_FACTOR + CONTROL_EVENT_LINE_BYTES;
    sessions * session + told + watchers * watcher + JOURNAL_BATCH_BYTES
}

/// What the journal's writer holds of its own, in bytes: SQLite's cache of 2 MiB a connection, the
/// encoded body of one event, the statements.
pub const JOURNAL_BATCH_BYTES: usize = 4 * (2 << 20) + 6 * LINE_BYTES;

/// A parsed event's strings, its encoded row and the database's page cache copy, against the
/// bytes that were read.
pub const PARSED_FACTOR: usize = 4;

/// What one frame costs beside its bytes: the event's enum, its stamp, the queue's place.
pub const FRAME_OVERHEAD_BYTES: usize = 1024;

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
/// wait ([`APPROVALS_PER_SESSION`]); beyond it the dialect denies by itself.
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

/// Commits of one session that are under way to the disk at the same time; what comes meanwhile
/// goes with the next one.
pub const SESSION_COMMITS: usize = 4;

/// Tool calls, and requests before their calls, that a turn keeps to match them.
pub const OPEN_CALLS: usize = 1024;

/// Bytes of an agent's answer kept for a task's report.
pub const ANSWER_BYTES: usize = 4 << 10;

/// How long a check may run.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Bytes kept of what a check prints.
pub const CHECK_OUTPUT_BYTES: usize = 64 << 10;

/// How long git may take to list a workspace's files.
pub const GIT_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of that list.
pub const GIT_LIST_BYTES: usize = 64 << 20;
/// Simple commands of one request that the policy looks at; what follows makes it at least an
/// ask. A policy's own `limits.max_commands` is far below.
pub const POLICY_COMMANDS: usize = 4096;

/// How deep substitutions and scripts inside scripts are followed.
pub const POLICY_DEPTH: usize = 24;

/// Bytes in which the end of `((…))` must stand.
pub const POLICY_ARITHMETIC: usize = 1024;

/// Components that are looked at for one decision, all its questions about files (is this component
/// a link?) together: each is asked from the root on, so that it costs as many as its path has. It
/// is some 4 microseconds each, on a thread that others wait for.
pub const POLICY_LOOKUPS: usize = 16_384;

/// What the question for the links of one directory costs, as so many components.
pub const POLICY_LISTING_COST: usize = 1024;

/// Directories that a pattern of a shell is followed into.
pub const POLICY_GLOB_DIRECTORIES: usize = 64;

/// Symbolic links that one path may go through: the kernel's own bound (path_resolution(7)).
pub const POLICY_LINKS: usize = 40;

/// Directories that a command line may be in, as far as `cd` that may fail leaves it open.
pub const POLICY_CWDS: usize = 4;

/// Rules of one policy, those of the policies that it extends included.
pub const POLICY_RULES: usize = 10_000;

/// Files that a policy may extend, directly and through each other.
pub const POLICY_EXTENDS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_add_up_to_what_a_host_has() {
        const MIB: usize = 1 << 20;
        // Events of one session on their way to the disk.
        assert!(
            session_memory_bytes() <= 32 * MIB,
            "{}",
            session_memory_bytes() / MIB
        );
        // One session in everything, at its worst: with 16 terminals that write without end, and
        // four connections to its tools.
        let one = fleet_memory_bytes(1, 0) - fleet_memory_bytes(0, 0);
        assert!(one <= 180 * MIB, "{}", one / MIB);
        // What does not grow with the sessions.
        assert!(
            fleet_memory_bytes(0, 0) <= 96 * MIB,
            "{}",
            fleet_memory_bytes(0, 0) / MIB
        );
        // A watcher that never reads.
        let watcher = fleet_memory_bytes(0, 1) - fleet_memory_bytes(0, 0);
        assert!(watcher <= 90 * MIB, "{}", watcher / MIB);
        // A commit that waits belongs to a session, so that the queue needs no room of its own.
        assert!(MAX_CHILDREN as usize * SESSION_COMMITS <= JOURNAL_QUEUE);
        // What one read brings passes the credits.
        const { assert!(CREDIT_BYTES >= READ_BUDGET_BYTES) };
        const { assert!(READ_BUDGET_BYTES >= READ_CHUNK_BYTES) };
    }
}
