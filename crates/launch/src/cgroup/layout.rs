//! Where this host has its cgroups, and where this process is in them: from the texts of
//! `/proc/self/mountinfo` and `/proc/self/cgroup`, proc(5), cgroups(7).
//!
//! Pure. Must not know what may be written there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A controller that is of use here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Controller {
    /// Counts and limits processes.
    Pids,
    /// Counts and limits memory.
    Memory,
    /// Limits time of processors, and in v2 counts it.
    Cpu,
    /// Counts time of processors, in v1.
    Cpuacct,
}

impl Controller {
    /// The one that the kernel calls so.
    pub(super) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pids" => Self::Pids,
            "memory" => Self::Memory,
            "cpu" => Self::Cpu,
            "cpuacct" => Self::Cpuacct,
            _ => return None,
        })
    }
}

/// One tree of groups, as this process sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    /// The directory of the group that this process is in.
    pub(super) own: PathBuf,
    /// It is mounted so that nothing can be written.
    pub(super) read_only: bool,
}

/// All trees that are of use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// cgroup v2, with or without controllers.
    pub(super) v2: Option<Hierarchy>,
    /// cgroup v1, by controller; two of them may have one tree.
    pub(super) v1: BTreeMap<Controller, Hierarchy>,
}

/// One line of mountinfo.
struct Mount<'a> {
    root: String,
    mount_point: String,
    is_v2: bool,
    read_only: bool,
    /// Options of the file system: the controllers of a v1 tree are among them.
    super_options: &'a str,
}

impl Layout {
    /// Reads the two texts. What has not their form is left out.
    pub(super) fn read(mountinfo: &str, own: &str) -> Self {
        let mut mounts: Vec<Mount<'_>> = Vec::new();
        for mount in mountinfo.lines().filter_map(parse_mount) {
            // What is mounted later at the same place hides what was there.
            mounts.retain(|earlier| earlier.mount_point != mount.mount_point);
            mounts.push(mount);
        }
        // A mount that can be written is preferred.
        mounts.sort_by_key(|mount| mount.read_only);
        let mut layout = Self::default();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(number), Some(names), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if number == "0" && names.is_empty() {
                layout.v2 = mounts
                    .iter()
                    .filter(|mount| mount.is_v2)
                    .find_map(|mount| mount.hierarchy(path));
                continue;
            }
            for name in names.split(',') {
                let Some(controller) = Controller::parse(name) else {
                    continue;
                };
                let has = |mount: &&Mount<'_>| {
                    !mount.is_v2 && mount.super_options.split(',').any(|option| option == name)
                };
                let tree = mounts
                    .iter()
                    .filter(has)
                    .find_map(|mount| mount.hierarchy(path));
                layout.v1.extend(tree.map(|tree| (controller, tree)));
            }
        }
        layout
    }
}

impl Mount<'_> {
    /// The tree with this process's group, if the mount shows it.
    fn hierarchy(&self, path: &str) -> Option<Hierarchy> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        // "/.." is a group outside of the own cgroup namespace.
        if below.components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        let mount = PathBuf::from(&self.mount_point);
        let own = if below == Path::new("") {
            mount.clone()
        } else {
            mount.join(below)
        };
        Some(Hierarchy {
            mount,
            own,
            read_only: self.read_only,
        })
    }
}

fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let right: Vec<&str> = right.split(' ').collect();
    let (root, at, options) = (left.get(3)?, left.get(4)?, left.get(5)?);
    let is_v2 = match *right.first()? {
        "cgroup2" => true,
        "cgroup" => false,
        _ => return None,
    };
    let of_super = right.get(2)?;
    let has = |all: &str, wanted: &str| all.split(',').any(|option| option == wanted);
    Some(Mount {
        root: unescape(root),
        mount_point: unescape(at),
        is_v2,
        read_only: has(options, "ro") || has(of_super, "ro"),
        super_options: of_super,
    })
}

/// Blanks, tabs, newlines and backslashes stand as octal numbers.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let code = after
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        rest = match code {
            Some(code) if code.is_ascii() => {
                out.push(char::from(code));
                &after[3..]
            }
            _ => {
                out.push('\\');
                after
            }
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
