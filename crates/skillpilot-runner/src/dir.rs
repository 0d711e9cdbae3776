//! The session directory. It is opened once, and every access goes through that descriptor.
//!
//! Whoever may write the directory may swap files at any time. So nothing here follows a symbolic
//! link, opens anything but regular files, or reads more than a limit. Invalid entries are
//! quarantined in `rejected/`. Must not know the contents of files.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::{DirectoryError, SessionError};
use marshal_sandbox::flock;
use marshal_sandbox::held_dir::{self, Lookup, Moved, OPEN_DIR};
use marshal_wire::skillpilot::{DIRECTORIES, TEMPORARY_PREFIX};

/// The maximum number of files in `rejected/`; further ones are removed.
const REJECTED: usize = 1000;
/// The maximum number of names that are read from one directory.
const NAMES: usize = 100_000;
/// The maximum length of a machine's name in the lock file, in bytes.
const MACHINE_BYTES: u64 = 256;
/// The age from which a temporary file counts as abandoned, in a directory that other programs
/// write too.
const STALE_AFTER: Duration = Duration::from_secs(3600);

/// The directories of a session.
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

    /// The directory's name.
    pub(super) const fn name(self) -> &'static str {
        DIRECTORIES[self as usize]
    }
}

/// Who works in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenMode {
    /// A Runner, which locks the directory.
    Run,
    /// A carrier for another process' Runner.
    Carry,
}

/// The content of a name.
pub(super) type ReadOutcome = Lookup<Vec<u8>>;

/// An open session directory.
#[derive(Debug)]
pub(super) struct SessionDir {
    root: OwnedFd,
    parts: Vec<OwnedFd>,
    /// The number of entries in `rejected/`, as counted by this process.
    rejected: AtomicUsize,
    lock: Option<File>,
}

/// The lock file of the Runner that works in the directory; it contains the machine's boot id. A
/// lock on a directory does not reach other machines. A lock on a file does, if the file system
/// supports it.
const LOCK: &str = ".lock";
/// The lock file in a message, before what is wrong with it.
const LOCK_FILE: &str = "state/.lock ";

/// The permissions of a new file.
const NEW_FILE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP);

impl SessionDir {
    /// Opens the directory and creates what is missing.
    pub(super) fn open(path: &Path, used: OpenMode) -> Result<Self, SessionError> {
        // Without a trailing slash: the kernel would follow a symbolic link before it.
        let plain: PathBuf = path.components().collect();
        Self::open_plain(&plain, used).map_err(|problem| SessionError::Open {
            path: plain,
            problem,
        })
    }

    fn open_plain(path: &Path, used: OpenMode) -> Result<Self, DirectoryError> {
        let (root, stat) = open_or_create(CWD, path, "")?;
        let mode = stat.st_mode & 0o7777;
        if mode & 0o022 != 0 {
            return Err(DirectoryError::Mode("write", mode));
        }
        if mode & 0o007 != 0 {
            return Err(DirectoryError::Mode("read", mode));
        }
        check_owner(&stat, "it")?;
        if used == OpenMode::Run {
            flock::lock(&root).map_err(|error| lock_error(error, "", ""))?;
        }
        let mut parts = Vec::new();
        for part in Subdirectory::ALL {
            let name = part.name();
            let (opened, stat) =
                open_or_create(root.as_fd(), Path::new(name), &format!("{name}/ "))?;
            if stat.st_mode & 0o022 != 0 {
                return Err(DirectoryError::PartMode(name));
            }
            check_owner(&stat, &format!("{name}/"))?;
            parts.push(opened);
        }
        let mut dir = Self {
            root,
            parts,
            rejected: AtomicUsize::new(0),
            lock: None,
        };
        let count = dir
            .names(Subdirectory::Rejected)
            .map_or(REJECTED, |names| names.len());
        dir.rejected.store(count, Ordering::Relaxed);
        if used == OpenMode::Run {
            dir.lock = Some(dir.lock_state_file()?);
        }
        Ok(dir)
    }

