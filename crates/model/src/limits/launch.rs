//! Starting and ending a child: probes, the shim, container engines, ssh, the keeper.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// How long a supervisor waits while another one takes its block of uids.
pub const UIDS_TIMEOUT: Duration = Duration::from_secs(5);

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

/// How long all probes together may take; one that has not answered by then is missing.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Probes at the same time: each is one process, or three.
pub const CONCURRENT_PROBES: usize = 8;

/// Bytes that one probe may answer.
pub const PROBE_BYTES: usize = 64 << 10;
