//! What of a workspace is to be covered, and what must stay where it is for that to hold.
//!
//! Covered is whatever a mask names now: files and directories, what links with such names lead to,
//! other names of the same files, and sockets, behind which a program of the host listens. What is
//! found is covered inside, so a look that saw not everything is an error, never a shorter list.
//! Must not know how anything is covered or held.

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

/// Links on the way to one place, as the kernel counts them.
const LINKS: usize = 40;

/// How an agent sees the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceView {
    /// It cannot write in it.
    ReadOnly,
    /// It writes the workspace itself: what it moves is moved for the next session too.
    Writable,
    /// It writes somewhere else: the workspace stays as it is, and no program of the host answers
    /// at a socket in the view.
    Layered,
}

/// What is to be covered, and what is to be held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedPaths {
    /// Paths below the workspace that are covered.
    pub hidden: Vec<String>,
    /// Directories and links, those above first, that must not be moved or removed inside, or a
    /// later session would find something else hidden.
    pub pinned: Vec<String>,
    /// How many of `hidden` are sockets.
    pub sockets: usize,
}

impl Masks {
    /// What of the workspace at `root` is to be covered now. With `within`, only there. The names in
    /// the `.git` at the top are git's and never hidden.
    ///
    /// # Errors
    /// See [`MaskError`]: whatever keeps this from being all of it.
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

/// The sockets of a workspace, whatever their names.
///
/// # Errors
/// See [`MaskError`]: whatever keeps this from being all of them.
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

/// A search that is under way.
struct Search<'a> {
    masks: &'a Masks,
    root: &'a Root,
    within: &'a [String],
    view: WorkspaceView,
    /// The owner of the workspace, who is the agent inside.
    owner: u32,
    /// How many entries may still be looked at, and until when.
    left: u64,
    until: Instant,
    hidden: BTreeSet<PathBuf>,
    directories: Vec<PathBuf>,
    /// Hidden files that have other names too.
    hard_linked: HashSet<FileId>,
    pinned: BTreeSet<PathBuf>,
    sockets: usize,
}

impl Search<'_> {
    /// Each way through the workspace has the whole bound.
    fn reset_bounds(&mut self) {
        self.left = limits::WALK_ENTRIES;
        self.until = Instant::now() + limits::WALK_TIME;
    }

    /// Looks at everything below a directory.
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
                IncompleteReason::Depth => "it has too many levels",
                IncompleteReason::Time => "that takes too long",
                IncompleteReason::Moved | IncompleteReason::Visitor => "it was changed meanwhile",
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
        if path.starts_with(".git") || !self.masks.matches(entry.path) {
            // The agent is this owner inside, and could give itself the right.
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

    /// Whether an agent gets at the very nodes of the workspace.
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

    /// Hides what a link leads to. Where the agent could remove the link, or another on the way, and
    /// with it the only trace of what is to be hidden, they are held.
    fn hide_link_target(&mut self, link: &Path) -> Result<(), MaskError> {
        let Some((to, meta)) = resolve_link(self.root, link.as_os_str().as_bytes())? else {
            return Ok(());
        };
        if self.view == WorkspaceView::Writable {
            let way = trace_link(self.root, link)
                .map_err(|errno| TreeError::at_path("follow the link", link, errno))?;
            if way.target != to {
                return Err(MaskError::Incomplete("it was changed meanwhile"));
            }
            self.pinned.extend(way.passed);
        }
        self.hide(&to, &meta)
    }

    /// Files in hidden directories may have names outside of them.
    fn visit_hidden_dirs(&mut self) -> Result<(), MaskError> {
        for path in std::mem::take(&mut self.directories) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match open_within(self.root, &*path, flags, resolve) {
                Ok(held) => {
                    match self.walk_from(held, |search, entry| Ok(search.note_hard_link(entry))) {
                        // Nobody inside opens what its own owner may not.
                        Err(MaskError::Tree(error)) if is_closed(&error) => {}
                        looked => looked?,
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
        let mut held = BTreeSet::new();
        if self.view == WorkspaceView::Writable {
            for path in hidden.iter().copied().chain(&self.pinned) {
                held.extend(path.ancestors().skip(1).map(Path::to_owned));
            }
            held.extend(self.pinned.iter().cloned());
            held.retain(|path| {
                *path != Path::new("") && !self.hidden.contains(path) && !is_below(path)
            });
        }
        if let Some(last) = held.iter().nth(limits::MASK_PINNED_PATHS) {
            return Err(MaskError::TooManyPinned(foreign_path(
                last.as_os_str().as_bytes(),
            )));
        }
        Ok(MaskedPaths {
            sockets: self.sockets,
            hidden: texts(hidden.into_iter().map(PathBuf::as_path))?,
            pinned: texts(held.iter().map(PathBuf::as_path))?,
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

/// Whether a path lies in the slice, or on the way to it.
fn is_within(path: &[u8], within: &[String]) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    within.is_empty()
        || within
            .iter()
            .any(|part| path.starts_with(part) || Path::new(part).starts_with(path))
}

/// Where below the root a link leads, and what is there, if it leads to something there.
fn resolve_link(root: &Root, link: &[u8]) -> Result<Option<(PathBuf, Meta)>, MaskError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let held = match open_within(root, link, flags, resolve) {
        Ok(held) => held,
        Err(Errno::XDEV) => return check_leaving_link(root, link).map(|()| None),
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
        Err(errno) => return Err(TreeError::at("follow the link", link, errno).into()),
    };
    let failed = |error| TreeError::at("follow the link", link, error);
    let (to, top) = (
        kernel_path(&held).map_err(failed)?,
        kernel_path(root).map_err(failed)?,
    );
    let meta = meta_of(&held).map_err(failed)?;
    let below = to.strip_prefix(&top).ok();
    Ok(below
        .filter(|path| *path != Path::new(""))
        .map(|path| (path.to_owned(), meta)))
}

/// Sees to it that a link that leads out of the workspace does so inside too, and on the host: there
/// is only what the sandbox has there. One that comes back by the workspace's name, here or there,
/// or that leads out over another link, is an error: what it leads to would stay open.
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
    // What stands at the other end, if its way on the host goes over links of the host.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let held = open_within(root, link, flags, ResolveFlags::NO_MAGICLINKS);
    let name = held.ok().and_then(|held| kernel_path(&held).ok());
    let top = kernel_path(root).map_err(|error| TreeError::at("follow the link", link, error))?;
    match name {
        Some(name) if name.starts_with(&top) => Err(MaskError::Link(foreign_path(link))),
        _ => Ok(()),
    }
}

/// Where something that is held is, as the kernel names it.
fn kernel_path(held: impl std::os::fd::AsFd) -> std::io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", held.as_fd().as_raw_fd()))
}

/// The way that a link takes.
struct LinkRoute {
    /// The links on it, the first one included, and the directories that it leaves again by `..`:
    /// without any of them it would lead nowhere.
    passed: Vec<PathBuf>,
    target: PathBuf,
}

/// Goes the way of a link below the root, one name at a time.
fn trace_link(root: &Root, link: &Path) -> Result<LinkRoute, Errno> {
    let mut over = Vec::new();
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
                over.push(here.clone());
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
        over.push(here.clone());
        here.pop();
        put(&mut ahead, &text);
    }
    Ok(LinkRoute {
        passed: over,
        target: here,
    })
}

#[cfg(test)]
mod tests;
