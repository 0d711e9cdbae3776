//! All processes below this one, found in `/proc` and killed: what a process does that has no pid
//! namespace around its agent.
//!
//! It holds because this process is a subreaper: whoever loses its parent becomes its child, so
//! nothing leaves the tree. Must not know which of them is the agent.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// How the processes below this one are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// By each process's own list of children (proc_pid_children(5)), where the kernel has one:
    /// costs what the tree has. A list that changes as it is read may leave out somebody, so
    /// whoever searches does so again until nobody is left.
    Lists,
    /// Through the whole of `/proc`: costs what the host has.
    Everybody,
}

/// Sends SIGKILL to every process below this one; how many of them were alive.
pub(super) fn kill_all(search: Search) -> usize {
    let mut alive = 0;
    for (pid, seen) in find(search) {
        // The descriptor pins the process; only then is it asked again who it is, so that a
        // number that was given anew is never hit.
        let Some(raw) = Pid::from_raw(pid) else {
            continue;
        };
        let Ok(pinned) = pidfd_open(raw, PidfdFlags::empty()) else {
            continue;
        };
        let same = read_stat(pid).is_some_and(|now| now.parent == seen.parent);
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
fn find(search: Search) -> Vec<(i32, Stat)> {
    let own = getpid().as_raw_nonzero().get();
    let listed = match search {
        Search::Lists => by_lists(own),
        Search::Everybody => None,
    };
    listed.unwrap_or_else(|| by_parents(own))
}

/// Down the lists of children; `None` where the kernel has none.
fn by_lists(own: i32) -> Option<Vec<(i32, Stat)>> {
    let mut found = Vec::new();
    let mut open = children_of(own)?;
    while let Some((pid, parent)) = open.pop() {
        // Who has another parent by now has moved up, to this process, whose list has it next time.
        if let Some(stat) = read_stat(pid)
            && stat.parent == parent
        {
            found.push((pid, stat));
            open.extend(children_of(pid).unwrap_or_default());
        }
    }
    Some(found)
}

/// The children of all threads of a process, each with its parent; `None` if there is no list.
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

/// By everybody's parent.
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
    let mut found = Vec::new();
    let mut open = vec![own];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(child);
            open.push(child.0);
        }
    }
    found
}

/// `/proc/PID/stat`, proc_pid_stat(5).
fn read_stat(pid: i32) -> Option<Stat> {
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
