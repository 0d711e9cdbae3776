//! The file of a plan: reads it and ticks its items.
//!
//! Follows no link. A tick replaces the file by a new one with the same owner and mode, and does
//! not overwrite changes that were made meanwhile. Must not know what runs the plan.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use marshal_model::untrusted::escape_for_display;
use marshal_wire::plan::checklist::{Checklist, ChecklistError, ItemId, TEXT_BYTES, tick};

/// How often a tick starts again because the file was changed meanwhile.
const TRIES: usize = 20;

/// Why a plan cannot be read or ticked. Its text is safe to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// The system reported an error.
    #[error("the plan {name} cannot be {doing}: {source}")]
    Io {
        /// The plan.
        name: String,
        /// The failed operation, as a participle.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be used as a plan.
    #[error("the plan {name} {why}")]
    Kind {
        /// The plan.
        name: String,
        /// The problem, and what to do.
        why: &'static str,
    },
    /// The checklist is not valid.
    #[error("{name}: {source}")]
    Checklist {
        /// The plan.
        name: String,
        /// The error of the checklist.
        source: ChecklistError,
    },
}

/// A plan's file.
#[derive(Debug, Clone)]
pub(super) struct PlanFile {
    /// The file's directory, with links resolved.
    dir: PathBuf,
    name: OsString,
    /// The file's name, safe to show.
    pub(super) shown: String,
}

/// A text and its checklist.
#[derive(Debug, Clone)]
pub(super) struct PlanText {
    pub(super) text: String,
    pub(super) list: Checklist,
}

