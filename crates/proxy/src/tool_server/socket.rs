//! The file of a child's socket: its path and its creation.
//!
//! Must not know the protocol on it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;

/// A bound socket that is not served yet. Its file is removed when this, or its server, is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: StdListener,
    file: SocketFile,
}

/// A socket's file; removed on drop.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Socket {
    /// Creates the socket, replacing a file that an earlier child left. Creates its directory for
    /// our own uid only: a sandbox sees the file only because it is mounted there.
    ///
    /// # Errors
    /// The system error.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle: OwnedFd = rustix::fs::open(dir, flags, Mode::empty())?;
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // A socket address holds 107 bytes (unix(7)); the path through procfs of the open directory
        // is short enough.
        let through = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd())).join(name);
        let listener = StdListener::bind(&through)?;
        let file = SocketFile(path.to_owned());
        // The process inside has another uid than this one. The directory, and the check of the
        // peer's uid, keep others out.
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, file })
    }

    /// Converts it for a runtime, and returns its file.
    pub(super) fn take(self) -> io::Result<(UnixListener, SocketFile)> {
        Ok((UnixListener::from_std(self.listener)?, self.file))
    }
}
