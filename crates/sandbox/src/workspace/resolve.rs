//! Reads the links of a workspace and a home by their paths inside the sandbox.
//!
//! Owns the IO of path resolution: one component and one answer at a time, only below the given
//! roots. What a link means, and whether a path may be used, is decided elsewhere.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::overlay::MergedView;
use super::tree::{Kind, Root, for_each_entry, meta_at, meta_of, open_handle_at, reopen};

/// Maximum components of one path: a system call accepts no longer path.
const COMPONENTS: usize = 2048;

/// Maximum entries of one directory that are scanned.
const ENTRIES: usize = 10_000;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathNode {
    /// A link and its unresolved target: relative, or absolute as seen inside.
    Target(Vec<u8>),
    /// A directory.
    Directory,
    /// Something else than a link or directory.
    Other,
    /// Nothing.
    Missing,
    /// It cannot be determined.
    Unresolved(UnresolvedReason),
}

/// Why a path is not resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnresolvedReason {
    /// It is not below any of the roots.
    #[error("it is outside the workspace and the home")]
    Outside,
    /// It is not absolute, or has an empty, `.` or `..` component, or too many components.
    #[error("it is not a normalized absolute path")]
    NotPlain,
    /// A parent is a link, or not a directory.
    #[error("a parent in its path is not a directory")]
    NotThroughDirectory,
    /// A system call failed.
    #[error("it could not be examined")]
    Failed,
}

/// Trees of the host, by their paths inside.
#[derive(Debug, Default)]
pub struct TreeResolver {
    trees: Vec<(Vec<u8>, Tree)>,
}

/// One tree.
#[derive(Debug)]
enum Tree {
    /// An unmodified directory.
    Plain(Root),
    /// A directory with an overlay.
    Merged(Box<MergedView>),
}

impl TreeResolver {
    /// Resolves nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tree of the host that is visible at `inside` (`/workspace`, `/home/agent`; without a
    /// sandbox its own path).
    #[must_use]
    pub fn with(self, inside: impl Into<Vec<u8>>, root: Root) -> Self {
        self.add(inside.into(), Tree::Plain(root))
    }

    /// Adds a tree with an overlay.
    #[must_use]
    pub fn with_merged(self, inside: impl Into<Vec<u8>>, merged: MergedView) -> Self {
        self.add(inside.into(), Tree::Merged(Box::new(merged)))
    }

    fn add(mut self, mut inside: Vec<u8>, tree: Tree) -> Self {
        while inside.len() > 1 && inside.last() == Some(&b'/') {
            inside.pop();
        }
        // Saves memory: nearly every session has two trees for as long as it lives.
        self.trees.reserve_exact(1);
        self.trees.push((inside, tree));
        // Longest first: a tree inside of another one hides what it covers.
        self.trees
            .sort_by_key(|(inside, _)| std::cmp::Reverse(inside.len()));
        self
    }

    /// Whether the tree at `inside` no longer exists: its root was removed, or is not accessible.
    /// Deleted content is then indistinguishable from content that never existed.
    #[must_use]
    pub fn is_gone(&self, inside: &[u8]) -> bool {
        let of_path = |(at, _): &&(Vec<u8>, Tree)| at == inside;
        let handle = match self.trees.iter().find(of_path) {
            None => return false,
            Some((_, Tree::Plain(root))) => open_handle_at(root, c"."),
            Some((_, Tree::Merged(merged))) => merged.open_handle(std::iter::empty()),
        };
        let stat = handle.and_then(|handle| Ok(rustix::fs::fstat(handle)?));
        stat.map_or(true, |stat| stat.st_nlink == 0)
    }

    /// What is at an absolute path as seen inside. All components but the last must be directories:
    /// a caller resolves a path by asking for each of its prefixes in turn.
    #[must_use]
    pub fn read_link(&self, path: &[u8]) -> PathNode {
        match self.find_tree(path) {
            Ok((Tree::Plain(root), parts)) => read_node(root, parts.into_iter()),
            Ok((Tree::Merged(merged), parts)) => match merged.open_handle(parts.into_iter()) {
                Ok(handle) => node_kind(&handle),
                Err(error) => unresolved_node(&error),
            },
            Err(unresolved) => PathNode::Unresolved(unresolved),
        }
    }

    /// The names of the links directly in the directory `path`, which has no link as a component.
    /// Empty if the directory is missing; `None` if it cannot be listed, or has too many entries.
    #[must_use]
    pub fn links_in(&self, path: &[u8]) -> Option<Vec<Vec<u8>>> {
        self.list_names(path, true)
    }

    /// The names of all entries of the directory `path`, under the same conditions.
    #[must_use]
    pub fn names_in(&self, path: &[u8]) -> Option<Vec<Vec<u8>>> {
        self.list_names(path, false)
    }

