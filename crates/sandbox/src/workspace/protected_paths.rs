//! Which paths of a workspace other programs obey: to be kept read-only and in place where an agent
//! writes the workspace itself, and to be compared afterwards.
//!
//! Their names are the policy's. Of every git directory, nested and bare ones included, it is what
//! names programs, or leads to another directory. An incomplete search is an error, never a shorter
//! list. Must not know how a path is kept, nor what becomes of one that appeared.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::foreign_path;
use super::mask::MaskError;
use super::masked_paths::{MaskedPaths, resolve_link, trace_link};
use super::tree::{
    Entry, FileId, IncompleteReason, Kind, Meta, Root, TreeError, WalkBounds, WalkStep,
    for_each_entry, meta_of, open_dir_at, walk,
};
use crate::open::open_within;
use marshal_model::UntrustedText;
use marshal_model::limits;

/// Whether a path below the workspace is protected by its name, if it is a link or not.
pub type IsProtected<'a> = &'a dyn Fn(&str, bool) -> bool;

/// What a git directory has that names programs or leads elsewhere. A todo list of a rebase may
/// contain commands.
const GIT_NAMES: [&str; 12] = [
    "config",
    "config.worktree",
    "commondir",
    "gitdir",
    "hooks",
    "info",
    "modules",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "rebase-apply",
    "rebase-merge",
    "sequencer",
];

/// The same of the directory of a linked worktree, below `worktrees`.
const LINKED_NAMES: [&str; 6] = [
    "commondir",
    "config.worktree",
    "gitdir",
    "rebase-apply",
    "rebase-merge",
    "sequencer",
];

/// Directories of code that other people wrote: their files have protected names by the hundreds,
/// and nobody obeys them there. Git directories in them are found all the same.
const DEPENDENCIES: [&str; 8] = [
    "node_modules",
    "vendor",
    "target",
    ".venv",
    "venv",
    ".tox",
    "Pods",
    "bower_components",
];

/// Why the protected paths of a workspace are unknown. Nothing may start then.
#[derive(Debug, thiserror::Error)]
pub enum ProtectedError {
    /// More paths than can be kept.
    #[error(
        "the workspace has more than {} files that other programs obey (the last one: {}), and mode \"rw\" keeps each of them from the agent; use mode \"copy\", \"overlay\" or \"worktree\"",
        limits::PROTECTED_PATHS, .0.escape_for_display(200)
    )]
    TooMany(UntrustedText),
    /// The tree is too large, or changed during the search.
    #[error(
        "the workspace cannot be searched completely for files that other programs obey: {0}; use mode \"copy\", \"overlay\" or \"worktree\""
    )]
    Incomplete(&'static str),
    /// A name that a plan cannot contain.
    #[error("{} is a file that other programs obey, but its name is not UTF-8: rename it", .0.escape_for_display(200))]
    NotUtf8(UntrustedText),
    /// A link with a target that cannot be determined.
    #[error(transparent)]
    Link(#[from] MaskError),
    /// A system call failed.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// The protected paths of a workspace at one time, as raw bytes below its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedPaths {
    /// Files, links and directories; nothing below one of these directories.
    paths: BTreeMap<Vec<u8>, FileId>,
    /// The directories that git takes for its own.
    git_dirs: BTreeSet<Vec<u8>>,
}

/// What must be mounted, so that the agent can neither change a protected path nor move it away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedMounts {
    /// Read-only, links included.
    pub read_only: Vec<String>,
    /// In place: what contains one of those.
    pub pinned: Vec<String>,
}

impl ProtectedPaths {
    /// Searches the workspace.
    ///
    /// # Errors
    /// [`ProtectedError`], except for links and for names that are not UTF-8.
    pub fn find(root: &Root, is_protected: IsProtected<'_>) -> Result<Self, ProtectedError> {
        Search::run(root, is_protected).map(|search| search.found)
    }

    /// Searches the workspace, and what to mount for what is there.
    ///
    /// # Errors
    /// [`ProtectedError`].
    pub fn find_with_mounts(
        root: &Root,
        is_protected: IsProtected<'_>,
    ) -> Result<(Self, ProtectedMounts), ProtectedError> {
        let search = Search::run(root, is_protected)?;
        let mounts = search.mounts()?;
        Ok((search.found, mounts))
    }

