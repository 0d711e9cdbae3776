//! Limits of budgets, and of runs that end at a time.

use std::time::Duration;

/// Requests that a policy's `[budget]` may count.
pub const BUDGET_ALLOWS: u64 = 10_000;

/// Tokens that a budget may have.
pub const BUDGET_TOKENS: u64 = 1_000_000_000_000_000;

/// The longest time of a turn that a budget may have.
pub const BUDGET_TURN: Duration = Duration::from_secs(30 * 24 * 3600);

/// Of a model's answer in which no count of tokens was found: so many bytes of request and answer
/// count as one token. Tokenizers in use make three to four bytes of a token of English or code on
/// average, and no fewer than two over a whole request.
pub const UNREAD_BYTES_PER_TOKEN: u64 = 2;

/// Rows of `[price]`.
pub const PRICES: usize = 1000;

/// Bytes of a model's name that is looked for in `[price]`.
pub const MODEL_NAME_BYTES: usize = 256;

/// How long tasks may go on that run when the time of `run --until` comes, if `--grace` does not say.
pub const RUN_GRACE: Duration = Duration::from_secs(300);

/// Tasks that a run may work at once: `run --jobs`.
pub const RUN_JOBS: u16 = 4096;

/// How long a pool's spending of a day is stored.
pub const SPENT_RETENTION: Duration = Duration::from_secs(SPENT_DAYS as u64 * 24 * 3600);

/// Days of one pool of which is known what was spent on them.
pub const SPENT_DAYS: usize = 400;
