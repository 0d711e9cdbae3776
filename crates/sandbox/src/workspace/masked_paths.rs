//! Which paths of a workspace must be covered, and which must be pinned so that the covers stay
//! effective.
//!
//! Covered are: files and directories that a mask names, the targets of links with such names,
//! other names of the same files, and sockets, because a program of the host listens there. An
//! incomplete search is an error, never a shorter list. Must not know how paths are covered or
//! pinned.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::foreign_path;
use super::mask::{MaskError, Masks};
use super::tree::{
    Entry, FileId, IncompleteReason, Kind, Meta, Root, TreeError, WalkBounds, WalkStep, meta_of,
    walk,
};
use crate::open::open_within;
use marshal_model::limits;

/// Maximum links in one path, as in the kernel.
const LINKS: usize = 40;

/// How an agent sees the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceView {
    /// The agent cannot write.
    ReadOnly,
    /// The agent writes the workspace itself: what it moves stays moved for the next session.
    Writable,
    /// The agent's changes go elsewhere: the workspace stays unchanged, and sockets in the view are
    /// not connected to programs of the host.
    Layered,
}

/// The paths to cover, and the paths to pin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedPaths {
    /// Paths below the workspace to cover.
    pub hidden: Vec<String>,
    /// Directories and links, parents first, that must not be moved or removed inside, or a later
    /// session would hide other paths.
    pub pinned: Vec<String>,
    /// How many of `hidden` are sockets.
    pub sockets: usize,
}

impl Masks {
    /// The paths of the workspace at `root` that must be covered now, only those in `within` if it
    /// is given. The content of the top-level `.git` is never hidden.
    ///
    /// # Errors
    /// [`MaskError`]: everything that makes the result incomplete.
    pub fn find(
        &self,
        root: &Root,
        within: &[String],
        view: WorkspaceView,
    ) -> Result<MaskedPaths, MaskError> {
        if self.is_empty() {
            return Ok(MaskedPaths::default());
        }
        run_search(self, root, within, view)
    }
}

/// The sockets of a workspace, regardless of their names.
///
/// # Errors
/// [`MaskError`]: everything that makes the result incomplete.
pub fn find_sockets(root: &Root, view: WorkspaceView) -> Result<MaskedPaths, MaskError> {
    run_search(&Masks::default(), root, &[], view)
}

fn run_search(
    masks: &Masks,
    root: &Root,
    within: &[String],
    view: WorkspaceView,
) -> Result<MaskedPaths, MaskError> {
    let mut search = Search {
        masks,
        root,
        within,
        view,
        owner: root.meta()?.uid,
        left: 0,
        until: Instant::now(),
        hidden: BTreeSet::new(),
        directories: Vec::new(),
        hard_linked: HashSet::new(),
        pinned: BTreeSet::new(),
        sockets: 0,
    };
    search.reset_bounds();
    search.walk_from(root, Search::visit_by_name)?;
    search.reset_bounds();
    search.visit_hidden_dirs()?;
    if !search.hard_linked.is_empty() {
        search.reset_bounds();
        search.walk_from(root, Search::visit_by_other_name)?;
    }
    search.into_masked_paths()
}

/// A search in progress.
struct Search<'a> {
    masks: &'a Masks,
    root: &'a Root,
    within: &'a [String],
    view: WorkspaceView,
    /// The owner of the workspace, which is the agent inside.
    owner: u32,
    /// Number of entries that may still be visited, and the deadline.
    left: u64,
    until: Instant,
    hidden: BTreeSet<PathBuf>,
    directories: Vec<PathBuf>,
    /// Hidden files with further hard links.
    hard_linked: HashSet<FileId>,
    pinned: BTreeSet<PathBuf>,
    sockets: usize,
}

