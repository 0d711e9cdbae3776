//! What listens for people and programs: clients, editors, HTTP, file planes.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

use super::{APPROVALS_PER_SESSION, LINE_BYTES, STORE_CONTENT_BYTES};

/// The size of a request that submits a run, and of a message in a conversation, in bytes.
pub const RUN_BODY_BYTES: usize = 16 << 20;

/// The longest event that a client of the HTTP socket takes, in bytes: an event of [`LINE_BYTES`]
/// in JSON, where a control byte takes six.
pub const CLIENT_EVENT_BYTES: usize = 6 * LINE_BYTES + (1 << 20);

/// How long a client of a conversation may leave a message unread before it is dropped.
pub const CONVERSATION_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the live events of a new run are kept for the client that will watch it.
pub const RUN_WATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Ended runs that a client of the daemon can still watch.
pub const ENDED_RUNS: usize = 8;

/// What is told of permission requests and waits for one client: beyond it a permission request is denied. Each open one
/// ([`APPROVALS_PER_SESSION`]) is told twice.
pub const CLIENT_APPROVAL_EVENTS: usize = 16 * APPROVALS_PER_SESSION;

/// The longest line that an editor may send, in bytes: a prompt of [`super::PROMPT_BYTES`], of which JSON
/// makes six times as many at worst, and what stands beside it.
pub const EDITOR_LINE_BYTES: usize = 8 << 20;

/// Bytes that wait for an editor that does not read; then its conversations wait.
pub const EDITOR_OUT_BYTES: usize = 16 << 20;

/// Lines that wait for an editor that does not read.
pub const EDITOR_OUT_LINES: usize = 256;

/// Conversations that one editor has open, or is opening.
pub const EDITOR_SESSIONS: usize = 32;

/// Open HTTP connections; further ones get one of [`HTTP_PROBE_CONNECTIONS`], or wait
/// to be accepted.
pub const HTTP_CONNECTIONS: usize = 256;

/// Bytes of one HTTP request's head.
pub const HTTP_HEAD_BYTES: usize = 16 << 10;

/// Bytes of one HTTP request's body: one page takes one, an answer, which
/// is far smaller.
pub const HTTP_BODY_BYTES: u64 = 64 << 10;

/// How long a client may take for a request's head, and stay idle between two requests. Longer
/// than the usual scrape interval of 15 s, so that a scraper keeps its connection.
pub const HTTP_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one HTTP connection may live, so that a client that reads nothing does not keep its
/// place.
pub const HTTP_CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// How long a shutdown waits for open HTTP requests.
pub const HTTP_DRAIN: Duration = Duration::from_secs(2);

/// How long a client with a valid token may take for a request's body; the largest body fits into
/// one write.
pub const HTTP_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the answer to a restart waits for the end of the old child.
pub const RESTART_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections beyond [`HTTP_CONNECTIONS`] that only answer liveness and readiness probes, so that
/// a client that uses all other connections does not make the supervisor look dead.
pub const HTTP_PROBE_CONNECTIONS: usize = 16;

/// How long such a connection may live: a probe sends its one request at once.
pub const HTTP_PROBE_LIFETIME: Duration = Duration::from_secs(5);

/// Bytes of one token's file: far more than any token has.
pub const TOKEN_BYTES: usize = 4096;

/// Token files in the directory of approvers that are read, in the order of their names.
pub const TOKEN_FILES: usize = 64;

/// Names that the HTTP listener accepts in `Host`, besides its address.
pub const HTTP_HOSTS: usize = 32;

/// A rate limit: a sustained rate and a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Events per second in the long run.
    pub per_second: u32,
    /// Events at once.
    pub burst: u32,
}

/// Requests of one token: more than a person or a script needs, and far less than what the
/// supervisor can answer.
pub const HTTP_RATE: Rate = Rate {
    per_second: 100,
    burst: 200,
};
/// Requests of one address without a valid token. A token has at least 32 characters; this limit
/// keeps clients that guess from slowing down others.
pub const HTTP_ANONYMOUS_RATE: Rate = Rate {
    per_second: 20,
    burst: 200,
};
/// Addresses without a token whose requests are counted apart; further ones are counted together.
pub const HTTP_ANONYMOUS_ADDRESSES: usize = 4096;

