//! Watches directories for new and removed entries (inotify).
//!
//! Reports only that something changed; the reader then lists the directory. Network file systems
//! report no changes by other hosts, so callers must also poll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::disk::Area;

/// The size of the buffer for kernel events, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Events that announce a new entry. A half-written file causes another event when it is closed.
const ENTRY_CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Removals matter too: removing an order's file ends the order.
const ENTRY_REMOVALS: WatchFlags = WatchFlags::DELETE.union(WatchFlags::MOVED_FROM);

/// A watch of several directories.
#[derive(Debug)]
pub(super) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Watches these directories. The paths name this process's own descriptors, so that a replaced
    /// directory is not watched by mistake.
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

    /// Waits until something changed. Cancel-safe: the events themselves are discarded.
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

/// Reads and discards all pending events; returns whether there were any.
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