impl Search<'_> {
    /// Each pass over the workspace gets the full limits.
    fn reset_bounds(&mut self) {
        self.left = limits::WALK_ENTRIES;
        self.until = Instant::now() + limits::WALK_TIME;
    }

    /// Visits everything below a directory.
    fn walk_from(
        &mut self,
        start: impl std::os::fd::AsFd,
        look: fn(&mut Self, &Entry<'_>) -> Result<WalkStep, MaskError>,
    ) -> Result<(), MaskError> {
        let bounds = WalkBounds {
            entries: self.left,
            time: self.until.saturating_duration_since(Instant::now()),
            ..WalkBounds::default()
        };
        let top = self.root.path();
        let mut failed = None;
        let walked = walk(start, bounds, &mut |entry| {
            look(self, entry).unwrap_or_else(|error| {
                failed = Some(error);
                WalkStep::Stop
            })
        })
        .map_err(|error| TreeError::at_path("list", top, error))?;
        self.left = self.left.saturating_sub(walked.entries);
        match (failed, walked.incomplete) {
            (Some(error), _) => Err(error),
            (None, None) => Ok(()),
            (None, Some(cut)) => Err(MaskError::Incomplete(match cut {
                IncompleteReason::Entries => "it has too many files",
                IncompleteReason::Depth => "it has too many levels of directories",
                IncompleteReason::Time => "the search takes too long",
                IncompleteReason::Moved | IncompleteReason::Visitor => {
                    "it changed during the search"
                }
            })),
        }
    }

    fn visit_by_name(&mut self, entry: &Entry<'_>) -> Result<WalkStep, MaskError> {
        if !is_within(entry.path, self.within) {
            return Ok(WalkStep::Skip);
        }
        let path = Path::new(OsStr::from_bytes(entry.path));
        if self.sees_real_nodes() && entry.meta.is_socket {
            self.sockets += 1;
            self.hide(path, entry.meta)?;
            return Ok(WalkStep::Skip);
        }
        if entry.path == b".git" && !self.sees_real_nodes() {
            return Ok(WalkStep::Skip);
        }
        let is_own_git = path.starts_with(".git");
        let has_secret =
            || entry.meta.kind == Kind::File && self.masks.matches_content(self.root, entry.path);
        if is_own_git || !(self.masks.matches(entry.path) || has_secret()) {
            // The agent is this owner inside, and could grant itself permission.
            let is_closed = entry.meta.kind == Kind::Dir
                && entry.meta.uid == self.owner
                && entry.meta.mode & 0o500 != 0o500;
            return if is_closed {
                Err(MaskError::Unreadable(foreign_path(entry.path)))
            } else {
                Ok(WalkStep::Enter)
            };
        }
        match entry.meta.kind {
            Kind::Link => self.hide_link_target(path)?,
            Kind::File | Kind::Dir | Kind::Other => self.hide(path, entry.meta)?,
        }
        Ok(WalkStep::Skip)
    }

    /// Whether the agent accesses the workspace's own inodes.
    fn sees_real_nodes(&self) -> bool {
        self.view != WorkspaceView::Layered
    }

    fn hide(&mut self, path: &Path, meta: &Meta) -> Result<(), MaskError> {
        if !self.hidden.insert(path.to_owned()) {
            return Ok(());
        }
        if self.hidden.len() > limits::MASKED_PATHS {
            return Err(MaskError::TooMany(foreign_path(
                path.as_os_str().as_bytes(),
            )));
        }
        match meta.kind {
            Kind::Dir => self.directories.push(path.to_owned()),
            Kind::File if meta.links > 1 => drop(self.hard_linked.insert(meta.id)),
            Kind::File | Kind::Link | Kind::Other => {}
        }
        Ok(())
    }

    /// Hides the target of a link. If the agent could remove the link, or another one in its path,
    /// a later search would not find the target; so these are pinned.
    fn hide_link_target(&mut self, link: &Path) -> Result<(), MaskError> {
        let Some((to, meta)) = resolve_link(self.root, link.as_os_str().as_bytes())? else {
            return Ok(());
        };
        if self.view == WorkspaceView::Writable {
            let way = trace_link(self.root, link)
                .map_err(|errno| TreeError::at_path("follow the link", link, errno))?;
            if way.target != to {
                return Err(MaskError::Incomplete("it changed during the search"));
            }
            self.pinned.extend(way.passed);
        }
        self.hide(&to, &meta)
    }

    /// Files in hidden directories may have hard links elsewhere.
    fn visit_hidden_dirs(&mut self) -> Result<(), MaskError> {
        for path in std::mem::take(&mut self.directories) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match open_within(self.root, &*path, flags, resolve) {
                Ok(handle) => {
                    match self.walk_from(handle, |search, entry| Ok(search.note_hard_link(entry))) {
                        // What its owner cannot open, no process inside can.
                        Err(MaskError::Tree(error)) if is_closed(&error) => {}
                        walked => walked?,
                    }
                }
                Err(Errno::ACCESS) => {}
                Err(errno) => return Err(TreeError::at_path("open", &path, errno).into()),
            }
        }
        Ok(())
    }

    fn note_hard_link(&mut self, entry: &Entry<'_>) -> WalkStep {
        if entry.meta.kind == Kind::File && entry.meta.links > 1 {
            self.hard_linked.insert(entry.meta.id);
        }
        WalkStep::Enter
    }

    fn visit_by_other_name(&mut self, entry: &Entry<'_>) -> Result<WalkStep, MaskError> {
        let path = Path::new(OsStr::from_bytes(entry.path));
        if !is_within(entry.path, self.within) || self.hidden.contains(path) {
            return Ok(WalkStep::Skip);
        }
        if entry.meta.kind == Kind::File
            && entry.meta.links > 1
            && self.hard_linked.contains(&entry.meta.id)
        {
            self.hide(path, entry.meta)?;
        }
        Ok(WalkStep::Enter)
    }

    fn into_masked_paths(self) -> Result<MaskedPaths, MaskError> {
        let is_below = |path: &Path| {
            let mut above = path.ancestors().skip(1);
            above.any(|above| self.hidden.contains(above))
        };
        let hidden: Vec<&PathBuf> = self.hidden.iter().filter(|path| !is_below(path)).collect();
        let mut pins = BTreeSet::new();
        if self.view == WorkspaceView::Writable {
            for path in hidden.iter().copied().chain(&self.pinned) {
                pins.extend(path.ancestors().skip(1).map(Path::to_owned));
            }
            pins.extend(self.pinned.iter().cloned());
            pins.retain(|path| {
                *path != Path::new("") && !self.hidden.contains(path) && !is_below(path)
            });
        }
        if let Some(last) = pins.iter().nth(limits::MASK_PINNED_PATHS) {
            return Err(MaskError::TooManyPinned(foreign_path(
                last.as_os_str().as_bytes(),
            )));
        }
        Ok(MaskedPaths {
            sockets: self.sockets,
            hidden: texts(hidden.into_iter().map(PathBuf::as_path))?,
            pinned: texts(pins.iter().map(PathBuf::as_path))?,
        })
    }
}

