//! Locks of files and directories that end with their process (flock(2)).
//!
//! A child that another thread forks has a copy of every descriptor until it calls exec, and with
//! it the lock. So a released lock is unlocked explicitly, and a lock that a killed holder left to
//! such a child is waited for.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How long a lock may still be held by a forked child after its release.
pub const LOCK_WAIT: Duration = Duration::from_millis(500);
/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// A lock, released when this is dropped.
#[derive(Debug)]
pub struct FlockGuard<F: AsFd>(F);

impl<F: AsFd> FlockGuard<F> {
    /// Takes the lock; waits at most [`LOCK_WAIT`] for it.
    ///
    /// # Errors
    /// `WOULDBLOCK`: another process holds it. Others as flock(2) reports them.
    pub fn lock(file: F) -> Result<Self, Errno> {
        lock(&file)?;
        Ok(Self(file))
    }

    /// Wraps a file that is locked already.
    pub const fn from_locked(file: F) -> Self {
        Self(file)
    }
}

impl<F: AsFd> Drop for FlockGuard<F> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl<F: AsFd> AsFd for FlockGuard<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes a lock that ends only with the process.
///
/// # Errors
/// As [`Held::take`].
pub fn lock(file: impl AsFd) -> Result<(), Errno> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(RETRY_DELAY),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_is_let_go_of_is_free_though_a_child_has_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let guard = FlockGuard::lock(file).unwrap();
        let other = File::open(&path).unwrap();
        assert_eq!(lock(&other), Err(Errno::WOULDBLOCK));
        drop(guard);
        assert!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok());
        drop(copy);
    }

    #[test]
    fn what_a_killed_holder_left_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let left = File::create(&path).unwrap();
        left.lock().unwrap();
        let child = std::thread::spawn(move || {
            std::thread::sleep(LOCK_WAIT / 5);
            drop(left);
        });
        assert_eq!(lock(File::open(&path).unwrap()), Ok(()));
        child.join().unwrap();
    }
}
