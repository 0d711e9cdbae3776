//! All processes below this one, found in `/proc` and killed: what a process does that has no pid
//! namespace around its agent.
//!
//! It holds because this process is a subreaper: whoever loses its parent becomes its child, so
//! nothing leaves the tree. Must not know which of them is the agent.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// Sends SIGKILL to every process below this one; how many of them were alive.
pub(super) fn kill() -> usize {
    let mut alive = 0;
    for (pid, seen) in find() {
        // The descriptor pins the process; only then is it asked again who it is, so that a
        // number that was given anew is never hit.
        let Some(raw) = Pid::from_raw(pid) else {
            continue;
        };
        let Ok(pinned) = pidfd_open(raw, PidfdFlags::empty()) else {
            continue;
        };
        let same = stat(pid).is_some_and(|now| now.parent == seen.parent);
        // Zombies too: where only the first thread has ended, the process looks like one.
        if same && pidfd_send_signal(&pinned, Signal::KILL).is_ok() && !seen.is_zombie {
            alive += 1;
        }
    }
    alive
}

/// What is known of a process.
#[derive(Clone, Copy)]
struct Stat {
    parent: i32,
    is_zombie: bool,
}

/// The processes below this one.
fn find() -> Vec<(i32, Stat)> {
    let mut children: HashMap<i32, Vec<(i32, Stat)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = pid
            && let Some(stat) = stat(pid)
        {
            children.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(child);
            open.push(child.0);
        }
    }
    found
}

/// `/proc/PID/stat`, proc_pid_stat(5).
fn stat(pid: i32) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, brackets and blanks included, but its bracket is the last one.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?)
        .ok()?
        .split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X" | "x");
    Some(Stat {
        parent: fields.next()?.parse().ok()?,
        is_zombie,
    })
}
