//! Control groups: what holds a child, with everything that it starts, within its limits, and ends it
//! as a whole.
//!
//! A supervisor has one group of its own in each tree that it may write, below the group that it was
//! started in, and each child has a group below that. Which tree holds what is found out, not assumed
//! ([`layout`], [`handed`]): controllers of cgroup v2 where it was handed some, those of v1 where that
//! is what the host has, and a group of v2 for the kill even where no controller is with it. Nothing
//! outlives: a child's groups end with its keeper ([`Leaf`]), a supervisor's with its janitor
//! ([`janitor`]), and those of both with the next start ([`sweep`]).
//!
//! Must not know agents, and not what a sandbox is.

#[cfg(test)]
mod model;

mod choice;
mod files;
mod handed;
mod janitor;
mod kill;
mod layout;
mod leaf;
mod sweep;
mod usage;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use choice::{By, Finding, Held};
pub use janitor::janitor_main;
pub use leaf::{Group, Leaf, Over};
pub use usage::{STALLED, Stalls, Usage, stalls};

use choice::Has;
use files::{Files as _, Kernel};
use handed::Handed;
use janitor::{Estate, Janitor};
use layout::{Controller, Layout};
use usage::Counted;

use crate::model::GroupLimits;
pub use crate::telemetry::sets::GroupStep;

/// The controllers of v2 that are of use.
const WANTED: [&str; 3] = ["pids", "memory", "cpu"];

/// Tries to make a group whose name nobody has, and what is between two of them.
const TRIES: usize = 100;
const AGAIN: Duration = Duration::from_millis(10);

/// Something with a group failed.
#[derive(Debug, thiserror::Error)]
#[error("the limits cannot be had: {step} {path}: {source}", path = .path.display())]
pub struct GroupError {
    /// What was being done.
    pub step: GroupStep,
    /// On what.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl GroupError {
    fn of(step: GroupStep, path: &Path, source: io::Error) -> Self {
        leaf::failed(step, path, &source);
        Self {
            step,
            path: path.to_owned(),
            source,
        }
    }
}

/// The groups of one supervisor.
#[derive(Debug)]
pub struct Groups {
    has: Has,
    /// Its group in the tree of cgroup v2.
    v2: Option<PathBuf>,
    /// Its groups in those of v1, by controller.
    v1: BTreeMap<Controller, PathBuf>,
    estate: Estate,
    /// Held for as long as it lives: they say so.
    locks: Vec<File>,
    janitor: Option<Janitor>,
    executable: PathBuf,
    /// What its own group is called in every tree.
    name: String,
    next: u64,
    /// What was last said to be missing.
    said: Option<String>,
}

impl Groups {
    /// Takes what this host gives, and begins to sweep what dead supervisors left. What cannot be had
    /// is known from then on and is no error. `executable` is this very program.
    pub fn open(executable: &Path) -> Self {
        let layout = host_layout();
        let groups = Self::take(&layout, executable.to_owned(), true);
        let mounts: Vec<PathBuf> = layout.v1.values().map(|tree| tree.mount.clone()).collect();
        let v2 = layout.v2.map(|tree| tree.mount);
        let swept = std::thread::Builder::new()
            .name("group-sweeper".to_owned())
            .spawn(move || {
                let (found, left) = sweep::sweep(v2.as_deref(), &mounts);
                if found > 0 {
                    tracing::info!(found, left, "groups of dead supervisors were swept");
                }
            });
        if let Err(error) = swept {
            tracing::warn!(%error, "groups of dead supervisors are not swept");
        }
        groups
    }

