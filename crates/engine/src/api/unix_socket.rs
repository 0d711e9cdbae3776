//! The socket files in the state directory: their paths, and how to bind and connect them.
//!
//! Must not know which protocol runs over a socket.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use marshal_model::untrusted::escape_for_display;
use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// Clients that may wait to be accepted on a socket that was passed; tokio's own sockets have as many.
const PASSED_BACKLOG: i32 = 1024;

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path exists and is not a socket.
    #[error("{} is not a socket; remove it, or choose another state directory", .0.display())]
    NotASocket(PathBuf),
    /// A socket that was passed is bound elsewhere.
    #[error("the socket that the service manager passes is bound to {found}, and commands look for {}; make it the ListenStream= of the socket unit", .path.display())]
    Elsewhere {
        /// Where it is bound.
        found: String,
        /// Where commands look.
        path: PathBuf,
    },
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

/// A bound socket that is not served yet. Its file is removed when this is dropped, unless somebody
/// else goes on to listen there.
#[derive(Debug)]
pub struct Listener {
    pub(in crate::api) unix: UnixListener,
    path: Option<PathBuf>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Creates the socket `name` in a state directory with mode 0600, and replaces that of a dead
/// supervisor. The caller holds the state directory's lock, so an existing socket has no owner.
///
/// # Errors
/// [`BindError`].
pub fn bind(state_dir: &Path, name: &str) -> Result<Listener, BindError> {
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
    let listener = Listener {
        unix,
        path: Some(path.clone()),
    };
    // Until now, the directory's mode 0700 and the check of the peer's uid kept other users out.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        .map_err(|source| system(&path, source))?;
    Ok(listener)
}

/// Uses a socket that a service manager bound to the path of the socket `name` in a state directory,
/// and goes on to listen on. Must be called inside a runtime.
///
/// # Errors
/// [`BindError`].
pub fn adopt(unix: StdListener, state_dir: &Path, name: &str) -> Result<Listener, BindError> {
    let path = state_dir.join(name);
    let bound = unix.local_addr().map_err(|source| system(&path, source))?;
    let bound = bound.as_pathname().map(Path::to_owned);
    let real = |path: &Path| fs::canonicalize(path).ok();
    if bound
        .as_deref()
        .and_then(real)
        .is_none_or(|bound| real(&path) != Some(bound))
    {
        let found = bound.map_or("no path".to_owned(), |bound| {
            escape_for_display(&bound.to_string_lossy(), 200)
        });
        return Err(BindError::Elsewhere { found, path });
    }
    let used = || -> io::Result<UnixListener> {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        // The kernel tells clients who called listen(2) last, and they wait for that process to end.
        rustix::net::listen(&unix, PASSED_BACKLOG)?;
        unix.set_nonblocking(true)?;
        UnixListener::from_std(unix)
    };
    let unix = used().map_err(|source| system(&path, source))?;
    Ok(Listener { unix, path: None })
}

fn system(path: &Path, source: io::Error) -> BindError {
    BindError::System {
        path: path.to_owned(),
        source,
    }
}

/// Connects to the socket `name` in a state directory.
///
/// # Errors
/// The system's error: `NotFound` and `ConnectionRefused` mean that no supervisor runs there.
pub async fn connect(state_dir: &Path, name: &str) -> io::Result<UnixStream> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "s.sock";

    #[tokio::test]
    async fn a_socket_is_for_its_owner_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join(NAME);
        let listener = bind(dir.path(), NAME).expect("bound");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        let gone = connect(dir.path(), NAME).await.expect_err("gone");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn what_a_dead_supervisor_left_is_replaced_and_nothing_else_is() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join(NAME);
        drop(std::os::unix::net::UnixListener::bind(&path).expect("stale"));
        let refused = connect(dir.path(), NAME).await.expect_err("nobody there");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(bind(dir.path(), NAME).expect("replaced"));
        fs::write(&path, "precious").expect("written");
        let refused = bind(dir.path(), NAME);
        assert!(matches!(refused, Err(BindError::NotASocket(_))));
        assert_eq!(fs::read(&path).expect("still there"), b"precious");
    }

    #[tokio::test]
    async fn a_long_state_directory_has_a_socket_too() {
        let dir = tempfile::tempdir().expect("directory");
        let long = dir.path().join("x".repeat(120)).join("y".repeat(120));
        fs::create_dir_all(&long).expect("made");
        let listener = bind(&long, NAME).expect("bound");
        let (near, far) = tokio::join!(connect(&long, NAME), listener.unix.accept());
        assert!(near.is_ok() && far.is_ok());
    }
}
