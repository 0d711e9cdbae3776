//! The file of a child's socket: where it is, and how it is made.
//!
//! Must not know what is said over it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;

/// A socket that nobody serves yet. Its file is removed when this, or what serves it, is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: StdListener,
    file: SocketFile,
}

/// The file of a socket.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Socket {
    /// Makes the socket in place of what an earlier child left. Its directory is made, for our own
    /// uid alone: what is in it is seen only where it is mounted.
    ///
    /// # Errors
    /// What the system says.
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
        let held: OwnedFd = rustix::fs::open(dir, flags, Mode::empty())?;
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // A socket's address has room for 107 bytes (unix(7)); the open directory's name in procfs
        // fits.
        let through = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())).join(name);
        let listener = StdListener::bind(&through)?;
        let file = SocketFile(path.to_owned());
        // Who is inside has another uid than we have. The directory, and the look at the peer's uid,
        // keep others out.
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, file })
    }

    /// The socket for a runtime, and its file.
    pub(super) fn take(self) -> io::Result<(UnixListener, SocketFile)> {
        Ok((UnixListener::from_std(self.listener)?, self.file))
    }
}
