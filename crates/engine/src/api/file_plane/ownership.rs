//! Who works a directory: one supervisor at a time.
//!
//! Owns the lock, on a file of its own, which the kernel lets go with its process, and, because locks
//! of network file systems need not reach other hosts, the look at the heartbeat: one that is of
//! somebody else must have stayed as it is for a while. No clock is compared with another host's.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::disk::{Area, Disk, DiskError, PlaneEntry, system};
use super::quarantine::random_suffix;
use super::schema::format_millis;
use marshal_model::limits::{FILE_PLANE_HEARTBEAT, FILE_PLANE_SMALL_BYTES};
use marshal_sandbox::flock;

/// The file that is locked, in the plane's own directory.
const LOCK: &str = ".lock";
/// The file that says that somebody lives.
pub(super) const HEARTBEAT: &str = "heartbeat.json";
/// For how long a heartbeat must stay as it is before whoever wrote it counts as gone.
const STALE_AFTER: Duration = FILE_PLANE_HEARTBEAT.saturating_mul(3);
/// What tells this start of this kernel from others.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A start of a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// Drawn anew by each.
    instance: String,
    /// Of which start of which kernel.
    boot: String,
}

/// What `state/heartbeat.json` says.
#[derive(Serialize, Deserialize)]
struct Heartbeat {
    timestamp: String,
    #[serde(flatten)]
    holder: Holder,
}

/// A directory that this supervisor holds, as far as locks reach.
#[derive(Debug)]
pub(super) struct DirOwnership {
    lock: Lock,
    own: Holder,
    /// Who had the lock before; gone, because it has it no more.
    previous: Option<Holder>,
    /// A heartbeat of somebody else, and since when it is as it is.
    other_heartbeat: Option<(Vec<u8>, Instant)>,
}

/// A lock that was taken.
#[derive(Debug)]
pub(super) struct Lock {
    /// What is locked; `false`: as the file system has no locks, it only stands for one.
    file: File,
    is_locked: bool,
    /// Which file that is.
    file_id: (u64, u64),
}

impl Drop for Lock {
    fn drop(&mut self) {
        // In so many words: a process that another thread starts has a copy of the descriptor.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl DirOwnership {
    /// Takes the lock.
    ///
    /// # Errors
    /// [`DiskError::Taken`] if another supervisor has it.
    pub(super) fn acquire(disk: &Disk, what: &str) -> Result<Self, DiskError> {
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        let own = Holder {
            instance: uuid::Uuid::new_v4().to_string(),
            boot: boot.trim_ascii().to_owned(),
        };
        let lock = lock(disk, what)?;
        let mut holding = Self {
            lock,
            own,
            previous: None,
            other_heartbeat: None,
        };
        holding.record_holder();
        Ok(holding)
    }

    /// Which file is locked.
    pub(super) const fn file_id(&self) -> (u64, u64) {
        self.lock.file_id
    }

    /// The lock of the directory that stands there now; `None`: it is this one.
    ///
    /// # Errors
    /// [`DiskError::Taken`] if another supervisor has it.
    pub(super) fn lock_current(disk: &Disk, held: (u64, u64)) -> Result<Option<Lock>, DiskError> {
        let there = rustix::fs::statat(disk.root(), LOCK, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| file_id_of(&there) == held) {
            return Ok(None);
        }
        lock(disk, "the directory").map(Some)
    }

    /// Has another lock from now on.
    pub(super) fn replace_lock(&mut self, lock: Lock) {
        self.lock = lock;
        self.record_holder();
    }

    /// Says in the locked file who holds it, and learns who did before. Where that cannot be written,
    /// the next one waits for longer, and nothing else.
    fn record_holder(&mut self) {
        self.previous = None;
        if self.lock.is_locked {
            self.previous = write_holder(&mut self.lock.file, &self.own).unwrap_or_default();
        }
    }

    /// Whether nobody else works the directory, as far as its heartbeat tells.
    pub(super) fn is_alone(&mut self, seen: &PlaneEntry, now: Instant) -> bool {
        let bytes = match seen {
            PlaneEntry::File(bytes, _) => bytes,
            PlaneEntry::Missing | PlaneEntry::Irregular(_) => return true,
        };
        let holder = serde_json::from_slice::<Heartbeat>(bytes).map(|beat| beat.holder);
        let is_own = holder.is_ok_and(|holder| {
            // One whose lock was taken over is gone, where the lock was this kernel's to give.
            let was_before =
                self.previous.as_ref() == Some(&holder) && holder.boot == self.own.boot;
            holder == self.own || was_before
        });
        if is_own {
            self.other_heartbeat = None;
            return true;
        }
        match &self.other_heartbeat {
            Some((before, since)) if before == bytes => now.duration_since(*since) >= STALE_AFTER,
            _ => {
                self.other_heartbeat = Some((bytes.clone(), now));
                false
            }
        }
    }

    /// A heartbeat.
    pub(super) fn heartbeat_json(&self, now_us: i64) -> String {
        let beat = Heartbeat {
            timestamp: format_millis(now_us),
            holder: self.own.clone(),
        };
        serde_json::to_string(&beat).unwrap_or_default() + "\n"
    }
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_lossless,
    reason = "widths differ by architecture"
)]
fn file_id_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

