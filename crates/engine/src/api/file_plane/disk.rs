//! Access to the directory: it is opened once, and everything in it is reached by descriptors.
//!
//! Owns what is trusted: a directory of the right owner that others cannot write, and regular files
//! of bounded size with exactly one name. No link is followed, opening never blocks on a pipe, and
//! a file is replaced atomically. Calls block. Must not know what files contain.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, Stat, Uid};
use rustix::io::Errno;

use marshal_config::FilePlane;
use marshal_model::limits::{FILE_PLANE_ENTRIES, FILE_PLANE_LOG_BYTES};
use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::held_dir::{self, Lookup, Moved, OPEN_DIR};

/// The subdirectories of the plane's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Area {
    /// Waiting requests.
    Queue,
    /// Accepted requests without a result.
    Inflight,
    /// Results of requests.
    Result,
    /// Output of agents.
    Output,
    /// The log of the plane.
    Log,
    /// Orders such as stop and cancel.
    Ctl,
    /// The state of the plane and its heartbeat.
    State,
    /// Pending approvals.
    Asks,
    /// Answers to approvals.
    Answers,
    /// Quarantined entries.
    Rejected,
}

impl Area {
    /// All areas, in the order of declaration.
    const ALL: [Self; 10] = [
        Self::Queue,
        Self::Inflight,
        Self::Result,
        Self::Output,
        Self::Log,
        Self::Ctl,
        Self::State,
        Self::Asks,
        Self::Answers,
        Self::Rejected,
    ];

    /// Returns the subdirectory's name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Inflight => "inflight",
            Self::Result => "result",
            Self::Output => "output",
            Self::Log => "log",
            Self::Ctl => "ctl",
            Self::State => "state",
            Self::Asks => "approvals",
            Self::Answers => "answers",
            Self::Rejected => "rejected",
        }
    }
}

/// The prefix of temporary names, before a file is renamed to its own.
const FRESH: &str = ".marshal-";
/// Permission bits that let others than the owner write.
const WRITABLE: u32 = 0o022;
/// Permission bits that a plane's directory must not have: write access for the group, and any
/// access for others.
const OPEN_TO_OTHERS: u32 = 0o027;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A system call failed.
    #[error("{what} cannot be {doing}: {source}")]
    System {
        /// The path.
        what: String,
        /// The operation, as a past participle for the message.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a directory.
    #[error("{0} is not a directory, or is a symbolic link: name a directory")]
    NotADirectory(String),
    /// It belongs to another user.
    #[error(
        "{what} belongs to user {uid}, and must belong to user {wanted}: chown it, or set file_plane.owner to its user"
    )]
    Owner {
        /// The path.
        what: String,
        /// The current owner.
        uid: u32,
        /// The required owner.
        wanted: u32,
    },
    /// Another supervisor uses it.
    #[error(
        "{0} is used by another supervisor: stop that one, or configure a directory of its own here"
    )]
    InUse(String),
    /// Others can create files in it.
    #[error("{what} is accessible to other users (mode {mode:04o}): chmod it to 0700 or 0750")]
    Open {
        /// The path.
        what: String,
        /// The permission bits.
        mode: u32,
    },
}

/// The metadata by which a file is recognized as unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileFingerprint {
    device: u64,
    inode: u64,
    size: u64,
    at: (i64, u64),
    names: u64,
}

impl FileFingerprint {
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_lossless,
        clippy::cast_sign_loss,
        reason = "widths differ by architecture, and the kernel's sizes are no less than 0"
    )]
    pub(super) fn from_stat(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as u64,
            at: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            names: stat.st_nlink as u64,
        }
    }

    /// The time since the last write, by the file's own time; `None` if that time is in the future
    /// of this clock.
    pub(super) fn age(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.at.0).ok()?;
        let nanos = u32::try_from(self.at.1).ok()?;
        let at = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))?;
        SystemTime::now().duration_since(at).ok()
    }

    /// Whether the file has one name. During a link(2) by another process it may briefly have two.
    pub(super) const fn has_one_name(&self) -> bool {
        self.names == 1
    }

    /// Whether both describe the same inode.
    const fn is_same_file(&self, other: &Self) -> bool {
        self.device == other.device && self.inode == other.inode
    }
}

