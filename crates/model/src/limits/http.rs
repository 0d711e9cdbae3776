//! The bounds of the HTTP door.
//!
//! As in the file above: each with its unit and its reason.

use std::time::Duration;

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
/// How long one HTTP connection may live, so that a client that reads nothing holds no place.
pub const HTTP_CONNECTION_LIFETIME: Duration = Duration::from_secs(300);
/// How long a shutdown waits for open HTTP requests.
pub const HTTP_DRAIN: Duration = Duration::from_secs(2);
/// How long a client that brought a token may take for a request's body, of which the largest fits
/// into one write.
pub const HTTP_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Places beside [`HTTP_CONNECTIONS`] that only answer whether the supervisor is alive and ready:
/// whoever takes all the others does not make it look dead.
pub const HTTP_PROBE_CONNECTIONS: usize = 16;
/// How long a connection on a spare place may live: a probe sends its one request at once.
pub const HTTP_PROBE_LIFETIME: Duration = Duration::from_secs(5);

/// Bytes of one token's file: far more than any token has.
pub const TOKEN_BYTES: usize = 4096;
/// Files of tokens in the directory of approvers that are looked at, by their names' order.
pub const TOKEN_FILES: usize = 64;
/// Names by which the HTTP door may be asked, beside its address.
pub const HTTP_HOSTS: usize = 32;

/// How many at a time and in a row something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// A second, in the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// Requests of one token: more than a person or a script needs, and far less than what the
/// supervisor can answer.
pub const HTTP_RATE: Rate = Rate {
    per_second: 100,
    burst: 200,
};
/// Requests of one address that bring no token, or one that nobody has. What is to be guessed has
/// 32 characters at least; this keeps those who try from taking the time of others.
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
/// How long a stream of events may last; then its client comes again, with its token.
pub const HTTP_STREAM_LIFETIME: Duration = Duration::from_secs(3600);
/// How soon a client is told to come again where every stream is taken.
pub const HTTP_STREAM_RETRY: Duration = Duration::from_secs(5);
/// How young a connection without a request must be to keep its place though another one wants it:
/// what a head needs on its way, and a handshake before it.
pub const HTTP_IDLE_GRACE: Duration = Duration::from_millis(250);
/// How long a client may take nothing of an answer.
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
/// [`super::STORE_CONTENT_BYTES`] a few times over.
pub const HTTP_FILES: usize = 4;

/// Bytes of a file that a client writes whole.
pub const HTTP_PUT_BYTES: usize = 1 << 20;

/// Bytes of such a request's body: the largest file in base64, or a text with a newline in every other place.
pub const HTTP_PUT_BODY_BYTES: u64 = 2 * HTTP_PUT_BYTES as u64;

/// Bytes of contents of files that clients asked for and have not taken yet: four of the largest in
/// JSON.
pub const HTTP_FILES_BYTES: usize = 8 * super::STORE_CONTENT_BYTES + (4 << 20);
