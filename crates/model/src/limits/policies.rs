//! The limits of policy reloads, policy tests and policy layers.

use std::time::Duration;

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
pub const RULES_COUNTED: usize = 2 * super::POLICY_RULES;
