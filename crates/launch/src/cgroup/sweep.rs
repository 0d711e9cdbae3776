//! Groups of dead supervisors, found at the start of the next one.
//!
//! A supervisor holds a lock (flock(2)) on each of its groups for as long as it lives, and the kernel
//! releases it at any end. So the supervisor of a group that can be locked is dead: a reused pid,
//! another pid namespace or a clock cannot mislead. Only groups of this user with marshal's names
//! are checked.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::janitor::CleanupPlan;

/// The prefix of the name of a supervisor's group; its pid and a random number follow.
const PREFIX: &str = "marshal.";

/// The limit of levels that are searched.
const DEPTH: usize = 6;

/// The limit of groups that are searched in a tree; a busy host has hundreds.
const GROUPS: usize = 8192;

/// The name of a supervisor's group.
pub(super) fn group_name(pid: u32, random: &str) -> String {
    format!("{PREFIX}{pid}.{random}")
}

/// Whether a name is one that [`group_name`] makes.
pub(super) fn is_group_name(name: &str) -> bool {
    let parts = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok()
            && random.len() == 32
            && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Takes the lock of a group; `None` if another process has it, or the group is gone.
pub(super) fn try_lock(dir: &Path) -> io::Result<Option<File>> {
    let group = match File::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match rustix::fs::flock(&group, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // Another process may have removed it between the opening and the lock.
    let is_same = fs::metadata(dir)
        .and_then(|now| Ok(now.ino() == group.metadata()?.ino()))
        .unwrap_or(false);
    Ok(is_same.then_some(group))
}

/// Removes the groups of dead supervisors of this user below these mounts; `v2` is the mount of
/// cgroup v2. Returns the numbers of groups found and left. May block for long.
pub(super) fn sweep(v2: Option<&Path>, mounts: &[PathBuf]) -> (usize, usize) {
    let user = rustix::process::geteuid().as_raw();
    let (mut found, mut left) = (0, 0);
    // First the tree where the kernel kills at once.
    let others = mounts.iter().filter(|mount| Some(mount.as_path()) != v2);
    for mount in v2.into_iter().chain(others.map(PathBuf::as_path)) {
        for dir in supervisor_groups(mount, user) {
            let Ok(Some(_lock)) = try_lock(&dir) else {
                continue;
            };
            found += 1;
            let estate = CleanupPlan {
                v2: (Some(mount) == v2).then(|| dir.clone()),
                all: vec![dir.clone()],
                handed: None,
            };
            if !estate.clean_up() {
                left += 1;
                tracing::warn!(group = %dir.display(), "control groups of a dead supervisor cannot be removed");
            }
        }
    }
    (found, left)
}

/// The groups of supervisors of this user, in a tree.
fn supervisor_groups(mount: &Path, user: u32) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    let mut open = vec![(mount.to_owned(), DEPTH)];
    let mut visited = 0;
    while let Some((dir, depth)) = open.pop() {
        visited += 1;
        if visited > GROUPS {
            break;
        }
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(is_group_name) {
                if entry.metadata().is_ok_and(|item| item.uid() == user) {
                    groups.push(path);
                }
            } else if depth > 0 {
                open.push((path, depth - 1));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_swept() {
        let random = "0123456789abcdef0123456789abcdef";
        assert!(is_group_name(&group_name(7, random)));
        for other in [
            "marshal.service",
            "marshal.supervisor",
            "marshal.7",
            "marshal.7.short",
            "marshal.x.0123456789abcdef0123456789abcdef",
            "marshal.7.0123456789abcdef0123456789abcdeg",
            "xmarshal.7.0123456789abcdef0123456789abcdef",
        ] {
            assert!(!is_group_name(other), "{other}");
        }
    }
}
