//! The configuration file.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Bytes of a configuration file.
pub const CONFIG_BYTES: usize = 1 << 20;

/// Faults of one configuration file that are shown; the rest are counted.
pub const CONFIG_ERRORS: usize = 50;

/// The longest duration in the configuration: added to any time of day, it overflows nothing.
pub const CONFIG_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

/// The longest wait of one step of the stop ladder: a shutdown must end.
pub const STOP_WAIT: Duration = Duration::from_secs(3600);

/// The most children of one supervisor at the same time (`max_children`).
pub const MAX_CHILDREN: u16 = 4096;

/// Failures that a restart budget may allow in its window.
pub const RESTART_BUDGET: u32 = 100_000;

/// Words of one list in the configuration, and bytes of one of its texts (what Linux takes as one
/// argument or environment string, MAX_ARG_STRLEN, less its end).
pub const CONFIG_LIST: usize = 1024;

/// Bytes of one text in the configuration.
pub const CONFIG_TEXT_BYTES: usize = (128 << 10) - 1;

/// Bytes of one secret of a child's environment, well below what Linux takes as one string.
pub const SECRET_BYTES: usize = 64 << 10;

/// Bytes of a hint's pattern.
pub const HINT_PATTERN_BYTES: usize = 1024;

/// Bytes that a hint's pattern may take when it is compiled.
pub const HINT_REGEX_BYTES: usize = 256 << 10;

/// Bytes of a hint's text: one line of a table.
pub const HINT_TEXT_BYTES: usize = 500;

/// Bytes of one message, or of one line of stderr, that hints are looked for in.
pub const HINT_MESSAGE_BYTES: usize = 4 << 10;

/// Slots in one pool.
pub const POOL_SLOTS: u16 = 2048;