fn texts<'p>(paths: impl Iterator<Item = &'p Path>) -> Result<Vec<String>, MaskError> {
    let text = |path: &Path| match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(MaskError::NotUtf8(foreign_path(
            path.as_os_str().as_bytes(),
        ))),
    };
    paths.map(text).collect()
}

fn is_closed(error: &TreeError) -> bool {
    error.source.kind() == std::io::ErrorKind::PermissionDenied
}

/// Whether a path is in the slice, or a parent of it.
fn is_within(path: &[u8], within: &[String]) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    within.is_empty()
        || within
            .iter()
            .any(|part| path.starts_with(part) || Path::new(part).starts_with(path))
}

/// The path below the root that a link leads to, and its metadata, if the target exists.
pub(super) fn resolve_link(root: &Root, link: &[u8]) -> Result<Option<(PathBuf, Meta)>, MaskError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let handle = match open_within(root, link, flags, resolve) {
        Ok(handle) => handle,
        Err(Errno::XDEV) => return check_leaving_link(root, link).map(|()| None),
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
        Err(errno) => return Err(TreeError::at("follow the link", link, errno).into()),
    };
    let failed = |error| TreeError::at("follow the link", link, error);
    let (to, top) = (
        kernel_path(&handle).map_err(failed)?,
        kernel_path(root).map_err(failed)?,
    );
    let meta = meta_of(&handle).map_err(failed)?;
    let below = to.strip_prefix(&top).ok();
    Ok(below
        .filter(|path| *path != Path::new(""))
        .map(|path| (path.to_owned(), meta)))
}