    fn list_names(&self, path: &[u8], only_links: bool) -> Option<Vec<Vec<u8>>> {
        let (tree, parts) = self.find_tree(path).ok()?;
        let root = match tree {
            Tree::Plain(root) => root,
            Tree::Merged(merged) => return list_merged(merged, &parts, only_links),
        };
        let mut dir = open_handle_at(root, c".").ok()?;
        for part in parts {
            let name = CString::new(part).ok()?;
            dir = match open_handle_at(&dir, &name) {
                Ok(handle) => handle,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Vec::new()),
                Err(_) => return None,
            };
            if meta_of(&dir).ok()?.kind != Kind::Dir {
                return None;
            }
        }
        let dir = reopen(&dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC).ok()?;
        scan_directories(&[dir], only_links)
    }

    /// The tree that contains a path, and the path's components below its root.
    fn find_tree<'p>(&self, path: &'p [u8]) -> Result<(&Tree, Vec<&'p [u8]>), UnresolvedReason> {
        let Some(rest) = path.strip_prefix(b"/") else {
            return Err(UnresolvedReason::NotPlain);
        };
        let plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
        let mut parts = rest.split(|&byte| byte == b'/');
        if !parts.clone().all(plain) || parts.clone().count() > COMPONENTS {
            return Err(UnresolvedReason::NotPlain);
        }
        let Some((inside, root)) = self
            .trees
            .iter()
            .find(|(inside, _)| contains_path(inside, path))
        else {
            return Err(UnresolvedReason::Outside);
        };
        let depth = inside
            .split(|&byte| byte == b'/')
            .filter(|p| !p.is_empty())
            .count();
        for _ in 0..depth {
            parts.next();
        }
        Ok((root, parts.collect()))
    }
}

/// What an O_PATH descriptor refers to.
fn node_kind(handle: &OwnedFd) -> PathNode {
    match meta_of(handle).map(|meta| meta.kind) {
        Ok(Kind::Dir) => PathNode::Directory,
        Ok(Kind::Link) => match rustix::fs::readlinkat(handle, c"", Vec::new()) {
            Ok(target) => PathNode::Target(target.into_bytes()),
            Err(errno) => unresolved_node(&errno.into()),
        },
        Ok(_) => PathNode::Other,
        Err(error) => unresolved_node(&error),
    }
}

/// The names of all entries, or only of links, in a directory with an overlay. A replaced entry of
/// the lower directory still counts: too many names do no harm, too few would.
fn list_merged(merged: &MergedView, parts: &[&[u8]], only_links: bool) -> Option<Vec<Vec<u8>>> {
    let dirs = match merged.open_directories(parts.iter().copied()) {
        Ok(dirs) => dirs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Vec::new()),
        Err(_) => return None,
    };
    scan_directories(&dirs, only_links)
}

