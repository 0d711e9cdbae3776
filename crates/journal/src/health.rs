//! How the journal is, and how much room its file system has.

use std::path::Path;

use marshal_model::limits;

/// What callers must know before they take on new work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// Commits become durable.
    #[default]
    Ok,
    /// Another process holds the database. What was submitted is kept and retried.
    Stalled {
        /// What SQLite says.
        reason: String,
    },
    /// The disk refuses or is nearly full. What was submitted is kept and retried; nothing new
    /// is taken. Recovers by itself.
    ReadOnly {
        /// Why.
        reason: String,
    },
    /// The database is damaged or gone: the process must end.
    Corrupt {
        /// What was found.
        reason: String,
    },
}

impl Health {
    /// Whether new work may begin: `/readyz` asks this.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Why new work may not begin.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Ok => None,
            Self::Stalled { reason } | Self::ReadOnly { reason } | Self::Corrupt { reason } => {
                Some(reason)
            }
        }
    }

    /// Whether the disk is the trouble: asks are denied and children held.
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

/// A file system's room, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// What an ordinary user may still write.
    pub free: u64,
    /// Its size.
    pub total: u64,
}

impl DiskSpace {
    /// Asks the kernel (statvfs(3)).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn measure(path: &Path) -> std::io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Self {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }

    /// Why there is too little room, if there is: less than `least` bytes, or than
    /// [`limits::JOURNAL_FREE_PERCENT`].
    #[must_use]
    pub fn shortage(self, least: u64) -> Option<String> {
        let percent_of = self.total / 100 * limits::JOURNAL_FREE_PERCENT;
        let wanted = least.max(percent_of);
        (self.free < wanted).then(|| {
            format!(
                "{} MiB free on the journal's file system, {} MiB wanted ({} MiB and {} %)",
                self.free >> 20,
                wanted >> 20,
                least >> 20,
                limits::JOURNAL_FREE_PERCENT
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_runs_short_below_one_gibibyte_or_five_percent() {
        let check = |free: u64, total: u64, short: bool| {
            assert_eq!(
                DiskSpace { free, total }
                    .shortage(limits::JOURNAL_FREE_BYTES)
                    .is_some(),
                short,
                "{free} of {total}"
            );
        };
        let gib = 1 << 30;
        check(gib, 10 * gib, false);
        check(gib - 1, 10 * gib, true);
        check(6 * gib, 100 * gib, false);
        check(4 * gib, 100 * gib, true);
    }
}