    fn lock_state_file(&self) -> Result<File, DirectoryError> {
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
            // Another kind of entry has the name.
            if self.reject(Subdirectory::State, LOCK) {
                open()
            } else {
                Err(error)
            }
        });
        let file = opened.map_err(|error| DirectoryError::Lock(LOCK_FILE, error))?;
        flock::lock(&file)
            .map_err(|error| lock_error(error, LOCK_FILE, ", perhaps on another machine"))?;
        Ok(File::from(file))
    }

    /// The machine of the last Runner in the directory; empty if there was none.
    pub(super) fn last_machine(&self) -> io::Result<String> {
        let mut machine = String::new();
        if let Some(mut file) = self.lock.as_ref() {
            file.seek(SeekFrom::Start(0))?;
            file.take(MACHINE_BYTES).read_to_string(&mut machine)?;
        }
        Ok(machine.trim().to_owned())
    }

    /// Records the machine that now works in the directory.
    pub(super) fn record_machine(&self, machine: &str) -> io::Result<()> {
        if let Some(mut file) = self.lock.as_ref() {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(machine.as_bytes())?;
        }
        Ok(())
    }

    /// Checks that the subdirectories are still the opened ones: files in replaced directories
    /// would never be seen. The error names a directory that was removed or replaced.
    pub(super) fn check_intact(&self) -> Result<(), SessionError> {
        for part in Subdirectory::ALL {
            let name = part.name();
            let opened = rustix::fs::fstat(self.fd(part)).map_err(SessionError::Examine)?;
            let current = match rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(current) => Some(current),
                Err(Errno::NOENT | Errno::NOTDIR) => None,
                // A network file system may be unavailable for a moment.
                Err(_) => continue,
            };
            let is_same =
                |current: &Stat| (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino);
            if !current.as_ref().is_some_and(is_same) {
                return Err(SessionError::Replaced(name));
            }
        }
        Ok(())
    }

    pub(super) fn fd(&self, part: Subdirectory) -> BorrowedFd<'_> {
        // `open` adds one descriptor for every subdirectory.
        self.parts
            .get(part as usize)
            .map_or_else(|| self.root.as_fd(), AsFd::as_fd)
    }

    /// A path that leads to the opened directory as long as this process has it open.
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
        let found = held_dir::read(self.fd(part), name, most as u64)?;
        Ok(found.map(|(content, _)| content))
    }

    /// Opens a regular file for reading, or describes what has the name instead.
    pub(super) fn open_regular(&self, part: Subdirectory, name: &str) -> io::Result<Lookup<File>> {
        let found = held_dir::open_regular(self.fd(part), name)?;
        Ok(found.map(|(file, _)| file))
    }

    /// Writes a file as a whole: readers see it complete or not at all. With `durable`, it survives
    /// a loss of power once this has returned.
    pub(super) fn write_atomic(
        &self,
        part: Subdirectory,
        name: &str,
        content: &[u8],
        durable: bool,
    ) -> io::Result<()> {
        let dir = self.fd(part);
        let temporary = format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple());
        held_dir::write_new(dir, &temporary, NEW_FILE, content, |file| {
            if durable {
                file.sync_all()?;
            }
            rustix::fs::renameat(dir, &*temporary, dir, name)?;
            if durable {
                rustix::fs::fsync(dir)?;
            }
            Ok(())
        })
    }

    /// Moves a file unless the new name exists. `false`: the file does not exist (any more).
    pub(super) fn move_without_replacing(
        &self,
        from: (Subdirectory, &str),
        to: (Subdirectory, &str),
    ) -> io::Result<bool> {
        let (from, to) = ((self.fd(from.0), from.1), (self.fd(to.0), to.1));
        match held_dir::rename_without_replacing(from, to)? {
            Moved::Yes => Ok(true),
            Moved::Missing => Ok(false),
            Moved::Taken => Err(Errno::EXIST.into()),
        }
    }

    /// Makes moves into or out of the directory survive a loss of power.
    pub(super) fn sync(&self, part: Subdirectory) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.fd(part))?)
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, part: Subdirectory, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.fd(part), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether anything has that name.
    pub(super) fn has(&self, part: Subdirectory, name: &str) -> io::Result<bool> {
        held_dir::exists(self.fd(part), name)
    }

    /// Quarantines an invalid entry under a unique name. Removes it if `rejected/` is full.
    /// `false`: it can be neither moved nor removed, and stays.
    pub(super) fn reject(&self, part: Subdirectory, name: &str) -> bool {
        let short: String = name.chars().take(100).collect();
        let unique = format!("{}-{short}", uuid::Uuid::new_v4().simple());
        let (old, new) = (self.fd(part), self.fd(Subdirectory::Rejected));
        if self.rejected.load(Ordering::Relaxed) < REJECTED {
            match rustix::fs::renameat(old, name, new, &*unique) {
                Ok(()) => {
                    self.rejected.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(Errno::NOENT) => return true,
                Err(_) => {}
            }
        }
        // A directory can be removed only if it is empty.
        self.remove(part, name).is_ok()
            || rustix::fs::unlinkat(old, name, AtFlags::REMOVEDIR).is_ok()
    }

    /// Moves a file away from its writer, to a unique name; `None` if it does not exist. A file
    /// that is written to the old name afterwards is another one.
    pub(super) fn take_file(&self, part: Subdirectory, name: &str) -> io::Result<Option<String>> {
        let unique = format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple());
        Ok(self
            .move_without_replacing((part, name), (part, &unique))?
            .then_some(unique))
    }

    /// Passes all UTF-8 names in a directory, unordered. Temporary files are excluded.
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

    /// The first names of a directory, up to the limit.
    pub(super) fn names(&self, part: Subdirectory) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        self.for_each_name(part, |name| {
            if names.len() < NAMES {
                names.push(name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// Removes temporary files that an earlier start of this program left. In directories that a
    /// Master also writes, only old ones.
    pub(super) fn remove_stale_temporaries(&self, part: Subdirectory) -> io::Result<()> {
        let is_shared = matches!(part, Subdirectory::Queue | Subdirectory::Ctl);
        let dir = rustix::fs::openat(self.fd(part), ".", OPEN_DIR, Mode::empty())?;
        for entry in rustix::fs::Dir::new(dir)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name.starts_with(TEMPORARY_PREFIX)
                && (!is_shared || self.is_abandoned(part, name))
            {
                // What cannot be removed was not created by this program and disturbs nothing.
                let _ = self.remove(part, name);
            }
        }
        Ok(())
    }

    fn is_abandoned(&self, part: Subdirectory, name: &str) -> bool {
        let found = rustix::fs::statat(self.fd(part), name, AtFlags::SYMLINK_NOFOLLOW);
        let written = found
            .ok()
            .and_then(|found| u64::try_from(found.st_mtime).ok())
            .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        let age = written.and_then(|written| SystemTime::now().duration_since(written).ok());
        age.is_some_and(|age| age >= STALE_AFTER)
    }

    /// Creates a new file. An existing entry of the name was not created by this start and is
    /// removed.
    pub(super) fn create(&self, part: Subdirectory, name: &str) -> io::Result<File> {
        let dir = self.fd(part);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.has(part, name)? {
            self.remove(part, name).or_else(|error| {
                if self.reject(part, name) {
                    Ok(())
                } else {
                    Err(error)
                }
            })?;
        }
        Ok(File::from(rustix::fs::openat(dir, name, flags, NEW_FILE)?))
    }

    /// Opens a file for appending, or creates it.
    pub(super) fn append(&self, part: Subdirectory, name: &str) -> io::Result<File> {
        match held_dir::open_append(self.fd(part), name, Some(NEW_FILE))? {
            Lookup::Regular((file, _)) => Ok(file),
            Lookup::Missing => Err(Errno::NOENT.into()),
            Lookup::Irregular(why) => {
                let part = part.name();
                Err(io::Error::other(format!(
                    "{part}/{name} is not usable: {why}"
                )))
            }
        }
    }
}

/// Opens a directory, which is created if it is missing, and examines it. `prefix` begins messages.
fn open_or_create(
    parent: BorrowedFd<'_>,
    path: &Path,
    prefix: &str,
) -> Result<(OwnedFd, Stat), DirectoryError> {
    match rustix::fs::mkdirat(parent, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(DirectoryError::Create(prefix.to_owned(), error)),
    }
    let opened = rustix::fs::openat(parent, path, OPEN_DIR, Mode::empty())
        .map_err(|error| DirectoryError::Open(prefix.to_owned(), error))?;
    let stat = rustix::fs::fstat(&opened).map_err(DirectoryError::Examine)?;
    Ok((opened, stat))
}

/// The error of a lock of something. `place`: where the Runner with the lock may be.
fn lock_error(error: Errno, what: &'static str, place: &'static str) -> DirectoryError {
    match error {
        Errno::WOULDBLOCK => DirectoryError::InUse(place),
        error => DirectoryError::Lock(what, error),
    }
}

/// Whoever owns a directory can write it, whatever its mode is.
fn check_owner(stat: &Stat, part: &str) -> Result<(), DirectoryError> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid == own {
        return Ok(());
    }
    Err(DirectoryError::Owner(part.to_owned(), stat.st_uid, own))
}
