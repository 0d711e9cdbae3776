//! The limits of file planes.

use std::time::Duration;

/// The limit of accepted requests of one directory that have not ended.
pub const FILE_PLANE_OPEN: usize = 1024;

/// Entries of one directory that are looked at in one scan; what is beyond them waits for the next.
pub const FILE_PLANE_ENTRIES: usize = 16_384;

/// Bytes of a request: a prompt of the longest kind, as JSON may write it.
pub const FILE_PLANE_REQUEST_BYTES: u64 = 8 << 20;

/// Bytes of a small file: an answer, a cancel, a stop.
pub const FILE_PLANE_SMALL_BYTES: u64 = 64 << 10;

/// Bytes of one request's output that are written; the journal has the rest.
pub const FILE_PLANE_OUTPUT_BYTES: u64 = 64 << 20;

/// Bytes of the log of what happened; then it begins anew, and one earlier one is kept.
pub const FILE_PLANE_LOG_BYTES: u64 = 8 << 20;

/// Lines of the newest output that are kept together, and their bytes.
pub const FILE_PLANE_TAIL_LINES: usize = 200;

/// See [`FILE_PLANE_TAIL_LINES`].
pub const FILE_PLANE_TAIL_BYTES: usize = 64 << 10;

/// Approvals that are shown as files at the same time.
pub const FILE_PLANE_APPROVALS: usize = 256;

/// For how long a file must stay as it is before it counts as written: what came by a rename is
/// whole at once, and nobody can tell the two apart but by waiting.
pub const FILE_PLANE_SETTLE: Duration = Duration::from_secs(1);

/// How long one round waits for more to come, so that what comes together is done together.
pub const FILE_PLANE_DEBOUNCE: Duration = Duration::from_millis(20);

/// The interval of the daemon's heartbeat in the directory.
pub const FILE_PLANE_HEARTBEAT: Duration = Duration::from_secs(5);

/// After this long without a response of the file system, this is reported.
pub const FILE_PLANE_STALL_TIMEOUT: Duration = Duration::from_secs(60);
