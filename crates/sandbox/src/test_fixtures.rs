//! Fixtures for tests of other crates.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

/// Waits until a released lock is free: a child that another test forks also holds it until its
/// exec. A separate process checks, because no other child inherits what that process opens.
pub fn wait_until_unlocked(lock: &Path) {
    let mut locks = Command::new("flock");
    let free = locks.args(["-w", "30"]).arg(lock).arg("true").status();
    assert!(free.expect("flock").success(), "{} is held", lock.display());
}
