//! The limits of the egress proxy: connections from inside a sandbox to the hosts of an allow-list.

use std::time::Duration;

/// The proxy's port on the loopback inside.
pub const EGRESS_PORT: u16 = 3128;
/// Hosts of one allow-list.
pub const EGRESS_HOSTS: usize = 256;
/// Connections of one slot at the same time that a configuration may allow.
pub const EGRESS_CONNECTIONS: u16 = 256;
/// Connections of all slots at the same time: two descriptors each. One more is refused.
pub const EGRESS_CONNECTIONS_ALL: usize = 2048;
/// Connections of one slot a minute that a configuration may allow.
pub const EGRESS_PER_MINUTE: u32 = 60_000;
/// Bytes of the head of one CONNECT.
pub const EGRESS_HEAD_BYTES: usize = 8 << 10;
/// Headers of one CONNECT.
pub const EGRESS_HEADERS: usize = 64;
/// Bytes of the records that a ClientHello comes in. Those with keys that withstand quantum
/// computers have about 2 KiB.
pub const EGRESS_HELLO_BYTES: usize = 32 << 10;
/// Extensions of one ClientHello; known clients send about 20.
pub const EGRESS_HELLO_EXTENSIONS: usize = 64;
/// Bytes on their way in one direction of one connection.
pub const EGRESS_BUFFER: usize = 16 << 10;
/// Names that are looked up at the same time, for all slots: each takes a thread for as long as the
/// name servers do.
pub const EGRESS_LOOKUPS: usize = 32;
/// Of these, for one slot.
pub const EGRESS_LOOKUPS_SLOT: usize = 4;
/// Addresses of one answer that are looked at. A longer answer is refused as a whole.
pub const EGRESS_ADDRESSES: usize = 64;
/// Of these, how many are tried in turn.
pub const EGRESS_TRIES: usize = 4;
/// Records of ended connections that a session's journal takes at once.
pub const EGRESS_RECORDS: u32 = 32;
/// How long until it takes one more: meanwhile, what is alike is added up.
pub const EGRESS_RECORD_INTERVAL: Duration = Duration::from_secs(5);
/// Kinds of records that wait to be taken; further hosts are added up without their names.
pub const EGRESS_RECORDS_WAITING: usize = 64;
/// The same for hosts that are on the list: only a pattern, such as `*.example.com`, allows more.
pub const EGRESS_PASSED_WAITING: usize = 1024;
