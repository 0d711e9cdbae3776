//! What of cgroups this process may use: a leaf is made, looked at and removed again.

use std::fs;
use std::path::{Path, PathBuf};

use super::Feature;
use super::helper::{has, lacks};
use super::probe::Found;

/// The largest table of mounts that is read, in bytes.
const TABLE_BYTES: usize = 1 << 20;

/// A hierarchy as this process sees it.
struct Hierarchy {
    /// The version's number.
    version: u8,
    /// The own group's directory.
    own: PathBuf,
}

/// What can be bounded or killed by a cgroup of our own making.
pub(super) fn look(feature: Feature) -> Found {
    let (controller, file) = match feature {
        Feature::CgroupMemory => ("memory", ["memory.max", "memory.limit_in_bytes"]),
        Feature::CgroupPids => ("pids", ["pids.max", "pids.max"]),
        Feature::CgroupCpu => ("cpu", ["cpu.max", "cpu.cfs_quota_us"]),
        _ => ("", ["cgroup.kill", ""]),
    };
    let two = hierarchy(None);
    let mut tried = None;
    if let Some(two) = two {
        match leaf(&two, file[0]) {
            Ok(true) => return has(said(&two)),
            Ok(false) if controller.is_empty() => {
                return lacks("no cgroup.kill: kernel below 5.14");
            }
            Ok(false) => {}
            Err(error) => tried = Some((two, error)),
        }
    }
    if !controller.is_empty()
        && let Some(one) = hierarchy(Some(controller))
    {
        match leaf(&one, file[1]) {
            Ok(true) => return has(said(&one)),
            Ok(false) => {}
            Err(error) => tried = Some((one, error)),
        }
    }
    let hint = "delegate a cgroup to this user: systemd's Delegate=yes in the unit, or run it by \
                systemd-run --user --scope -p Delegate=yes";
    match tried {
        Some((at, error)) => Found {
            errno: error.raw_os_error(),
            hint: Some(hint.to_owned()),
            ..lacks(format!("make a group in {}", at.own.display()))
        },
        None => Found {
            hint: Some(hint.to_owned()),
            ..lacks(format!(
                "no hierarchy of this host has {}",
                if controller.is_empty() {
                    file[0]
                } else {
                    controller
                }
            ))
        },
    }
}

fn said(at: &Hierarchy) -> String {
    format!("v{} in {}", at.version, at.own.display())
}

/// Whether a new group below the own one has this file.
fn leaf(at: &Hierarchy, file: &str) -> std::io::Result<bool> {
    let leaf = at
        .own
        .join(format!("marshal-probe-{}-{file}", std::process::id()));
    fs::create_dir(&leaf)?;
    let has = leaf.join(file).exists();
    fs::remove_dir(&leaf)?;
    Ok(has)
}

/// The hierarchy of a controller of version 1, or the one of version 2.
fn hierarchy(controller: Option<&str>) -> Option<Hierarchy> {
    let groups = read("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        let is_it = match controller {
            None => names.is_empty(),
            Some(controller) => names.split(',').any(|name| name == controller),
        };
        is_it.then(|| path.to_owned())
    })?;
    let mounts = read("/proc/self/mountinfo")?;
    let (root, point) = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let is_it = match controller {
            None => kind == "cgroup2",
            Some(controller) => {
                let options = after.nth(1)?;
                kind == "cgroup" && options.split(',').any(|name| name == controller)
            }
        };
        is_it.then(|| (root.to_owned(), point.to_owned()))
    })?;
    // The mount may begin below the hierarchy's root.
    let below = Path::new(&own).strip_prefix(&root).ok()?.to_owned();
    Some(Hierarchy {
        version: if controller.is_none() { 2 } else { 1 },
        own: Path::new(&point).join(below),
    })
}

fn read(path: &str) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    (bytes.len() <= TABLE_BYTES).then(|| String::from_utf8_lossy(&bytes).into_owned())
}
