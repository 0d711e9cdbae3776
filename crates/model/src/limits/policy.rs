//! Permission requests, their evaluation, approvals, delegates, and policy files.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Open permission requests of one session before the next is denied.
pub const APPROVALS_PER_SESSION: usize = 4;

/// Permission requests of one pool that wait for people before the next is denied.
pub const APPROVALS_PER_POOL: usize = 20;

/// How long before the agent's own timeout a permission request ends, so that its answer arrives in
/// time.
pub const APPROVAL_MARGIN: Duration = Duration::from_secs(5);

/// Bytes of a permission request's input that are stored and judged; a larger one is denied.
pub const PERMISSION_INPUT_BYTES: usize = 64 << 10;

/// Simple commands of one request that the policy looks at; what follows makes it at least an
/// ask. A policy's own `limits.max_commands` is far below.
pub const POLICY_COMMANDS: usize = 4096;

/// How deep substitutions and scripts inside scripts are followed.
pub const POLICY_DEPTH: usize = 24;

/// Bytes in which the end of `((…))` must stand.
pub const POLICY_ARITHMETIC: usize = 1024;

/// Components that are looked at for one decision, all its questions about files (is this component
/// a link?) together: each is asked from the root on, so that it costs as many as its path has. It
/// is some 4 microseconds each, on a thread that others wait for.
pub const POLICY_LOOKUPS: usize = 16_384;

/// What the question for the links of one directory costs, as so many components.
pub const POLICY_LISTING_COST: usize = 1024;

/// Directories that a pattern of a shell is followed into.
pub const POLICY_GLOB_DIRECTORIES: usize = 64;

/// Symbolic links that one path may go through: the kernel's own bound (path_resolution(7)).
pub const POLICY_LINKS: usize = 40;

/// Directories that a command line may be in, as far as `cd` that may fail leaves it open.
pub const POLICY_CWDS: usize = 4;

/// Rules of one policy, those of the policies that it extends included.
pub const POLICY_RULES: usize = 10_000;

/// Files that a policy may extend, directly and through each other.
pub const POLICY_EXTENDS: usize = 8;

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
/// input, of [`PERMISSION_INPUT_BYTES`] at most.
pub const REQUESTS_PER_APPROVAL: usize = 4;

/// Pending approvals that a start restores: far more than [`APPROVALS_PER_POOL`] of as many
/// pools as there are.
pub const APPROVALS_RESTORED: u32 = 10_000;

/// Approvals in one list. More than [`APPROVALS_PER_POOL`] of each of a few pools.
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

/// How long the files of policies must be left alone before they are read again: an editor writes
/// in several steps, and a deployment writes several files.
pub const POLICY_SETTLE: Duration = Duration::from_millis(200);

/// How long they are waited for at most, if something is written all the time.
pub const POLICY_SETTLE_MAX: Duration = Duration::from_secs(3);

/// Directories that are watched for the files of policies: those of a few dozen policies, and of
/// what links lead to.
pub const POLICY_DIRECTORIES: usize = 256;

/// Files of policies that are being written at the same time and waited for.
pub const POLICY_FILES_WRITTEN: usize = 1024;

/// Bytes of notices about files that are taken at once: some hundred of them.
pub const POLICY_NOTICE_BYTES: usize = 16 << 10;

/// The shortest interval between log lines about a differing shadow policy of a pool; suppressed
/// lines are counted.
pub const SHADOW_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Policies of a configuration that sessions may use as layers: each is combined with each pool's
/// policy when policies are read.
pub const POLICY_LAYERS: usize = 16;

/// Files of labelled requests that a policy is tried on when it is read.
pub const POLICY_TEST_FILES: usize = 64;

/// Labelled requests of these together: some seconds of evaluation at worst.
pub const POLICY_TEST_CASES: usize = 10_000;

/// Names in one of the conditions of a rule on agents, modes, pools or hours.
pub const RULE_NAMES: usize = 64;

/// Rules whose uses are counted in one turn: those of one policy, and as many of newer versions.
pub const RULES_COUNTED: usize = 2 * POLICY_RULES;

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
