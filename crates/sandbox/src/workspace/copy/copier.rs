//! Copies a list of files from one tree to another, one path component at a time.
//!
//! Both sides are walked down together, so that no path is ever resolved twice. Must not know where
//! lists come from, nor what happens to the copy.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::super::file_list::{FileList, ListError};
use super::super::tree::{
    FileId, Kind, Meta, Root, TreeError, meta_of, open_handle_at, open_own_dir_at, reopen,
};
use super::super::{Owner, foreign_path};
use super::{CopyBounds, CopyError, CopyReport};

/// Files up to this size in bytes are read and written in one call.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// A directory being copied: both sides, and the final attributes of the new one.
struct Level {
    name: Vec<u8>,
    from: OwnedFd,
    to: OwnedFd,
    meta: Meta,
}

/// Copies lists of files from one tree to another.
pub(super) struct Copier<'a> {
    source: &'a Root,
    target: &'a Root,
    /// The state directory, which must never be copied into itself.
    state: FileId,
    source_meta: Meta,
    owner: Option<Owner>,
    bounds: CopyBounds,
    /// The directories down to the current one, the root first.
    levels: Vec<Level>,
    buffer: Vec<u8>,
    copied: CopyReport,
    /// Number of files that may still be created.
    left: u64,
}

/// Why one path was not copied.
enum EntryError {
    /// It does not exist, or is not what was listed.
    Missing,
    /// It is not readable.
    Unreadable,
    /// The whole copy fails.
    Copy(CopyError),
}

impl From<CopyError> for EntryError {
    fn from(error: CopyError) -> Self {
        Self::Copy(error)
    }
}

impl<'a> Copier<'a> {
    /// A copier from `source` to the empty directory `target`, which skips `state`.
    pub(super) fn new(
        source: &'a Root,
        target: &'a Root,
        state: FileId,
        owner: Option<Owner>,
        bounds: CopyBounds,
    ) -> Result<Self, CopyError> {
        Ok(Self {
            source,
            target,
            state,
            source_meta: source.meta()?,
            owner,
            bounds,
            levels: Vec::new(),
            buffer: vec![0; SMALL_BYTES],
            copied: CopyReport::default(),
            left: bounds.files,
        })
    }

    /// The report of the copy.
    pub(super) fn into_copied(self) -> CopyReport {
        self.copied
    }

    /// Copies `.git` in an order that keeps the copy consistent while git works in the source: refs
    /// first, then loose objects, then the packs that they may move into meanwhile.
    pub(super) fn copy_git(&mut self) -> Result<(), CopyError> {
        let passes: [(&[u8], &[u8]); 3] = [
            (b".git", b".git/objects"),
            (b".git/objects", b".git/objects/pack"),
            (b".git/objects/pack", b""),
        ];
        for (start, skip) in passes {
            // A copied lock file would never be removed.
            let left_out = |path: &[u8]| path == skip || path.ends_with(b".lock");
            let list = FileList::walk(self.source, start, self.left, &left_out)?;
            self.copy(&list)?;
        }
        Ok(())
    }

    /// Copies the listed paths and their parent directories.
    pub(super) fn copy(&mut self, list: &FileList) -> Result<(), CopyError> {
        self.copied.invalid_paths += list.invalid;
        self.copied.unreadable += list.unreadable;
        self.enter_root()?;
        for path in list.paths() {
            let (parent, name) = split(path);
            let done = self.go_to(parent).and_then(|()| self.copy_one(path, name));
            match done {
                Ok(()) => {}
                Err(EntryError::Missing) => self.copied.missing += 1,
                Err(EntryError::Unreadable) => {
                    self.copied.unreadable += 1;
                    let first = &mut self.copied.first_unreadable;
                    first.get_or_insert_with(|| foreign_path(path));
                }
                Err(EntryError::Copy(error)) => return Err(error),
            }
        }
        while !self.levels.is_empty() {
            self.leave()?;
        }
        Ok(())
    }

    fn enter_root(&mut self) -> Result<(), CopyError> {
        let at = |error| TreeError::at_path("open", self.source.path(), error);
        let from = open_handle_at(self.source, c".").map_err(at)?;
        let at = |error| TreeError::at_path("open", self.target.path(), error);
        let to = open_own_dir_at(self.target, c".").map_err(at)?;
        self.levels.push(Level {
            name: Vec::new(),
            from,
            to,
            meta: self.source_meta,
        });
        Ok(())
    }

