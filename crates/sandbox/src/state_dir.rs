//! The state directory: its path, its owner, and which process uses it.
//!
//! Owns the checks that make its content trustworthy, its subdirectories, and the lock that
//! keeps out a second supervisor. Must not know what others store there.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use marshal_model::{RunId, UntrustedText};

use super::flock::FlockGuard;
use super::workspace::Root;

/// The subdirectories, each with mode 0700.
const HOMES: &str = "homes";
const COPIES: &str = "copies";
const OVERLAYS: &str = "overlays";
const QUARANTINE: &str = "quarantine";
const LAYERS: &str = "layers";
const PROGRAMS: &str = "programs";
const LOCAL: &str = "local";
const LOCK: &str = "lock";

/// Maximum links on the path to the state directory (the kernel's own limit).
const LINKS: usize = 40;

/// Attempts to take the lock, 5 ms apart. A holder that was killed while it forked a child leaves
/// the lock to that child until its exec, and a new holder may not have written its pid yet.
const LOCK_TRIES: usize = 400;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// No environment variable names it.
    #[error("the state directory is not set: set [supervisor] state_dir, or the variable HOME")]
    NoHome,
    /// It is inside a workspace, where an agent could write it.
    #[error(
        "the state directory {} is inside the workspace {}: agents could change it; \
         set [supervisor] state_dir to another place", show(.path), show(.workspace)
    )]
    InsideWorkspace {
        /// The state directory.
        path: PathBuf,
        /// The workspace.
        workspace: PathBuf,
    },
    /// A workspace is inside of it.
    #[error(
        "the workspace {} is inside the state directory {}: agents could see each other's homes; \
         use a directory elsewhere", show(.workspace), show(.path)
    )]
    ContainsWorkspace {
        /// The state directory.
        path: PathBuf,
        /// The workspace.
        workspace: PathBuf,
    },
    /// It, or a directory or link on its path, belongs to another user.
    #[error("{} belongs to uid {uid}, not to root or uid {caller}; {}", show(.path), .role.advice())]
    Foreign {
        /// The path that belongs to another user.
        path: PathBuf,
        /// Its position.
        role: PathRole,
        /// Its owner.
        uid: u32,
        /// The uid of this process.
        caller: u32,
    },
    /// Other users may write it, or a directory on its path.
    #[error("{} is writable by others (mode {mode:04o}); {}", show(.path), .role.advice())]
    WritableByOthers {
        /// The path that others may write.
        path: PathBuf,
        /// Its position.
        role: PathRole,
        /// Its mode bits.
        mode: u32,
    },
    /// Another supervisor uses it.
    #[error(
        "the state directory {} is in use by {}; stop it, or set another state_dir",
        show(.path), holder(*.pid)
    )]
    Locked {
        /// The state directory.
        path: PathBuf,
        /// The pid of that process, if it could be read.
        pid: Option<u32>,
    },
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", show(.path))]
    Io {
        /// The failed operation, as a verb with its object.
        doing: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
}

/// The position of an unsafe path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathRole {
    /// The state directory itself.
    State,
    /// A directory above it.
    Above,
    /// A link on its path.
    Link,
}

impl PathRole {
    const fn advice(self) -> &'static str {
        match self {
            Self::State => "chown and chmod 0700 it, or set another state_dir",
            Self::Above => {
                "its writers could replace the state directory below it: remove their write permission"
            }
            Self::Link => {
                "the owner of that link decides where the state directory is: remove the link"
            }
        }
    }
}

fn show(path: &Path) -> String {
    UntrustedText::new(path.to_string_lossy()).escape_for_display(300)
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("the process {pid}"),
    )
}

/// The state directory of a service: `$STATE_DIRECTORY` (systemd; the first of several). Empty and
/// relative values count as unset.
pub fn service_path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let list = variable("STATE_DIRECTORY")?;
    let first = list.as_bytes().split(|&byte| byte == b':').next()?;
    absolute_path(OsStr::from_bytes(first))
}

