//! What tests of other crates need of this one.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

/// Waits until nobody holds a lock that was released: a child that another test is starting holds it, too, until it
/// executes its own program. A separate process asks, because no other child inherits what that process opens.
pub fn wait_until_unlocked(lock: &Path) {
    let mut locks = Command::new("flock");
    let free = locks.args(["-w", "30"]).arg(lock).arg("true").status();
    assert!(free.expect("flock").success(), "{} is held", lock.display());
}