impl PlanFile {
    /// The plan at this path. Links in the path of its directory are resolved once, here.
    ///
    /// # Errors
    /// [`FileError`]
    pub(super) fn at(path: &Path) -> Result<Self, FileError> {
        let shown = escape_for_display(&path.to_string_lossy(), 200);
        let Some(name) = path.file_name() else {
            return Err(FileError::Kind {
                name: shown,
                why: "is not a file; name a Markdown file with a checklist",
            });
        };
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new("/"),
        };
        let dir = parent.canonicalize().map_err(|source| FileError::Io {
            name: shown.clone(),
            doing: "found",
            source,
        })?;
        Ok(Self {
            dir,
            name: name.to_owned(),
            shown: escape_for_display(&name.to_string_lossy(), 200),
        })
    }

    /// The file's path, with links resolved.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn io(&self, doing: &'static str) -> impl Fn(Errno) -> FileError + '_ {
        move |errno| match errno {
            Errno::LOOP => self.kind("is a link, or its directory was moved; name the file itself"),
            errno => FileError::Io {
                name: self.shown.clone(),
                doing,
                source: errno.into(),
            },
        }
    }

    fn kind(&self, why: &'static str) -> FileError {
        FileError::Kind {
            name: self.shown.clone(),
            why,
        }
    }

    fn checklist(&self) -> impl Fn(ChecklistError) -> FileError + '_ {
        |source| FileError::Checklist {
            name: self.shown.clone(),
            source,
        }
    }

    fn directory(&self) -> Result<OwnedFd, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let way = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(CWD, &self.dir, flags, Mode::empty(), way).map_err(self.io("found"))
    }

    /// Opens the file and reads it.
    fn read_at(&self, dir: &OwnedFd) -> Result<(Stat, PlanText), FileError> {
        // O_NONBLOCK: opening a fifo must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd =
            rustix::fs::openat(dir, &self.name, flags, Mode::empty()).map_err(self.io("opened"))?;
        let stat = rustix::fs::fstat(&fd).map_err(self.io("read"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.kind("is not a regular file; name a Markdown file with a checklist"));
        }
        if stat.st_nlink > 1 {
            return Err(self.kind("has several hard links, and a tick would change only one of them; remove the others"));
        }
        let mut bytes = Vec::new();
        let bound = u64::try_from(TEXT_BYTES).unwrap_or(u64::MAX) + 1;
        let read = File::from(fd).take(bound).read_to_end(&mut bytes);
        read.map_err(|source| FileError::Io {
            name: self.shown.clone(),
            doing: "read",
            source,
        })?;
        let bytes = if bytes.len() > TEXT_BYTES {
            // The file may be larger than what was read.
            let whole = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
            let bytes = whole.max(bytes.len());
            return Err(self.checklist()(ChecklistError::TooLarge { bytes }));
        } else {
            bytes
        };
        let text =
            String::from_utf8(bytes).map_err(|_| self.kind("is not UTF-8, as Markdown must be"))?;
        let list = Checklist::parse(&text).map_err(self.checklist())?;
        Ok((stat, PlanText { text, list }))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// [`FileError`]
    pub(super) fn read(&self) -> Result<PlanText, FileError> {
        let dir = self.directory()?;
        Ok(self.read_at(&dir)?.1)
    }

    /// Ticks an item in the current file, durably. An item that is ticked already stays ticked.
    ///
    /// # Errors
    /// [`FileError`]; the file is unchanged then.
    pub(super) fn tick(&self, item: ItemId) -> Result<PlanText, FileError> {
        for _ in 0..TRIES {
            let dir = self.directory()?;
            let (before, read) = self.read_at(&dir)?;
            let text = tick(&read.text, item).map_err(self.checklist())?;
            if text == read.text {
                return Ok(read);
            }
            if self.put(&dir, &before, &text)? {
                let list = Checklist::parse(&text).map_err(self.checklist())?;
                return Ok(PlanText { text, list });
            }
        }
        Err(self.kind("changes all the time, so it could not be ticked"))
    }

    /// Replaces the file, if it is still the one that was read; `false` if it is not.
    fn put(&self, dir: &OwnedFd, before: &Stat, text: &str) -> Result<bool, FileError> {
        let mut beside = OsString::from(".");
        beside.push(&self.name);
        beside.push(".marshal");
        // Remove the leftover of a process that ended in the middle of this.
        match rustix::fs::unlinkat(dir, &beside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                return Err(self
                    .io("ticked: cannot remove an old temporary file beside it")(
                    error
                ));
            }
        }
        let made = self.make(dir, &beside, before, text);
        let is_put = made.and_then(|()| {
            let now = rustix::fs::statat(dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
            if !now.is_ok_and(|now| is_same(&now, before)) {
                return Ok(false);
            }
            rustix::fs::renameat(dir, &beside, dir, &self.name).map_err(self.io("ticked"))?;
            rustix::fs::fsync(dir).map_err(self.io("made durable"))?;
            Ok(true)
        });
        if !matches!(is_put, Ok(true)) {
            let _ = rustix::fs::unlinkat(dir, &beside, AtFlags::empty());
        }
        is_put
    }

    fn make(
        &self,
        dir: &OwnedFd,
        beside: &OsString,
        before: &Stat,
        text: &str,
    ) -> Result<(), FileError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, beside, flags, Mode::from_raw_mode(0o600))
            .map_err(self.io("ticked: cannot create a file beside it"))?;
        let now = rustix::fs::fstat(&fd).map_err(self.io("ticked"))?;
        if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid) {
            let (uid, gid) = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
            let result = rustix::fs::fchown(&fd, Some(uid), Some(gid));
            result.map_err(self.io("ticked: its owner cannot be kept"))?;
        }
        let mode = Mode::from_raw_mode(before.st_mode & 0o7777);
        rustix::fs::fchmod(&fd, mode).map_err(self.io("ticked"))?;
        let mut file = File::from(fd);
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all());
        written.map_err(|source| FileError::Io {
            name: self.shown.clone(),
            doing: "ticked",
            source,
        })
    }

    /// Identifies the plan among all plans of a state directory.
    pub(super) fn digest(&self) -> String {
        use sha2::{Digest as _, Sha256};
        let sum = Sha256::digest(self.path().as_os_str().as_bytes());
        hex::encode(&sum[..6])
    }
}

fn is_same(now: &Stat, before: &Stat) -> bool {
    (now.st_dev, now.st_ino, now.st_size) == (before.st_dev, before.st_ino, before.st_size)
        && (now.st_mtime, now.st_mtime_nsec) == (before.st_mtime, before.st_mtime_nsec)
        && (now.st_ctime, now.st_ctime_nsec) == (before.st_ctime, before.st_ctime_nsec)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