/// The directory of a user's state: `$XDG_STATE_HOME/marshal`, else `$HOME/.local/state/marshal`.
/// Empty and relative values count as unset.
pub fn user_path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable_path = |name: &str| absolute_path(&variable(name)?);
    variable_path("XDG_STATE_HOME")
        .map(|state| state.join("marshal"))
        .or_else(|| variable_path("HOME").map(|home| home.join(".local/state/marshal")))
}

fn absolute_path(value: &OsStr) -> Option<PathBuf> {
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

/// Whether a process uses the state directory now.
#[must_use]
pub fn is_locked(state: &Path) -> bool {
    // A shared lock, and only for a moment: a supervisor that starts meanwhile tries again.
    std::fs::File::open(state.join(LOCK)).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

/// A state directory, locked by this process until this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    root: Root,
    homes: Root,
    copies: Root,
    overlays: Root,
    quarantine: Root,
    layers: Root,
    programs: PathBuf,
    _lock: FlockGuard<OwnedFd>,
}

impl StateDir {
    /// Creates it if necessary, checks its owners and modes, and takes its lock.
    ///
    /// `path` is absolute; `workspaces` are the pools' directories.
    ///
    /// # Errors
    /// Every variant of [`StateError`] except [`StateError::NoHome`].
    pub fn open(path: &Path, workspaces: &[PathBuf]) -> Result<Self, StateError> {
        let (path, dir) = resolve_and_create(path)?;
        for workspace in workspaces {
            refuse_inside(&path, workspace)?;
        }
        let programs = path.join(PROGRAMS);
        Self::lock_and_open(path, programs, &dir)
    }

    /// Opens `STATE/local/<run>` of a state directory that another process may use: for `--local`.
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub fn open_local(
        path: &Path,
        run: &RunId,
        workspaces: &[PathBuf],
    ) -> Result<Self, StateError> {
        let (path, dir) = resolve_and_create(path)?;
        for workspace in workspaces {
            refuse_inside(&path, workspace)?;
        }
        let local = path.join(LOCAL);
        let programs = path.join(PROGRAMS);
        let dir = subdirectory(&dir, LOCAL, &local)?;
        let path = local.join(run.as_str());
        let dir = subdirectory(&dir, run.as_str(), &path)?;
        Self::lock_and_open(path, programs, &dir)
    }

    fn lock_and_open(path: PathBuf, programs: PathBuf, dir: &OwnedFd) -> Result<Self, StateError> {
        let lock = lock(dir, &path)?;
        let sub = |name: &str| {
            let below = path.join(name);
            subdirectory(dir, name, &below)?;
            root_at(dir, name, &below)
        };
        let (homes, copies, overlays) = (sub(HOMES)?, sub(COPIES)?, sub(OVERLAYS)?);
        let quarantine = sub(QUARANTINE)?;
        let layers = sub(LAYERS)?;
        subdirectory(dir, LOCAL, &path.join(LOCAL))?;
        Ok(Self {
            root: root_at(dir, ".", &path)?,
            homes,
            copies,
            overlays,
            quarantine,
            layers,
            programs,
            path,
            _lock: FlockGuard::from_locked(lock),
        })
    }

    /// Its path, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The directory `STATE/homes`.
    #[must_use]
    pub fn homes(&self) -> &Root {
        &self.homes
    }

    /// The directory `STATE/copies`.
    #[must_use]
    pub fn copies(&self) -> &Root {
        &self.copies
    }

    /// The directory `STATE/overlays`.
    #[must_use]
    pub fn overlays(&self) -> &Root {
        &self.overlays
    }

    /// The directory `STATE/quarantine`.
    #[must_use]
    pub fn quarantine(&self) -> &Root {
        &self.quarantine
    }

    /// The directory `STATE/layers`.
    #[must_use]
    pub fn layers(&self) -> &Root {
        &self.layers
    }

    /// The directory of the records of agents' programs, which local runs share. It may be missing.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Refuses a workspace that contains, equals or is inside this state directory.
    ///
    /// # Errors
    /// [`StateError::InsideWorkspace`], [`StateError::ContainsWorkspace`]; [`StateError::Io`] if the workspace cannot be examined.
    pub fn check_workspace(&self, workspace: &Path) -> Result<(), StateError> {
        refuse_inside(&self.path, workspace)?;
        // In the other direction, an agent would see the homes and copies of other sessions.
        match refuse_inside(workspace, &self.path) {
            Err(StateError::InsideWorkspace { .. }) => Err(StateError::ContainsWorkspace {
                path: self.path.clone(),
                workspace: workspace.to_owned(),
            }),
            other => other,
        }
    }
}

/// `STATE/overlays` of a state directory that another process may use, and those of its `--local`
/// runs; empty if the state directory does not exist.
///
/// # Errors
/// As [`StateDir::open`], except for those about workspaces and the lock.
pub fn list_overlay_roots(path: &Path) -> Result<Vec<Root>, StateError> {
    if path.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    let (path, dir) = resolve_and_create(path)?;
    let mut roots = Vec::new();
    let mut add = |dir: &OwnedFd, path: &Path| -> Result<(), StateError> {
        let below = path.join(OVERLAYS);
        match open_private(dir, OsStr::new(OVERLAYS), &below) {
            Ok(_) => roots.push(root_at(dir, OVERLAYS, &below)?),
            Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    };
    add(&dir, &path)?;
    let local = path.join(LOCAL);
    let runs = match std::fs::read_dir(&local) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(roots),
        runs => runs.map_err(io_error("list", &local))?,
    };
    for run in runs {
        let at = run.map_err(io_error("list", &local))?.path();
        let dir = open_private(rustix::fs::CWD, at.as_os_str(), &at)?;
        add(&dir, &at)?;
    }
    Ok(roots)
}

/// The directories of `--local` runs that no process uses, with the time of their last start.
pub(super) fn unlocked_local_runs(
    state: &StateDir,
) -> Result<Vec<(String, std::time::SystemTime)>, StateError> {
    let local = state.path.join(LOCAL);
    let mut free = Vec::new();
    for entry in std::fs::read_dir(&local).map_err(io_error("list", &local))? {
        let entry = entry.map_err(io_error("list", &local))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let lock = entry.path().join(LOCK);
        let Ok(file) = std::fs::File::open(&lock) else {
            continue;
        };
        let time = file.metadata().and_then(|meta| meta.modified());
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && let Ok(time) = time
        {
            free.push((name, time));
        }
    }
    Ok(free)
}

fn io_error(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io {
        doing,
        path: path.clone(),
        source,
    }
}

fn root_at(dir: &OwnedFd, name: &str, path: &Path) -> Result<Root, StateError> {
    let doing = "open";
    Root::open_at(dir, name, path.to_owned()).map_err(|error| io_error(doing, path)(error.source))
}

/// Walks to the state directory one component at a time and creates what is missing; returns its
/// path without links, and its descriptor.
fn resolve_and_create(path: &Path) -> Result<(PathBuf, OwnedFd), StateError> {
    let caller = rustix::process::geteuid().as_raw();
    let mut left: VecDeque<OsString> = path.components().filter_map(component_name).collect();
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let meta = match std::fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&next).map_err(io_error("create the directory", &next))?;
                std::fs::symlink_metadata(&next)
            }
            found => found,
        }
        .map_err(io_error("examine", &next))?;
        let role = match (meta.is_symlink(), left.is_empty()) {
            (true, _) => PathRole::Link,
            (false, true) => PathRole::State,
            (false, false) => PathRole::Above,
        };
        check_owner(&next, role, meta.uid(), caller)?;
        if role == PathRole::Link {
            links += 1;
            let target = std::fs::read_link(&next).map_err(io_error("read the link", &next))?;
            if links > LINKS {
                return Err(io_error("follow", &next)(Errno::LOOP.into()));
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            let parts: Vec<_> = target.components().filter_map(component_name).collect();
            for part in parts.into_iter().rev() {
                left.push_front(part);
            }
            continue;
        }
        if role == PathRole::Above {
            check_mode(&next, role, meta.mode())?;
        }
        at = next;
    }
    let dir = open_private(rustix::fs::CWD, at.as_os_str(), &at)?;
    Ok((at, dir))
}

