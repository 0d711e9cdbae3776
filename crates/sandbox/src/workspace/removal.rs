//! Removes a tree, whatever an agent did to it.
//!
//! No link is followed, and no depth, name or mode stops it: below a fixed depth a directory moves
//! to the top of the tree and is removed from there, so the number of descriptors and the stack
//! stay bounded. For trees that no process writes any more.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::tree::{TreeError, for_each_entry, open_own_dir_at};

/// Levels removed in place, each with one open descriptor.
const LEVELS: usize = 32;

/// Removes `name` of `parent`, and everything below it if it is a directory. A missing entry is no
/// error.
///
/// # Errors
/// The error of the first entry that could not be removed.
pub fn remove_tree(parent: impl AsFd, name: &str) -> Result<(), TreeError> {
    let error = |source: io::Error| TreeError::at("remove", name.as_bytes(), source);
    let parent = parent.as_fd();
    let c_name = CString::new(name).map_err(|_| error(Errno::INVAL.into()))?;
    match remove_one(parent, &c_name) {
        Ok(Removed::Gone) => Ok(()),
        Ok(Removed::Full) => remove_full(parent, &c_name).map_err(error),
        Err(source) => Err(error(source)),
    }
}

fn remove_full(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let top = open_own_dir_at(parent, name)?;
    let mut lift = Lift {
        top: top.as_fd(),
        next: 0,
    };
    clear(top.as_fd(), 0, &mut lift)?;
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

enum Removed {
    Gone,
    /// A directory that is not empty.
    Full,
}

fn remove_one(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Removed> {
    let as_file = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Removed::Gone),
        Err(errno @ (Errno::ISDIR | Errno::PERM)) => errno,
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Removed::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Removed::Full),
        Err(Errno::NOTDIR) => Err(as_file.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Where directories below the maximum depth move to.
struct Lift<'a> {
    top: BorrowedFd<'a>,
    next: u64,
}

impl Lift<'_> {
    fn lift(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        // Moving a directory updates its `..`, which requires write permission on it.
        drop(open_own_dir_at(dir, name)?);
        loop {
            let place = format!("lifted-{}", self.next);
            self.next += 1;
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(dir, name, self.top, &*place, flags) {
                Err(Errno::EXIST) => {}
                done => return Ok(done?),
            }
        }
    }
}

/// Empties a directory: repeats passes until one finds nothing.
fn clear(dir: BorrowedFd<'_>, depth: usize, lift: &mut Lift<'_>) -> io::Result<()> {
    loop {
        let mut has_entries = false;
        for_each_entry(dir, |name| {
            has_entries = true;
            match remove_one(dir, name)? {
                Removed::Gone => Ok(()),
                Removed::Full if depth + 1 < LEVELS => {
                    let child = open_own_dir_at(dir, name)?;
                    clear(child.as_fd(), depth + 1, lift)?;
                    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
                }
                Removed::Full => lift.lift(dir, name),
            }
        })?;
        if !has_entries {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::testing::{as_ordinary_user, deep_tree, scratch};
    use super::super::tree::Root;
    use super::*;

    #[test]
    fn a_tree_of_five_thousand_levels_goes_and_what_links_point_to_stays() {
        let dir = scratch();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        std::fs::create_dir(tree.join("lifted-0")).unwrap();
        std::fs::write(tree.join("lifted-1"), "x").unwrap();
        deep_tree(&tree, 5000);
        let parent = Root::open(dir.path()).unwrap();
        remove_tree(&parent, "tree").unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove_tree(&parent, "tree").expect("nothing there is fine");
    }

    #[test]
    fn a_link_in_the_place_of_the_tree_is_removed_itself() {
        let dir = scratch();
        std::fs::create_dir(dir.path().join("target")).unwrap();
        std::fs::write(dir.path().join("target/kept"), "x").unwrap();
        symlink("target", dir.path().join("tree")).unwrap();
        remove_tree(Root::open(dir.path()).unwrap(), "tree").unwrap();
        assert!(dir.path().join("target/kept").exists());
        assert!(!dir.path().join("tree").is_symlink());
    }

    #[test]
    fn directories_without_any_right_are_removed_by_their_owner() {
        as_ordinary_user(
            "directories_without_any_right_are_removed_by_their_owner",
            || {
                let dir = scratch();
                let tree = dir.path().join("tree");
                std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
                std::fs::write(tree.join("a/b/file"), "x").unwrap();
                deep_tree(&tree.join("a/b/c"), 100);
                for path in ["a/b", "a", ""] {
                    let none = std::fs::Permissions::from_mode(0o000);
                    std::fs::set_permissions(tree.join(path), none).unwrap();
                }
                remove_tree(Root::open(dir.path()).unwrap(), "tree").unwrap();
                assert!(!tree.exists());
            },
        );
    }
}
