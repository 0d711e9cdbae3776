//! The workspace of an apply, and the staging directory beside its files.
//!
//! Owns the lock against a second apply in the same workspace. Must not know what is applied.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Overlay;
use super::apply::ApplyError;
use super::apply_plan::STAGING;
use super::lock::WorkspaceLock;
use crate::workspace::removal::remove_tree;
use crate::workspace::tree::{Root, TreeError};
use marshal_model::SessionId;

/// Device and inode numbers.
pub(super) type DeviceInode = (u64, u64);

/// The identity and attributes of a file when the apply was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileStamp {
    pub(super) id: DeviceInode,
    pub(super) size: i64,
    pub(super) mtime: (i64, u64),
}

/// The name of the staging directory.
fn staging_name(session: &SessionId) -> String {
    format!("{STAGING}{session}")
}

/// A workspace that is locked against other applies.
pub(super) struct ApplyTarget {
    pub(super) root: Root,
    pub(super) staging_name: String,
    _lock: WorkspaceLock,
}

impl ApplyTarget {
    /// Locks the workspace, waiting at most `wait` for another apply.
    pub(super) fn lock(overlay: &Overlay, wait: Duration) -> Result<Self, ApplyError> {
        let root = overlay.lower()?;
        let lock = WorkspaceLock::acquire(overlay, &root, wait)?;
        Ok(Self {
            root,
            staging_name: staging_name(overlay.session()),
            _lock: lock,
        })
    }

    pub(super) fn open_staging(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, &*self.staging_name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other(
                "it is not the directory that this apply created",
            ));
        }
        Ok(dir)
    }

    /// Opens the staging directory as a root.
    pub(super) fn staging_root(&self) -> Result<Root, TreeError> {
        let path = self.root.path().join(&self.staging_name);
        Root::open_at(&self.root, &self.staging_name, path)
    }

    pub(super) fn remove_staging(&self) -> Result<(), TreeError> {
        remove_tree(&self.root, &self.staging_name)
    }

    /// The identity of this name in a directory, if it exists.
    pub(super) fn stamp_at(dir: impl AsFd, name: &str) -> io::Result<Option<FileStamp>> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            stat => {
                let stat = stat?;
                Ok(Some(FileStamp {
                    id: (stat.st_dev, stat.st_ino),
                    size: stat.st_size,
                    mtime: (stat.st_mtime, stat.st_mtime_nsec),
                }))
            }
        }
    }
}

/// Device and inode of an open descriptor.
pub(super) fn id_of(handle: impl AsFd) -> io::Result<DeviceInode> {
    let stat = rustix::fs::fstat(handle)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether this name in a directory is a directory.
pub(super) fn is_dir(dir: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
}
