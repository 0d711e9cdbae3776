//! Ensures that only one supervisor uses a directory.
//!
//! Owns the lock file, whose lock the kernel releases with its process, and the check of the
//! heartbeat. Locks of network file systems may not reach other hosts, so another supervisor's
//! heartbeat must also stay unchanged for a while. Clocks of different hosts are never compared.

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

/// The lock file in the plane's directory.
const LOCK: &str = ".lock";
/// The file that shows that a supervisor is alive.
pub(super) const HEARTBEAT: &str = "heartbeat.json";
/// The time that a heartbeat must stay unchanged before its supervisor counts as dead.
const STALE_AFTER: Duration = FILE_PLANE_HEARTBEAT.saturating_mul(3);
/// Identifies this boot of this host.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// One start of a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// A random id of the start.
    instance: String,
    /// The boot id of the host.
    boot: String,
}

/// The content of `state/heartbeat.json`.
#[derive(Serialize, Deserialize)]
struct Heartbeat {
    timestamp: String,
    #[serde(flatten)]
    holder: Holder,
}

/// This supervisor's claim to a directory.
#[derive(Debug)]
pub(super) struct DirOwnership {
    lock: Lock,
    own: Holder,
    /// The previous holder of the lock; dead, because it lost the lock.
    previous: Option<Holder>,
    /// Another supervisor's heartbeat, and since when it is unchanged.
    other_heartbeat: Option<(Vec<u8>, Instant)>,
}

/// An acquired lock.
#[derive(Debug)]
pub(super) struct Lock {
    /// The lock file.
    file: File,
    /// `false` if the file system does not support locks.
    is_locked: bool,
    /// Device and inode of the lock file.
    file_id: (u64, u64),
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlock explicitly: a process that another thread just started may have a copy of the
        // descriptor, which would keep the lock.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl DirOwnership {
    /// Acquires the lock.
    ///
    /// # Errors
    /// [`DiskError::InUse`] if another supervisor has it.
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

    /// Returns device and inode of the lock file.
    pub(super) const fn file_id(&self) -> (u64, u64) {
        self.lock.file_id
    }

    /// Acquires the lock of the directory that is now at the path; `None` if it is the one that is
    /// held.
    ///
    /// # Errors
    /// [`DiskError::InUse`] if another supervisor has it.
    pub(super) fn lock_current(
        disk: &Disk,
        identity: (u64, u64),
    ) -> Result<Option<Lock>, DiskError> {
        let there = rustix::fs::statat(disk.root(), LOCK, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| file_id_of(&there) == identity) {
            return Ok(None);
        }
        lock(disk, "the directory").map(Some)
    }

    /// Replaces the lock.
    pub(super) fn replace_lock(&mut self, lock: Lock) {
        self.lock = lock;
        self.record_holder();
    }

    /// Writes this supervisor's id into the lock file, and reads the previous holder. If the write
    /// fails, the next supervisor only waits longer.
    fn record_holder(&mut self) {
        self.previous = None;
        if self.lock.is_locked {
            self.previous = write_holder(&mut self.lock.file, &self.own).unwrap_or_default();
        }
    }

    /// Whether, by its heartbeat, no other supervisor uses the directory.
    pub(super) fn is_alone(&mut self, seen: &PlaneEntry, now: Instant) -> bool {
        let bytes = match seen {
            PlaneEntry::Regular((bytes, _)) => bytes,
            PlaneEntry::Missing | PlaneEntry::Irregular(_) => return true,
        };
        let holder = serde_json::from_slice::<Heartbeat>(bytes).map(|beat| beat.holder);
        let is_own = holder.is_ok_and(|holder| {
            // The previous holder is dead if its lock was on this kernel.
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

    /// Returns the content of a heartbeat.
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
        // The file system has no locks: only the heartbeat protects the directory.
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => false,
        Err(errno) => return Err(system(LOCK, "locked", errno)),
    };
    Ok(Lock {
        file,
        is_locked,
        file_id: file_id_of(&stat),
    })
}

/// Opens the lock file. An entry that is not a regular file with one name is quarantined, because a
/// write to it could reach another file.
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
            // A directory that cannot be moved to another parent can still be renamed.
            Err(_) => rustix::fs::renameat(disk.root(), LOCK, disk.root(), &aside)?,
        }
    }
    Err(io::Error::other(
        "it is not a regular file with exactly one name",
    ))
}

/// Writes the holder into the lock file, and returns the previous one.
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
#[path = "ownership_tests.rs"]
mod tests;