/// Checks a link that leaves the workspace: it must leave it inside and on the host alike, because
/// then it leads only to what the sandbox provides. One that returns by the workspace's path,
/// inside or outside, or that leaves through another link, is an error: its target would stay
/// visible.
fn check_leaving_link(root: &Root, link: &[u8]) -> Result<(), MaskError> {
    let text = rustix::fs::readlinkat(root, link, Vec::new())
        .map_err(|errno| TreeError::at("read the link", link, errno))?;
    let text = Path::new(OsStr::from_bytes(text.as_bytes()));
    let from = |top: &Path| {
        let link = top.join(Path::new(OsStr::from_bytes(link)));
        let mut plain = PathBuf::from("/");
        let above = link.parent().unwrap_or(top).join(text);
        for part in above.components() {
            match part {
                Component::Normal(name) => plain.push(name),
                Component::ParentDir => drop(plain.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        plain
    };
    let inside = Path::new(crate::WORKSPACE_INSIDE);
    let comes_back = |top: &Path| from(top).starts_with(top);
    if comes_back(inside) || comes_back(root.path()) {
        return Err(MaskError::Link(foreign_path(link)));
    }
    // Also check the target itself, in case its path on the host contains links of the host.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let handle = open_within(root, link, flags, ResolveFlags::NO_MAGICLINKS);
    let name = handle.ok().and_then(|handle| kernel_path(&handle).ok());
    let top = kernel_path(root).map_err(|error| TreeError::at("follow the link", link, error))?;
    match name {
        Some(name) if name.starts_with(&top) => Err(MaskError::Link(foreign_path(link))),
        _ => Ok(()),
    }
}

/// The kernel's path of an open descriptor.
fn kernel_path(handle: impl std::os::fd::AsFd) -> std::io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

/// The path that a link resolves through.
pub(super) struct LinkRoute {
    /// The links in it, the first one included, and the directories that it leaves again by `..`:
    /// without any of them the link would be broken.
    pub(super) passed: Vec<PathBuf>,
    target: PathBuf,
}

/// Resolves a link below the root, one component at a time.
pub(super) fn trace_link(root: &Root, link: &Path) -> Result<LinkRoute, Errno> {
    let mut visited = Vec::new();
    let mut here = PathBuf::new();
    let mut ahead: Vec<OsString> = Vec::new();
    let put = |ahead: &mut Vec<OsString>, text: &Path| {
        let names = text.components().rev();
        ahead.extend(names.map(|name| name.as_os_str().to_owned()));
    };
    put(&mut ahead, link);
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        match Path::new(&name).components().next() {
            Some(Component::Normal(name)) => here.push(name),
            Some(Component::ParentDir) => {
                visited.push(here.clone());
                if !here.pop() {
                    return Err(Errno::XDEV);
                }
                continue;
            }
            Some(Component::CurDir) | None => continue,
            Some(Component::RootDir | Component::Prefix(_)) => return Err(Errno::XDEV),
        }
        let text = match rustix::fs::readlinkat(root, &here, Vec::new()) {
            Ok(text) => PathBuf::from(OsString::from_vec(text.into_bytes())),
            Err(Errno::INVAL) => continue,
            Err(errno) => return Err(errno),
        };
        links += 1;
        if links > LINKS {
            return Err(Errno::LOOP);
        }
        visited.push(here.clone());
        here.pop();
        put(&mut ahead, &text);
    }
    Ok(LinkRoute {
        passed: visited,
        target: here,
    })
}

#[cfg(test)]
mod tests;
