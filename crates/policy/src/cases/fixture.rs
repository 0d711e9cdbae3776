//! The file system in which labelled requests are evaluated: a small tree of directories, files and
//! links.
//!
//! Owns the content of the tree, so that a case means the same everywhere. Reads no real file. Must
//! not know policies.

use std::collections::BTreeMap;

use crate::{FsContext, FsEntry, Resolver};

/// The root of the workspace.
pub const WORKSPACE: &str = "/repo/proj";
/// The home directory.
pub const HOME: &str = "/home/agent";

/// The directories, below the workspace and the home. Below `vendor` are repositories that are not
/// the workspace's own, and a directory that looks like one.
pub const DIRECTORIES: &[&str] = &[
    "/home/agent/.ssh",
    "/repo/proj/.git",
    "/repo/proj/crates/core/src",
    "/repo/proj/docs",
    "/repo/proj/src",
    "/repo/proj/vendor/bare/objects",
    "/repo/proj/vendor/bare/refs",
    "/repo/proj/vendor/common",
    "/repo/proj/vendor/headless/objects",
    "/repo/proj/vendor/nested/.git",
];

/// Its files.
pub const FILES: &[&str] = &[
    "/repo/proj/.env",
    "/repo/proj/vendor/bare/HEAD",
    "/repo/proj/vendor/common/HEAD",
    "/repo/proj/vendor/common/commondir",
];

/// Its symbolic links, each with its target.
pub const LINKS: &[(&str, &str)] = &[
    ("/repo/proj/crates/core/settings", "../../.env"),
    ("/repo/proj/link_bare", "vendor/bare"),
    ("/repo/proj/link_deep", "crates/core"),
    ("/repo/proj/link_in", "/repo/proj/src"),
    ("/repo/proj/link_out", "/etc"),
];

/// The tree. A path outside of the workspace and the home is unresolved.
#[derive(Debug, Clone)]
pub struct FixtureFs(BTreeMap<String, FsEntry>);

impl Default for FixtureFs {
    fn default() -> Self {
        let mut found = BTreeMap::new();
        for path in [WORKSPACE, HOME].iter().chain(DIRECTORIES) {
            let ends = path
                .match_indices('/')
                .map(|(at, _)| at)
                .skip(1)
                .chain([path.len()]);
            for directory in ends
                .map(|end| &path[..end])
                .filter(|path| is_under_root(path))
            {
                found.insert(directory.to_owned(), FsEntry::Directory);
            }
        }
        for path in FILES {
            found.insert((*path).to_owned(), FsEntry::File);
        }
        for (path, target) in LINKS {
            found.insert((*path).to_owned(), FsEntry::Link((*target).to_owned()));
        }
        Self(found)
    }
}

impl FixtureFs {
    /// The file system context in which cases are evaluated.
    #[must_use]
    pub fn fs_context(&self) -> FsContext<'_> {
        FsContext {
            workspace: WORKSPACE,
            home: HOME,
            cwd: Some(WORKSPACE),
            resolver: self,
        }
    }

    fn list(&self, path: &str, wanted: impl Fn(&FsEntry) -> bool) -> Option<Vec<String>> {
        if !is_under_root(path)
            || matches!(self.0.get(path), Some(FsEntry::File | FsEntry::Link(_)))
        {
            return None;
        }
        let name = |(entry, look): (&String, &FsEntry)| {
            let name = entry.strip_prefix(path)?.strip_prefix('/')?;
            (!name.contains('/') && wanted(look)).then(|| name.to_owned())
        };
        Some(self.0.iter().filter_map(name).collect())
    }
}

/// Whether a path is the workspace, the home, or below one of them.
fn is_under_root(path: &str) -> bool {
    let mut roots = [WORKSPACE, HOME].into_iter();
    roots.any(|root| path == root || is_below(path, root))
}

fn is_below(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

impl Resolver for FixtureFs {
    fn lookup(&self, path: &str) -> FsEntry {
        match self.0.get(path) {
            Some(look) => look.clone(),
            // A file has no entries below it.
            None if is_under_root(path) && !FILES.iter().any(|file| is_below(path, file)) => {
                FsEntry::Missing
            }
            None => FsEntry::Unresolved,
        }
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        self.list(path, |look| matches!(look, FsEntry::Link(_)))
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        self.list(path, |_| true)
    }
}