/// Tokens whose requests are counted apart: all that there can be, and as many that were taken away.
pub const HTTP_TRACKED_TOKENS: usize = 4 * TOKEN_FILES;

/// Connections that carry a stream of events, beside [`HTTP_CONNECTIONS`]: a stream gives its place
/// among those back when it begins.
pub const HTTP_STREAMS: usize = 4096;

/// How long a stream of events may last; then its client reconnects with its token.
pub const HTTP_STREAM_LIFETIME: Duration = Duration::from_secs(3600);

/// The same on the socket, where there is no token: longer than any run.
pub const HTTP_SOCKET_STREAM_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a client should retry if all streams are in use.
pub const HTTP_STREAM_RETRY: Duration = Duration::from_secs(5);

/// How young a connection without a request must be to keep its place though another one wants it:
/// what a head needs on its way, and a handshake before it.
pub const HTTP_IDLE_GRACE: Duration = Duration::from_millis(250);

/// The write timeout: how long a client may read nothing of a response.
pub const HTTP_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a TLS handshake may take.
pub const HTTP_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Headers of one HTTP request.
pub const HTTP_HEADERS: usize = 64;

/// Connections of the HTTP socket, beside those of the address.
pub const HTTP_SOCKET_CONNECTIONS: usize = 64;

/// Bytes of a certificate's chain, and of its key.
pub const CERTIFICATE_BYTES: u64 = 1 << 20;

/// Contents of files that are worked on at once for clients; each takes up to
/// [`STORE_CONTENT_BYTES`] a few times over.
pub const HTTP_FILES: usize = 4;

/// Bytes of a file that a client writes whole.
pub const HTTP_PUT_BYTES: usize = 1 << 20;

/// Bytes of such a request's body: the largest file in base64, or a text with a newline in every other place.
pub const HTTP_PUT_BODY_BYTES: u64 = 2 * HTTP_PUT_BYTES as u64;

/// Bytes of contents of files that clients asked for and have not taken yet: four of the largest in
/// JSON.
pub const HTTP_FILES_BYTES: usize = 8 * STORE_CONTENT_BYTES + (4 << 20);

/// The limit of accepted requests of one directory that have not ended.
pub const FILE_PLANE_OPEN: usize = 1024;

/// Entries of one directory that are looked at in one scan; what is beyond them waits for the next.
pub const FILE_PLANE_ENTRIES: usize = 16_384;

/// Bytes of a request: a prompt of the longest kind, as JSON may write it.
pub const FILE_PLANE_REQUEST_BYTES: u64 = 8 << 20;

/// Bytes of a small file: an answer, a cancel, a stop.
pub const FILE_PLANE_SMALL_BYTES: u64 = 64 << 10;

/// Bytes of one request's output that are written; the journal has the rest.
pub const FILE_PLANE_OUTPUT_BYTES: u64 = 64 << 20;

/// Bytes of the log of what happened; then it begins anew, and one earlier one is kept.
pub const FILE_PLANE_LOG_BYTES: u64 = 8 << 20;

/// Lines of the newest output that are kept together, and their bytes.
pub const FILE_PLANE_TAIL_LINES: usize = 200;

/// See [`FILE_PLANE_TAIL_LINES`].
pub const FILE_PLANE_TAIL_BYTES: usize = 64 << 10;

/// Approvals that are shown as files at the same time.
pub const FILE_PLANE_APPROVALS: usize = 256;

/// For how long a file must stay as it is before it counts as written: what came by a rename is
/// whole at once, and nobody can tell the two apart but by waiting.
pub const FILE_PLANE_SETTLE: Duration = Duration::from_secs(1);

/// How long one round waits for more to come, so that what comes together is done together.
pub const FILE_PLANE_DEBOUNCE: Duration = Duration::from_millis(20);

/// The interval of the daemon's heartbeat in the directory.
pub const FILE_PLANE_HEARTBEAT: Duration = Duration::from_secs(5);

/// After this long without a response of the file system, this is reported.
pub const FILE_PLANE_STALL_TIMEOUT: Duration = Duration::from_secs(60);
