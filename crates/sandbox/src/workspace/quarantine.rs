//! Takes files that must not stay out of a workspace: they move to `STATE/quarantine/<session>`.
//!
//! The workspace may be changing while it happens: every directory is opened without following a
//! link, and only names move. Must not know why a file must not stay.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::copy::{CopyError, copy_path};
use super::removal::remove_tree;
use super::tree::{Root, TreeError};
use crate::open::open_within;
use crate::state_dir::StateDir;
use marshal_model::SessionId;

/// Why a file is still in its workspace.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// A directory of the workspace, or of the quarantine, cannot be used.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The state directory is on another file system, and the file cannot be copied there.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// A place for the files of one session that are found at one time.
#[derive(Debug)]
pub struct Quarantine {
    root: Root,
}

impl Quarantine {
    /// Creates `STATE/quarantine/<session>/<number>`, with the first free number.
    ///
    /// # Errors
    /// If a directory cannot be created.
    pub fn create(state: &StateDir, session: &SessionId) -> Result<Self, TreeError> {
        let top = state.quarantine();
        let path = top.path().join(session.as_str());
        make_dir(top, OsStr::new(session.as_str()), &path)?;
        let of_session = Root::open_at(top, session.as_str(), path)?;
        for number in 1_u32.. {
            let name = number.to_string();
            let path = of_session.path().join(&name);
            match rustix::fs::mkdirat(&of_session, &*name, PRIVATE) {
                Ok(()) => {
                    let root = Root::open_at(&of_session, &name, path)?;
                    return Ok(Self { root });
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(TreeError::at_path("create", &path, errno)),
            }
        }
        unreachable!("a free number is found before the numbers end")
    }

    /// Its path on the host.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Moves `path` of the workspace, and everything below it, to the same path in here; returns
    /// where it is now. A copy takes its place where the file systems differ.
    ///
    /// # Errors
    /// [`QuarantineError`]; then it is still in the workspace.
    pub fn take(&self, workspace: &Root, path: &[u8]) -> Result<PathBuf, QuarantineError> {
        let relative = Path::new(OsStr::from_bytes(path));
        let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
            return Err(TreeError::at("move", path, Errno::INVAL).into());
        };
        let moved = self.root.path().join(relative);
        let from = open_parent(workspace, parent)
            .map_err(|errno| TreeError::at("open the directory of", path, errno))?;
        let mut here = PathBuf::new();
        for part in parent {
            here.push(part);
            let to = open_parent(&self.root, here.parent().unwrap_or(Path::new("")))
                .map_err(|errno| TreeError::at_path("open", &moved, errno))?;
            make_dir(&to, part, &moved)?;
        }
        let to = open_parent(&self.root, parent)
            .map_err(|errno| TreeError::at_path("open", &moved, errno))?;
        match rustix::fs::renameat_with(&from, name, &to, name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::XDEV) => {
                let copied = copy_path(workspace, &self.root, path)?;
                if copied.special + copied.missing + copied.unreadable > 0 {
                    let why =
                        std::io::Error::other("the copy on another file system is incomplete");
                    return Err(TreeError::at("move", path, why).into());
                }
                let name = name.to_str().ok_or_else(|| {
                    TreeError::at(
                        "remove, because it is copied and not UTF-8,",
                        path,
                        Errno::INVAL,
                    )
                })?;
                remove_tree(&from, name)?;
            }
            Err(errno) => return Err(TreeError::at("move", path, errno).into()),
        }
        Ok(moved)
    }
}

/// Permission bits of a directory for the supervisor alone.
const PRIVATE: Mode = Mode::RWXU;

fn make_dir(dir: impl std::os::fd::AsFd, name: &OsStr, path: &Path) -> Result<(), TreeError> {
    match rustix::fs::mkdirat(dir, name, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(TreeError::at_path("create", path, errno)),
    }
}

fn open_parent(root: &Root, parent: &Path) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let parent = if parent == Path::new("") {
        Path::new(".")
    } else {
        parent
    };
    open_within(root, parent, flags, resolve)
}
