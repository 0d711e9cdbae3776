//! The limits of overlays: what they contain, and what is applied to the workspace.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// Things that one session may have written over its workspace for it to be compared or applied.
pub const OVERLAY_ENTRIES: u64 = 200_000;

/// Things that an apply may take away and put in their place together.
pub const OVERLAY_LISTED: u64 = 2 * OVERLAY_ENTRIES;

/// How long an apply waits for another one in the same workspace, in seconds: an apply of ordinary
/// size has ended by then.
pub const OVERLAY_APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Levels of directories below a workspace that are compared or applied. One descriptor a level is
/// open meanwhile.
pub const OVERLAY_DEPTH: usize = 100;

/// Bytes of all files together that are compared or applied, as long as they say they are: a hole
/// counts.
pub const OVERLAY_BYTES: u64 = 2 << 30;

/// Bytes of the list of what was in a session's way, kept beside its overlay.
pub const OVERLAY_RECORD_BYTES: u64 = 64 << 20;

/// Bytes of a path below a workspace that is compared or applied: Linux' PATH_MAX.
pub const OVERLAY_PATH_BYTES: usize = 4096;

/// Bytes of all paths together that are compared or applied: as many as a list of a workspace's
/// files may have.
pub const OVERLAY_PATHS_BYTES: usize = super::MANIFEST_BYTES;

/// Places that one sentence names.
pub const OVERLAY_PATHS_NAMED: usize = 20;

/// Bytes of one file of which `diff` shows lines; of a larger one only that it differs.
pub const OVERLAY_SHOWN_BYTES: usize = 256 << 10;

/// Bytes of texts that one `diff` keeps to show lines of.
pub const OVERLAY_TEXT_BYTES: usize = 32 << 20;

/// Bytes of the target of a symbolic link: Linux' PATH_MAX.
pub const OVERLAY_LINK_BYTES: usize = 4096;

/// Entries directly in a workspace whose owners are looked at before an ordinary user's overlay is
/// laid over it.
pub const OVERLAY_OWNERS: usize = 4096;
