//! A real directory with real links, seen through paths inside a sandbox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use marshal_policy::cases::{DIRECTORIES, FILES, LINKS};
pub(crate) use marshal_policy::cases::{HOME, WORKSPACE};
use marshal_policy::{FsContext, FsEntry, Resolver};

/// The tree in which labelled requests are judged, in a directory.
pub(crate) struct Tree {
    root: tempfile::TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let tree = Self { root };
        let real = |path: &str| tree.real(path).expect("a path of the tree");
        for directory in [WORKSPACE, HOME].iter().chain(DIRECTORIES) {
            fs::create_dir_all(real(directory)).expect("a directory");
        }
        for file in FILES {
            fs::write(real(file), "x").expect("a file");
        }
        for (link, target) in LINKS {
            symlink(target, real(link)).expect("a link");
        }
        tree
    }

    fn real(&self, path: &str) -> Option<PathBuf> {
        let below = |root: &str, name: &str| {
            let rest = path.strip_prefix(root)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| {
                self.root
                    .path()
                    .join(name)
                    .join(rest.trim_start_matches('/'))
            })
        };
        below(WORKSPACE, "workspace").or_else(|| below(HOME, "home"))
    }

    pub(crate) fn place(&self) -> FsContext<'_> {
        FsContext {
            workspace: WORKSPACE,
            home: HOME,
            cwd: Some(WORKSPACE),
            resolver: self,
        }
    }
}

fn look(path: &Path) -> FsEntry {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => fs::read_link(path)
            .ok()
            .and_then(|target| target.into_os_string().into_string().ok())
            .map_or(FsEntry::Unresolved, FsEntry::Link),
        Ok(meta) if meta.is_dir() => FsEntry::Directory,
        Ok(_) => FsEntry::File,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => FsEntry::Missing,
        Err(_) => FsEntry::Unresolved,
    }
}

impl Resolver for Tree {
    fn lookup(&self, path: &str) -> FsEntry {
        self.real(path)
            .map_or(FsEntry::Unresolved, |real| look(&real))
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        self.list(path, true)
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        self.list(path, false)
    }
}

impl Tree {
    fn list(&self, path: &str, only_links: bool) -> Option<Vec<String>> {
        let entries = match fs::read_dir(self.real(path)?) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(Vec::new()),
            Err(_) => return None,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.ok()?;
            if !only_links || entry.file_type().ok()?.is_symlink() {
                names.push(entry.file_name().into_string().ok()?);
            }
        }
        Some(names)
    }
}
