//! Measures the home and copy of one session against their limits. Must not know when that is
//! requested.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::prepare::{PreparedSession, SessionDirs};
use crate::messages::{SessionMsg, SessionRef};
use crate::setup::PoolShared;
use marshal_model::limits::{COPY_BYTES, COPY_FILES};
use marshal_sandbox::workspace::{Root, Size, measure};

/// An amount on a disk: used, free, or grown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl DiskSpace {
    fn from_size(size: &Size) -> Self {
        Self {
            bytes: size.bytes,
            files: size.files,
        }
    }

    /// The difference to `other`, at least zero.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }

    pub(crate) fn min_each(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
        }
    }
}

/// One directory with its limit.
#[derive(Debug)]
struct DirectoryLimit<'a> {
    what: &'static str,
    path: Cow<'a, Path>,
    /// Further directories that count as part of it.
    beside: &'a [PathBuf],
    max: DiskSpace,
}

impl DirectoryLimit<'_> {
    /// Its size; `None` if it cannot be measured completely now.
    fn size(&self) -> Option<Size> {
        let mut sum = measure(&Root::open(&self.path).ok()?).ok()?;
        for path in self.beside {
            let more = measure(&Root::open(path).ok()?).ok()?;
            sum = Size {
                bytes: sum.bytes.saturating_add(more.bytes),
                files: sum.files.saturating_add(more.files),
                unreadable: sum.unreadable.saturating_add(more.unreadable),
                incomplete: sum.incomplete.or(more.incomplete),
            };
        }
        Some(sum)
    }

    /// Describes how the limit is exceeded; `None` if it is not.
    fn describe_excess(&self, size: &Size) -> Option<String> {
        let Self { what, max, .. } = self;
        if size.bytes > max.bytes {
            return Some(format!(
                "the {what} has {} bytes, more than its limit of {}",
                size.bytes, max.bytes
            ));
        }
        (size.files > max.files).then(|| {
            format!(
                "the {what} has {} files, more than its limit of {}",
                size.files, max.files
            )
        })
    }
}

/// The result of one measurement.
#[derive(Debug, Default)]
pub(crate) struct Measurement {
    /// A description of the limit that is exceeded.
    pub(crate) exceeded: Option<String>,
    /// The size of home and copy together, and the smallest amount left until a limit. `None` if
    /// not everything could be measured.
    pub(crate) sizes: Option<(DiskSpace, DiskSpace)>,
}

/// Who is notified that a limit is exceeded.
#[derive(Debug)]
pub(crate) enum ExcessReceiver {
    /// An agent's session.
    Session(SessionRef),
    /// A program that works in a clone of its own; there is place for one message.
    Program(mpsc::Sender<String>),
}

/// A session whose home and copy are measured, until this is dropped.
#[derive(Debug)]
pub(crate) struct MeasuredSession {
    space: Arc<SessionDirs>,
    /// The limit of the home, in bytes.
    home_bytes: u64,
    to: ExcessReceiver,
    /// The child was active since the last measurement.
    is_active: AtomicBool,
}

impl MeasuredSession {
    pub(crate) fn new(prepared: &PreparedSession, pool: &PoolShared, to: ExcessReceiver) -> Self {
        Self {
            space: Arc::clone(prepared.dirs()),
            home_bytes: pool.sandbox.home_bytes,
            to,
            is_active: AtomicBool::new(true),
        }
    }

    /// Records that the child was active.
    pub(crate) fn mark_active(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// The home with what was written in caches, and the copy or overlay if there is one. A copy
    /// may grow to twice its maximum size at the start. A directory of the user's own is not
    /// measured.
    fn limits(&self) -> impl Iterator<Item = DirectoryLimit<'_>> {
        let home = DirectoryLimit {
            what: "home",
            path: self.space.home().into(),
            beside: &self.space.written,
            max: DiskSpace {
                bytes: self.home_bytes,
                files: u64::MAX,
            },
        };
        let copy = self.space.copy().map(|path| DirectoryLimit {
            what: "copy",
            path: path.into(),
            beside: &[],
            max: DiskSpace {
                bytes: 2 * COPY_BYTES,
                files: 2 * COPY_FILES,
            },
        });
        let overlay = self.space.overlay.as_ref().map(|overlay| DirectoryLimit {
            what: "overlay",
            // The kernel keeps a work directory beside it that nobody may enter.
            path: overlay.upper_path().into(),
            beside: &[],
            max: DiskSpace {
                bytes: 2 * COPY_BYTES,
                files: 2 * COPY_FILES,
            },
        });
        std::iter::once(home).chain(copy).chain(overlay)
    }

    /// Whether the child was active since the last call.
    pub(crate) fn take_active(&self) -> bool {
        self.is_active.swap(false, Ordering::Relaxed)
    }

    /// Notifies the session that a limit is exceeded.
    pub(crate) fn notify_limit_exceeded(&self, why: String) {
        // Whoever is gone needs no notice.
        match &self.to {
            ExcessReceiver::Session(to) => {
                let _ = to.send_message(SessionMsg::DiskLimitExceeded(why));
            }
            ExcessReceiver::Program(to) => drop(to.try_send(why)),
        }
    }

    /// Measures all directories. Blocks.
    pub(crate) fn measure(&self) -> Measurement {
        let mut measurement = Measurement::default();
        let mut sum = Some(DiskSpace::default());
        let mut left = DiskSpace {
            bytes: u64::MAX,
            files: u64::MAX,
        };
        for limit in self.limits() {
            let Some(size) = limit.size() else {
                sum = None;
                continue;
            };
            measurement.exceeded = measurement
                .exceeded
                .or_else(|| limit.describe_excess(&size));
            // A part that could not be read may be growing.
            let is_whole = size.incomplete.is_none() && size.unreadable == 0;
            sum = sum
                .filter(|_| is_whole)
                .map(|sum| sum.plus(DiskSpace::from_size(&size)));
            left = left.min_each(limit.max.minus(DiskSpace::from_size(&size)));
        }
        measurement.sizes = sum.map(|sum| (sum, left));
        measurement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_it_may_be_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("a"), vec![b'x'; 10_000]).expect("a file");
        let of = |bytes, files| {
            let limit = DirectoryLimit {
                what: "home",
                path: dir.path().into(),
                beside: &[],
                max: DiskSpace { bytes, files },
            };
            limit.describe_excess(&limit.size().expect("a size"))
        };
        assert_eq!(of(1 << 20, 100), None);
        assert!(of(5_000, 100).is_some_and(|why| why.contains("home has")));
        assert!(of(1 << 20, 0).is_some_and(|why| why.contains("files")));
        let empty = tempfile::tempdir().expect("a directory");
        let beside = [dir.path().to_owned()];
        let limit = DirectoryLimit {
            what: "home",
            path: empty.path().into(),
            beside: &beside,
            max: DiskSpace::default(),
        };
        assert!(limit.size().is_some_and(|size| size.bytes >= 10_000));
    }
}
