//! Hears from the kernel that something came into a directory, or went.
//!
//! Only that something happened is of interest: what, is looked at anew each time. Network file
//! systems tell nothing of what other hosts do, so nobody may rely on this alone.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::disk::Area;

/// Bytes of what the kernel told that are read at once.
const READ_BYTES: usize = 16 << 10;

/// What says that there is something to look at. A half-written file tells again when it is closed.
const ENTRY_CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The end of an order counts as well.
const ENTRY_REMOVALS: WatchFlags = WatchFlags::DELETE.union(WatchFlags::MOVED_FROM);

/// Directories that are watched.
#[derive(Debug)]
pub(super) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Watches these directories, by paths of this process's own descriptors.
    pub(super) fn open(dirs: &[(Area, String)]) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        for (area, path) in dirs {
            let flags = match area {
                Area::Ctl => ENTRY_CHANGES | ENTRY_REMOVALS,
                _ => ENTRY_CHANGES,
            };
            inotify::add_watch(&fd, path, flags)?;
        }
        #[expect(
            deprecated,
            reason = "what takes its place is unsafe; an owned descriptor stays the same until it is dropped"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self(fd))
    }

    /// Waits until something happened. Cancel-safe: what was read is of no interest.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            if drain(self.0.get_ref())? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

/// Reads what is there; whether anything was.
fn drain(fd: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    let mut is_any = false;
    loop {
        match reader.next() {
            Ok(_) => is_any = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(is_any),
            Err(errno) => return Err(errno.into()),
        }
        if is_any && reader.is_buffer_empty() {
            return Ok(true);
        }
    }
}
