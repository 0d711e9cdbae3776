//! The socket files in the state directory: their paths, and how to bind and connect them.
//!
//! Must not know which protocol runs over a socket.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// The socket's name in the state directory.
pub const NAME: &str = "control.sock";

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path exists and is not a socket.
    #[error("{} is not a socket; remove it, or choose another state directory", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("cannot create the socket {}: {source}", .path.display())]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A bound socket that is not served yet. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    pub(in crate::api) unix: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Creates `STATE/control.sock` with mode 0600, and replaces the socket of a dead supervisor. The
/// caller holds the state directory's lock, so an existing socket has no owner.
///
/// # Errors
/// [`BindError`].
pub fn bind(state_dir: &Path) -> Result<Listener, BindError> {
    bind_as(state_dir, NAME)
}

/// Like [`bind`], with another file name.
///
/// # Errors
/// [`BindError`].
pub fn bind_as(state_dir: &Path, name: &str) -> Result<Listener, BindError> {
    let path = state_dir.join(name);
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path)),
        Ok(_) => fs::remove_file(&path).map_err(|source| system(&path, source))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(system(&path, source)),
    }
    let dir = open_dir(state_dir).map_err(|source| system(&path, source))?;
    let unix =
        UnixListener::bind(proc_fd_path(&dir, name)).map_err(|source| system(&path, source))?;
    let listener = Listener { unix, path };
    // Until now, the directory's mode 0700 and the check of the peer's uid kept other users out.
    fs::set_permissions(&listener.path, fs::Permissions::from_mode(0o600))
        .map_err(|source| system(&listener.path, source))?;
    Ok(listener)
}

fn system(path: &Path, source: io::Error) -> BindError {
    BindError::System {
        path: path.to_owned(),
        source,
    }
}

/// Connects to the supervisor of a state directory.
///
/// # Errors
/// The system's error: `NotFound` and `ConnectionRefused` mean that no supervisor runs there.
pub async fn connect(state_dir: &Path) -> io::Result<UnixStream> {
    connect_as(state_dir, NAME).await
}

/// Like [`connect`], with another file name.
///
/// # Errors
/// The same errors as [`connect`].
pub async fn connect_as(state_dir: &Path, name: &str) -> io::Result<UnixStream> {
    let dir = open_dir(state_dir)?;
    UnixStream::connect(proc_fd_path(&dir, name)).await
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Returns a short path by way of procfs. A socket address has at most 107 bytes (unix(7)), and the
/// path of a state directory may be longer.
fn proc_fd_path(dir: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}
