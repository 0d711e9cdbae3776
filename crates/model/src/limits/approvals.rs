//! The limits of approvals.

use std::time::Duration;

/// The longest name of a tool that is evaluated, in bytes; a request with a longer one is denied.
pub const PERMISSION_TOOL_BYTES: usize = 256;

/// Bytes that are stored of each text that an agent sends beside a request's input.
pub const PERMISSION_CLAIM_BYTES: usize = 4096;

/// Answers that one session remembers until it ends, and one turn until that ends; a further one
/// holds once.
pub const ANSWERS_REMEMBERED: usize = 256;

/// The newest remembered answers of all sessions that a start restores.
pub const ANSWERS_RESTORED: u32 = 10_000;

/// Identical requests that wait for one approval; one more is denied. Each keeps its
/// input, of [`super::PERMISSION_INPUT_BYTES`] at most.
pub const REQUESTS_PER_APPROVAL: usize = 4;

/// Pending approvals that a start restores: far more than [`super::APPROVALS_PER_POOL`] of as many
/// pools as there are.
pub const APPROVALS_RESTORED: u32 = 10_000;

/// Approvals in one list. More than [`super::APPROVALS_PER_POOL`] of each of a few pools.
pub const APPROVALS_LISTED: u32 = 500;

/// Characters of a person's reason.
pub const ANSWER_REASON_CHARS: usize = 1000;

/// How long an approver waits until the answer is durable.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Subscribers of the stream of approvals at the same time; one more is refused.
pub const APPROVAL_STREAMS: usize = 16;

/// Pieces that wait for one watcher, and how long the next one waits for a place before the watcher
/// is dropped.
pub const APPROVAL_STREAM_QUEUE: usize = 8;
/// See [`APPROVAL_STREAM_QUEUE`].
pub const APPROVAL_STREAM_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a subscriber without news gets a comment, as a keepalive.
pub const APPROVAL_STREAM_KEEPALIVE: Duration = Duration::from_secs(15);

/// How long a stream waits after a change for further ones: they are read together.
pub const APPROVAL_STREAM_DEBOUNCE: Duration = Duration::from_millis(100);

/// How long before its connection a stream ends.
pub const APPROVAL_STREAM_MARGIN: Duration = Duration::from_secs(5);

/// After how long a subscriber should reconnect.
pub const APPROVAL_STREAM_RETRY: Duration = Duration::from_secs(1);
