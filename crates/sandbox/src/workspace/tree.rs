//! A tree that somebody else may be changing, read from one descriptor of its root.
//!
//! Owns the only ways to go down a tree: by one name at a time, never through a symbolic link,
//! never upwards by name. Opens nothing but directories; what a file is, is read from its
//! metadata. Must not know what the tree is for.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::foreign_path;
use crate::open::open_within;
use marshal_model::UntrustedText;
use marshal_model::limits;

/// How a directory is opened to be read. `O_NONBLOCK` for whatever stands there instead of it.
const READ_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// How a name is taken hold of without opening what it names.
const HANDLE_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Bytes of one read from a directory.
const DIRECTORY_BUFFER_BYTES: usize = 16 << 10;

/// Levels of a walk that keep their descriptor. Deeper ones are found again by `..`, which is
/// believed only if device and inode are those that were seen on the way down.
const OPEN_LEVELS: usize = 32;

/// An operation on a tree that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {source}", .path.escape_for_display(300))]
pub struct TreeError {
    /// What was to be done.
    pub doing: &'static str,
    /// To what.
    pub path: UntrustedText,
    /// Why it failed.
    pub source: io::Error,
}

impl TreeError {
    /// An error at a path of raw bytes.
    pub fn at(doing: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        Self {
            doing,
            path: foreign_path(path),
            source: source.into(),
        }
    }

    /// An error at a path of the host.
    pub fn at_path(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        Self::at(doing, path.as_os_str().as_bytes(), source)
    }
}

/// The top of a tree: an `O_PATH` descriptor, and the path it was opened by, for messages.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens a directory of the host. Links in `path` itself are followed: it is the user's word.
    pub fn open(path: &Path) -> Result<Self, TreeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| TreeError::at_path("open the directory", path, errno))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Opens a directory of the host by a path that was resolved before, and that has no link in
    /// it any more: one that is there now was put there by somebody else.
    pub fn open_resolved(path: &Path) -> Result<Self, TreeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = open_within(rustix::fs::CWD, path, flags, resolve)
            .map_err(|errno| TreeError::at_path("open, without following a link,", path, errno))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Opens the directory `name` of a directory that is already held, and no link.
    pub fn open_at(parent: impl AsFd, name: &str, path: PathBuf) -> Result<Self, TreeError> {
        let fd = rustix::fs::openat(
            parent,
            name,
            HANDLE_FLAGS | OFlags::DIRECTORY,
            Mode::empty(),
        )
        .map_err(|errno| TreeError::at_path("open the directory", &path, errno))?;
        Ok(Self { fd, path })
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its metadata.
    pub fn meta(&self) -> Result<Meta, TreeError> {
        meta_of(self).map_err(|error| TreeError::at_path("examine", &self.path, error))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What kind of thing a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A device, fifo or socket.
    Other,
}

/// A point in time, as the file system keeps it: seconds since the epoch and nanoseconds.
pub type Timestamp = (i64, u32);

/// What is known of a thing without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Its kind.
    pub kind: Kind,
    /// Whether it is a socket, at which somebody may listen.
    pub is_socket: bool,
    /// Its permission bits, `0o7777`.
    pub mode: u16,
    /// Its length in bytes.
    pub size: u64,
    /// The bytes it takes on disk.
    pub disk_bytes: u64,
    /// How many names it has.
    pub links: u32,
    /// Its owner's user id.
    pub uid: u32,
    /// Its owner's group id.
    pub gid: u32,
    /// Device and inode: two names with equal ids are one thing.
    pub id: FileId,
    /// When its content was changed last; anybody who may write it can set this.
    pub mtime: Timestamp,
    /// When anything of it was changed last; only the kernel sets this.
    pub ctime: Timestamp,
}

/// Device (major, minor) and inode.
pub type FileId = (u32, u32, u64);

/// The metadata of what a descriptor holds.
pub fn meta_of(fd: impl AsFd) -> io::Result<Meta> {
    stat(fd.as_fd(), c"", AtFlags::EMPTY_PATH)
}

/// The metadata of `name` in `dir`, of the link itself if it is one.
pub fn meta_at(dir: impl AsFd, name: &CStr) -> io::Result<Meta> {
    stat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}

