//! What was written over a workspace, read from the directory that took it.
//!
//! Owns the forms in which the kernel keeps a change there: a plain file is new or changed, a
//! character device 0:0 stands for something deleted, a directory with the attribute `opaque` hides
//! what was below it. Nothing is followed, no fifo or device is opened, and everything has a bound.
//! Must not know what is below, nor what becomes of it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::workspace::tree::{for_each_entry, open_dir_at};
use marshal_model::limits;

/// The attribute of a directory that hides what was below it.
const OPAQUE: &CStr = c"user.overlay.opaque";
/// The attribute of an empty file that stands for something deleted.
const WHITEOUT: &CStr = c"user.overlay.whiteout";
/// Attributes of the kernel's own that change nothing of what a file is.
const HARMLESS: [&[u8]; 7] = [
    b"user.overlay.origin",
    b"user.overlay.opaque",
    b"user.overlay.impure",
    b"user.overlay.nlink",
    b"user.overlay.upper",
    b"user.overlay.uuid",
    b"user.overlay.protattr",
];
/// Families of attributes that a system puts on everything, and that never come along.
const OF_THE_SYSTEM: [&[u8]; 6] = [
    b"security.selinux",
    b"security.SMACK64",
    b"security.ima",
    b"security.evm",
    b"security.apparmor",
    b"btrfs.",
];
/// Bytes of the names of one file's attributes: what Linux allows at most.
const ATTRIBUTE_BYTES: usize = 64 << 10;

/// One thing that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryForm {
    /// A plain file.
    File {
        /// Its length in bytes, as it says.
        size: u64,
        /// Its permission bits.
        mode: u32,
    },
    /// A directory: what is in it was changed, or itself.
    Dir {
        /// It hides what was below.
        opaque: bool,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Its target; `None` if it is no UTF-8 or too long.
        target: Option<String>,
    },
    /// What was here is deleted.
    Gone,
    /// What can never be taken over.
    Odd {
        /// What it is, as a sentence without its subject.
        why: String,
    },
}

/// What a walk found.
#[derive(Debug)]
pub struct UpperEntry<'a> {
    /// Its path below the workspace.
    pub path: &'a [u8],
    /// What it is.
    pub form: EntryForm,
    /// Its metadata.
    pub stat: &'a Stat,
    /// A plain file, open to be read; only where contents are wanted.
    pub file: Option<OwnedFd>,
}

/// How closely things are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkDetail {
    /// By their metadata.
    Names,
    /// With their attributes, and files opened.
    Contents,
}

/// Why a walk did not see everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IncompleteReason {
    /// Too many things.
    #[error("more than {} files were written", limits::OVERLAY_ENTRIES)]
    Entries,
    /// Too deep.
    #[error(
        "directories are nested more than {} levels deep",
        limits::OVERLAY_DEPTH
    )]
    Depth,
    /// Too long names.
    #[error(
        "the paths of what was written are longer than {} MiB together",
        limits::OVERLAY_PATHS_BYTES >> 20
    )]
    Paths,
    /// Too long.
    #[error("to look at everything took longer than {} s", limits::WALK_TIME.as_secs())]
    Time,
}

/// Walks over everything that was written, a directory before what is in it.
///
/// # Errors
/// What `each` gives, or what the system says of a directory that cannot be read.
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
    /// Entries that may still be listed.
    left: u64,
    /// Bytes of paths that may still be told.
    bytes: usize,
    seen: u64,
    began: Instant,
    incomplete: Option<IncompleteReason>,
}

impl Walker<'_> {
    fn dir(&mut self, dir: &OwnedFd, depth: usize) -> io::Result<()> {
        let length = self.path.len();
        // The order of a directory is nobody's promise, and what is told should not vary.
        let mut names = Vec::new();
        for_each_entry(dir, |name| {
            // Counted when they are listed: those of every level are held at once.
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

    /// A plain file: what it is, and itself.
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
        // Whatever took its place meanwhile does not make us wait.
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

/// Whether a directory hides what was below it; `x` says something else (overlayfs.rst).
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

/// The first extended attribute that says something about a file, if there is one.
fn find_unsupported_xattr(fd: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let mut names = vec![0_u8; ATTRIBUTE_BYTES];
    let length = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let told = names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .find(|name| {
            !HARMLESS.contains(name) && !OF_THE_SYSTEM.iter().any(|known| name.starts_with(known))
        });
    Ok(told.map(|name| String::from_utf8_lossy(name).into_owned()))
}
