//! A small cgroup v2 in memory, with the rules that matter here: for tests where the kernel has the
//! controllers with cgroup v1.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::cgroup_fs::CgroupFs;

#[derive(Debug, Default, Clone)]
struct Group {
    procs: BTreeSet<String>,
    subtree: BTreeSet<String>,
    values: BTreeMap<String, String>,
}

/// The tree; its mount is `/cg`.
#[derive(Debug, Default)]
pub(super) struct Model {
    groups: RefCell<BTreeMap<PathBuf, Group>>,
    /// What the root has.
    controllers: Vec<&'static str>,
    /// Whether `/cg` is the root of a cgroup namespace, not that of the host.
    is_part: bool,
    pub(super) delegated: BTreeSet<PathBuf>,
    /// Who started a process.
    pub(super) parents: BTreeMap<u32, u32>,
}

const ROOT: &str = "/cg";

fn errno(code: rustix::io::Errno) -> io::Error {
    code.into()
}

impl Model {
    pub(super) fn new(controllers: &[&'static str], is_part: bool) -> Self {
        let model = Self {
            controllers: controllers.to_vec(),
            is_part,
            ..Self::default()
        };
        let root = Group::default();
        model.groups.borrow_mut().insert(ROOT.into(), root);
        model
    }

    /// A group with these processes, its parents' controllers passed on.
    pub(super) fn with(self, dir: &str, procs: &[&str]) -> Self {
        let mut at = PathBuf::from(ROOT);
        for part in Path::new(dir).strip_prefix(ROOT).unwrap().components() {
            let all = self.controllers.iter().map(|name| (*name).to_owned());
            let mut groups = self.groups.borrow_mut();
            groups.get_mut(&at).unwrap().subtree = all.collect();
            at = at.join(part);
            groups.entry(at.clone()).or_default();
        }
        let procs = procs.iter().map(|pid| (*pid).to_owned()).collect();
        self.groups.borrow_mut().get_mut(&at).unwrap().procs = procs;
        self
    }

    fn has(
        groups: &BTreeMap<PathBuf, Group>,
        all: &[&'static str],
        dir: &Path,
    ) -> BTreeSet<String> {
        match dir.parent().and_then(|parent| groups.get(parent)) {
            Some(parent) => parent.subtree.clone(),
            None => all.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Every group with what was written there, one line each.
    pub(super) fn display_lines(&self) -> Vec<String> {
        let groups = self.groups.borrow();
        let show = |(dir, group): (&PathBuf, &Group)| {
            let list = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(",");
            let values: Vec<_> = group
                .values
                .iter()
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            format!(
                "{} procs[{}] subtree[{}] {}",
                dir.display(),
                list(&group.procs),
                list(&group.subtree),
                values.join(" ")
            )
        };
        groups
            .iter()
            .map(show)
            .map(|line| line.trim_end().to_owned())
            .collect()
    }
}

impl CgroupFs for Model {
    fn make(&self, dir: &Path) -> io::Result<()> {
        let mut groups = self.groups.borrow_mut();
        if groups.contains_key(dir) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !groups.contains_key(dir.parent().unwrap()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        groups.insert(dir.to_owned(), Group::default());
        Ok(())
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        let mut groups = self.groups.borrow_mut();
        let is_busy = groups.get(dir).is_some_and(|group| !group.procs.is_empty())
            || groups.keys().any(|other| other.parent() == Some(dir));
        if is_busy {
            return Err(errno(rustix::io::Errno::BUSY));
        }
        groups.remove(dir);
        Ok(())
    }

    fn read(&self, file: &Path) -> io::Result<String> {
        let groups = self.groups.borrow();
        let dir = file.parent().unwrap();
        let group = groups.get(dir).ok_or(io::ErrorKind::NotFound)?;
        let lines = |all: BTreeSet<String>| all.into_iter().collect::<Vec<_>>().join("\n");
        match file.file_name().unwrap().to_str().unwrap() {
            "cgroup.controllers" => Ok(lines(Self::has(&groups, &self.controllers, dir))),
            "cgroup.subtree_control" => Ok(lines(group.subtree.clone())),
            "cgroup.procs" => Ok(lines(group.procs.clone())),
            "cgroup.type" if dir != Path::new(ROOT) || self.is_part => Ok("domain\n".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        let mut groups = self.groups.borrow_mut();
        let (dir, name) = (file.parent().unwrap(), file.file_name().unwrap());
        let name = name.to_str().unwrap().to_owned();
        let has = Self::has(&groups, &self.controllers, dir);
        let is_top = dir == Path::new(ROOT) && !self.is_part;
        if !groups.contains_key(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        match name.as_str() {
            "cgroup.procs" => {
                let group = &groups[dir];
                if !group.subtree.is_empty() && !is_top {
                    return Err(errno(rustix::io::Errno::BUSY));
                }
                for other in groups.values_mut() {
                    other.procs.remove(text);
                }
                let group = groups.get_mut(dir).unwrap();
                group.procs.insert(text.to_owned());
                Ok(())
            }
            "cgroup.subtree_control" => {
                let (sign, controller) = text.split_at(1);
                let used = groups.iter().any(|(other, item)| {
                    other.parent() == Some(dir) && item.subtree.contains(controller)
                });
                let group = groups.get_mut(dir).unwrap();
                if sign == "-" {
                    if used {
                        return Err(errno(rustix::io::Errno::BUSY));
                    }
                    group.subtree.remove(controller);
                    return Ok(());
                }
                if !has.contains(controller) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                if !group.procs.is_empty() && !is_top {
                    return Err(errno(rustix::io::Errno::BUSY));
                }
                group.subtree.insert(controller.to_owned());
                Ok(())
            }
            other => {
                let controller = other.split('.').next().unwrap();
                if !has.contains(controller) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let group = groups.get_mut(dir).unwrap();
                group.values.insert(name, text.to_owned());
                Ok(())
            }
        }
    }

    fn is_delegated(&self, dir: &Path) -> bool {
        self.delegated.contains(dir)
    }

    fn is_descendant(&self, pid: u32, ancestor: u32) -> bool {
        self.parents.get(&pid) == Some(&ancestor)
    }
}