/// The links in any of these directories, or all entries; `None` if there are too many.
fn scan_directories(dirs: &[OwnedFd], only_links: bool) -> Option<Vec<Vec<u8>>> {
    let mut links = Vec::new();
    let mut entries = 0_usize;
    for dir in dirs {
        for_each_entry(dir, |name| {
            entries += 1;
            if entries > ENTRIES {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            if !only_links || meta_at(dir, name)?.kind == Kind::Link {
                links.push(name.to_bytes().to_vec());
            }
            Ok(())
        })
        .ok()?;
    }
    Some(links)
}

fn contains_path(inside: &[u8], path: &[u8]) -> bool {
    inside == b"/"
        || path
            .strip_prefix(inside)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn read_node<'a>(root: &Root, parts: impl Iterator<Item = &'a [u8]>) -> PathNode {
    let mut parts = parts.peekable();
    let mut dir = match open_handle_at(root, c".") {
        Ok(dir) => dir,
        Err(error) => return unresolved_node(&error),
    };
    while let Some(part) = parts.next() {
        let Ok(name) = CString::new(part) else {
            return PathNode::Unresolved(UnresolvedReason::NotPlain);
        };
        let handle = match open_handle_at(&dir, &name) {
            Ok(handle) => handle,
            Err(error) => return unresolved_node(&error),
        };
        let kind = match meta_of(&handle) {
            Ok(meta) => meta.kind,
            Err(error) => return unresolved_node(&error),
        };
        match (kind, parts.peek().is_some()) {
            (Kind::Dir, true) => dir = handle,
            (_, true) => return PathNode::Unresolved(UnresolvedReason::NotThroughDirectory),
            (Kind::Link, false) => {
                return match rustix::fs::readlinkat(&handle, c"", Vec::new()) {
                    Ok(target) => PathNode::Target(target.into_bytes()),
                    Err(errno) => unresolved_node(&errno.into()),
                };
            }
            (Kind::Dir, false) => return PathNode::Directory,
            (_, false) => return PathNode::Other,
        }
    }
    PathNode::Directory
}

fn unresolved_node(error: &io::Error) -> PathNode {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => PathNode::Missing,
        Some(Errno::NOTDIR | Errno::LOOP) => {
            PathNode::Unresolved(UnresolvedReason::NotThroughDirectory)
        }
        _ => PathNode::Unresolved(UnresolvedReason::Failed),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::testing::{as_ordinary_user, scratch};
    use super::UnresolvedReason::{Failed, NotPlain, NotThroughDirectory, Outside};
    use super::*;

    fn target(text: &str) -> PathNode {
        PathNode::Target(text.into())
    }

    #[test]
    fn a_tree_that_was_removed_is_gone() {
        let dir = scratch();
        let at = dir.path().join("ws");
        std::fs::create_dir(&at).unwrap();
        let links = TreeResolver::new().with("/workspace", Root::open(&at).unwrap());
        assert!(!links.is_gone(b"/workspace") && !links.is_gone(b"/elsewhere"));
        std::fs::remove_dir(&at).unwrap();
        assert!(links.is_gone(b"/workspace"));
        std::fs::create_dir(&at).unwrap();
        assert!(links.is_gone(b"/workspace"), "another one is not it");
    }

    #[test]
    fn links_are_read_below_the_roots_and_never_followed() {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("ws/src")).unwrap();
        std::fs::create_dir_all(at("home")).unwrap();
        std::fs::write(at("ws/src/file"), "x").unwrap();
        symlink("/etc", at("ws/etc")).unwrap();
        symlink("../..", at("ws/src/up")).unwrap();
        symlink("/workspace/src", at("home/back")).unwrap();
        symlink("/proc/self/root", at("ws/magic")).unwrap();
        let links = TreeResolver::new()
            .with("/workspace", Root::open(&at("ws")).unwrap())
            .with("/home/agent/", Root::open(&at("home")).unwrap());
        let check = |path: &str, expect: PathNode| {
            assert_eq!(links.read_link(path.as_bytes()), expect, "{path}");
        };
        check("/workspace", PathNode::Directory);
        check("/workspace/src", PathNode::Directory);
        check("/workspace/src/file", PathNode::Other);
        check("/workspace/etc", target("/etc"));
        check("/workspace/src/up", target("../.."));
        check("/workspace/magic", target("/proc/self/root"));
        check("/home/agent", PathNode::Directory);
        check("/home/agent/back", target("/workspace/src"));
        check("/workspace/new", PathNode::Missing);
        check("/workspace/new/deeper", PathNode::Missing);
        check(
            "/workspace/etc/shadow",
            PathNode::Unresolved(NotThroughDirectory),
        );
        check(
            "/workspace/magic/etc",
            PathNode::Unresolved(NotThroughDirectory),
        );
        check(
            "/workspace/src/file/x",
            PathNode::Unresolved(NotThroughDirectory),
        );
        for outside in [
            "/etc/shadow",
            "/home",
            "/home/agents",
            "/workspaces/a",
            "/tmp/x",
        ] {
            check(outside, PathNode::Unresolved(Outside));
        }
        for odd in [
            "",
            "x",
            "/",
            "//workspace",
            "/workspace/",
            "/workspace/../etc",
            "/workspace/.",
        ] {
            check(odd, PathNode::Unresolved(NotPlain));
        }
        check("/workspace/a\0b", PathNode::Unresolved(NotPlain));
        check(
            &format!("/workspace/{}", "x".repeat(300)),
            PathNode::Unresolved(Failed),
        );
        check(
            &format!("/workspace/{}x", "d/".repeat(5000)),
            PathNode::Unresolved(NotPlain),
        );
    }

    #[test]
    fn without_a_sandbox_a_tree_has_its_own_path_and_an_inner_one_hides() {
        let dir = scratch();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir_all(dir.path().join("other")).unwrap();
        symlink("x", dir.path().join("a/b/link")).unwrap();
        symlink("y", dir.path().join("other/link")).unwrap();
        let inside = |name: &str| dir.path().join(name).into_os_string().into_encoded_bytes();
        let outer = TreeResolver::new().with(inside(""), Root::open(dir.path()).unwrap());
        assert_eq!(outer.read_link(&inside("a/b/link")), target("x"));
        let both = outer.with(
            inside("a/b"),
            Root::open(&dir.path().join("other")).unwrap(),
        );
        assert_eq!(both.read_link(&inside("a/b/link")), target("y"));
    }

    #[test]
    fn what_may_not_be_examined_is_unresolved() {
        as_ordinary_user("what_may_not_be_examined_is_unresolved", || {
            use std::os::unix::fs::PermissionsExt as _;
            let dir = scratch();
            let closed = dir.path().join("closed");
            std::fs::create_dir(&closed).unwrap();
            std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
            let links = TreeResolver::new().with("/workspace", Root::open(dir.path()).unwrap());
            let got = links.read_link(b"/workspace/closed/x");
            assert_eq!(got, PathNode::Unresolved(UnresolvedReason::Failed));
        });
    }
}