    /// What is here and was not there before, a new git directory as a whole; nothing below another
    /// path of the result.
    #[must_use]
    pub fn appeared_since<'s>(&'s self, before: &Self) -> Vec<&'s [u8]> {
        let is_own = |dir: &&Vec<u8>| dir.rsplit(|&byte| byte == b'/').next() == Some(b".git");
        let repositories = self
            .git_dirs
            .iter()
            .filter(is_own)
            .filter(|dir| !before.git_dirs.contains(*dir));
        let paths = self
            .paths
            .keys()
            .filter(|path| !before.paths.contains_key(*path));
        let mut new: Vec<&[u8]> = repositories.chain(paths).map(Vec::as_slice).collect();
        new.sort_unstable();
        let mut top: Vec<&[u8]> = Vec::new();
        for path in new {
            let is_below = |above: &&[u8]| as_path(path).starts_with(as_path(above));
            if !top.iter().any(is_below) {
                top.push(path);
            }
        }
        top
    }

    /// What was there before and is another file now. Its read-only mount went with the old one, so
    /// the agent could write it since.
    #[must_use]
    pub fn replaced_since(&self, before: &Self) -> Vec<&[u8]> {
        let is_other = |(path, id): &(&Vec<u8>, &FileId)| {
            before.paths.get(*path).is_some_and(|then| then != *id)
        };
        let replaced = self.paths.iter().filter(is_other);
        replaced.map(|(path, _)| path.as_slice()).collect()
    }

    /// Takes the files that are there now for those of the record.
    pub fn accept_replaced(&mut self, now: &Self) {
        for (path, id) in &mut self.paths {
            if let Some(now) = now.paths.get(path) {
                *id = *now;
            }
        }
    }

    /// The record of these paths as bytes, for [`Self::from_record`].
    #[must_use]
    pub fn to_record(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (path, (major, minor, inode)) in &self.paths {
            out.extend_from_slice(format!("{major}:{minor}:{inode}/").as_bytes());
            out.extend_from_slice(path);
            out.push(0);
        }
        for path in &self.git_dirs {
            out.extend_from_slice(b"git/");
            out.extend_from_slice(path);
            out.push(0);
        }
        out
    }

    /// Reads a record; `None` if it is incomplete.
    #[must_use]
    pub fn from_record(record: &[u8]) -> Option<Self> {
        let mut found = Self::default();
        let Some(entries) = record.strip_suffix(b"\0") else {
            return record.is_empty().then_some(found);
        };
        for entry in entries.split(|&byte| byte == 0) {
            let end = entry.iter().position(|byte| *byte == b'/')?;
            let (head, path) = (&entry[..end], entry[end + 1..].to_owned());
            if head == b"git" {
                found.git_dirs.insert(path);
                continue;
            }
            let mut numbers = std::str::from_utf8(head).ok()?.splitn(3, ':');
            let id = (
                numbers.next()?.parse().ok()?,
                numbers.next()?.parse().ok()?,
                numbers.next()?.parse().ok()?,
            );
            found.paths.insert(path, id);
        }
        Some(found)
    }
}

impl MaskedPaths {
    /// Adds these mounts to the covers and pins of a mask.
    #[must_use]
    pub fn with_protected(self, protected: ProtectedMounts) -> (Self, Vec<String>) {
        let mut pinned: BTreeSet<String> = self.pinned.into_iter().collect();
        pinned.extend(protected.pinned);
        let covers: BTreeSet<&str> = protected
            .read_only
            .iter()
            .chain(&self.hidden)
            .map(String::as_str)
            .collect();
        let is_covered = |path: &String| {
            let mut upwards = Path::new(path).ancestors();
            upwards.any(|above| above.to_str().is_some_and(|above| covers.contains(above)))
        };
        let pinned = pinned
            .into_iter()
            .filter(|path| !is_covered(path))
            .collect();
        (Self { pinned, ..self }, protected.read_only)
    }
}

struct Search<'a> {
    root: &'a Root,
    is_protected: IsProtected<'a>,
    found: ProtectedPaths,
    /// Protected links, to protect what they lead to.
    links: Vec<Vec<u8>>,
    /// Protected files with further names.
    hard_linked: HashSet<FileId>,
    /// Those names.
    other_names: BTreeSet<Vec<u8>>,
    /// Why the search ended early.
    failed: Option<ProtectedError>,
}

impl<'a> Search<'a> {
    fn run(root: &'a Root, is_protected: IsProtected<'a>) -> Result<Self, ProtectedError> {
        let mut search = Self {
            root,
            is_protected,
            found: ProtectedPaths::default(),
            links: Vec::new(),
            hard_linked: HashSet::new(),
            other_names: BTreeSet::new(),
            failed: None,
        };
        search.walk(Self::visit)?;
        if !search.hard_linked.is_empty() {
            search.walk(Self::visit_by_other_name)?;
        }
        Ok(search)
    }

