//! Changes in the directories of a session, as inotify reports them. A network file system does not
//! report changes of other machines, so the caller also scans from time to time.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::dir::{SessionDir, Subdirectory};

/// The size of the buffer for inotify events, in bytes.
const BUFFER: usize = 16 << 10;
/// The maximum number of changes that are returned together; the kernel keeps the rest.
const MAX_CHANGES: usize = 4096;

/// The watched directories.
#[derive(Debug)]
pub(super) struct Watch {
    fd: Option<OwnedFd>,
    parts: Vec<(i32, Subdirectory)>,
}

/// A change in a watched directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DirChange {
    /// A file was created, moved in or written.
    File(Subdirectory, String),
    /// The kernel dropped events: everything must be scanned.
    Overflow,
}

impl Watch {
    /// Watches some of the directories. A directory that cannot be watched is only scanned.
    /// `growing`: also report files while they are being written.
    pub(super) fn new(dir: &SessionDir, parts: &[Subdirectory], growing: bool) -> Self {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        let mut what = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
        what.set(WatchFlags::MODIFY, growing);
        let watched = |part: &Subdirectory| {
            let wd = inotify::add_watch(fd.as_ref()?, dir.proc_path(*part), what).ok()?;
            Some((wd, *part))
        };
        Self {
            parts: parts.iter().filter_map(watched).collect(),
            fd,
        }
    }

    /// A descriptor that becomes readable after a change.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The changes since the last call.
    pub(super) fn take_changes(&self) -> Vec<DirChange> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut all = Vec::new();
        let Some(fd) = &self.fd else {
            return all;
        };
        let mut reader = inotify::Reader::new(fd, &mut buffer);
        while all.len() < MAX_CHANGES || !reader.is_buffer_empty() {
            let Ok(event) = reader.next() else {
                break;
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                all.push(DirChange::Overflow);
                continue;
            }
            let part = self.parts.iter().find(|(wd, _)| *wd == event.wd());
            let name = event.file_name().and_then(|name| name.to_str().ok());
            if let (Some((_, part)), Some(name)) = (part, name)
                && !name.starts_with('.')
            {
                let happened = DirChange::File(*part, name.to_owned());
                if all.last() != Some(&happened) {
                    all.push(happened);
                }
            }
        }
        all
    }
}