fn stat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> io::Result<Meta> {
    let flags = flags | AtFlags::NO_AUTOMOUNT;
    let s = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)?;
    Ok(Meta {
        kind: match FileType::from_raw_mode(s.stx_mode.into()) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        },
        is_socket: FileType::from_raw_mode(s.stx_mode.into()) == FileType::Socket,
        mode: s.stx_mode & 0o7777,
        size: s.stx_size,
        disk_bytes: s.stx_blocks.saturating_mul(512),
        links: s.stx_nlink,
        uid: s.stx_uid,
        gid: s.stx_gid,
        id: (s.stx_dev_major, s.stx_dev_minor, s.stx_ino),
        mtime: (s.stx_mtime.tv_sec, s.stx_mtime.tv_nsec),
        ctime: (s.stx_ctime.tv_sec, s.stx_ctime.tv_nsec),
    })
}

/// Takes hold of `name` in `dir` without opening it: no device reacts, no fifo waits, no link is
/// followed.
pub fn open_handle_at(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, HANDLE_FLAGS, Mode::empty())?)
}

/// Opens the directory `name` of `dir` to be read. A link gives `ENOTDIR` or `ELOOP`.
pub fn open_dir_at(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, READ_DIR, Mode::empty())?)
}

/// Opens what an `O_PATH` descriptor holds, so that nobody can put something else in between.
/// Needs `/proc`.
pub fn reopen(held: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = proc_path(held.as_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => io::Error::other("/proc is not mounted"),
        errno => errno.into(),
    })
}

/// Opens a directory of ours to be read, and gives its owner all rights to it first where they
/// are missing: an agent may have taken them away.
pub fn open_own_dir_at(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let held = rustix::fs::openat(&dir, name, HANDLE_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
    let meta = meta_of(&held)?;
    if meta.mode & 0o700 != 0o700 {
        let mode = Mode::from_raw_mode(u32::from(meta.mode & 0o777 | 0o700));
        rustix::fs::chmod(proc_path(held.as_fd()), mode)?;
    }
    open_dir_at(&held, c".")
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Calls `each` for the entries of a directory that is open to be read, from its beginning, `.`
/// and `..` left out. `each` may remove entries.
pub fn for_each_entry(
    dir: impl AsFd,
    mut each: impl FnMut(&CStr) -> io::Result<()>,
) -> io::Result<()> {
    rustix::fs::seek(&dir, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); DIRECTORY_BUFFER_BYTES];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            // The directory was removed while it was open.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let name = entry.file_name();
        if name != c"." && name != c".." {
            each(name)?;
        }
    }
    Ok(())
}

/// How far one walk goes.
#[derive(Debug, Clone, Copy)]
pub struct WalkBounds {
    /// Entries looked at.
    pub entries: u64,
    /// Levels below the root.
    pub depth: usize,
    /// Time taken.
    pub time: Duration,
}

impl Default for WalkBounds {
    fn default() -> Self {
        Self {
            entries: limits::WALK_ENTRIES,
            depth: limits::WALK_DEPTH,
            time: limits::WALK_TIME,
        }
    }
}

/// One thing on the way.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its path below the root, without a leading slash.
    pub path: &'a [u8],
    /// The last component of it.
    pub name: &'a [u8],
    /// Its metadata.
    pub meta: &'a Meta,
}

/// What a visitor wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkStep {
    /// Go on; if the entry is a directory, go into it.
    Enter,
    /// Go on, but not into it.
    Skip,
    /// End the walk here.
    Stop,
}

/// Why a walk did not see everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncompleteReason {
    /// Too many entries.
    Entries,
    /// Too many levels.
    Depth,
    /// Too much time.
    Time,
    /// A directory was moved away while it was read.
    Moved,
    /// The visitor ended it.
    Visitor,
}

/// What came of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkSummary {
    /// Entries seen.
    pub entries: u64,
    /// Directories that could not be read for lack of rights.
    pub unreadable: u64,
    /// Why the walk is incomplete, if it is; the last reason if there are several.
    pub incomplete: Option<IncompleteReason>,
}

/// Walks over everything below `start`, the entries of a directory before those of its
/// subdirectories. What vanishes on the way is left out. Holds at most 34 descriptors.
///
/// # Errors
/// What the system says about `start` itself, or where it can no longer open directories at all.
pub fn walk(
    start: impl AsFd,
    bounds: WalkBounds,
    visit: &mut dyn FnMut(&Entry<'_>) -> WalkStep,
) -> io::Result<WalkSummary> {
    let dir = open_dir_at(start, c".")?;
    let mut walker = Walker {
        bounds,
        began: Instant::now(),
        visit,
        path: Vec::new(),
        stack: Vec::new(),
        done: WalkSummary::default(),
    };
    walker.enter(dir)?;
    while !walker.is_finished() {
        let Some(level) = walker.stack.last_mut() else {
            break;
        };
        walker.path.truncate(level.path_len);
        match level.subdirs.pop() {
            Some(name) => walker.go_down(&name)?,
            None => walker.go_up(),
        }
    }
    Ok(walker.done)
}

/// A directory on the way down to the current one.
struct Level {
    /// Open for the deepest level and the first [`OPEN_LEVELS`].
    dir: Option<OwnedFd>,
    id: FileId,
    /// Where its path ends in [`Walker::read_path`].
    path_len: usize,
    /// Subdirectories still to be visited.
    subdirs: Vec<CString>,
}

struct Walker<'v> {
    bounds: WalkBounds,
    began: Instant,
    visit: &'v mut dyn FnMut(&Entry<'_>) -> WalkStep,
    path: Vec<u8>,
    stack: Vec<Level>,
    done: WalkSummary,
}

