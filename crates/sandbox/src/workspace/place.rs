//! The places of further directories in a session's own tree, in which no process works yet.
//!
//! No path through a link is followed, and nothing that is there is replaced: what an agent then sees at
//! a place is the further directory and nothing else. Must not know what is put there.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno;

use super::Owner;
use super::tree::{Root, TreeError, open_dir_at};

/// Why there is no place for a further directory.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Something is there.
    #[error(
        "the workspace has {0:?} itself, or a file or a link on the way to it: choose another `at` in workspace.repos"
    )]
    Taken(String),
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Makes an empty directory at `at`, and those above it.
///
/// # Errors
/// [`PlaceError`]
pub fn make(tree: &Root, at: &str, owner: Option<Owner>) -> Result<Root, PlaceError> {
    let (parent, name) = make_parent(tree, at, owner)?;
    make_dir(&parent, &name, at, owner)?.ok_or(PlaceError::Taken(at.to_owned()))?;
    let last = at.rsplit('/').next().unwrap_or(at);
    Ok(Root::open_at(&parent, last, tree.path().join(at))?)
}

/// Moves the directory `name` of `from` to `at`.
///
/// # Errors
/// [`PlaceError`]
pub fn move_to(
    (from, name): (&Root, &str),
    tree: &Root,
    at: &str,
    owner: Option<Owner>,
) -> Result<(), PlaceError> {
    let (parent, last) = make_parent(tree, at, owner)?;
    match rustix::fs::renameat_with(from, name, &parent, &*last, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST | Errno::NOTEMPTY) => Err(PlaceError::Taken(at.to_owned())),
        Err(errno) => Err(failed(at, errno)),
    }
}

/// The directory above `at`, which is made if it is missing, and the last name.
fn make_parent(
    tree: &Root,
    at: &str,
    owner: Option<Owner>,
) -> Result<(OwnedFd, CString), PlaceError> {
    let io_failed = |error| PlaceError::Tree(TreeError::at("open", at.as_bytes(), error));
    let mut dir = open_dir_at(tree, c".").map_err(io_failed)?;
    let mut names = at.split('/').peekable();
    while let Some(name) = names.next() {
        let name = CString::new(name).map_err(|_| PlaceError::Taken(at.to_owned()))?;
        if names.peek().is_none() {
            return Ok((dir, name));
        }
        dir = match make_dir(&dir, &name, at, owner)? {
            Some(made) => made,
            None => {
                open_dir_at(&dir, &name).map_err(|error| match Errno::from_io_error(&error) {
                    Some(Errno::NOTDIR | Errno::LOOP) => PlaceError::Taken(at.to_owned()),
                    _ => io_failed(error),
                })?
            }
        };
    }
    Err(PlaceError::Taken(at.to_owned()))
}

/// Makes a directory; `None` if something is there.
fn make_dir(
    parent: &OwnedFd,
    name: &CString,
    at: &str,
    owner: Option<Owner>,
) -> Result<Option<OwnedFd>, PlaceError> {
    let mode = Mode::from_raw_mode(0o755);
    match rustix::fs::mkdirat(parent, &**name, mode) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(None),
        Err(errno) => return Err(failed(at, errno)),
    }
    let dir =
        open_dir_at(parent, name).map_err(|error| TreeError::at("open", at.as_bytes(), error))?;
    let own = || {
        rustix::fs::fchmod(&dir, mode)?;
        if let Some(Owner { uid, gid }) = owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::fchown(dir.as_fd(), Some(uid), Some(gid))?;
        }
        Ok(())
    };
    own().map_err(|errno| failed(at, errno))?;
    Ok(Some(dir))
}

fn failed(at: &str, errno: Errno) -> PlaceError {
    TreeError::at("create the directory", at.as_bytes(), errno).into()
}

#[cfg(test)]
mod tests {
    use super::super::testing::scratch;
    use super::*;

    #[test]
    fn a_place_is_new_and_behind_no_link() {
        let dir = scratch();
        let top = dir.path().canonicalize().unwrap();
        let at = |path: &str| top.join(path);
        for path in ["tree/src", "tree/empty", "outside", "from/clone"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::fs::write(at("tree/src/file"), "x").unwrap();
        std::fs::write(at("from/clone/file"), "x").unwrap();
        std::os::unix::fs::symlink("../outside", at("tree/link")).unwrap();
        let tree = Root::open(&at("tree")).unwrap();
        let from = Root::open(&at("from")).unwrap();
        for taken in [
            "src",
            "empty",
            "src/file",
            "src/file/lib",
            "link",
            "link/lib",
        ] {
            let made = make(&tree, taken, None);
            assert!(matches!(made, Err(PlaceError::Taken(_))), "{taken}");
            let moved = move_to((&from, "clone"), &tree, taken, None);
            assert!(matches!(moved, Err(PlaceError::Taken(_))), "{taken}");
        }
        assert_eq!(std::fs::read_dir(at("outside")).unwrap().count(), 0);
        make(&tree, "src/third/lib", None).unwrap();
        move_to((&from, "clone"), &tree, "deep/er/lib", None).unwrap();
        assert!(at("tree/src/third/lib").is_dir() && at("tree/deep/er/lib/file").is_file());
    }
}
