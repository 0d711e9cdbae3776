//! The controllers of cgroup v2 that are available below this process's group, and the changes that
//! enable them.
//!
//! A group with controllers for its children may have no processes itself (cgroups(7), "no internal
//! processes"). So where the group was delegated to this program and contains no other process, the
//! program moves into a group below. Otherwise nothing is moved, because others own the group.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::cgroup_fs::CgroupFs;
use super::layout::Hierarchy;

/// The group that the supervisor moves to if it must leave its own.
pub(super) const SUPERVISOR_GROUP: &str = "marshal.supervisor";

/// How often processes that this program has started meanwhile are looked for and moved, for each
/// controller.
const LATECOMERS: usize = 16;

/// A group with the available controllers for its children.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Delegation {
    /// The group.
    pub(super) base: PathBuf,
    /// The controllers that its children have, of those that are wanted.
    pub(super) controllers: Vec<String>,
    /// Those of them that were switched on here.
    pub(super) enabled: Vec<String>,
    /// This process is to move, or moved, to the group below.
    pub(super) moved: bool,
    /// Why there are no more controllers.
    pub(super) why: Option<String>,
}

impl Delegation {
    /// Whether anything was changed, or is to be.
    pub(super) const fn is_changed(&self) -> bool {
        !self.enabled.is_empty() || self.moved
    }
}

fn split_words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn read_words(files: &impl CgroupFs, file: &Path) -> Vec<String> {
    files
        .read(file)
        .map(|text| split_words(&text))
        .unwrap_or_default()
}

/// What is available, without a change.
pub(super) fn inspect(
    files: &impl CgroupFs,
    tree: &Hierarchy,
    pid: u32,
    wanted: &[&str],
) -> Delegation {
    let is_moved = tree
        .own
        .file_name()
        .is_some_and(|name| name == SUPERVISOR_GROUP);
    let base = match tree.own.parent() {
        Some(parent) if is_moved => parent.to_owned(),
        _ => tree.own.clone(),
    };
    let mut available = read_words(files, &base.join("cgroup.controllers"));
    available.retain(|name| wanted.contains(&name.as_str()));
    let lacks = available.len() < wanted.len();
    let on = read_words(files, &base.join("cgroup.subtree_control"));
    let (ready, missing): (Vec<_>, Vec<_>) =
        available.into_iter().partition(|name| on.contains(name));
    let why = format!(
        "{} lacks controllers of cgroup v2: cgroup v1 has them, or the parent group does not delegate them",
        base.display()
    );
    let mut handed = Delegation {
        base,
        controllers: ready,
        why: lacks.then_some(why),
        ..Delegation::default()
    };
    if missing.is_empty() {
        return handed;
    }
    let base = &handed.base;
    let shown = base.display();
    if tree.read_only {
        handed.why = Some(format!("{shown} is mounted read-only"));
        return handed;
    }
    // The root of a host's tree has no type, and may have processes beside controllers.
    let is_top = files.read(&base.join("cgroup.type")).is_err();
    if !is_top {
        let is_own_root = tree.own == tree.mount;
        if !is_own_root && !files.is_delegated(base) {
            handed.why = Some(format!(
                "the group {shown} is not delegated to this program: run it as a systemd service with Delegate=yes"
            ));
            return handed;
        }
        let inside = read_words(files, &base.join("cgroup.procs"));
        // What this program has started itself, such as a git that looks at a workspace, goes along.
        let is_own = |word: &String| {
            let other = word.parse();
            other.is_ok_and(|other: u32| other == pid || files.is_descendant(other, pid))
        };
        if !inside.iter().all(is_own) {
            handed.why = Some(format!(
                "the group {shown} contains other processes: run this program as its own service, with Delegate=yes"
            ));
            return handed;
        }
        handed.moved = !inside.is_empty();
    }
    handed.enabled = missing;
    handed
}

/// Makes the changes that [`inspect`] found necessary, and returns the result. `pids` are moved if
/// a move is needed. This process is last, because it may have started others in the same group
/// since.
pub(super) fn apply(files: &impl CgroupFs, mut handed: Delegation, pids: &[u32]) -> Delegation {
    if handed.enabled.is_empty() {
        return handed;
    }
    let below = handed.base.join(SUPERVISOR_GROUP);
    if handed.moved {
        // One that is there was left by an earlier supervisor, or is shared with another one.
        let made = match files.make(&below) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => pids
                .iter()
                .try_for_each(|pid| files.write(&below.join("cgroup.procs"), &pid.to_string())),
        };
        if let Err(error) = made {
            let _ = files.remove(&below);
            handed.moved = false;
            handed.enabled.clear();
            handed.why = Some(format!("{}: {error}", below.display()));
            return handed;
        }
    }
    let control = handed.base.join("cgroup.subtree_control");
    let mut enabled = Vec::new();
    for name in std::mem::take(&mut handed.enabled) {
        let word = format!("+{name}");
        let mut written = files.write(&control, &word);
        // The group was this program's alone when it was inspected: who is there now was started by
        // it.
        for _ in 0..LATECOMERS {
            let is_busy =
                |error: &io::Error| error.raw_os_error() == Some(Errno::BUSY.raw_os_error());
            if !handed.moved || !written.as_ref().is_err_and(is_busy) {
                break;
            }
            for pid in read_words(files, &handed.base.join("cgroup.procs")) {
                // One that has ended meanwhile needs no move.
                let _ = files.write(&below.join("cgroup.procs"), &pid);
            }
            written = files.write(&control, &word);
        }
        match written {
            Ok(()) => enabled.push(name),
            Err(error) => {
                handed.why = Some(format!("{} +{name}: {error}", control.display()));
            }
        }
    }
    handed.controllers.extend(enabled.iter().cloned());
    handed.enabled = enabled;
    handed
}

/// Undoes it for a supervisor that is gone; what others still need stays.
pub(super) fn revert(files: &impl CgroupFs, handed: &Delegation, pid: u32) {
    let control = handed.base.join("cgroup.subtree_control");
    for name in &handed.enabled {
        let _ = files.write(&control, &format!("-{name}"));
    }
    if handed.moved {
        // This process was started in there.
        let _ = files.write(&handed.base.join("cgroup.procs"), &pid.to_string());
        let _ = files.remove(&handed.base.join(SUPERVISOR_GROUP));
    }
}

#[cfg(test)]
mod tests;
