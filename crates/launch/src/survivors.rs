//! The last resort for a child without a sandbox whose leash was killed from outside: finds its
//! processes by the marker in their environment.
//!
//! A process that cleared its environment is not found; as long as the leash lives, none is missed.
//! Must not be used with a pid namespace: there the kernel kills the processes.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use marshal_wire::shim::MARKER;

/// Rounds of the search, because a process can fork during one.
const ROUNDS: usize = 10;

/// Kills every process that has this marker in its environment; how many there were. Blocks on
/// reads of `/proc`.
pub(super) fn kill_marked(marker: &str) -> u32 {
    let wanted = format!("{MARKER}={marker}");
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let hit = kill_round(wanted.as_bytes());
        killed += hit;
        if hit == 0 {
            break;
        }
    }
    killed
}

fn kill_round(wanted: &[u8]) -> u32 {
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(Pid::from_raw);
    let mut killed = 0;
    for pid in pids {
        if !is_marked(pid, wanted) {
            continue;
        }
        // The pidfd is opened first and the marker is checked again, so that a reused pid is never
        // killed.
        let Ok(pinned) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        if is_marked(pid, wanted) && pidfd_send_signal(&pinned, Signal::KILL).is_ok() {
            killed += 1;
        }
    }
    killed
}

fn is_marked(pid: Pid, wanted: &[u8]) -> bool {
    // Unreadable or gone: not ours. A zombie's environment is empty.
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        environment
            .split(|byte| *byte == 0)
            .any(|line| line == wanted)
    })
}
