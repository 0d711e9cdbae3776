//! The limits of chats that run: their actors and streams.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// How long a running tool call may continue after a person stopped its turn, before the
/// agent gets the cancel.
pub const TOOL_GRACE: Duration = Duration::from_secs(30);

/// Of the transcript's bytes ([`super::CHAT_TRANSCRIPT_BYTES`]), those of the goal, so that there is room
/// for what was said last.
pub const CHAT_TRANSCRIPT_GOAL_BYTES: usize = 8 << 10;

/// Bytes of the body of a request that creates a chat, or sends a message.
pub const CHAT_BODY_BYTES: usize = 512 << 10;
/// Chats that have an actor at the same time: far more than pools have slots, as those that wait
/// for one count.
pub const CHATS_LOADED: usize = 4096;
/// Chats or turns on one page of a list.
pub const CHAT_PAGE: u32 = 50;

/// Subscribers of all chats together.
pub const CHAT_SUBSCRIBERS: usize = 4096;
/// Events of one chat that are kept encoded for its subscribers.
pub const CHAT_RING_EVENTS: usize = 1024;
/// Their bytes.
pub const CHAT_RING_BYTES: usize = 1 << 20;
/// Events that are read from the journal at once for a subscriber, or for the ring.
pub const CHAT_PAGE_EVENTS: u32 = 256;
/// Bytes of their bodies.
pub const CHAT_PAGE_BYTES: usize = 256 << 10;
/// Bytes that are taken for one subscriber at once, one event at least: many that take nothing hold
/// this much each.
pub const CHAT_PIECE_BYTES: usize = 32 << 10;
/// Pieces that wait to be written to a subscriber; while they do, nothing more is read for it.
pub const CHAT_STREAM_QUEUE: usize = 4;
/// How long a subscriber may take for a piece before its connection is given up.
pub const CHAT_STREAM_WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of keepalives of a quiet stream.
pub const CHAT_STREAM_KEEPALIVE: Duration = Duration::from_secs(15);
/// When a subscriber should reconnect after the end of its stream.
pub const CHAT_STREAM_RETRY: Duration = Duration::from_secs(1);
/// A stream ends so long before its connection must.
pub const CHAT_STREAM_MARGIN: Duration = Duration::from_secs(2);
/// Connections to the journal that are kept for chats, and readings at the same time.
pub const CHAT_READERS: usize = 4;
/// Bytes of a turn's text that its last event repeats: the end of it.
pub const CHAT_ANSWER_BYTES: usize = 64 << 10;

/// How long a chat waits for a slot before those of its pool that are idle are asked to give one up.
pub const CHAT_SLOT_WAIT: Duration = Duration::from_millis(250);
/// How long it waits before it asks again for a slot, or for a journal that takes nothing now.
pub const CHAT_RETRY: Duration = Duration::from_millis(500);
/// As long as that becomes at most: it doubles from one try to the next.
pub const CHAT_RETRY_MAX: Duration = Duration::from_secs(30);
/// How long whoever closes a chat waits for the end of its turn and its agent; it goes on without.
pub const CHAT_CLOSE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is looked for chats that nobody has used for long, at most.
pub const CHAT_IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
