//! The session directory: opened once, and everything in it through that one descriptor.
//!
//! Whoever may write the directory may swap files while they are looked at, so nothing here follows a
//! symbolic link, opens anything but regular files, or reads more than a bound. What is odd is put aside in
//! `rejected/`. Must not know what files mean.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use marshal_sandbox::flock;
use marshal_wire::skillpilot::{DIRECTORIES, TEMPORARY_PREFIX};

/// Files that `rejected/` holds; more are removed instead.
const REJECTED: usize = 1000;
/// Names that are kept of one directory.
const NAMES: usize = 100_000;
/// What is read of a machine's name.
const MACHINE_BYTES: u64 = 256;
/// How old a temporary file is that nobody writes any more, where others than this program write.
const STALE_AFTER: Duration = Duration::from_secs(3600);

/// One of the directories of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subdirectory {
    Queue,
    Result,
    Output,
    Log,
    Ctl,
    State,
    Inflight,
    Rejected,
}

impl Subdirectory {
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
pub(super) enum OpenMode {
    /// A Runner's: held alone.
    Run,
    /// Somebody else's, whose files are carried.
    Carry,
}

/// What a name leads to.
#[derive(Debug)]
pub(super) enum ReadOutcome {
    /// Nothing.
    Missing,
    /// A file of that content.
    Content(Vec<u8>),
    /// Something that is not to be used, and why.
    Invalid(&'static str),
}

/// A session's directory.
#[derive(Debug)]
pub(super) struct SessionDir {
    root: OwnedFd,
    parts: Vec<OwnedFd>,
    /// Entries of `rejected/`, as far as they are known here.
    rejected: AtomicUsize,
    lock: Option<File>,
}

/// Locked by the Runner that works in a directory, and says on which machine that is. A lock on a directory
/// reaches no other machine; one on a file does, as far as its file system has locks.
const LOCK: &str = ".lock";

const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl SessionDir {
    /// Opens it and makes what it lacks.
    pub(super) fn open(path: &Path, used: OpenMode) -> Result<Self, String> {
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
        if found.st_mode & 0o007 != 0 {
            return Err(said(&format!(
                "others may read it (mode {:o}): make it 0700, or 0750 where a group is to read it",
                found.st_mode & 0o7777
            )));
        }
        check_owner(&found).map_err(|why| said(&format!("it {why}")))?;
        if used == OpenMode::Run
            && let Err(error) = flock::lock(&root)
        {
            return Err(said(&match error {
                Errno::WOULDBLOCK => "another Runner works in it".to_owned(),
                error => format!("cannot be locked: {error}"),
            }));
        }
        let mut parts = Vec::new();
        for part in Subdirectory::ALL {
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
            if found.st_mode & 0o022 != 0 {
                return Err(said(&format!(
                    "others may write {name}/: make it 0700 or 0750"
                )));
            }
            check_owner(&found).map_err(|why| said(&format!("{name}/ {why}")))?;
            parts.push(opened);
        }
        let mut dir = Self {
            root,
            parts,
            rejected: AtomicUsize::new(0),
            lock: None,
        };
        let aside = dir
            .names(Subdirectory::Rejected)
            .map_or(REJECTED, |names| names.len());
        dir.rejected.store(aside, Ordering::Relaxed);
        if used == OpenMode::Run {
            dir.lock = Some(dir.lock_state_file().map_err(|why| said(&why))?);
        }
        Ok(dir)
    }

    fn lock_state_file(&self) -> Result<File, String> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = || {
            let file = rustix::fs::openat(self.fd(Subdirectory::State), LOCK, flags, mode)?;
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            if kind.is_file() {
                Ok(file)
            } else {
                Err(Errno::ISDIR)
            }
        };
        let opened = open().or_else(|error| {
            // Something else has its name.
            if self.reject(Subdirectory::State, LOCK) {
                open()
            } else {
                Err(error)
            }
        });
        let failed = |error: Errno| format!("state/{LOCK} cannot be locked: {error}");
        let file = opened.map_err(failed)?;
        match flock::lock(&file) {
            Ok(()) => Ok(File::from(file)),
            Err(Errno::WOULDBLOCK) => {
                Err("another Runner works in it, perhaps on another machine".to_owned())
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// On which machine the last one worked that held the directory; nothing, if nobody has.
    pub(super) fn last_machine(&self) -> io::Result<String> {
        let mut said = String::new();
        if let Some(mut file) = self.lock.as_ref() {
            file.seek(SeekFrom::Start(0))?;
            file.take(MACHINE_BYTES).read_to_string(&mut said)?;
        }
        Ok(said.trim().to_owned())
    }

    /// Says on which machine it is held from now on.
    pub(super) fn record_machine(&self, machine: &str) -> io::Result<()> {
        if let Some(mut file) = self.lock.as_ref() {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(machine.as_bytes())?;
        }
        Ok(())
    }

    /// Whether the directories are still those that were opened: what others put into new ones of the same
    /// names would never be seen. Says which is another one, or gone.
    pub(super) fn check_intact(&self) -> Result<(), String> {
        for part in Subdirectory::ALL {
            let name = part.name();
            let held = rustix::fs::fstat(self.fd(part)).map_err(|error| error.to_string())?;
            let there = match rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) => Some(there),
                Err(Errno::NOENT | Errno::NOTDIR) => None,
                // A file system of a network that does not answer now.
                Err(_) => continue,
            };
            let same = |there: &Stat| (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino);
            if !there.as_ref().is_some_and(same) {
                return Err(format!(
                    "the session directory's {name}/ was removed or replaced while the Runner worked in it"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn fd(&self, part: Subdirectory) -> BorrowedFd<'_> {
        // One for each, made above.
        self.parts
            .get(part as usize)
            .map_or_else(|| self.root.as_fd(), AsFd::as_fd)
    }

    /// A path that leads to that very directory as long as this process has it open.
    pub(super) fn proc_path(&self, part: Subdirectory) -> String {
        format!("/proc/self/fd/{}", self.fd(part).as_raw_fd())
    }

    /// Reads a file of at most `most` bytes.
    pub(super) fn read(
        &self,
        part: Subdirectory,
        name: &str,
        most: usize,
    ) -> io::Result<ReadOutcome> {
        let file = match self.open_regular(part, name)? {
            Ok(file) => file,
            Err(found) => return Ok(found),
        };
        let mut content = Vec::new();
        let mut file = file.take(most as u64 + 1);
        file.read_to_end(&mut content)?;
        if content.len() > most {
            return Ok(ReadOutcome::Invalid("it is too large"));
        }
        Ok(ReadOutcome::Content(content))
    }

    /// Opens a regular file for reading, or says what is there instead.
    pub(super) fn open_regular(
        &self,
        part: Subdirectory,
        name: &str,
    ) -> io::Result<Result<File, ReadOutcome>> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.fd(part), name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Err(ReadOutcome::Missing)),
            Err(Errno::LOOP) => return Ok(Err(ReadOutcome::Invalid("it is a link"))),
            Err(Errno::NXIO | Errno::ACCESS | Errno::PERM) => {
                return Ok(Err(ReadOutcome::Invalid("it cannot be opened")));
            }
            Err(error) => return Err(error.into()),
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if !kind.is_file() {
            return Ok(Err(ReadOutcome::Invalid("it is no regular file")));
        }
        Ok(Ok(File::from(file)))
    }

    /// Puts a file as a whole: readers see it complete or not at all. `durable`: it outlives the machine's
    /// power once this returned.
    pub(super) fn write_atomic(
        &self,
        part: Subdirectory,
        name: &str,
        content: &[u8],
        durable: bool,
    ) -> io::Result<()> {
        let dir = self.fd(part);
        let temporary = format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple());
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
    pub(super) fn move_without_replacing(
        &self,
        from: (Subdirectory, &str),
        to: (Subdirectory, &str),
    ) -> io::Result<bool> {
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
    pub(super) fn sync(&self, part: Subdirectory) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.fd(part))?)
    }

    /// Removes a file; nothing if there is none.
    pub(super) fn remove(&self, part: Subdirectory, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.fd(part), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether anything has that name.
    pub(super) fn has(&self, part: Subdirectory, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(self.fd(part), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts something odd aside, under a name of its own. Where there is no room, it is removed. `false`: it
    /// can be neither moved nor removed, and stays.
    pub(super) fn reject(&self, part: Subdirectory, name: &str) -> bool {
        let aside: String = name.chars().take(100).collect();
        let aside = format!("{}-{aside}", uuid::Uuid::new_v4().simple());
        let (old, new) = (self.fd(part), self.fd(Subdirectory::Rejected));
        if self.rejected.load(Ordering::Relaxed) < REJECTED {
            match rustix::fs::renameat(old, name, new, &*aside) {
                Ok(()) => {
                    self.rejected.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(Errno::NOENT) => return true,
                Err(_) => {}
            }
        }
        // A directory goes only if nothing is in it.
        self.remove(part, name).is_ok()
            || rustix::fs::unlinkat(old, name, AtFlags::REMOVEDIR).is_ok()
    }

    /// Takes a file away from whoever writes it, under a name that nobody else has; `None`: it is not there.
    /// What is put in its place afterwards is another one.
    pub(super) fn take_file(&self, part: Subdirectory, name: &str) -> io::Result<Option<String>> {
        let taken = format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple());
        Ok(self
            .move_without_replacing((part, name), (part, &taken))?
            .then_some(taken))
    }

    /// Goes through all names in a directory that are UTF-8, in no order. Temporary files are not among them.
    pub(super) fn for_each_name(
        &self,
        part: Subdirectory,
        mut take: impl FnMut(&str),
    ) -> io::Result<()> {
        let dir = rustix::fs::openat(self.fd(part), ".", OPEN_DIR, Mode::empty())?;
        for entry in rustix::fs::Dir::new(dir)? {
            if let Ok(name) = entry?.file_name().to_str()
                && !name.starts_with('.')
            {
                take(name);
            }
        }
        Ok(())
    }

    /// The first of them.
    pub(super) fn names(&self, part: Subdirectory) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        self.for_each_name(part, |name| {
            if names.len() < NAMES {
                names.push(name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// Removes temporary files that an earlier life of this program left. Where a Master writes, too, only
    /// those that are old.
    pub(super) fn remove_stale_temporaries(&self, part: Subdirectory) -> io::Result<()> {
        let is_shared = matches!(part, Subdirectory::Queue | Subdirectory::Ctl);
        let dir = rustix::fs::openat(self.fd(part), ".", OPEN_DIR, Mode::empty())?;
        for entry in rustix::fs::Dir::new(dir)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name.starts_with(TEMPORARY_PREFIX)
                && (!is_shared || self.is_abandoned(part, name))
            {
                // What cannot be removed is nothing of ours, and in nobody's way.
                let _ = self.remove(part, name);
            }
        }
        Ok(())
    }

    fn is_abandoned(&self, part: Subdirectory, name: &str) -> bool {
        let found = rustix::fs::statat(self.fd(part), name, AtFlags::SYMLINK_NOFOLLOW);
        let written = found
            .ok()
            .and_then(|found| u64::try_from(found.st_mtime).ok());
        let written = written
            .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        let age = written.and_then(|written| SystemTime::now().duration_since(written).ok());
        age.is_some_and(|age| age >= STALE_AFTER)
    }

    /// Makes a file that is not there. What has its name already is none of ours: it goes.
    pub(super) fn create(&self, part: Subdirectory, name: &str) -> io::Result<File> {
        let dir = self.fd(part);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
        if self.has(part, name)? {
            self.remove(part, name).or_else(|error| {
                if self.reject(part, name) {
                    Ok(())
                } else {
                    Err(error)
                }
            })?;
        }
        Ok(File::from(rustix::fs::openat(dir, name, flags, mode)?))
    }

    /// Opens a file to be appended to.
    pub(super) fn append(&self, part: Subdirectory, name: &str) -> io::Result<File> {
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

/// Whoever owns a directory can write it, whatever its mode says.
fn check_owner(found: &Stat) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if found.st_uid == own {
        return Ok(());
    }
    Err(format!(
        "belongs to user {}, and this process is user {own}: chown it, or run as its owner",
        found.st_uid
    ))
}
