//! What leaves a sandbox through the supervisor: model routes, the egress proxy, its tools.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Routes of one pool.
pub const POOL_ROUTES: usize = 16;

/// Sockets that listen inside one sandbox: its routes, and the egress proxy.
pub const POOL_PORTS: usize = POOL_ROUTES + 1;

/// The longest pause that a provider's announcement can bring about.
pub const RATE_LIMIT_ANNOUNCED: Duration = Duration::from_secs(24 * 3600);

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

/// Commands of one push that are read, so that each ref gets its reason; one may pass.
pub const PUSH_COMMANDS: usize = 64;

/// Bytes of the commands of one push, and of the commits at which a clone is shallow.
pub const PUSH_COMMAND_BYTES: usize = 256 << 10;

/// The largest pack that a route may let through, in bytes: each is written to the disk of the
/// supervisor twice, before and after git read it.
pub const PUSH_BYTES: u64 = 1 << 30;

/// Pushes that are unpacked and searched at the same time; more wait.
pub const CONCURRENT_PUSHES: usize = 2;

/// How long a push waits for one of these, and how long unpacking and searching takes.
pub const PUSH_TIMEOUT: Duration = Duration::from_secs(300);

/// Bytes of what a git server says of its refs, or of a push, to the supervisor itself: a server
/// with 100,000 refs.
pub const SERVER_ANSWER_BYTES: usize = 16 << 20;

/// Bytes of an answer of a git server's API: 50 pull requests of Gitea, each with two repositories.
pub const FORGE_ANSWER_BYTES: usize = 4 << 20;

/// How long a git server's API may take for one answer.
pub const FORGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Objects of one pack, and their bytes when they are unpacked: all are searched.
pub const PUSH_OBJECTS: usize = 200_000;

/// See [`PUSH_OBJECTS`].
pub const PUSH_UNPACKED_BYTES: u64 = 2 << 30;

/// Bytes of one commit or directory of a pack, which are read as a whole.
pub const PUSH_BUFFERED_BYTES: usize = 8 << 20;

/// Bytes of the names in a pack's directories, and of the paths that they make.
pub const PUSH_PATH_BYTES: usize = 32 << 20;

/// Parents of a commit in a push. Git's own merges have at most a few dozen.
pub const PUSH_COMMIT_PARENTS: usize = 256;

/// Patterns of refs, and repositories, of one git route.
pub const GIT_ROUTE_ENTRIES: usize = 64;

/// Connections that wait to be accepted on one port inside (listen(2)).
pub const ROUTE_BACKLOG: i32 = 128;

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

/// Connections of one child to its tools at the same time: an agent has one, its helpers one each.
pub const TOOL_CONNECTIONS: usize = 4;

/// Concurrent calls of one connection. Some wait for a person.
pub const TOOL_CALLS: usize = 8;

/// The longest line of a call, in bytes: the content of a file, with what JSON adds to it.
pub const TOOL_LINE_BYTES: usize = 2 << 20;

/// Messages in one batch of a protocol version that has batches.
pub const TOOL_BATCH: usize = 32;

/// Bytes of a question to a person, and of a plan's step.
pub const TOOL_TEXT_BYTES: usize = 4 << 10;

/// Proposed answers of one question, and bytes of each.
pub const TOOL_OPTIONS: usize = 8;

/// Directories that an editor names beside the one of its session.
pub const EDITOR_DIRECTORIES: usize = 16;

/// Fields of a form that an agent asks a person to fill in.
pub const FORM_FIELDS: usize = 16;

/// See [`TOOL_OPTIONS`].
pub const TOOL_OPTION_BYTES: usize = 200;

/// What one child's connections hold at most beside the texts of their calls, in bytes: a line
/// that is not whole yet and its successor, and one answer being written.
pub const TOOL_BUFFER_BYTES: usize = TOOL_CONNECTIONS * 3 * TOOL_LINE_BYTES;

/// Hosts besides its upstream that a route to a registry may lead to.
pub const REGISTRY_HOSTS: usize = 32;

/// Redirects that one request to a registry follows.
pub const REGISTRY_REDIRECTS: usize = 5;

/// Bytes of one page of a registry that tells which packages there are. The pages of the largest
/// packages have some tens of megabytes; they pass in pieces.
pub const REGISTRY_PAGE_BYTES: u64 = 256 << 20;

/// Bytes of one file of a registry. The largest packages have a few gigabytes.
pub const REGISTRY_FILE_BYTES: u64 = 8 << 30;

/// Bytes of the description of a cargo registry, which is read whole.
pub const REGISTRY_CONFIG_BYTES: usize = 64 << 10;
