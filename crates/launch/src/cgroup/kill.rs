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
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::CgroupOperation;
use super::cgroup_fs::{CgroupFs as _, KernelCgroupFs};
use super::leaf::report_failure;

/// The limit of levels of a tree of groups: marshal makes one level, and only a process without a
/// sandbox can make more.
const DEPTH: usize = 8;

/// How long to wait for killed processes before they are listed again.
const ROUND: Duration = Duration::from_millis(200);

/// The limit of processes that are pinned at once: each takes a file descriptor.
const PINNED: usize = 64;

/// Kills everything in and below a group. A v2 group only; false if its kernel cannot.
pub(super) fn kill_v2(dir: &Path) -> io::Result<bool> {
    match KernelCgroupFs.write(&dir.join("cgroup.kill"), "1") {
        Ok(()) => Ok(true),
        // Linux before 5.14; or the group is gone with all its processes.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(!dir.exists()),
        Err(error) => Err(error),
    }
}

/// Kills and waits until no process is in or below these groups. `v2` is their group of cgroup v2,
/// if there is one; `all` are all of them. False if a process is left at the deadline.
pub(super) fn kill_and_wait(
    v2: Option<&Path>,
    all: &[PathBuf],
    deadline: Instant,
) -> io::Result<bool> {
    if let Some(dir) = v2 {
        match kill_v2(dir).and_then(|is_killed| {
            is_killed
                .then(|| wait_until_empty(dir, deadline))
                .transpose()
        }) {
            // One that was never made, or is gone, says nothing of the other trees.
            Ok(Some(is_empty)) if dir.exists() => return Ok(is_empty),
            Ok(_) => {}
            // Whatever the kernel does not do for us is done one by one.
            Err(error) => report_failure(CgroupOperation::Kill, dir, &error),
        }
    }
    loop {
        let listed = list_all(all)?;
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
        // The pidfd is opened first and the group is read again, so that a reused pid is never
        // killed.
        let still = self::list_all(all)?;
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

/// Whether a group is there no more.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::NODEV)
}

/// Waits until a v2 group is empty; false at the deadline. One that is gone is empty.
fn wait_until_empty(dir: &Path, deadline: Instant) -> io::Result<bool> {
    let mut events = match File::open(dir.join("cgroup.events")) {
        Err(error) if is_gone(&error) => return Ok(true),
        other => other?,
    };
    loop {
        let mut text = String::new();
        events.rewind()?;
        match events.read_to_string(&mut text) {
            Err(error) if is_gone(&error) => return Ok(true),
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
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The processes in and below these groups, as far as they can be read.
pub(super) fn list_readable(dirs: &[PathBuf]) -> BTreeSet<u32> {
    scan(dirs).0
}

/// All processes in and below these groups, or none if not all can be read: a group that cannot be
/// read is not an empty one.
fn list_all(dirs: &[PathBuf]) -> io::Result<BTreeSet<u32>> {
    match scan(dirs) {
        // Those that are known are killed first.
        (found, Some(error)) if found.is_empty() => Err(error),
        (found, _) => Ok(found),
    }
}

fn scan(dirs: &[PathBuf]) -> (BTreeSet<u32>, Option<io::Error>) {
    let mut found = BTreeSet::new();
    let mut failed = None;
    for dir in dirs {
        walk(dir, DEPTH, &mut |dir| match procs(dir) {
            Ok(processes) => found.extend(processes),
            Err(error) if is_gone(&error) => {}
            Err(error) => failed = Some(error),
        });
    }
    // A process of another pid namespace, which has no pid here.
    found.remove(&0);
    (found, failed)
}

fn procs(dir: &Path) -> io::Result<Vec<u32>> {
    let numbers = |text: String| {
        let numbers = text.lines().filter_map(|line| line.parse().ok());
        numbers.collect::<Vec<u32>>()
    };
    match KernelCgroupFs.read(&dir.join("cgroup.procs")) {
        // A threaded group lists threads alone.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
            let threads = numbers(KernelCgroupFs.read(&dir.join("cgroup.threads"))?);
            Ok(threads.into_iter().map(process_of).collect())
        }
        other => other.map(numbers),
    }
}

/// The process of a thread; the thread's own number if that is not known (any more).
fn process_of(thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:"))
        .and_then(|number| number.trim().parse().ok());
    process.unwrap_or(thread)
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
            if let Err(error) = KernelCgroupFs.remove(dir) {
                failed = Some(error);
            }
        });
    }
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_telemetry::{BuildInfo, Exporter, PageFormat, Samples};
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn what_the_kernel_does_not_kill_at_once_is_killed_one_by_one() {
        let dir = tempfile::tempdir().expect("a directory");
        // Writing to it fails, and not because it is not there.
        fs::create_dir(dir.path().join("cgroup.kill")).expect("a directory");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a process");
        fs::write(dir.path().join("cgroup.procs"), format!("{}\n", child.id())).expect("a file");
        // At its end nobody is killed any more.
        let soon = Instant::now() + Duration::from_secs(1);
        // This list never gets shorter.
        let all = [dir.path().to_owned()];
        let (recorder, exporter) = Exporter::build(BuildInfo::default()).expect("a recorder");
        let killed =
            metrics::with_local_recorder(&recorder, || kill_and_wait(Some(dir.path()), &all, soon));
        assert!(!killed.expect("a list"));
        let page = exporter.render(PageFormat::Prometheus, &Samples::default());
        let counted = "marshal_cgroup_errors_total{operation=\"kill\"} 1\n";
        assert!(page.contains(counted), "{page}");
        let ended = child.wait().expect("its end");
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_group_that_cannot_be_read_is_not_empty() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("cgroup.procs")).expect("a directory");
        let soon = Instant::now() + Duration::from_millis(300);
        assert!(kill_and_wait(None, &[dir.path().to_owned()], soon).is_err());
        fs::remove_dir(dir.path().join("cgroup.procs")).expect("removed");
        assert!(kill_and_wait(None, &[dir.path().to_owned()], soon).expect("gone"));
    }

    #[test]
    fn a_threads_process_is_known() {
        let own = std::process::id();
        assert_eq!(process_of(own), own);
        let of_another = || {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            (thread.cast_unsigned(), process_of(thread.cast_unsigned()))
        };
        let (thread, process) = std::thread::spawn(of_another).join().expect("no panic");
        assert_ne!(thread, own);
        assert_eq!(process, own);
    }
}
