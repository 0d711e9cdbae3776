//! A workspace that something is applied to, and the directory beside its files where that is made.
//!
//! Holds the lock against a second apply in the same workspace. Must not know what is applied.

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

/// Device and inode.
pub(super) type DeviceInode = (u64, u64);

/// What was at a place when the apply was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileStamp {
    pub(super) id: DeviceInode,
    pub(super) size: i64,
    pub(super) mtime: (i64, u64),
}

/// The name of the directory beside the workspace's files.
fn staging_name(session: &SessionId) -> String {
    format!("{STAGING}{session}")
}

/// The workspace, while nobody else applies anything to it.
pub(super) struct ApplyTarget {
    pub(super) root: Root,
    pub(super) staging_name: String,
    _lock: WorkspaceLock,
}

impl ApplyTarget {
    /// Takes the workspace, or waits for another apply in it, at most so long.
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
        let found = rustix::fs::fstat(&dir)?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            return Err(io::Error::other("it is not the directory that apply made"));
        }
        Ok(dir)
    }

    /// What is beside the workspace's files, to be looked at by its names there.
    pub(super) fn staging_root(&self) -> Result<Root, TreeError> {
        let path = self.root.path().join(&self.staging_name);
        Root::open_at(&self.root, &self.staging_name, path)
    }

    pub(super) fn remove_staging(&self) -> Result<(), TreeError> {
        remove_tree(&self.root, &self.staging_name)
    }

    /// What a directory holds under this name.
    pub(super) fn stamp_at(dir: impl AsFd, name: &str) -> io::Result<Option<FileStamp>> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => {
                let found = found?;
                Ok(Some(FileStamp {
                    id: (found.st_dev, found.st_ino),
                    size: found.st_size,
                    mtime: (found.st_mtime, found.st_mtime_nsec),
                }))
            }
        }
    }
}

/// Device and inode of what is held.
pub(super) fn id_of(held: impl AsFd) -> io::Result<DeviceInode> {
    let found = rustix::fs::fstat(held)?;
    Ok((found.st_dev, found.st_ino))
}

/// Whether a directory is here under this name.
pub(super) fn is_dir(dir: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir())
}
