//! The processes that a tool started: they are found, killed and reaped, even in sessions and
//! process groups of their own.
//!
//! The Runner is the subreaper of all its descendants. A process whose parent ends becomes the
//! Runner's child, so no process can leave the Runner.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

/// How long to wait for killed processes: the kernel may delay one that is inside a system call.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of processes that are killed together.
const MAX_KILLS_PER_ROUND: usize = 64;

/// Makes every descendant whose parent ends a child of this process.
pub(super) fn become_subreaper() -> io::Result<()> {
    let own = rustix::process::getpid();
    Ok(rustix::process::set_child_subreaper(Some(own))?)
}

/// The children of this process.
pub(super) fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = threads.flatten().filter_map(|thread| {
        let list = fs::read_to_string(thread.path().join("children"));
        list.ok()
    });
    let pids = lists.flat_map(|list| {
        list.split_ascii_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect::<Vec<i32>>()
    });
    pids.filter_map(Pid::from_raw).collect()
}

/// Reaps all children except `but`, which its owner waits for.
pub(super) fn reap_children(but: Option<Pid>) {
    for child in children() {
        if Some(child) != but {
            let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}

/// A process, as `/proc` shows it.
struct ProcessInfo {
    pid: i32,
    parent: i32,
    session: i32,
    is_dead: bool,
}

/// Kills everything that a tool started, in rounds until nothing is left: new processes may start
/// during a round. The tool itself is already killed but not yet reaped, so that no other process
/// can get its pid. `others`: children of this process that belong to no tool.
pub(super) fn kill_descendants(tool: Pid, others: &[Pid]) {
    let until = Instant::now() + KILL_TIMEOUT;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let tool = tool.as_raw_nonzero().get();
    let others: Vec<i32> = others
        .iter()
        .map(|pid| pid.as_raw_nonzero().get())
        .collect();
    while Instant::now() < until {
        let all = list_processes();
        let parents: BTreeMap<i32, i32> = all.iter().map(|seen| (seen.pid, seen.parent)).collect();
        let descends = |pid: i32| {
            let mut at = pid;
            // A chain of parents has at most as many members as there are processes.
            for _ in 0..=parents.len() {
                if at == own {
                    return true;
                }
                match parents.get(&at) {
                    Some(parent) if !others.contains(&at) => at = *parent,
                    _ => return false,
                }
            }
            false
        };
        let is_kin = |seen: &&ProcessInfo| {
            seen.pid != own && seen.pid != tool && (seen.session == tool || descends(seen.pid))
        };
        let left = all.iter().filter(is_kin).filter(|seen| !seen.is_dead);
        let killed: Vec<OwnedFd> = left
            .take(MAX_KILLS_PER_ROUND)
            .filter_map(|seen| kill(seen.pid))
            .collect();
        for process in &killed {
            wait_for_exit(process, until);
        }
        for seen in all.iter().filter(is_kin) {
            if let Some(pid) =
                Pid::from_raw(seen.pid).filter(|_| seen.parent == own || seen.parent == tool)
            {
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        if killed.is_empty() {
            return;
        }
    }
}

/// Kills a process and returns its pidfd, which becomes readable when it has ended. `None`: it has
/// ended, or may not be killed.
fn kill(pid: i32) -> Option<OwnedFd> {
    let process = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    rustix::process::pidfd_send_signal(&process, Signal::KILL).ok()?;
    Some(process)
}

fn wait_for_exit(process: &OwnedFd, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], left.as_ref());
}

fn list_processes() -> Vec<ProcessInfo> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let seen = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // pid (name) state ppid pgrp session: the name may contain anything, see proc_pid_stat(5).
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let is_dead = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(ProcessInfo {
            pid,
            parent,
            session,
            is_dead,
        })
    });
    seen.collect()
}
