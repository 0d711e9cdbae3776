//! Walks over the changes in an overlay's upper directory.
//!
//! Owns the kernel's formats of changes: a regular file is new or changed, a character device 0:0
//! is a whiteout of a deleted entry, a directory with the attribute `opaque` hides the one below.
//! No link is followed, no fifo or device is opened, and everything is bounded. Must not know the
//! lower directory, nor what the result is used for.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::workspace::tree::{for_each_entry, open_dir_at};
use marshal_model::limits;

/// The attribute of a directory that hides the lower directory.
const OPAQUE: &CStr = c"user.overlay.opaque";
/// The attribute of an empty file that is a whiteout.
const WHITEOUT: &CStr = c"user.overlay.whiteout";
/// Attributes of the kernel that do not affect what a file is.
const HARMLESS: [&[u8]; 7] = [
    b"user.overlay.origin",
    b"user.overlay.opaque",
    b"user.overlay.impure",
    b"user.overlay.nlink",
    b"user.overlay.upper",
    b"user.overlay.uuid",
    b"user.overlay.protattr",
];
/// Prefixes of attributes that systems put on every file, and that are never applied.
const OF_THE_SYSTEM: [&[u8]; 6] = [
    b"security.selinux",
    b"security.SMACK64",
    b"security.ima",
    b"security.evm",
    b"security.apparmor",
    b"btrfs.",
];
/// Maximum size of the names of one file's attributes, as Linux limits it.
const ATTRIBUTE_BYTES: usize = 64 << 10;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryForm {
    /// A regular file.
    File {
        /// Its size in bytes, as reported by stat.
        size: u64,
        /// Its permission bits.
        mode: u32,
    },
    /// A directory: its content or its own attributes changed.
    Dir {
        /// Whether it hides the lower directory.
        opaque: bool,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Its target; `None` if it is not UTF-8 or too long.
        target: Option<String>,
    },
    /// A deleted entry.
    Gone,
    /// Something that is never applied.
    Odd {
        /// What it is, as a predicate without a subject.
        why: String,
    },
}

/// An entry of a walk.
#[derive(Debug)]
pub struct UpperEntry<'a> {
    /// Its path below the workspace.
    pub path: &'a [u8],
    /// The kind of change.
    pub form: EntryForm,
    /// Its metadata.
    pub stat: &'a Stat,
    /// A regular file, open for reading; only in a walk with contents.
    pub file: Option<OwnedFd>,
}

/// What a walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkDetail {
    /// Metadata only.
    Names,
    /// Extended attributes too; files are opened.
    Contents,
}

/// Why a walk is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IncompleteReason {
    /// Too many entries.
    #[error("the session wrote more than {} files", limits::OVERLAY_ENTRIES)]
    Entries,
    /// Nested too deep.
    #[error(
        "directories are nested more than {} levels deep",
        limits::OVERLAY_DEPTH
    )]
    Depth,
    /// The paths are too long.
    #[error(
        "the paths of all changed files are longer than {} MiB in total",
        limits::OVERLAY_PATHS_BYTES >> 20
    )]
    Paths,
    /// It took too long.
    #[error("reading all changes took longer than {} s", limits::WALK_TIME.as_secs())]
    Time,
}

/// Walks over all changes, a directory before its content.
///
/// # Errors
/// The error of `each`, or the system error for an unreadable directory.
pub fn walk(
    upper: impl AsFd,
    look: WalkDetail,
    each: &mut dyn FnMut(UpperEntry<'_>) -> io::Result<()>,
) -> io::Result<Option<IncompleteReason>> {
    let dir = open_dir_at(upper, c".")?;
    let mut walker = Walker {
        detail: look,
        each,
        path: Vec::new(),
        left: limits::OVERLAY_ENTRIES,
        bytes: limits::OVERLAY_PATHS_BYTES,
        seen: 0,
        began: Instant::now(),
        incomplete: None,
    };
    walker.dir(&dir, 0)?;
    Ok(walker.incomplete)
}

struct Walker<'e> {
    detail: WalkDetail,
    each: &'e mut dyn FnMut(UpperEntry<'_>) -> io::Result<()>,
    path: Vec<u8>,
    /// Number of entries that may still be listed.
    left: u64,
    /// Bytes of paths that may still be reported.
    bytes: usize,
    seen: u64,
    began: Instant,
    incomplete: Option<IncompleteReason>,
}

