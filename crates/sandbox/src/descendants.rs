//! Finds all processes below this one in `/proc` and kills them: for an agent without a pid
//! namespace.
//!
//! This works because this process is a child subreaper: an orphan becomes its child, so nothing
//! leaves the tree. Must not know which process is the agent.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// How the descendants are found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// By each process's list of children (proc_pid_children(5)), where the kernel has one. The
    /// cost depends on the tree. A list that changes while it is read may miss a process, so
    /// callers repeat until none is left.
    Lists,
    /// Through all of `/proc`. The cost depends on the host.
    Everybody,
}

/// Sends SIGKILL to every descendant; returns how many of them were alive.
pub(super) fn kill_all(search: Search) -> usize {
    let mut alive = 0;
    for (pid, seen) in find(search) {
        // The pidfd pins the process. Its identity is checked only after that, so that a recycled
        // pid is never hit.
        let Some(raw) = Pid::from_raw(pid) else {
            continue;
        };
        let Ok(pinned) = pidfd_open(raw, PidfdFlags::empty()) else {
            continue;
        };
        let same = read_stat(pid).is_some_and(|now| now.parent == seen.parent);
        // Zombies too: a process whose main thread has ended looks like one while other threads
        // run.
        if same && pidfd_send_signal(&pinned, Signal::KILL).is_ok() && !seen.is_zombie {
            alive += 1;
        }
    }
    alive
}

/// What is read of a process.
#[derive(Clone, Copy)]
struct Stat {
    parent: i32,
    is_zombie: bool,
}

/// All descendants of this process.
fn find(search: Search) -> Vec<(i32, Stat)> {
    let own = getpid().as_raw_nonzero().get();
    let listed = match search {
        Search::Lists => by_lists(own),
        Search::Everybody => None,
    };
    listed.unwrap_or_else(|| by_parents(own))
}

/// Walks down the lists of children; `None` where the kernel has none.
fn by_lists(own: i32) -> Option<Vec<(i32, Stat)>> {
    let mut processes = Vec::new();
    let mut open = children_of(own)?;
    while let Some((pid, parent)) = open.pop() {
        // A process with another parent by now has been reparented to this process, whose own list
        // has it in the next round.
        if let Some(stat) = read_stat(pid)
            && stat.parent == parent
        {
            processes.push((pid, stat));
            open.extend(children_of(pid).unwrap_or_default());
        }
    }
    Some(processes)
}

/// The children of all threads of a process, each with its parent; `None` if the kernel has no
/// list.
fn children_of(parent: i32) -> Option<Vec<(i32, i32)>> {
    let mut children = Vec::new();
    let mut has_list = false;
    for thread in fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten() {
        if let Ok(list) = fs::read_to_string(thread.path().join("children")) {
            has_list = true;
            let pids = list.split_ascii_whitespace();
            children.extend(pids.filter_map(|pid| Some((pid.parse().ok()?, parent))));
        }
    }
    has_list.then_some(children)
}

/// Finds descendants by the parent of every process.
fn by_parents(own: i32) -> Vec<(i32, Stat)> {
    let mut children: HashMap<i32, Vec<(i32, Stat)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = pid
            && let Some(stat) = read_stat(pid)
        {
            children.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut processes = Vec::new();
    let mut open = vec![own];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            processes.push(child);
            open.push(child.0);
        }
    }
    processes
}

/// Reads `/proc/PID/stat`, proc_pid_stat(5).
fn read_stat(pid: i32) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, parentheses and spaces included, but its closing parenthesis
    // is the last one.
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn both_searches_find_the_same_tree() {
        let own = getpid().as_raw_nonzero().get();
        let mut child = Command::new("sh")
            .args(["-c", "(sleep 60 & wait) & (sleep 60 & wait) & echo; wait"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let below = |found: Vec<(i32, Stat)>| {
            let parents: HashMap<i32, i32> = found
                .iter()
                .map(|(pid, stat)| (*pid, stat.parent))
                .collect();
            let is_below = |mut at: i32| {
                while at != pid && at != own {
                    at = parents.get(&at).copied().unwrap_or(own);
                }
                at == pid
            };
            let mut pids: Vec<i32> = parents
                .keys()
                .copied()
                .filter(|pid| is_below(*pid))
                .collect();
            pids.sort_unstable();
            pids
        };
        let began = std::time::Instant::now();
        // A kernel without lists has nothing to compare; one with lists leaves somebody out of a list that
        // changes while it is read, as that of this process may.
        let look = || (below(by_parents(own)), by_lists(own).map(&below));
        let is_same = |all: &Vec<i32>, listed: &Option<Vec<i32>>| {
            all.len() == 5 && listed.as_ref().is_none_or(|listed| listed == all)
        };
        let (mut all, mut listed) = look();
        while !is_same(&all, &listed) && began.elapsed() < std::time::Duration::from_secs(20) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            (all, listed) = look();
        }
        for pid in &all {
            let pid = Pid::from_raw(*pid).unwrap();
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        child.wait().unwrap();
        assert_eq!(all.len(), 5, "a shell, two of its own and their sleeps");
        assert!(listed.is_none_or(|listed| listed == all));
    }
}
