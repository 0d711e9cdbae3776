//! Limits a workspace to one apply at a time.
//!
//! The lock is a file of the state directory, which no agent can reach, named by the workspace's
//! device and inode. On the workspace itself, an agent with write access could hold a lock forever.
//! It does not exclude applies of other state directories; a step detects their changes. Must not
//! know what an apply does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::Overlay;
use super::apply::ApplyError;
use crate::workspace::tree::{Root, TreeError, meta_at, meta_of};
use marshal_model::UntrustedText;

/// The lock of a workspace. Dropping it releases the lock and removes the file.
pub(super) struct WorkspaceLock {
    overlays: Root,
    name: String,
    _lock: Arc<OwnedFd>,
}

impl WorkspaceLock {
    /// Takes the lock of a workspace, waiting at most `wait` for it.
    ///
    /// # Errors
    /// [`ApplyError::WorkspaceBusy`], or the system error.
    pub(super) fn acquire(
        overlay: &Overlay,
        workspace: &Root,
        wait: Duration,
    ) -> Result<Self, ApplyError> {
        let until = Instant::now() + wait;
        let (major, minor, inode) = workspace.meta()?.id;
        // No session id contains a comma.
        let name = format!(",apply-{major}-{minor}-{inode}");
        let at = overlay.overlays.path().to_owned();
        let overlays = Root::open_at(&overlay.overlays, ".", at)?;
        let failed = |error: io::Error| TreeError::at("lock", name.as_bytes(), error);
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = rustix::fs::openat(&overlays, &*name, flags, Mode::from_raw_mode(0o600));
            let lock = Arc::new(lock.map_err(|errno| failed(errno.into()))?);
            let is_held = lock_until(&lock, until).map_err(failed)?;
            let c_name = std::ffi::CString::new(&*name).map_err(|error| failed(error.into()))?;
            // The previous holder may have removed the file on release: then this lock is on a
            // stale inode.
            let is_there = || {
                let own = meta_of(&*lock).map(|meta| meta.id).ok();
                own.is_some() && own == meta_at(&overlays, &c_name).map(|meta| meta.id).ok()
            };
            if is_held && is_there() {
                return Ok(Self {
                    overlays,
                    name,
                    _lock: lock,
                });
            }
            if !is_held {
                let path = workspace.path().to_string_lossy();
                return Err(ApplyError::WorkspaceBusy(UntrustedText::new(path), wait));
            }
        }
    }
}

impl Drop for WorkspaceLock {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.overlays, &*self.name, AtFlags::empty());
    }
}

/// Whether the lock was taken in time.
fn lock_until(lock: &Arc<OwnedFd>, until: Instant) -> io::Result<bool> {
    match rustix::fs::flock(&**lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {}
        done => return done.map(|()| true).map_err(io::Error::from),
    }
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    // flock(2) blocks without a timeout, so a thread does it; a lock that it takes too late is
    // released at once.
    let (sender, receiver) = sync_channel(1);
    let waiting = Arc::clone(lock);
    std::thread::Builder::new()
        .name("apply-lock".to_owned())
        .spawn(move || {
            let locked = loop {
                match rustix::fs::flock(&*waiting, FlockOperation::LockExclusive) {
                    Err(Errno::INTR) => {}
                    locked => break locked,
                }
            };
            drop(waiting);
            let _ = sender.send(locked);
        })?;
    match receiver.recv_timeout(left) {
        Ok(locked) => locked.map(|()| true).map_err(io::Error::from),
        Err(_) => Ok(false),
    }
}