fn component_name(component: Component<'_>) -> Option<OsString> {
    match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }
}

fn make(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

fn check_owner(path: &Path, role: PathRole, uid: u32, caller: u32) -> Result<(), StateError> {
    // Root may replace anything anyway, so its parents are safe; but a state directory of root is
    // not ours.
    if uid == caller || (uid == 0 && role != PathRole::State) {
        return Ok(());
    }
    Err(StateError::Foreign {
        path: path.to_owned(),
        role,
        uid,
        caller,
    })
}

/// Above the state directory, the group may have write permission, because many systems give every
/// user a group of their own. In a sticky directory (`/tmp`) only the owner of an entry can replace
/// it.
fn check_mode(path: &Path, role: PathRole, mode: u32) -> Result<(), StateError> {
    let bad = match role {
        PathRole::State => mode & 0o022 != 0,
        PathRole::Above | PathRole::Link => mode & 0o002 != 0 && mode & 0o1000 == 0,
    };
    if !bad {
        return Ok(());
    }
    Err(StateError::WritableByOthers {
        path: path.to_owned(),
        role,
        mode: mode & 0o7777,
    })
}

/// Opens a directory that must be ours alone, and sets mode 0700 if it is merely readable by
/// others.
fn open_private(at: impl AsFd, name: &OsStr, path: &Path) -> Result<OwnedFd, StateError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(at, name, flags, Mode::empty())
        .map_err(|errno| io_error("open", path)(errno.into()))?;
    let meta = rustix::fs::fstat(&dir).map_err(|errno| io_error("examine", path)(errno.into()))?;
    let caller = rustix::process::geteuid().as_raw();
    check_owner(path, PathRole::State, meta.st_uid, caller)?;
    check_mode(path, PathRole::State, meta.st_mode)?;
    if meta.st_mode & 0o7777 != 0o700 {
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o700))
            .map_err(|errno| io_error("chmod", path)(errno.into()))?;
    }
    Ok(dir)
}

