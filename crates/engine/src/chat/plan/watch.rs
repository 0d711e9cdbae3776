//! Detects possible changes of a plan's file by a kernel watch on its directory.
//!
//! Without a kernel watch, the file is only checked at the ends of turns. Must not read the file.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Kernel events that mean a changed entry.
const CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// The size of the buffer for kernel events, in bytes.
const NOTICE_BYTES: usize = 4096;

/// A watch of one file.
#[derive(Debug)]
pub(super) struct Watch {
    dir: PathBuf,
    name: OsString,
    fd: Option<AsyncFd<OwnedFd>>,
}

impl Watch {
    /// Watches the file at a path. If its directory does not exist yet, nothing is reported before
    /// [`Watch::renew`].
    pub(super) fn new(path: &Path) -> Self {
        let name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
        let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
        let mut watch = Self {
            dir,
            name,
            fd: None,
        };
        watch.renew();
        watch
    }

    /// Tries again if nothing is watched. Returns whether a watch was added: changes before it were
    /// missed.
    pub(super) fn renew(&mut self) -> bool {
        if self.fd.is_some() {
            return false;
        }
        let open = || {
            let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            inotify::add_watch(&fd, &self.dir, CHANGES)?;
            #[expect(
                deprecated,
                reason = "what takes its place is unsafe; an owned descriptor stays the same until it is dropped"
            )]
            AsyncFd::new(fd)
        };
        let open: std::io::Result<_> = open();
        match open {
            Ok(fd) => self.fd = Some(fd),
            Err(error) => {
                tracing::debug!(dir = %self.dir.display(), %error, "the directory of a plan cannot be watched");
            }
        }
        self.fd.is_some()
    }

    /// Waits until the file may have changed. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(fd) = &self.fd else {
                return std::future::pending().await;
            };
            let Ok(mut ready) = fd.readable().await else {
                self.fd = None;
                continue;
            };
            let mut buffer = [MaybeUninit::uninit(); NOTICE_BYTES];
            let mut reader = inotify::Reader::new(fd.get_ref(), &mut buffer);
            let (mut is_it, mut is_gone) = (false, false);
            loop {
                match reader.next() {
                    Ok(event) => match event.file_name() {
                        Some(name) => is_it |= name.to_bytes() == self.name.as_bytes(),
                        // An event of the directory itself, or an overflow of the queue.
                        None => is_gone = true,
                    },
                    Err(error) => {
                        if error == rustix::io::Errno::AGAIN {
                            ready.clear_ready();
                        }
                        break;
                    }
                }
            }
            drop(ready);
            if is_gone {
                self.fd = None;
            }
            if is_it || is_gone {
                return;
            }
        }
    }
}
