//! The files of sockets in the state directory: where they are, how they are made and reached.
//!
//! Must not know what is said over it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// The socket's name in the state directory.
pub const NAME: &str = "control.sock";

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else has its name.
    #[error("{} is no socket; remove it, or choose another state directory", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot make the socket {}: {source}", .path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A socket that nobody serves yet. Its file is removed when this is dropped.
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

/// Makes `STATE/control.sock`, 0600, in place of what a dead supervisor left. The caller holds the
/// state directory's lock, so that a socket found there belongs to nobody.
///
/// # Errors
/// [`BindError`].
pub fn bind(state_dir: &Path) -> Result<Listener, BindError> {
    bind_as(state_dir, NAME)
}

/// As [`bind_mount_option`], with another name.
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
    // Until here the directory's 0700 and the check of the peer's uid keep others out.
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
/// What the system said: `NotFound` and `ConnectionRefused` mean that no supervisor is there.
pub async fn connect(state_dir: &Path) -> io::Result<UnixStream> {
    connect_as(state_dir, NAME).await
}

/// As [`connect`], to the socket of another name.
///
/// # Errors
/// As [`connect`].
pub async fn connect_as(state_dir: &Path, name: &str) -> io::Result<UnixStream> {
    let dir = open_dir(state_dir)?;
    UnixStream::connect(proc_fd_path(&dir, name)).await
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A socket's address has room for 107 bytes (unix(7)), and a state directory's path may be
/// longer: the open directory's name in procfs is not.
fn proc_fd_path(dir: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}