    /// The same without the sweep; `is_watched`: with a janitor, which is there before the first of
    /// what it is to clear away, so that no moment is left in which this process dies and leaves some.
    fn take(layout: &Layout, executable: PathBuf, is_watched: bool) -> Self {
        let pid = std::process::id();
        let handed = layout.v2.as_ref();
        let handed = handed.map(|tree| handed::look(&Kernel, tree, pid, &WANTED));
        let mut groups = Self {
            has: Has::default(),
            v2: None,
            v1: BTreeMap::new(),
            estate: Estate::default(),
            locks: Vec::new(),
            janitor: None,
            executable,
            name: sweep::name(pid, &uuid::Uuid::new_v4().simple().to_string()),
            next: 0,
            said: None,
        };
        groups.estate.plan(layout, handed.as_ref(), &groups.name);
        if is_watched {
            groups.watch_over();
        }
        if let Some(handed) = handed {
            let janitor = groups.janitor.as_ref().map(Janitor::pid);
            let moving: Vec<u32> = janitor.into_iter().chain([pid]).collect();
            let handed = handed::take(&Kernel, handed, &moving);
            match groups.make(&handed.base) {
                Ok(dir) => {
                    groups.has.kill = true;
                    groups.with_v2(&dir, &handed);
                }
                Err(error) => {
                    groups.estate.v2 = None;
                    groups.has.why_v2 = Some(shown(&handed.base, &error));
                }
            }
            groups.estate.handed = handed.is_changed().then_some(handed);
        } else {
            groups.has.why_v2 = Some("cgroup v2 is not mounted".to_owned());
        }
        for (controller, tree) in &layout.v1 {
            // In v2 every group counts its time by itself.
            if *controller == Controller::Cpuacct && groups.v2.is_some() {
                continue;
            }
            let known = layout.v1.iter().find_map(|(other, of)| {
                let dir = groups.v1.get(other)?;
                (of.own == tree.own).then(|| dir.clone())
            });
            match known.map_or_else(|| groups.make(&tree.own), Ok) {
                Ok(dir) => {
                    if *controller == Controller::Memory {
                        let both = dir.join("memory.memsw.limit_in_bytes");
                        groups.has.swap_v1 = both.exists();
                    }
                    groups.v1.insert(*controller, dir);
                    groups.has.v1.push(*controller);
                }
                Err(error) => groups.has.why_v1 = Some(shown(&tree.own, &error)),
            }
        }
        groups.has.no_swap = swap_is_off();
        groups
    }

    /// Its group in the tree of v2, with the controllers that it can pass on.
    fn with_v2(&mut self, dir: &Path, handed: &Handed) {
        self.v2 = Some(dir.to_owned());
        self.has.why_v2 = handed.why.clone();
        for name in &handed.controllers {
            let control = dir.join("cgroup.subtree_control");
            match Kernel.write(&control, &format!("+{name}")) {
                Ok(()) => self.has.v2.extend(Controller::from_word(name)),
                Err(error) => self.has.why_v2 = Some(shown(&control, &error)),
            }
        }
    }