impl Walker<'_> {
    fn is_finished(&self) -> bool {
        matches!(
            self.done.incomplete,
            Some(IncompleteReason::Entries | IncompleteReason::Time | IncompleteReason::Visitor)
        )
    }

    fn go_down(&mut self, name: &CStr) -> io::Result<()> {
        if self.stack.len() > self.bounds.depth {
            self.done.incomplete = Some(IncompleteReason::Depth);
            return Ok(());
        }
        let Some(parent) = self.stack.last().and_then(|level| level.dir.as_ref()) else {
            return Ok(());
        };
        let child = match open_dir_at(parent, name) {
            Ok(child) => child,
            Err(error) => return self.handle_open_error(error),
        };
        push_component(&mut self.path, name.to_bytes());
        self.enter(child)
    }

    /// A directory that vanished, or became something else, is no fault of the tree; running out
    /// of descriptors or memory is one of ours.
    fn handle_open_error(&mut self, error: io::Error) -> io::Result<()> {
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                self.done.unreadable += 1;
                Ok(())
            }
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::NODEV) => {
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Reads one directory: visits its entries, and keeps the names of those to go into.
    fn enter(&mut self, dir: OwnedFd) -> io::Result<()> {
        let id = meta_of(&dir)?.id;
        let path_len = self.path.len();
        let mut subdirs = Vec::new();
        for_each_entry(&dir, |name| {
            if !self.is_finished() {
                self.visit_entry(&dir, name, &mut subdirs);
                self.path.truncate(path_len);
            }
            Ok(())
        })?;
        if subdirs.is_empty() {
            return Ok(());
        }
        if let Some(parent) = self.stack.len().checked_sub(1)
            && parent >= OPEN_LEVELS
        {
            self.stack[parent].dir = None;
        }
        self.stack.push(Level {
            dir: Some(dir),
            id,
            path_len,
            subdirs,
        });
        Ok(())
    }

    fn visit_entry(&mut self, dir: &OwnedFd, name: &CStr, subdirs: &mut Vec<CString>) {
        if self.done.entries >= self.bounds.entries {
            self.done.incomplete = Some(IncompleteReason::Entries);
            return;
        }
        self.done.entries += 1;
        if self.done.entries.is_multiple_of(256) && self.began.elapsed() > self.bounds.time {
            self.done.incomplete = Some(IncompleteReason::Time);
            return;
        }
        let Ok(meta) = meta_at(dir, name) else {
            return;
        };
        push_component(&mut self.path, name.to_bytes());
        let step = (self.visit)(&Entry {
            path: &self.path,
            name: name.to_bytes(),
            meta: &meta,
        });
        match step {
            WalkStep::Enter if meta.kind == Kind::Dir => subdirs.push(name.to_owned()),
            WalkStep::Enter | WalkStep::Skip => {}
            WalkStep::Stop => self.done.incomplete = Some(IncompleteReason::Visitor),
        }
    }

    /// Leaves the deepest level, and finds its parent again if that was closed.
    fn go_up(&mut self) {
        let Some(left) = self.stack.pop() else { return };
        let Some(parent) = self.stack.last_mut() else {
            return;
        };
        if parent.dir.is_some() {
            return;
        }
        parent.dir = left
            .dir
            .and_then(|dir| open_dir_at(dir, c"..").ok())
            .filter(|dir| meta_of(dir).is_ok_and(|meta| meta.id == parent.id));
        if parent.dir.is_none() {
            // Somebody moved a directory: what is above it now is not ours to read.
            self.done.incomplete = Some(IncompleteReason::Moved);
            while self.stack.last().is_some_and(|level| level.dir.is_none()) {
                self.stack.pop();
            }
        }
    }
}

fn push_component(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

#[cfg(test)]
mod tests;