/// The entry at a name.
pub(super) type PlaneEntry = Lookup<(Vec<u8>, FileFingerprint)>;

/// The plane's directory and its subdirectories.
#[derive(Debug)]
pub(super) struct Disk {
    /// The configured path.
    path: PathBuf,
    root: OwnedFd,
    areas: Vec<OwnedFd>,
    /// The required owner.
    owner: Uid,
    /// The owner of new files; `None` if it is this process's user.
    chown_to: Option<(Uid, Gid)>,
    mode: Mode,
}

pub(super) fn system(what: &str, doing: &'static str, error: impl Into<io::Error>) -> DiskError {
    DiskError::System {
        what: what.to_owned(),
        doing,
        source: error.into(),
    }
}

impl Disk {
    /// Opens the directory, and creates missing subdirectories.
    pub(super) fn open(plane: &FilePlane) -> Result<Self, DiskError> {
        let owner = plane.owner.map(Uid::from_raw);
        Self::open_at(&plane.dir, owner.unwrap_or(rustix::process::geteuid()))
    }

    fn open_at(path: &Path, owner: Uid) -> Result<Self, DiskError> {
        let what = display_path(path);
        let caller = rustix::process::geteuid();
        let made = match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(system(&what, "made", errno)),
        };
        let root =
            rustix::fs::openat(CWD, path, OPEN_DIR, Mode::empty()).map_err(
                |errno| match errno {
                    Errno::NOTDIR | Errno::LOOP => DiskError::NotADirectory(what.clone()),
                    errno => system(&what, "opened", errno),
                },
            )?;
        let examine = |fd: &OwnedFd| rustix::fs::fstat(fd);
        let stat = examine(&root).map_err(|errno| system(&what, "examined", errno))?;
        let give = (owner != caller).then(|| (owner, Gid::from_raw(stat.st_gid)));
        if made && let Some((uid, _)) = give {
            let given = rustix::fs::fchown(&root, Some(uid), None);
            given.map_err(|errno| system(&what, "given to its owner", errno))?;
        }
        let stat = examine(&root).map_err(|errno| system(&what, "examined", errno))?;
        check_owner(&what, &stat, owner, OPEN_TO_OTHERS)?;
        let mut disk = Self {
            path: path.to_owned(),
            root,
            areas: Vec::new(),
            owner,
            chown_to: give,
            mode: Mode::from_raw_mode(stat.st_mode & 0o750),
        };
        for area in Area::ALL {
            let fd = disk.open_area(area)?;
            disk.areas.push(fd);
        }
        Ok(disk)
    }

    /// Opens a subdirectory, or creates it.
    fn open_area(&self, area: Area) -> Result<OwnedFd, DiskError> {
        let what = area.as_str();
        let made = match rustix::fs::mkdirat(&self.root, what, self.mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(system(what, "made", errno)),
        };
        let fd =
            rustix::fs::openat(&self.root, what, OPEN_DIR, Mode::empty()).map_err(|errno| {
                match errno {
                    Errno::NOTDIR | Errno::LOOP => DiskError::NotADirectory(what.to_owned()),
                    errno => system(what, "opened", errno),
                }
            })?;
        if made {
            let given = self.chown_new(&fd);
            given.map_err(|error| system(what, "given to its owner", error))?;
        }
        let stat = rustix::fs::fstat(&fd).map_err(|errno| system(what, "examined", errno))?;
        check_owner(what, &stat, self.owner, WRITABLE)?;
        Ok(fd)
    }

    fn chown_new(&self, fd: impl AsFd) -> io::Result<()> {
        if let Some((uid, gid)) = self.chown_to {
            rustix::fs::fchown(fd, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Opens those directories again that were replaced. Git removes a directory with the last file
    /// in it, and a user may replace a whole directory. Returns whether any was replaced.
    pub(super) fn reopen_if_replaced(&mut self) -> Result<bool, DiskError> {
        let what = "the directory";
        let stat =
            rustix::fs::fstat(&self.root).map_err(|errno| system(what, "examined", errno))?;
        let there = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        if !there.is_ok_and(|there| {
            FileFingerprint::from_stat(&there).is_same_file(&FileFingerprint::from_stat(&stat))
        }) {
            *self = Self::open_at(&self.path, self.owner)?;
            return Ok(true);
        }
        check_owner(what, &stat, self.owner, OPEN_TO_OTHERS)?;
        let mut is_other = false;
        for (at, area) in Area::ALL.into_iter().enumerate() {
            let stat = rustix::fs::fstat(&self.areas[at])
                .map_err(|errno| system(area.as_str(), "examined", errno))?;
            let there = rustix::fs::statat(&self.root, area.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            let is_same = there.is_ok_and(|there| {
                FileFingerprint::from_stat(&there).is_same_file(&FileFingerprint::from_stat(&stat))
            });
            if is_same {
                check_owner(area.as_str(), &stat, self.owner, WRITABLE)?;
            } else {
                self.areas[at] = self.open_area(area)?;
                is_other = true;
            }
        }
        Ok(is_other)
    }

    /// Removes temporary files that a killed process left.
    pub(super) fn remove_temp_files(&self) {
        for area in Area::ALL {
            let found = self.list(area, |name| {
                name.starts_with(FRESH).then(|| name.to_owned())
            });
            for name in found.map_or(Vec::new(), |(names, _)| names) {
                let _ = self.remove(area, &name);
            }
        }
    }

    /// Returns the descriptor of the plane's directory.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(super) fn fd(&self, area: Area) -> BorrowedFd<'_> {
        let at = Area::ALL.iter().position(|of| *of == area);
        // `areas` has an entry for each area.
        at.map_or(self.root.as_fd(), |at| self.areas[at].as_fd())
    }

    /// Returns the paths for the kernel to watch.
    pub(super) fn watch_paths(&self) -> Vec<(Area, String)> {
        let of = |area| (area, format!("/proc/self/fd/{}", self.fd(area).as_raw_fd()));
        [Area::Queue, Area::Ctl, Area::Answers].map(of).into()
    }

    /// Lists the entries that `read` accepts, in order, and whether there are more than the limit;
    /// then these are the first.
    pub(super) fn list<T: Ord>(
        &self,
        area: Area,
        read: impl Fn(&str) -> Option<T>,
    ) -> io::Result<(Vec<T>, bool)> {
        self.first(area, FILE_PLANE_ENTRIES, read)
    }

    /// Returns the first `most` entries. All names are read, but no more than `most` are kept in
    /// memory.
    fn first<T: Ord>(
        &self,
        area: Area,
        most: usize,
        read: impl Fn(&str) -> Option<T>,
    ) -> io::Result<(Vec<T>, bool)> {
        let mut found = BinaryHeap::new();
        let mut is_more = false;
        for entry in Dir::read_from(self.fd(area))? {
            let entry = entry?;
            let Some(one) = entry.file_name().to_str().ok().and_then(&read) else {
                continue;
            };
            found.push(one);
            if found.len() > most {
                found.pop(); // The last of them.
                is_more = true;
            }
        }
        Ok((found.into_sorted_vec(), is_more))
    }

    /// Reads the file at a name, if it is a regular file of at most `most` bytes.
    pub(super) fn read(&self, area: Area, name: &str, most: u64) -> io::Result<PlaneEntry> {
        let found = held_dir::read(self.fd(area), name, most)?;
        Ok(found.map(|(bytes, stat)| (bytes, FileFingerprint::from_stat(&stat))))
    }

    /// Whether a name exists.
    pub(super) fn has(&self, area: Area, name: &str) -> bool {
        held_dir::exists(self.fd(area), name).is_ok_and(|exists| exists)
    }

    /// Whether a name is a directory.
    pub(super) fn is_directory(&self, area: Area, name: &str) -> bool {
        let stat = rustix::fs::statat(self.fd(area), name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Moves an entry to a free name; `false` if the name is taken or the entry is gone.
    pub(super) fn move_between(&self, from: Area, to: Area, name: &str) -> io::Result<bool> {
        self.rename_entry(from, name, to, name)
    }

    pub(super) fn rename_entry(
        &self,
        from: Area,
        name: &str,
        to: Area,
        other: &str,
    ) -> io::Result<bool> {
        let (here, there) = (self.fd(from), self.fd(to));
        let moved = held_dir::rename_without_replacing((here, name), (there, other))?;
        if moved != Moved::Yes {
            return Ok(false);
        }
        rustix::fs::fsync(there)?;
        rustix::fs::fsync(here)?;
        Ok(true)
    }

    /// Writes a file under a temporary name, then renames it over whatever has its name.
    pub(super) fn put(&self, area: Area, name: &str, bytes: &[u8]) -> io::Result<FileFingerprint> {
        let dir = self.fd(area);
        let fresh = format!("{FRESH}{}", uuid::Uuid::new_v4().simple());
        let mode = Mode::from_raw_mode(0o640);
        held_dir::write_new(dir, &fresh, mode, bytes, |file| {
            self.chown_new(file)?;
            file.sync_all()?;
            match rustix::fs::renameat(dir, &fresh, dir, name) {
                Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {
                    self.quarantine(area, name, "it is a directory, not a file")?;
                    rustix::fs::renameat(dir, &fresh, dir, name)?;
                }
                done => done?,
            }
            rustix::fs::fsync(dir)?;
            Ok(FileFingerprint::from_stat(&rustix::fs::fstat(file)?))
        })
    }

    /// Appends to a file that [`Self::put`] created; `false` if it was replaced or removed.
    pub(super) fn add(
        &self,
        area: Area,
        name: &str,
        to: &FileFingerprint,
        bytes: &[u8],
    ) -> io::Result<bool> {
        let Some(mut file) = self.open_for_append(area, name)? else {
            return Ok(false);
        };
        if !FileFingerprint::from_stat(&rustix::fs::fstat(&file)?).is_same_file(to) {
            return Ok(false);
        }
        file.write_all(bytes)?;
        Ok(true)
    }

    /// Opens a regular file for appending.
    fn open_for_append(&self, area: Area, name: &str) -> io::Result<Option<File>> {
        let found = held_dir::open_append(self.fd(area), name, None)?;
        Ok(found.map(|(file, _)| file).regular())
    }

    /// Flushes a file to the disk.
    pub(super) fn sync(&self, area: Area, name: &str) -> io::Result<()> {
        match self.open_for_append(area, name)? {
            Some(file) => file.sync_all(),
            None => Ok(()),
        }
    }

    /// Appends a line to the plane's log.
    pub(super) fn log(&self, line: &str) -> io::Result<()> {
        const NAME: &str = "meta.log";
        let mut file = self.open_for_append(Area::Log, NAME)?;
        let mut length = 0;
        if let Some(there) = &file {
            let of = there.metadata()?;
            length = of.len();
            // A file with further names is not written: it could be a user's file that was linked
            // here.
            file = file.filter(|_| of.nlink() == 1);
        }
        if file.is_none() || length > FILE_PLANE_LOG_BYTES {
            let log = self.fd(Area::Log);
            match rustix::fs::renameat(log, NAME, log, "meta.log.1") {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            self.put(Area::Log, NAME, b"")?;
            file = self.open_for_append(Area::Log, NAME)?;
        }
        let mut file = file.ok_or_else(|| io::Error::other("meta.log was replaced"))?;
        file.write_all(line.as_bytes())
    }
}

/// Checks which users could create files in a directory.
fn check_owner(what: &str, stat: &Stat, owner: Uid, forbidden: u32) -> Result<(), DiskError> {
    if stat.st_uid != owner.as_raw() {
        return Err(DiskError::Owner {
            what: what.to_owned(),
            uid: stat.st_uid,
            wanted: owner.as_raw(),
        });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & forbidden != 0 {
        return Err(DiskError::Open {
            what: what.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Returns a path for display.
pub(super) fn display_path(path: &Path) -> String {
    escape_for_display(&path.to_string_lossy(), 200)
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
