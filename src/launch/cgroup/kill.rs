//! Ends everything in groups, waits until they are empty, and removes them.
//!
//! Where the tree is cgroup v2 the kernel kills the whole group at once, frozen or not, and says when
//! it is empty; elsewhere its processes are listed, pinned and killed until none is listed any more.
//! Nothing here sleeps. Must not know what the groups are for.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::files::{Files as _, Kernel};

/// The most that a tree of groups is gone down: nobody here makes more than one level, and whoever
/// may make more has no walls.
const DEPTH: usize = 8;

/// How long processes that were killed are waited for before they are listed again.
const ROUND: Duration = Duration::from_millis(200);

/// The most processes that are pinned at once: each takes a descriptor.
const PINNED: usize = 64;

/// Kills everything in and below a group. A v2 group only; false if its kernel cannot.
pub(super) fn kill_v2(dir: &Path) -> io::Result<bool> {
    match Kernel.write(&dir.join("cgroup.kill"), "1") {
        Ok(()) => Ok(true),
        // Before Linux 5.14; or the group is gone, and everybody of it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(!dir.exists()),
        Err(error) => Err(error),
    }
}

/// Kills and waits until nobody is in or below these groups. `v2` is their group of cgroup v2, if
/// there is one; `all` are all of them. False if somebody is left at the deadline.
pub(super) fn empty(v2: Option<&Path>, all: &[PathBuf], deadline: Instant) -> io::Result<bool> {
    if let Some(dir) = v2
        && kill_v2(dir)?
    {
        return wait(dir, deadline);
    }
    loop {
        let listed = listed(all);
        if listed.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        let pinned: Vec<(u32, OwnedFd)> = listed
            .iter()
            .take(PINNED)
            .filter_map(|pid| {
                let raw = Pid::from_raw(i32::try_from(*pid).ok()?)?;
                Some((*pid, pidfd_open(raw, PidfdFlags::empty()).ok()?))
            })
            .collect();
        // Pinned first, then asked again, so that a number given anew is never hit.
        let still = self::listed(all);
        for (_, process) in pinned.iter().filter(|(pid, _)| still.contains(pid)) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let until = deadline.min(Instant::now() + ROUND);
        for (pid, process) in &pinned {
            if still.contains(pid) {
                poll_until(process, PollFlags::IN, until)?;
            }
        }
        if pinned.is_empty() {
            // Out of descriptors, or all of them ended in between.
            std::thread::yield_now();
        }
    }
}

/// Waits until a v2 group is empty; false at the deadline. One that is gone is empty.
fn wait(dir: &Path, deadline: Instant) -> io::Result<bool> {
    let gone = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound
            || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
    };
    let mut events = match File::open(dir.join("cgroup.events")) {
        Err(error) if gone(&error) => return Ok(true),
        other => other?,
    };
    loop {
        let mut text = String::new();
        events.rewind()?;
        match events.read_to_string(&mut text) {
            Err(error) if gone(&error) => return Ok(true),
            other => other?,
        };
        if !text.lines().any(|line| line == "populated 1") {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        poll_until(&events, PollFlags::PRI, deadline)?;
    }
}

fn poll_until(what: &impl std::os::fd::AsFd, flags: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(what, flags)], Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The processes in and below these groups.
pub(super) fn listed(dirs: &[PathBuf]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for dir in dirs {
        walk(dir, DEPTH, &mut |dir| {
            let text = Kernel.read(&dir.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        });
    }
    // Somebody of another pid namespace, whom nobody here can name.
    found.remove(&0);
    found
}

/// Every group below one, then itself.
fn walk(dir: &Path, depth: usize, each: &mut impl FnMut(&Path)) {
    if depth > 0 {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(&entry.path(), depth - 1, each);
            }
        }
    }
    each(dir);
}

/// Removes empty groups with all that is below them.
///
/// # Errors
/// The last thing that could not be removed; the rest is gone.
pub(super) fn remove(dirs: &[PathBuf]) -> io::Result<()> {
    let mut failed = None;
    for dir in dirs {
        walk(dir, DEPTH, &mut |dir| {
            if let Err(error) = Kernel.remove(dir) {
                failed = Some(error);
            }
        });
    }
    failed.map_or(Ok(()), Err)
}