impl Walker<'_> {
    fn dir(&mut self, dir: &OwnedFd, depth: usize) -> io::Result<()> {
        let length = self.path.len();
        // Sort: the kernel's order is arbitrary, and the output must not vary.
        let mut names = Vec::new();
        for_each_entry(dir, |name| {
            // Count entries when they are listed: those of every level are in memory at once.
            if self.left == 0 {
                self.incomplete = Some(IncompleteReason::Entries);
                return Ok(());
            }
            self.left -= 1;
            names.push(name.to_owned());
            Ok(())
        })?;
        names.sort_unstable();
        for name in names {
            self.seen += 1;
            if self.seen.is_multiple_of(256) && self.began.elapsed() > limits::WALK_TIME {
                self.incomplete = Some(IncompleteReason::Time);
            }
            if self.incomplete.is_some() {
                return Ok(());
            }
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            let Some(rest) = self.bytes.checked_sub(self.path.len()) else {
                self.incomplete = Some(IncompleteReason::Paths);
                return Ok(());
            };
            self.bytes = rest;
            self.entry(dir, &name, depth)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn entry(&mut self, dir: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        if self.path.len() > limits::OVERLAY_PATH_BYTES {
            let most = limits::OVERLAY_PATH_BYTES;
            return self.emit_unsupported(format!("has a path of more than {most} bytes"), &stat);
        }
        let mode = stat.st_mode & 0o7777;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => match open_dir_at(dir, name) {
                Ok(child) => {
                    let opaque = is_opaque(&child)?;
                    self.emit(EntryForm::Dir { opaque, mode }, &stat, None)?;
                    if depth + 1 >= limits::OVERLAY_DEPTH {
                        self.incomplete = Some(IncompleteReason::Depth);
                        return Ok(());
                    }
                    self.dir(&child, depth + 1)
                }
                Err(error) => self.emit_unsupported(format!("cannot be read ({error})"), &stat),
            },
            FileType::RegularFile => {
                let (form, file) = self.file(dir, name, &stat)?;
                self.emit(form, &stat, file)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes();
                let fits = target.len() <= limits::OVERLAY_LINK_BYTES;
                let target = String::from_utf8(target).ok().filter(|_| fits);
                self.emit(EntryForm::Link { target }, &stat, None)
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                self.emit(EntryForm::Gone, &stat, None)
            }
            FileType::Fifo => self.emit_unsupported("is a fifo".to_owned(), &stat),
            FileType::Socket => self.emit_unsupported("is a socket".to_owned(), &stat),
            _ => self.emit_unsupported("is a device".to_owned(), &stat),
        }
    }

    fn emit(&mut self, form: EntryForm, stat: &Stat, file: Option<OwnedFd>) -> io::Result<()> {
        let path = &self.path;
        (self.each)(UpperEntry {
            path,
            form,
            stat,
            file,
        })
    }

    fn emit_unsupported(&mut self, why: String, stat: &Stat) -> io::Result<()> {
        self.emit(EntryForm::Odd { why }, stat, None)
    }

    /// A regular file: its kind, and its descriptor.
    fn file(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        stat: &Stat,
    ) -> io::Result<(EntryForm, Option<OwnedFd>)> {
        let odd = |why: &str| {
            Ok((
                EntryForm::Odd {
                    why: why.to_owned(),
                },
                None,
            ))
        };
        let form = EntryForm::File {
            size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            mode: stat.st_mode & 0o7777,
        };
        if self.detail == WalkDetail::Names {
            return Ok((form, None));
        }
        if stat.st_nlink > 1 {
            return odd("has several names (hard links)");
        }
        if stat.st_mode & 0o6000 != 0 {
            return odd("is set-user-id or set-group-id");
        }
        // NONBLOCK: if the file was replaced by a fifo meanwhile, opening it must not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(errno) => return odd(&format!("cannot be read ({})", io::Error::from(errno))),
        };
        let now = rustix::fs::fstat(&file)?;
        if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino)
            || FileType::from_raw_mode(now.st_mode) != FileType::RegularFile
        {
            return odd("was replaced while it was read");
        }
        if has_xattr(file.as_fd(), WHITEOUT)? {
            return Ok((EntryForm::Gone, None));
        }
        match find_unsupported_xattr(file.as_fd())? {
            Some(name) => odd(&format!("has the extended attribute {name}")),
            None => Ok((form, Some(file))),
        }
    }
}

/// Whether a directory hides the lower one; the value `x` means something else (overlayfs.rst).
pub(super) fn is_opaque(dir: impl AsFd) -> io::Result<bool> {
    let mut value = [0_u8; 4];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn has_xattr(fd: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match rustix::fs::fgetxattr_query(fd, name) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The first extended attribute that cannot be applied, if any.
fn find_unsupported_xattr(fd: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let mut names = vec![0_u8; ATTRIBUTE_BYTES];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let unsupported = names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .find(|name| {
            !HARMLESS.contains(name) && !OF_THE_SYSTEM.iter().any(|known| name.starts_with(known))
        });
    Ok(unsupported.map(|name| String::from_utf8_lossy(name).into_owned()))
}