    /// Makes the directory `parent` the current one: leaves directories that are not on its path,
    /// and enters the missing ones.
    fn go_to(&mut self, parent: &[u8]) -> Result<(), EntryError> {
        let parts = || parent.split(|&byte| byte == b'/').filter(|p| !p.is_empty());
        let common = self
            .levels
            .iter()
            .skip(1)
            .zip(parts())
            .take_while(|(level, part)| level.name == *part)
            .count();
        while self.levels.len() > common + 1 {
            self.leave()?;
        }
        for part in parts().skip(common) {
            self.enter(part)?;
        }
        Ok(())
    }

    /// Enters `name` of the current directory on both sides. A link, or anything else that is not a
    /// directory, counts as missing.
    fn enter(&mut self, name: &[u8]) -> Result<(), EntryError> {
        let Some(level) = self.levels.last() else {
            return Err(EntryError::Missing);
        };
        let c_name = c_name(name)?;
        let from = open_handle_at(&level.from, &c_name)
            .map_err(|error| source_error("open", name, error))?;
        let meta = meta_of(&from).map_err(|error| source_error("examine", name, error))?;
        if meta.kind != Kind::Dir || meta.id == self.state {
            return Err(EntryError::Missing);
        }
        match rustix::fs::mkdirat(&level.to, &*c_name, Mode::from_raw_mode(0o700)) {
            Ok(()) if self.left == 0 => return Err(self.too_many()),
            Ok(()) => self.left -= 1,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(copy_error("create the directory", name, errno)),
        }
        // `a` may have been copied as a link and have become a directory since, which the list
        // shows as `a/b`.
        let to = match open_own_dir_at(&level.to, &c_name) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(EntryError::Missing);
            }
            opened => opened.map_err(|error| copy_error("open", name, error))?,
        };
        self.levels.push(Level {
            name: name.to_owned(),
            from,
            to,
            meta,
        });
        Ok(())
    }

    /// Leaves the current directory, which is complete now, and sets its mode and times.
    fn leave(&mut self) -> Result<(), CopyError> {
        let Some(level) = self.levels.pop() else {
            return Ok(());
        };
        // The copy's root must stay usable, whatever the source's mode is.
        let mode = if self.levels.is_empty() {
            level.meta.mode | 0o700
        } else {
            level.meta.mode
        };
        let done = self.finish(level.to.as_fd(), mode, &level.meta);
        Ok(done.map_err(|errno| TreeError::at("complete", &level.name, errno))?)
    }

    /// The owner first: chown clears set-id bits, and later calls still need ownership rights.
    fn finish(&self, fd: BorrowedFd<'_>, mode: u16, meta: &Meta) -> rustix::io::Result<()> {
        if let Some(owner) = self.owner {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            rustix::fs::fchown(fd, Some(uid), Some(gid))?;
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(u32::from(mode & 0o777)))?;
        rustix::fs::futimens(fd, &times(meta))
    }

    fn copy_one(&mut self, path: &[u8], name: &[u8]) -> Result<(), EntryError> {
        let Some(level) = self.levels.last() else {
            return Err(EntryError::Missing);
        };
        let c_name = c_name(name)?;
        let handle = open_handle_at(&level.from, &c_name)
            .map_err(|error| source_error("open", path, error))?;
        let meta = meta_of(&handle).map_err(|error| source_error("examine", path, error))?;
        if meta.kind == Kind::Other {
            self.copied.special += 1;
            return Ok(());
        }
        if meta.kind == Kind::Dir {
            return self.enter(name);
        }
        if self.left == 0 {
            return Err(self.too_many());
        }
        let made = if meta.kind == Kind::Link {
            self.copy_link(path, &c_name, &handle, &meta)?
        } else {
            self.copy_file(path, &c_name, &handle, &meta)?
        };
        if made {
            self.left -= 1;
            self.copied.files += 1;
        }
        Ok(())
    }

    fn copy_link(
        &self,
        path: &[u8],
        name: &CString,
        handle: &OwnedFd,
        meta: &Meta,
    ) -> Result<bool, EntryError> {
        let to = self.to();
        let target = rustix::fs::readlinkat(handle, c"", Vec::new())
            .map_err(|errno| source_error("read the link", path, errno.into()))?;
        match rustix::fs::symlinkat(&*target, to, &**name) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(errno) => return Err(copy_error("create the link", path, errno)),
        }
        let own = || {
            if let Some(owner) = self.owner {
                let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(to, &**name, Some(uid), Some(gid), flags)?;
            }
            rustix::fs::utimensat(to, &**name, &times(meta), AtFlags::SYMLINK_NOFOLLOW)
        };
        own().map_err(|errno| copy_error("complete", path, errno))?;
        Ok(true)
    }

    fn copy_file(
        &mut self,
        path: &[u8],
        name: &CString,
        handle: &OwnedFd,
        meta: &Meta,
    ) -> Result<bool, EntryError> {
        if self.is_somebody_elses(meta) {
            return Err(EntryError::Unreadable);
        }
        let remaining = self.bounds.bytes.saturating_sub(self.copied.bytes);
        let too_large = || {
            EntryError::Copy(CopyError::TooLarge {
                limit: self.bounds.bytes,
                at: foreign_path(path),
            })
        };
        if meta.size > remaining {
            return Err(too_large());
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let from = reopen(handle, flags).map_err(|error| source_error("read", path, error))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let to = match rustix::fs::openat(self.to(), &**name, flags, mode) {
            Ok(to) => to,
            Err(Errno::EXIST) => return Ok(false),
            Err(errno) => return Err(copy_error("create", path, errno)),
        };
        let bytes = match share_blocks(&from, &to) {
            Some(shared) => Some(shared).filter(|bytes| *bytes <= remaining),
            None => transfer(&from, &to, meta.size, remaining, &mut self.buffer)
                .map_err(|error| copy_error("copy", path, error))?,
        };
        let bytes = bytes.ok_or_else(too_large)?;
        self.finish(to.as_fd(), meta.mode, meta)
            .map_err(|errno| copy_error("complete", path, errno))?;
        self.copied.bytes += bytes;
        Ok(true)
    }

    /// Root can read everything, but copies on behalf of the workspace's owner. A hard link to
    /// another user's private file may have been placed there to make root read it.
    fn is_somebody_elses(&self, meta: &Meta) -> bool {
        let for_whom = self.source_meta.uid;
        rustix::process::geteuid().is_root()
            && for_whom != 0
            && meta.uid != for_whom
            && meta.links > 1
            && meta.mode & 0o004 == 0
    }

    fn too_many(&self) -> EntryError {
        EntryError::Copy(ListError::too_many(self.bounds.files).into())
    }

    fn to(&self) -> BorrowedFd<'_> {
        self.levels
            .last()
            .map_or(self.target.as_fd(), |level| level.to.as_fd())
    }
}