    /// Makes the supervisor's group in a tree, and locks it.
    fn make(&mut self, below: &Path) -> io::Result<PathBuf> {
        let dir = below.join(&self.name);
        if !self.estate.all.contains(&dir) {
            // It was not planned, so nobody would clear it away: this user may not make it.
            janitor::may_make_in(below)?;
            return Err(io::Error::other("it could not be written a moment ago"));
        }
        for tried in 0..TRIES {
            match Kernel.make(&dir) {
                // The sweeper has not come to its removal yet, or leaves it.
                Err(error) if tried > 0 && error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            // Between the two, a sweeper may have taken it for a dead one's.
            match sweep::lock(&dir) {
                Ok(Some(lock)) => {
                    self.locks.push(lock);
                    return Ok(dir);
                }
                Ok(None) => std::thread::sleep(AGAIN),
                Err(error) => {
                    let _ = Kernel.remove(&dir);
                    return Err(error);
                }
            }
        }
        Err(io::Error::other(
            "a group that was made is gone at once, again and again",
        ))
    }

    /// Sees to it that somebody clears away after this process.
    fn watch_over(&mut self) {
        if self.estate.all.is_empty() || self.janitor.as_mut().is_some_and(Janitor::is_there) {
            return;
        }
        match Janitor::start(&self.executable, &self.estate) {
            Ok(janitor) => self.janitor = Some(janitor),
            Err(error) => {
                self.janitor = None;
                tracing::warn!(%error, "nobody clears away the groups if this process is killed: the next start does");
            }
        }
    }

    /// Makes the groups of one child; `has_nproc` says whether RLIMIT_NPROC counts nobody else's
    /// processes. `None` for the groups: this host has none that this user may make.
    ///
    /// # Errors
    /// [`GroupError`]; nothing is left then.
    pub fn leaf(
        &mut self,
        limits: &GroupLimits,
        has_nproc: bool,
    ) -> Result<(Option<Leaf>, Held), GroupError> {
        let blank = self.blank()?;
        self.furnish(blank, limits, has_nproc)
    }

    /// Makes the groups of one child that is to be, without a limit.
    ///
    /// # Errors
    /// [`GroupError`]; nothing is left then.
    pub fn blank(&mut self) -> Result<Option<Leaf>, GroupError> {
        self.watch_over();
        let name = self.next.to_string();
        self.next += 1;
        let mut all: Vec<PathBuf> = Vec::new();
        let mut counted = Counted::default();
        if let Some(dir) = &self.v2 {
            let dir = dir.join(&name);
            all.push(dir.clone());
            counted.pids_v2 = self.has.v2.contains(&Controller::Pids);
            counted.memory_v2 = self.has.v2.contains(&Controller::Memory);
            counted.v2 = Some(dir);
        }
        for (controller, dir) in &self.v1 {
            let dir = dir.join(&name);
            // Two controllers may share a tree.
            if !all.contains(&dir) {
                all.push(dir.clone());
            }
            match controller {
                Controller::Pids => counted.pids_v1 = Some(dir),
                Controller::Memory => counted.memory_v1 = Some(dir),
                Controller::Cpuacct => counted.acct_v1 = Some(dir),
                Controller::Cpu => {}
            }
        }
        for (made, dir) in all.iter().enumerate() {
            if let Err(error) = Kernel.make(dir) {
                let _ = kill::remove(all.get(..made).unwrap_or_default());
                return Err(GroupError::of(GroupStep::Create, dir, error));
            }
        }
        if all.is_empty() {
            return Ok(None);
        }
        let v2 = counted.v2.clone();
        Ok(Some(Leaf::new(Group::new(name, v2, all, counted))))
    }

    /// Writes a child's limits into its groups.
    ///
    /// # Errors
    /// [`GroupError`]; the groups end then, with everything in them.
    pub fn furnish(
        &mut self,
        blank: Option<Leaf>,
        limits: &GroupLimits,
        has_nproc: bool,
    ) -> Result<(Option<Leaf>, Held), GroupError> {
        let held = Held::choose(limits, &self.has, has_nproc).map_err(|why| {
            let path = PathBuf::from(format!("backend = \"{}\"", limits.backend));
            let source = io::Error::other(why);
            GroupError::of(GroupStep::Limit, &path, source)
        })?;
        let weakness = held.weakness();
        if weakness.is_some() && weakness != self.said {
            // Once, not for each child: its own start says it too.
            tracing::warn!(limits = weakness, "this host does not hold every limit");
            self.said = weakness;
        }
        let Some(leaf) = blank else {
            return Ok((None, held));
        };
        let name = leaf.group().name();
        if let Some(dir) = &self.v2 {
            leaf::write(&Kernel, &dir.join(name), &leaf::of_v2(limits, &held))?;
        }
        for (controller, dir) in &self.v1 {
            let values = leaf::of_v1(*controller, limits, &held);
            leaf::write(&Kernel, &dir.join(name), &values)?;
        }
        let memory = limits.memory.filter(|_| held.memory.is_group());
        Ok((Some(leaf.limited(memory)), held))
    }

    /// What holds the limits of a container, which has no group of ours; `why_not`: why its engine
    /// holds none.
    ///
    /// # Errors
    /// [`GroupError`]: a backend is asked for that no container has.
    pub fn of_container(
        limits: &GroupLimits,
        why_not: Option<&str>,
        has_nproc: bool,
    ) -> Result<Held, GroupError> {
        Held::of_container(limits, why_not, has_nproc).map_err(|why| {
            let path = PathBuf::from(format!("backend = \"{}\"", limits.backend));
            GroupError::of(GroupStep::Limit, &path, io::Error::other(why))
        })
    }

    /// What this host gives.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.has.findings()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        match self.janitor.take() {
            Some(janitor) => janitor.end(),
            None => {
                self.estate.clear();
            }
        }
    }
}

fn shown(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn host_layout() -> Layout {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    Layout::read(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"))
}

/// Whether this host has no swap at all. It may get some later; then a limit of swap that nothing
/// holds would be missed, which is why this counts only where nothing else does.
fn swap_is_off() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() <= 1)
}

/// By what limits would be held for children of this process, one finding each, and why not by
/// something better. Makes groups and removes them again.
#[must_use]
pub fn survey() -> Vec<Finding> {
    Groups::take(&host_layout(), PathBuf::new(), false).findings()
}