    fn walk(
        &mut self,
        visit: fn(&mut Self, &Entry<'_>) -> Result<WalkStep, ProtectedError>,
    ) -> Result<(), ProtectedError> {
        let root = self.root;
        let walked = walk(root, WalkBounds::default(), &mut |entry| {
            visit(self, entry).unwrap_or_else(|error| {
                self.failed = Some(error);
                WalkStep::Stop
            })
        })
        .map_err(|error| TreeError::at_path("list", root.path(), error))?;
        match (self.failed.take(), walked.incomplete) {
            (Some(error), _) => Err(error),
            (None, None) => Ok(()),
            (None, Some(cut)) => Err(ProtectedError::Incomplete(match cut {
                IncompleteReason::Entries => "it has too many files",
                IncompleteReason::Depth => "it has too many levels of directories",
                IncompleteReason::Time => "the search takes too long",
                IncompleteReason::Moved | IncompleteReason::Visitor => {
                    "it changed during the search"
                }
            })),
        }
    }

    fn visit(&mut self, entry: &Entry<'_>) -> Result<WalkStep, ProtectedError> {
        let parent = &entry.path[..entry.path.len() - entry.name.len()];
        let parent = parent.strip_suffix(b"/").unwrap_or(parent);
        if entry.name == b".git" {
            if entry.meta.kind == Kind::Dir {
                self.add_git_dir(entry.path)?;
            } else {
                self.add(entry.path, entry.meta)?;
            }
            return Ok(WalkStep::Skip);
        }
        if entry.name == b"HEAD" && self.is_git_dir(parent) {
            self.add_git_dir(parent)?;
            return Ok(WalkStep::Enter);
        }
        let text = String::from_utf8_lossy(entry.path);
        if !is_in_dependencies(parent) && (self.is_protected)(&text, entry.meta.kind == Kind::Link)
        {
            self.add(entry.path, entry.meta)?;
            return Ok(WalkStep::Skip);
        }
        Ok(WalkStep::Enter)
    }

    /// Whether git takes a directory that has a `HEAD` for its own.
    fn is_git_dir(&self, dir: &[u8]) -> bool {
        let has = |name: &str| !matches!(self.look_up(&join(dir, name)), Lookup::Nothing);
        has("commondir") || has("objects") && has("refs")
    }

    fn add_git_dir(&mut self, dir: &[u8]) -> Result<(), ProtectedError> {
        self.found.git_dirs.insert(dir.to_owned());
        for name in GIT_NAMES {
            self.add_if_there(&join(dir, name))?;
        }
        let worktrees = join(dir, "worktrees");
        match self.look_up(&worktrees) {
            Lookup::There(meta) if meta.kind == Kind::Dir => {}
            Lookup::Nothing => return Ok(()),
            Lookup::There(meta) => return self.add(&worktrees, &meta),
            Lookup::Link(link, meta) => return self.add(&link, &meta),
        }
        for name in self.list(&worktrees)? {
            let linked = join(&worktrees, OsStr::from_bytes(&name));
            for name in LINKED_NAMES {
                self.add_if_there(&join(&linked, name))?;
            }
        }
        Ok(())
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>, ProtectedError> {
        let failed = |error| TreeError::at("list", dir, error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle =
            open_within(self.root, dir, flags, BENEATH).map_err(|errno| failed(errno.into()))?;
        let handle = open_dir_at(&handle, c".").map_err(failed)?;
        let mut names = Vec::new();
        let listed = for_each_entry(&handle, |name| {
            names.push(name.to_bytes().to_owned());
            if names.len() > limits::PROTECTED_PATHS {
                return Err(Errno::OVERFLOW.into());
            }
            Ok(())
        });
        match listed {
            Ok(()) => Ok(names),
            Err(_) if names.len() > limits::PROTECTED_PATHS => {
                Err(ProtectedError::TooMany(foreign_path(dir)))
            }
            Err(error) => Err(failed(error).into()),
        }
    }

    fn add_if_there(&mut self, path: &[u8]) -> Result<(), ProtectedError> {
        match self.look_up(path) {
            Lookup::There(meta) => self.add(path, &meta),
            Lookup::Link(link, meta) => self.add(&link, &meta),
            Lookup::Nothing => Ok(()),
        }
    }

    fn add(&mut self, path: &[u8], meta: &Meta) -> Result<(), ProtectedError> {
        if self.found.paths.insert(path.to_owned(), meta.id).is_some() {
            return Ok(());
        }
        if self.found.paths.len() > limits::PROTECTED_PATHS {
            return Err(ProtectedError::TooMany(foreign_path(path)));
        }
        match meta.kind {
            Kind::Link => self.links.push(path.to_owned()),
            Kind::File if meta.links > 1 => drop(self.hard_linked.insert(meta.id)),
            Kind::File | Kind::Dir | Kind::Other => {}
        }
        Ok(())
    }

    fn visit_by_other_name(&mut self, entry: &Entry<'_>) -> Result<WalkStep, ProtectedError> {
        let is_other = entry.meta.kind == Kind::File
            && entry.meta.links > 1
            && self.hard_linked.contains(&entry.meta.id);
        if is_other && !self.found.paths.contains_key(entry.path) {
            self.other_names.insert(entry.path.to_owned());
            if self.other_names.len() > limits::PROTECTED_PATHS {
                return Err(ProtectedError::TooMany(foreign_path(entry.path)));
            }
        }
        Ok(WalkStep::Enter)
    }

    /// Looks up a path that may not exist, without following a link.
    fn look_up(&self, path: &[u8]) -> Lookup {
        let open = |path: &[u8]| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = open_within(self.root, path, flags, BENEATH)?;
            meta_of(&handle).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        match open(path) {
            Ok(meta) => return Lookup::There(meta),
            Err(Errno::LOOP | Errno::XDEV) => {}
            Err(_) => return Lookup::Nothing,
        }
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            if let Ok(meta) = open(&path[..end])
                && meta.kind == Kind::Link
            {
                return Lookup::Link(path[..end].to_owned(), meta);
            }
        }
        Lookup::Nothing
    }

    fn mounts(&self) -> Result<ProtectedMounts, ProtectedError> {
        let mut read_only: BTreeSet<Vec<u8>> = self.found.paths.keys().cloned().collect();
        read_only.extend(self.other_names.iter().cloned());
        let mut pinned: BTreeSet<Vec<u8>> = self.found.git_dirs.clone();
        for link in &self.links {
            let Some((target, _)) = resolve_link(self.root, link)? else {
                continue;
            };
            let way = trace_link(self.root, as_path(link))
                .map_err(|errno| TreeError::at("follow the link", link, errno))?;
            let bytes = |path: &Path| path.as_os_str().as_bytes().to_owned();
            pinned.extend(way.passed.iter().map(|path| bytes(path)));
            read_only.insert(bytes(&target));
        }
        let is_below = |path: &[u8]| {
            let mut above = as_path(path).ancestors().skip(1);
            above.any(|above| read_only.contains(above.as_os_str().as_bytes()))
        };
        let kept: BTreeSet<&Vec<u8>> = read_only.iter().filter(|path| !is_below(path)).collect();
        for path in &kept {
            let above = as_path(path).ancestors().skip(1);
            pinned.extend(above.map(|above| above.as_os_str().as_bytes().to_owned()));
        }
        pinned.retain(|path| !path.is_empty() && !read_only.contains(path) && !is_below(path));
        if let Some(last) = pinned.iter().nth(limits::PROTECTED_PATHS) {
            return Err(ProtectedError::TooMany(foreign_path(last)));
        }
        Ok(ProtectedMounts {
            read_only: kept
                .into_iter()
                .map(|path| text(path))
                .collect::<Result<_, _>>()?,
            pinned: pinned
                .iter()
                .map(|path| text(path))
                .collect::<Result<_, _>>()?,
        })
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

enum Lookup {
    There(Meta),
    /// The path leads through this link.
    Link(Vec<u8>, Meta),
    Nothing,
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn join(dir: &[u8], name: impl AsRef<OsStr>) -> Vec<u8> {
    let joined = as_path(dir).join(name.as_ref());
    joined.into_os_string().into_encoded_bytes()
}

fn is_in_dependencies(dir: &[u8]) -> bool {
    let mut names = dir.split(|&byte| byte == b'/');
    names.any(|name| DEPENDENCIES.iter().any(|it| it.as_bytes() == name))
}

fn text(path: &[u8]) -> Result<String, ProtectedError> {
    match std::str::from_utf8(path) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(ProtectedError::NotUtf8(foreign_path(path))),
    }
}

#[cfg(test)]
mod tests;
