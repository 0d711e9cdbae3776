//! The limits of routes: connections, heads and bodies on their way to a model and back.

use std::time::Duration;

/// Connections of one slot to one route that a configuration may allow.
pub const ROUTE_CONNECTIONS: u16 = 256;
/// Bytes of the head of one request from inside a sandbox.
pub const ROUTE_HEAD_BYTES: usize = 64 << 10;
/// Headers of one request from inside, and of one answer.
pub const ROUTE_HEADERS: usize = 128;
/// Bytes of request bodies that all routes of the fleet hold at the same time: each is read whole
/// before it goes on. One more piece is refused.
pub const ROUTE_BODIES_BYTES: usize = 512 << 20;
/// Of these, bytes for one child's requests to one route; one body of the largest allowed size fits
/// in any case. So no child takes the place of all others.
pub const ROUTE_BODIES_CHILD: u64 = 128 << 20;
/// Keys of one object in a request body; more are refused, because each must be remembered to see
/// that none stands there twice.
pub const ROUTE_BODY_KEYS: usize = 4096;
/// Bytes of one provider's answer that are kept to read the tokens from it: one event of a stream,
/// or the whole of a plain one. Of a longer one no tokens are counted.
pub const ROUTE_USAGE_BYTES: usize = 1 << 20;
/// Idle connections to one upstream that are kept for the next request, and for how long.
pub const ROUTE_IDLE_UPSTREAM: usize = 8;
/// See [`ROUTE_IDLE_UPSTREAM`].
pub const ROUTE_IDLE_TIME: Duration = Duration::from_secs(60);
/// Connections that wait to be accepted on one port inside (listen(2)).
pub const ROUTE_BACKLOG: i32 = 128;
