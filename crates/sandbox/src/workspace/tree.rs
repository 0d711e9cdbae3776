//! A tree that other processes may be changing, read from one descriptor of its root.
//!
//! Owns the only ways to descend a tree: one name at a time, never through a symbolic link, never
//! upwards by name. Opens nothing but directories; the type of a file comes from its metadata. Must
//! not know what the tree is for.

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

/// Flags to open a directory for reading. `O_NONBLOCK` in case a fifo is there instead.
const READ_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Flags to refer to a name without opening its file.
const HANDLE_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Buffer size of one read of a directory.
const DIRECTORY_BUFFER_BYTES: usize = 16 << 10;

/// Levels of a walk with an open descriptor. Deeper ones are reopened by `..`, which is accepted
/// only if device and inode match those seen on the way down.
const OPEN_LEVELS: usize = 32;

/// A failed operation on a tree.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {source}", .path.escape_for_display(300))]
pub struct TreeError {
    /// The failed operation, as a verb with its object.
    pub doing: &'static str,
    /// The path it was applied to.
    pub path: UntrustedText,
    /// The system error.
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

/// The root of a tree: an `O_PATH` descriptor, and the path it was opened by, for messages.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens a directory of the host. Links in `path` are followed, because the user chose it.
    pub fn open(path: &Path) -> Result<Self, TreeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| TreeError::at_path("open the directory", path, errno))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Opens a directory of the host by a path that was resolved before, so it contains no links: a
    /// link that is there now was placed by another process.
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

    /// Opens the directory `name` of an open directory; refuses a link.
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

    /// The metadata of the root.
    pub fn meta(&self) -> Result<Meta, TreeError> {
        meta_of(self).map_err(|error| TreeError::at_path("examine", &self.path, error))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The type of a directory entry.
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

/// A file system time: seconds since the epoch and nanoseconds.
pub type Timestamp = (i64, u32);

/// Metadata of an entry, read without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Its type.
    pub kind: Kind,
    /// Whether it is a socket, which a process may listen on.
    pub is_socket: bool,
    /// Its permission bits, `0o7777`.
    pub mode: u16,
    /// Its size in bytes.
    pub size: u64,
    /// Its disk usage in bytes.
    pub disk_bytes: u64,
    /// Number of hard links.
    pub links: u32,
    /// Its owner's user id.
    pub uid: u32,
    /// Its owner's group id.
    pub gid: u32,
    /// Device and inode: two names with equal ids are one file.
    pub id: FileId,
    /// Last change of the content; anyone with write permission can set it.
    pub mtime: Timestamp,
    /// Last change of content or metadata; only the kernel sets it.
    pub ctime: Timestamp,
    /// When it was created, where the file system has that.
    pub born: Option<Timestamp>,
}

impl Meta {
    /// What it has under every name.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        (self.id, self.born)
    }
}

/// Device (major, minor) and inode.
pub type FileId = (u32, u32, u64);

/// Device and inode, and when it was created: a later file may get the same inode.
pub type Identity = (FileId, Option<Timestamp>);

/// The metadata of an open descriptor.
pub fn meta_of(fd: impl AsFd) -> io::Result<Meta> {
    stat(fd.as_fd(), c"", AtFlags::EMPTY_PATH)
}

/// The metadata of `name` in `dir`; of the link itself if it is one.
pub fn meta_at(dir: impl AsFd, name: &CStr) -> io::Result<Meta> {
    stat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}

fn stat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> io::Result<Meta> {
    let flags = flags | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let s = rustix::fs::statx(dir, name, flags, wanted)?;
    let has_birth = StatxFlags::from_bits_retain(s.stx_mask).contains(StatxFlags::BTIME);
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
        born: has_birth.then_some((s.stx_btime.tv_sec, s.stx_btime.tv_nsec)),
    })
}

/// Opens `name` in `dir` with O_PATH: no device reacts, no fifo blocks, no link is followed.
pub fn open_handle_at(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, HANDLE_FLAGS, Mode::empty())?)
}

/// Opens the directory `name` of `dir` for reading. A link gives `ENOTDIR` or `ELOOP`.
pub fn open_dir_at(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, READ_DIR, Mode::empty())?)
}

/// Reopens the file of an `O_PATH` descriptor, so that it cannot be replaced in between. Requires
/// `/proc`.
pub fn reopen(handle: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = proc_path(handle.as_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => io::Error::other("/proc is not mounted"),
        errno => errno.into(),
    })
}

/// Opens one of our directories for reading. If its owner lacks permissions, which an agent may
/// have removed, they are restored first.
pub fn open_own_dir_at(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let handle = rustix::fs::openat(&dir, name, HANDLE_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
    let meta = meta_of(&handle)?;
    if meta.mode & 0o700 != 0o700 {
        let mode = Mode::from_raw_mode(u32::from(meta.mode & 0o777 | 0o700));
        rustix::fs::chmod(proc_path(handle.as_fd()), mode)?;
    }
    open_dir_at(&handle, c".")
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Calls `each` for the entries of an open directory, from its start, without `.` and `..`. `each`
/// may remove entries.
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

/// Limits of a walk.
#[derive(Debug, Clone, Copy)]
pub struct WalkBounds {
    /// Maximum number of visited entries.
    pub entries: u64,
    /// Maximum depth below the root.
    pub depth: usize,
    /// Maximum duration.
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

/// An entry of a walk.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its path below the root, without a leading slash.
    pub path: &'a [u8],
    /// The last component of the path.
    pub name: &'a [u8],
    /// Its metadata.
    pub meta: &'a Meta,
}

/// What a visitor returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkStep {
    /// Continue; descend into the entry if it is a directory.
    Enter,
    /// Continue, but do not descend into it.
    Skip,
    /// End the walk.
    Stop,
}

/// Why a walk is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncompleteReason {
    /// The limit of entries was reached.
    Entries,
    /// The limit of depth was reached.
    Depth,
    /// The limit of time was reached.
    Time,
    /// A directory was moved while it was read.
    Moved,
    /// The visitor ended it.
    Visitor,
}

/// The result of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkSummary {
    /// Number of visited entries.
    pub entries: u64,
    /// Number of directories that could not be read for lack of permission.
    pub unreadable: u64,
    /// Why the walk is incomplete, if it is; the last reason of several.
    pub incomplete: Option<IncompleteReason>,
}

/// Visits everything below `start`, the entries of a directory before those of its subdirectories.
/// Entries that disappear meanwhile are skipped. Uses at most 34 descriptors.
///
/// # Errors
/// The system error for `start` itself, or that no more directories can be opened.
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

/// A directory between the root and the current one.
struct Level {
    /// Open for the deepest level and the first [`OPEN_LEVELS`].
    dir: Option<OwnedFd>,
    id: FileId,
    /// The length of its path in [`Walker::path`].
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

    /// A directory that disappeared or changed its type is skipped; running out of descriptors or
    /// memory is an error.
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

    /// Reads one directory: visits its entries, and collects the names of those to descend into.
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

    /// Leaves the deepest level, and reopens its parent if that was closed.
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
            // The directory was moved: its parent now is outside of this tree.
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
