//! Keeps the host awake while a run works, where logind is there.
//!
//! `systemd-inhibit` holds logind's lock as long as its command runs, which here ends with its
//! standard input: so the lock ends with this process, however that ends.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// The lock; released when dropped.
#[derive(Debug)]
pub(super) struct SleepLock(Option<Child>);

impl SleepLock {
    /// Takes the lock. Without `systemd-inhibit` nothing is held; without logind it ends by itself.
    pub(super) fn take() -> Self {
        let child = Command::new("systemd-inhibit")
            .args(["--what=sleep:idle", "--mode=block", "--who=marshal"])
            .args(["--why=a run of agents", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C at the terminal is for the run, which then still works.
            .process_group(0)
            .spawn();
        Self(child.ok())
    }
}

impl Drop for SleepLock {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}
