//! The bounds of the HTTP door.
//!
//! As in the file above: each with its unit and its reason.

use std::time::Duration;

/// Open HTTP connections; further ones get one of [`HTTP_SPARE`], or wait
/// to be accepted.
pub const HTTP_CONNECTIONS: usize = 256;
/// Bytes of one HTTP request's head.
pub const HTTP_HEAD_BYTES: usize = 16 << 10;
/// Bytes of one HTTP request's body: one page takes one, an answer, which
/// is far smaller.
pub const HTTP_BODY_BYTES: u64 = 64 << 10;
/// How long a client may take for a request's head, and stay idle between two requests. Longer
/// than the usual scrape interval of 15 s, so that a scraper keeps its connection.
pub const HTTP_HEAD_WAIT: Duration = Duration::from_secs(30);
/// How long one HTTP connection may live, so that a client that reads nothing holds no place.
pub const HTTP_CONNECTION_LIFE: Duration = Duration::from_secs(300);
/// How long a shutdown waits for open HTTP requests.
pub const HTTP_DRAIN: Duration = Duration::from_secs(2);
/// How long a client that brought a token may take for a request's body, of which the largest fits
/// into one write.
pub const HTTP_BODY_WAIT: Duration = Duration::from_secs(10);

/// Places beside [`HTTP_CONNECTIONS`] that only answer whether the supervisor is alive and ready:
/// whoever takes all the others does not make it look dead.
pub const HTTP_SPARE: usize = 16;
/// How long a connection on a spare place may live: a probe sends its one request at once.
pub const HTTP_SPARE_LIFE: Duration = Duration::from_secs(5);

/// Bytes of one token's file: far more than any token has.
pub const TOKEN_BYTES: usize = 4096;
/// Files of tokens in the directory of approvers that are looked at, by their names' order.
pub const TOKEN_FILES: usize = 64;
