//! The session directory: opened once, and everything in it through that one descriptor.
//!
//! Whoever may write the directory may swap files while they are looked at, so nothing here follows a
//! symbolic link, opens anything but regular files, or reads more than a bound. What is odd is put aside in
//! `rejected/`. Must not know what files mean.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::skillpilot::{DIRECTORIES, TEMPORARY};

/// Files that `rejected/` holds; more are removed instead.
const REJECTED: usize = 1000;
/// Names that are read of one directory; the rest waits for the next look.
const NAMES: usize = 100_000;

/// One of the directories of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Queue,
    Result,
    Output,
    Log,
    Ctl,
    State,
    Inflight,
    Rejected,
}

impl Part {
    const ALL: [Self; 8] = [
        Self::Queue,
        Self::Result,
        Self::Output,
        Self::Log,
        Self::Ctl,
        Self::State,
        Self::Inflight,
        Self::Rejected,
    ];

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        DIRECTORIES[self as usize]
    }
}

/// Whose directory it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A Runner's: held alone.
    Run,
    /// Somebody else's, whose files are carried.
    Carry,
}

/// What a name leads to.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// A file of that content.
    Content(Vec<u8>),
    /// Something that is not to be used, and why.
    Odd(&'static str),
}

/// A session's directory.
#[derive(Debug)]
pub(super) struct SessionDir {
    root: OwnedFd,
    parts: Vec<OwnedFd>,
}

