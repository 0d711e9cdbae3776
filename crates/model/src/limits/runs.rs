//! Task files, runs, and budgets.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// How long a daemon waits for room in the queues before it offers an unfinished run again.
pub const RUN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Tasks that wait in one pool's queue.
pub const POOL_QUEUE: usize = 100_000;
/// How much longer a task may wait for each level of priority that a later one has more.
pub const PRIORITY_STEP: Duration = Duration::from_secs(60);

/// Bytes of a task file, and of a prompt.
pub const TASK_FILE_BYTES: usize = 64 << 20;

/// Bytes of one prompt.
pub const PROMPT_BYTES: usize = 1 << 20;

/// Sendings that one task may ask for.
pub const TASK_ATTEMPTS: u32 = 100;

/// Words in the argv of one task's check.
pub const CHECK_WORDS: usize = 256;

/// Errors of task files that are listed one by one.
pub const TASK_ERRORS: usize = 100;

/// How long the command line waits, after everything was killed, for the last reports.
pub const KILLED_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often one task's prompt may be sent.
pub const ATTEMPTS: u32 = 100;

/// Bytes of an agent's answer kept for a task's report.
pub const ANSWER_BYTES: usize = 4 << 10;

/// How long a check may run.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(3600);

/// Bytes kept of what a check prints.
pub const CHECK_OUTPUT_BYTES: usize = 64 << 10;

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
