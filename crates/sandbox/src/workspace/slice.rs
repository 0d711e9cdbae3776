//! A slice of a workspace: some of its directories and files, and nothing else.
//!
//! Owns the check of each part before the sandbox is planned. Nothing is copied or read below them,
//! so it takes the same time whatever they contain.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::tree::{Kind, Root, TreeError, meta_of};
use crate::Tree;
use crate::open::open_within;
use marshal_model::UntrustedText;
use marshal_wire::shim::MountAccess;

/// Why a slice is not usable.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// A part does not exist.
    #[error("workspace.slice: {} does not exist", .0.escape_for_display(300))]
    Missing(UntrustedText),
    /// A part is a link, or below one.
    #[error("workspace.slice: {} is a link, or below one: use the path of its target", .0.escape_for_display(300))]
    Link(UntrustedText),
    /// A part is a device, fifo or socket.
    #[error("workspace.slice: {} is neither a directory nor a file", .0.escape_for_display(300))]
    Special(UntrustedText),
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// The parts of a slice, each with its path below the workspace.
///
/// # Errors
/// A part does not exist, or cannot be mounted at its own path.
pub fn open(workspace: &Root, parts: &[String]) -> Result<Vec<(Tree, String)>, SliceError> {
    let open = |part: &String| Ok((open_part(workspace, part)?, part.clone()));
    parts.iter().map(open).collect()
}

fn open_part(workspace: &Root, part: &str) -> Result<Tree, SliceError> {
    let named = || UntrustedText::new(part);
    let handle = match open_handle(workspace, Path::new(part)) {
        Ok(handle) => handle,
        Err(Errno::NOENT | Errno::NOTDIR) => return Err(SliceError::Missing(named())),
        Err(Errno::LOOP) => return Err(SliceError::Link(named())),
        Err(errno) => return Err(TreeError::at("open", part.as_bytes(), errno).into()),
    };
    let failed = |error| TreeError::at("examine", part.as_bytes(), error);
    let meta = meta_of(&handle).map_err(failed)?;
    match meta.kind {
        Kind::Dir | Kind::File => {}
        Kind::Link => return Err(SliceError::Link(named())),
        Kind::Other => return Err(SliceError::Special(named())),
    }
    let stat = rustix::fs::fstat(&handle)
        .map_err(|errno| TreeError::at("examine", part.as_bytes(), errno))?;
    Ok(Tree {
        path: PathBuf::from(workspace.path()).join(part),
        owner: (stat.st_uid, stat.st_gid),
        access: MountAccess::Ro,
        // The mount later checks that it is still the same inode.
        identity: Some((stat.st_dev, stat.st_ino)),
    })
}

fn open_handle(workspace: &Root, part: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    open_within(workspace, part, flags, resolve)
}

#[cfg(test)]
mod tests {
    use super::super::testing::scratch;
    use super::*;

    #[test]
    fn parts_are_directories_and_files_and_never_links() {
        let dir = scratch();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/file"), "x").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            dir.path().join("fifo"),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        let root = Root::open(dir.path()).unwrap();
        let open = |part: &str| open(&root, &[part.to_owned()]);
        for part in ["a", "a/b", "a/file"] {
            assert_eq!(open(part).unwrap()[0].1, part);
        }
        assert!(matches!(open("gone"), Err(SliceError::Missing(_))));
        assert!(matches!(open("a/file/x"), Err(SliceError::Missing(_))));
        assert!(matches!(open("link"), Err(SliceError::Link(_))));
        assert!(matches!(open("link/b"), Err(SliceError::Link(_))));
        assert!(matches!(open("fifo"), Err(SliceError::Special(_))));
        assert!(open("../x").is_err());
    }
}
