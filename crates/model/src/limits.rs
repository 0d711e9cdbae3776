//! Every limit of the program, as a named constant with its unit and its reason.
//!
//! A queue, buffer, retry or wait takes its limit from here or from a checked configuration key,
//! never from a literal number.

mod agents;
mod chats;
mod configuration;
mod files;
mod hooks;
mod journal;
mod launch;
mod listeners;
mod network;
mod policy;
mod runs;
mod script_agent;
pub use agents::*;
pub use chats::*;
pub use configuration::*;
pub use files::*;
pub use hooks::*;
pub use journal::*;
pub use launch::*;
pub use listeners::*;
pub use network::*;
pub use policy::*;
pub use runs::*;
pub use script_agent::*;

/// Threads that do the fleet's file work at the same time: homes, copies, sizes, what changed. A
/// disk serves no more at once, and each thread keeps memory of its own for some time after.
pub const CONCURRENT_BLOCKING: usize = 4;

/// Threads of the runtime that may block: the fleet's, and as many again for clients,
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
    let broadcast = BROADCAST_BYTES + BROADCAST_EVENTS * NOTICE_BYTES;
    // A page, and the line that is made of it: of one event of a whole line at worst.
    let watcher = CATCH_UP_BYTES + LINE_BYTES * PARSED_FACTOR + CLIENT_EVENT_BYTES;
    // Each direction: a chunk, its message, and the copy that the socket has.
    let execs = EXECS * 8 * EXEC_CHUNK_BYTES;
    sessions * session + broadcast + execs + watchers * watcher + JOURNAL_BATCH_BYTES
}

/// A parsed event's strings, its encoded row and the database's page cache copy, against the
/// bytes that were read.
pub const PARSED_FACTOR: usize = 4;

/// What one frame costs beside its bytes: the event's enum, its stamp, the queue's place.
pub const FRAME_OVERHEAD_BYTES: usize = 1024;

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