fn subdirectory(dir: &OwnedFd, name: &str, path: &Path) -> Result<OwnedFd, StateError> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => open_private(dir, OsStr::new(name), path),
        Err(errno) => Err(io_error("create the directory", path)(errno.into())),
    }
}

/// Compares device and inode of every parent, so that neither a link nor a bind mount hides that
/// one is inside the other.
fn refuse_inside(path: &Path, workspace: &Path) -> Result<(), StateError> {
    let id = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    let of_workspace = match std::fs::metadata(workspace) {
        Ok(meta) => id(&meta),
        // A missing directory contains nothing; using it reports its own error.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("examine", workspace)(error)),
    };
    for above in path.ancestors() {
        let meta = std::fs::metadata(above).map_err(io_error("examine", above))?;
        if id(&meta) == of_workspace {
            return Err(StateError::InsideWorkspace {
                path: path.to_owned(),
                workspace: workspace.to_owned(),
            });
        }
    }
    Ok(())
}

fn lock(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, StateError> {
    let at = path.join(LOCK);
    let error = |doing| move |errno: Errno| (doing, io::Error::from(errno));
    let failed = |(doing, source)| io_error(doing, &at)(source);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::openat(dir, LOCK, flags, Mode::from_raw_mode(0o600))
        .map_err(error("open"))
        .map_err(failed)?;
    let mut tries = 0;
    while let Err(errno) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if errno != Errno::WOULDBLOCK {
            return Err(failed(error("lock")(errno)));
        }
        let pid = pid_of_holder(lock.as_fd());
        tries += 1;
        if pid.is_some() || tries == LOCK_TRIES {
            return Err(StateError::Locked {
                path: path.to_owned(),
                pid,
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = format!("{}\n", std::process::id());
    rustix::fs::ftruncate(&lock, 0)
        .and_then(|()| rustix::io::pwrite(&lock, pid.as_bytes(), 0))
        .map_err(error("write"))
        .map_err(failed)?;
    Ok(lock)
}

/// The pid in a lock file, if that process is alive.
fn pid_of_holder(lock: BorrowedFd<'_>) -> Option<u32> {
    let mut text = [0_u8; 16];
    let length = rustix::io::pread(lock, &mut text[..], 0).unwrap_or(0);
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let pid = text.trim_end().parse().ok()?;
    Path::new(&format!("/proc/{pid}")).exists().then_some(pid)
}

#[cfg(test)]
mod tests;