fn lock(disk: &Disk, what: &str) -> Result<Lock, DiskError> {
    let file = open(disk).map_err(|error| system(LOCK, "opened", error))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| system(LOCK, "examined", errno))?;
    let is_locked = match flock::lock(&file) {
        Ok(()) => true,
        Err(Errno::WOULDBLOCK) => return Err(DiskError::InUse(what.to_owned())),
        // Nobody can lock anything there: the heartbeat has to do.
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => false,
        Err(errno) => return Err(system(LOCK, "locked", errno)),
    };
    Ok(Lock {
        file,
        is_locked,
        file_id: file_id_of(&stat),
    })
}

/// Opens the file that is locked. What stands there and is no file with one name is put aside: what
/// is written to it must be nobody else's.
fn open(disk: &Disk) -> io::Result<File> {
    const FLAGS: OFlags = OFlags::RDWR
        .union(OFlags::CREATE)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::NONBLOCK)
        .union(OFlags::NOCTTY)
        .union(OFlags::CLOEXEC);
    let own = |file: OwnedFd| -> io::Result<Option<File>> {
        let stat = rustix::fs::fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok((is_file && stat.st_nlink == 1).then(|| File::from(file)))
    };
    for _ in 0..2 {
        match rustix::fs::openat(disk.root(), LOCK, FLAGS, Mode::from_raw_mode(0o600)) {
            Ok(file) => {
                if let Some(file) = own(file)? {
                    return Ok(file);
                }
            }
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NODEV) => {}
            Err(errno) => return Err(errno.into()),
        }
        let aside = format!("{LOCK}.{}", random_suffix());
        let rejected = disk.fd(Area::Rejected);
        let flags = RenameFlags::empty();
        match rustix::fs::renameat_with(disk.root(), LOCK, rejected, &aside, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            // A directory that may not be moved elsewhere can be renamed.
            Err(_) => rustix::fs::renameat(disk.root(), LOCK, disk.root(), &aside)?,
        }
    }
    Err(io::Error::other("it is no regular file with one name"))
}

/// Says in the locked file who holds it, and gives who did before.
fn write_holder(file: &mut File, own: &Holder) -> io::Result<Option<Holder>> {
    let mut text = Vec::new();
    (&*file)
        .take(FILE_PLANE_SMALL_BYTES)
        .read_to_end(&mut text)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&serde_json::to_vec(own)?)?;
    Ok(serde_json::from_slice(&text).ok())
}

#[cfg(test)]
#[path = "holding_tests.rs"]
mod tests;