const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl SessionDir {
    /// Opens it and makes what it lacks.
    pub(super) fn open(path: &Path, used: Use) -> Result<Self, String> {
        // Without a slash at its end, behind which a link would be followed.
        let plain: PathBuf = path.components().collect();
        let path: &Path = &plain;
        let said = |what: &str| format!("the session directory {}: {what}", path.display());
        let own = Mode::RWXU;
        match rustix::fs::mkdirat(CWD, path, own) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(said(&format!("cannot be made: {error}"))),
        }
        let opened = rustix::fs::openat(CWD, path, OPEN_DIR, Mode::empty());
        let root = opened.map_err(|error| {
            said(&format!(
                "cannot be opened as a directory (a link is none): {error}"
            ))
        })?;
        let found = rustix::fs::fstat(&root).map_err(|error| said(&error.to_string()))?;
        if found.st_mode & 0o022 != 0 {
            return Err(said(&format!(
                "others may write it (mode {:o}): make it 0700, or 0750 where a group is to read it",
                found.st_mode & 0o7777
            )));
        }
        if used == Use::Run
            && let Err(error) = rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive)
        {
            return Err(said(&match error {
                Errno::WOULDBLOCK => "another Runner works in it".to_owned(),
                error => format!("cannot be locked: {error}"),
            }));
        }
        let mut parts = Vec::new();
        for part in Part::ALL {
            let name = part.name();
            match rustix::fs::mkdirat(&root, name, own) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(said(&format!("{name}/ cannot be made: {error}"))),
            }
            let opened = rustix::fs::openat(&root, name, OPEN_DIR, Mode::empty());
            let opened = opened.map_err(|error| {
                said(&format!(
                    "{name}/ cannot be opened as a directory (a link is none): {error}"
                ))
            })?;
            let found = rustix::fs::fstat(&opened).map_err(|error| said(&error.to_string()))?;
            if used == Use::Run && found.st_mode & 0o022 != 0 {
                return Err(said(&format!(
                    "others may write {name}/: make it 0700 or 0750"
                )));
            }
            parts.push(opened);
        }
        Ok(Self { root, parts })
    }

    pub(super) fn fd(&self, part: Part) -> BorrowedFd<'_> {
        // One for each, made above.
        self.parts
            .get(part as usize)
            .map_or_else(|| self.root.as_fd(), AsFd::as_fd)
    }

    /// A path that leads to that very directory as long as this process has it open.
    pub(super) fn own_path(&self, part: Part) -> String {
        format!("/proc/self/fd/{}", self.fd(part).as_raw_fd())
    }

    /// Reads a file of at most `most` bytes.
    pub(super) fn read(&self, part: Part, name: &str, most: usize) -> io::Result<Found> {
        let file = match self.open_regular(part, name)? {
            Ok(file) => file,
            Err(found) => return Ok(found),
        };
        let mut content = Vec::new();
        let mut file = file.take(most as u64 + 1);
        file.read_to_end(&mut content)?;
        if content.len() > most {
            return Ok(Found::Odd("it is too large"));
        }
        Ok(Found::Content(content))
    }

    /// Opens a regular file for reading, or says what is there instead.
    pub(super) fn open_regular(&self, part: Part, name: &str) -> io::Result<Result<File, Found>> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.fd(part), name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Err(Found::Nothing)),
            Err(Errno::LOOP) => return Ok(Err(Found::Odd("it is a link"))),
            Err(Errno::NXIO | Errno::ACCESS | Errno::PERM) => {
                return Ok(Err(Found::Odd("it cannot be opened")));
            }
            Err(error) => return Err(error.into()),
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if !kind.is_file() {
            return Ok(Err(Found::Odd("it is no regular file")));
        }
        Ok(Ok(File::from(file)))
    }

    /// Puts a file as a whole: readers see it complete or not at all. `durable`: it outlives the machine's
    /// power once this returned.
    pub(super) fn put(
        &self,
        part: Part,
        name: &str,
        content: &[u8],
        durable: bool,
    ) -> io::Result<()> {
        let dir = self.fd(part);
        let temporary = format!("{TEMPORARY}{}", uuid::Uuid::new_v4().simple());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
        let mut file = File::from(rustix::fs::openat(dir, &*temporary, flags, mode)?);
        let mut put = || -> io::Result<()> {
            file.write_all(content)?;
            if durable {
                file.sync_all()?;
            }
            rustix::fs::renameat(dir, &*temporary, dir, name)?;
            if durable {
                rustix::fs::fsync(dir)?;
            }
            Ok(())
        };
        put().inspect_err(|_| {
            let _ = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
        })
    }

    /// Moves a file to where none of that name is. `false`: it is not there (any more).
    pub(super) fn claim(&self, from: (Part, &str), to: (Part, &str)) -> io::Result<bool> {
        let (old, new) = (self.fd(from.0), self.fd(to.0));
        let moved = rustix::fs::renameat_with(old, from.1, new, to.1, RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            // File systems of a network have no such rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                match rustix::fs::renameat(old, from.1, new, to.1) {
                    Ok(()) => {}
                    Err(Errno::NOENT) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Has what was moved into or out of it outlive the machine's power.
    pub(super) fn sync(&self, part: Part) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.fd(part))?)
    }

    /// Removes a file; nothing if there is none.
    pub(super) fn remove(&self, part: Part, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.fd(part), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether anything has that name.
    pub(super) fn has(&self, part: Part, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(self.fd(part), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts something odd aside, under a name of its own. Where there is no room, it is removed; what can be
    /// neither moved nor removed stays.
    pub(super) fn reject(&self, part: Part, name: &str) {
        let has_room = self
            .names(Part::Rejected)
            .is_ok_and(|names| names.len() < REJECTED);
        let aside: String = name.chars().take(100).collect();
        let aside = format!("{}-{aside}", uuid::Uuid::new_v4().simple());
        let (old, new) = (self.fd(part), self.fd(Part::Rejected));
        if !has_room || rustix::fs::renameat(old, name, new, &*aside).is_err() {
            let _ = self.remove(part, name);
        }
    }

    /// The names in a directory that are UTF-8, in no order. Temporary files are not among them.
    pub(super) fn names(&self, part: Part) -> io::Result<Vec<String>> {
        let dir = rustix::fs::openat(self.fd(part), ".", OPEN_DIR, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if !name.starts_with('.') {
                names.push(name.to_owned());
            }
            if names.len() >= NAMES {
                break;
            }
        }
        Ok(names)
    }

    /// Removes temporary files that an earlier life of this program left.
    pub(super) fn sweep(&self, part: Part) -> io::Result<()> {
        let dir = rustix::fs::openat(self.fd(part), ".", OPEN_DIR, Mode::empty())?;
        for entry in rustix::fs::Dir::new(dir)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name.starts_with(TEMPORARY)
            {
                self.remove(part, name)?;
            }
        }
        Ok(())
    }

    /// Opens a file to be appended to.
    pub(super) fn append(&self, part: Part, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
        let file = rustix::fs::openat(self.fd(part), name, flags, mode)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if !kind.is_file() {
            return Err(io::Error::other(format!(
                "{}/{name} is no regular file",
                part.name()
            )));
        }
        Ok(File::from(file))
    }
}
