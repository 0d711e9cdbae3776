//! The limits of known secrets in texts, and of external deciders.

use std::time::Duration;

/// Bytes of a secret's value, blanks around it not counted, from which it is looked for in what
/// agents send. A shorter one occurs in any text.
pub const SECRET_MIN_BYTES: usize = 8;

/// Requests of one session that wait for its pool's delegate; one more is denied.
pub const DELEGATED_PER_SESSION: usize = 32;

/// The longest timeout of a delegate. It is consulted before any person, while an agent waits.
pub const DELEGATE_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Requests of one pool that may be under way to its delegate at the same time, at most.
pub const DELEGATE_CONCURRENCY_MAX: u16 = 256;

/// Bytes of a delegate's answer that are read.
pub const DELEGATE_ANSWER_BYTES: usize = 64 << 10;

/// Columns of a delegate's reason that are kept.
pub const DELEGATE_REASON_WIDTH: usize = 500;
