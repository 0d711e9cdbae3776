//! The journal's health and the free space of its file system.

use std::path::Path;

/// The journal's state, which callers must check before they begin new work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// Commits become durable.
    #[default]
    Ok,
    /// Another process has the database locked. Submitted commits are kept and retried.
    Stalled {
        /// SQLite's error text.
        reason: String,
    },
    /// The disk fails or is nearly full. Submitted commits are kept and retried; new work is
    /// refused. Recovers by itself.
    ReadOnly {
        /// The reason.
        reason: String,
    },
    /// The database is damaged or was removed: the process must end.
    Corrupt {
        /// The damage.
        reason: String,
    },
}

impl Health {
    /// Whether new work may begin. `/readyz` uses this.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Why new work may not begin; `None` if it may.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Ok => None,
            Self::Stalled { reason } | Self::ReadOnly { reason } | Self::Corrupt { reason } => {
                Some(reason)
            }
        }
    }

    /// Whether the disk or the database is at fault. Permission requests are then denied, and new
    /// work is refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly { .. } | Self::Corrupt { .. })
    }
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ok => f.pad("ok"),
            Self::Stalled { reason } => write!(f, "stalled: {reason}"),
            Self::ReadOnly { reason } => write!(f, "read-only: {reason}"),
            Self::Corrupt { reason } => write!(f, "corrupt: {reason}"),
        }
    }
}

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that an unprivileged user may still write.
    pub free: u64,
}

impl DiskSpace {
    /// Measures the file system of `path` with statvfs(3).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn measure(path: &Path) -> std::io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Self {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Describes a lack of space: less than `least` bytes free. `None` if there is enough.
    #[must_use]
    pub fn shortage(self, least: u64) -> Option<String> {
        (self.free < least).then(|| {
            format!(
                "{} MiB free on the journal's file system, {} MiB required (supervisor.journal.min_free)",
                self.free >> 20,
                least >> 20,
            )
        })
    }
}