/// Makes an empty file share the blocks of another one; returns how many bytes it has. `None` if the file
/// system has no such clones (btrfs, xfs and bcachefs have), or not of this file: it is copied then, and the
/// copy reports what is wrong with it.
fn share_blocks(from: &OwnedFd, to: &OwnedFd) -> Option<u64> {
    rustix::fs::ioctl_ficlone(to, from).ok()?;
    meta_of(to).ok().map(|meta| meta.size)
}

/// Copies bytes from one open file to another, at most `remaining`; `None` if there are more.
fn transfer(
    from: &OwnedFd,
    to: &OwnedFd,
    size: u64,
    remaining: u64,
    buffer: &mut [u8],
) -> io::Result<Option<u64>> {
    let mut total = 0_u64;
    if size > SMALL_BYTES as u64 {
        loop {
            let chunk = 1 << 30;
            match rustix::fs::copy_file_range(from, None, to, None, chunk) {
                // End of file, or not supported between these file systems: continue with read and
                // write.
                Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Ok(bytes) => total += bytes as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if total > remaining {
                return Ok(None);
            }
        }
    }
    loop {
        let bytes = match rustix::io::read(from, &mut *buffer) {
            Ok(0) => return Ok(Some(total)),
            Ok(bytes) => bytes,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        total += bytes as u64;
        if total > remaining {
            return Ok(None);
        }
        let mut rest = &buffer[..bytes];
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // A short read of a regular file is its end; this saves one call for every small file.
        if bytes < buffer.len() && total >= size {
            return Ok(Some(total));
        }
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn c_name(name: &[u8]) -> Result<CString, EntryError> {
    CString::new(name).map_err(|_| EntryError::Missing)
}

fn times(meta: &Meta) -> Timestamps {
    let time = |(seconds, nanoseconds): (i64, u32)| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    Timestamps {
        last_access: time(meta.mtime),
        last_modification: time(meta.mtime),
    }
}

/// How an error in the source affects the copy.
fn source_error(doing: &'static str, path: &[u8], error: io::Error) -> EntryError {
    match Errno::from_io_error(&error) {
        Some(
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::STALE
            | Errno::NXIO
            | Errno::INVAL,
        ) => EntryError::Missing,
        // EAGAIN: another process holds a lease on it.
        Some(Errno::ACCESS | Errno::PERM | Errno::AGAIN) => EntryError::Unreadable,
        _ => copy_error(doing, path, error),
    }
}

fn copy_error(doing: &'static str, path: &[u8], error: impl Into<io::Error>) -> EntryError {
    EntryError::Copy(TreeError::at(doing, path, error).into())
}
