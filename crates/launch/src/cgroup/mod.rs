//! Control groups: they enforce the limits of a child with everything that it starts, and end it as
//! a whole.
//!
//! A supervisor has one group of its own in each tree that it may write, below the group that it was
//! started in, and each child has a group below that. Which tree enforces what is detected, not
//! assumed ([`layout`], [`delegation`]): controllers of cgroup v2 where it was handed some, those
//! of v1 where that is what the host has, and a group of v2 for the kill even where no controller
//! is with it. Nothing outlives: a child's groups end with its keeper ([`leaf`]), a supervisor's
//! with its janitor ([`janitor`]), and those of both with the next start ([`sweep`]).
//!
//! Must not know agents, and not what a sandbox is.

#[cfg(test)]
mod model;

mod cgroup_fs;
mod delegation;
mod enforcement;
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

pub use enforcement::{Enforcement, Finding, LimitEnforcement};
pub use janitor::janitor_main;
pub use leaf::{Group, GroupOutcome, Leaf};
pub use usage::{STALL_RESOURCES, Stalls, Usage, parse_stalls};

use cgroup_fs::{CgroupFs as _, KernelCgroupFs};
use delegation::Delegation;
use enforcement::HostSupport;
use janitor::{CleanupPlan, Janitor};
use layout::{Controller, Layout};
use usage::UsageCounters;

use marshal_model::ResourceLimits;
pub use marshal_telemetry::labels::CgroupOperation;

/// The controllers of v2 that are of use.
const WANTED_CONTROLLERS: [&str; 3] = ["pids", "memory", "cpu"];

/// How often the creation of a group is tried, and the delay between two tries.
const TRIES: usize = 100;
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// An operation on a group failed.
#[derive(Debug, thiserror::Error)]
#[error("the control group operation failed: {step} {path}: {source}", path = .path.display())]
pub struct GroupError {
    /// The operation.
    pub step: CgroupOperation,
    /// The group or the file that the step was about.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl GroupError {
    fn report(step: CgroupOperation, path: &Path, source: io::Error) -> Self {
        leaf::report_failure(step, path, &source);
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
    support: HostSupport,
    /// Its group in the tree of cgroup v2.
    v2: Option<PathBuf>,
    /// Its groups in those of v1, by controller.
    v1: BTreeMap<Controller, PathBuf>,
    cleanup_plan: CleanupPlan,
    /// The locks on its groups, held for as long as it lives: see `sweep`.
    locks: Vec<File>,
    janitor: Option<Janitor>,
    executable: PathBuf,
    /// The name of its own group in every tree.
    name: String,
    next: u64,
    /// The missing limits of the last warning, so that it is not repeated for each child.
    last_warning: Option<String>,
}

impl Groups {
    /// Detects what this host supports, and starts to sweep what dead supervisors left. Missing
    /// support is recorded and is no error. `executable` is this very program.
    pub fn open(executable: &Path) -> Self {
        let layout = host_layout();
        let groups = Self::set_up(&layout, executable.to_owned(), true);
        let mounts: Vec<PathBuf> = layout.v1.values().map(|tree| tree.mount.clone()).collect();
        let v2 = layout.v2.map(|tree| tree.mount);
        let swept = std::thread::Builder::new()
            .name("group-sweeper".to_owned())
            .spawn(move || {
                let (found, failed) = sweep::sweep(v2.as_deref(), &mounts);
                if found > 0 {
                    tracing::info!(
                        removed = found - failed,
                        failed,
                        "swept control groups of dead supervisors"
                    );
                }
            });
        if let Err(error) = swept {
            tracing::warn!(%error, "control groups of dead supervisors cannot be removed");
        }
        groups
    }

    /// The same without the sweep. `is_watched`: with a janitor. It starts before the first group is
    /// made, so that this process can die at any moment without leaving one.
    fn set_up(layout: &Layout, executable: PathBuf, is_watched: bool) -> Self {
        let pid = std::process::id();
        let handed = layout.v2.as_ref();
        let handed =
            handed.map(|tree| delegation::inspect(&KernelCgroupFs, tree, pid, &WANTED_CONTROLLERS));
        let mut groups = Self {
            support: HostSupport::default(),
            v2: None,
            v1: BTreeMap::new(),
            cleanup_plan: CleanupPlan::default(),
            locks: Vec::new(),
            janitor: None,
            executable,
            name: sweep::group_name(pid, &uuid::Uuid::new_v4().simple().to_string()),
            next: 0,
            last_warning: None,
        };
        groups
            .cleanup_plan
            .add_groups(layout, handed.as_ref(), &groups.name);
        if is_watched {
            groups.ensure_janitor();
        }
        if let Some(handed) = handed {
            let janitor = groups.janitor.as_ref().map(Janitor::pid);
            let moving: Vec<u32> = janitor.into_iter().chain([pid]).collect();
            let handed = delegation::apply(&KernelCgroupFs, handed, &moving);
            match groups.create_group(&handed.base) {
                Ok(dir) => {
                    groups.support.kill = true;
                    groups.set_v2_group(&dir, &handed);
                }
                Err(error) => {
                    groups.cleanup_plan.v2 = None;
                    groups.support.why_v2 = Some(describe_error(&handed.base, &error));
                }
            }
            groups.cleanup_plan.handed = handed.is_changed().then_some(handed);
        } else {
            groups.support.why_v2 = Some("cgroup v2 is not mounted".to_owned());
        }
        for (controller, tree) in &layout.v1 {
            // In v2 every group counts its time by itself.
            if *controller == Controller::Cpuacct && groups.v2.is_some() {
                continue;
            }
            let known = layout.v1.iter().find_map(|(other, item)| {
                let dir = groups.v1.get(other)?;
                (item.own == tree.own).then(|| dir.clone())
            });
            match known.map_or_else(|| groups.create_group(&tree.own), Ok) {
                Ok(dir) => {
                    if *controller == Controller::Memory {
                        let both = dir.join("memory.memsw.limit_in_bytes");
                        groups.support.swap_v1 = both.exists();
                    }
                    groups.v1.insert(*controller, dir);
                    groups.support.v1.push(*controller);
                }
                Err(error) => groups.support.why_v1 = Some(describe_error(&tree.own, &error)),
            }
        }
        groups.support.no_swap = swap_is_off();
        groups
    }

    /// Its group in the tree of v2, with the controllers that it can pass on.
    fn set_v2_group(&mut self, dir: &Path, handed: &Delegation) {
        self.v2 = Some(dir.to_owned());
        self.support.why_v2 = handed.why.clone();
        for name in &handed.controllers {
            let control = dir.join("cgroup.subtree_control");
            match KernelCgroupFs.write(&control, &format!("+{name}")) {
                Ok(()) => self.support.v2.extend(Controller::parse(name)),
                Err(error) => self.support.why_v2 = Some(describe_error(&control, &error)),
            }
        }
    }

    /// Makes the supervisor's group in a tree, and locks it.
    fn create_group(&mut self, below: &Path) -> io::Result<PathBuf> {
        let dir = below.join(&self.name);
        if !self.cleanup_plan.all.contains(&dir) {
            // The janitor does not know it and would leave it: the parent was not writable.
            janitor::check_writable(below)?;
            return Err(io::Error::other(
                "the parent group was not writable a moment ago",
            ));
        }
        for tried in 0..TRIES {
            match KernelCgroupFs.make(&dir) {
                // The sweeper has not removed it yet, or keeps it.
                Err(error) if tried > 0 && error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            // Until it is locked, a sweeper may take it for that of a dead supervisor.
            match sweep::try_lock(&dir) {
                Ok(Some(lock)) => {
                    self.locks.push(lock);
                    return Ok(dir);
                }
                Ok(None) => std::thread::sleep(RETRY_DELAY),
                Err(error) => {
                    let _ = KernelCgroupFs.remove(&dir);
                    return Err(error);
                }
            }
        }
        Err(io::Error::other(
            "the new group is removed again each time it is created",
        ))
    }

    /// Ensures that a janitor removes the groups after this process ends.
    fn ensure_janitor(&mut self) {
        if self.cleanup_plan.all.is_empty()
            || self.janitor.as_mut().is_some_and(Janitor::is_running)
        {
            return;
        }
        match Janitor::start(&self.executable, &self.cleanup_plan) {
            Ok(janitor) => self.janitor = Some(janitor),
            Err(error) => {
                self.janitor = None;
                tracing::warn!(%error, "if this process is killed, its control groups stay until the next start removes them");
            }
        }
    }

    /// Makes the groups of one child; `has_nproc` says whether RLIMIT_NPROC counts nobody else's
    /// processes. `None` for the groups: this host has none that this user may make.
    ///
    /// # Errors
    /// [`GroupError`]; nothing is left then.
    pub fn create_leaf(
        &mut self,
        limits: &ResourceLimits,
        has_nproc: bool,
    ) -> Result<(Option<Leaf>, LimitEnforcement), GroupError> {
        let blank = self.create_unlimited()?;
        self.apply_limits(blank, limits, has_nproc)
    }

    /// Makes the groups of a child that starts later, without a limit.
    ///
    /// # Errors
    /// [`GroupError`]; nothing is left then.
    pub fn create_unlimited(&mut self) -> Result<Option<Leaf>, GroupError> {
        self.ensure_janitor();
        let name = self.next.to_string();
        self.next += 1;
        let mut all: Vec<PathBuf> = Vec::new();
        let mut counted = UsageCounters::default();
        if let Some(dir) = &self.v2 {
            let dir = dir.join(&name);
            all.push(dir.clone());
            counted.pids_v2 = self.support.v2.contains(&Controller::Pids);
            counted.memory_v2 = self.support.v2.contains(&Controller::Memory);
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
            if let Err(error) = KernelCgroupFs.make(dir) {
                let _ = kill::remove(all.get(..made).unwrap_or_default());
                return Err(GroupError::report(CgroupOperation::Create, dir, error));
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
    pub fn apply_limits(
        &mut self,
        blank: Option<Leaf>,
        limits: &ResourceLimits,
        has_nproc: bool,
    ) -> Result<(Option<Leaf>, LimitEnforcement), GroupError> {
        let enforcement =
            LimitEnforcement::choose(limits, &self.support, has_nproc).map_err(|why| {
                let path = PathBuf::from(format!("backend = \"{}\"", limits.backend));
                let source = io::Error::other(why);
                GroupError::report(CgroupOperation::Limit, &path, source)
            })?;
        let weakness = enforcement.describe_missing();
        if weakness.is_some() && weakness != self.last_warning {
            // Once, not for each child: its own start says it too.
            tracing::warn!(limits = weakness, "this host does not enforce every limit");
            self.last_warning = weakness;
        }
        let Some(leaf) = blank else {
            return Ok((None, enforcement));
        };
        let name = leaf.group().name();
        if let Some(dir) = &self.v2 {
            leaf::write_settings(
                &KernelCgroupFs,
                &dir.join(name),
                &leaf::v2_settings(limits, &enforcement),
            )?;
        }
        for (controller, dir) in &self.v1 {
            let values = leaf::v1_settings(*controller, limits, &enforcement);
            leaf::write_settings(&KernelCgroupFs, &dir.join(name), &values)?;
        }
        let memory = limits.memory.filter(|_| enforcement.memory.is_group());
        Ok((Some(leaf.with_memory_limit(memory)), enforcement))
    }

    /// What enforces the limits of a container, which is in no group of marshal; `why_not` says why
    /// its engine enforces none.
    ///
    /// # Errors
    /// [`GroupError`]: a backend is asked for that no container has.
    pub fn container_enforcement(
        limits: &ResourceLimits,
        why_not: Option<&str>,
        has_nproc: bool,
    ) -> Result<LimitEnforcement, GroupError> {
        LimitEnforcement::for_container(limits, why_not, has_nproc).map_err(|why| {
            let path = PathBuf::from(format!("backend = \"{}\"", limits.backend));
            GroupError::report(CgroupOperation::Limit, &path, io::Error::other(why))
        })
    }

    /// This host's support.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.support.findings()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        match self.janitor.take() {
            Some(janitor) => janitor.finish(),
            None => {
                self.cleanup_plan.clean_up();
            }
        }
    }
}

fn describe_error(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn host_layout() -> Layout {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    Layout::read(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"))
}

/// Whether this host has no swap at all. It may get some later, and then nothing would enforce a
/// limit of swap. So this counts only where nothing else enforces it.
fn swap_is_off() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() <= 1)
}

/// What would enforce the limits of children of this process, one finding each, and why nothing
/// better does. Makes groups and removes them again.
#[must_use]
pub fn survey() -> Vec<Finding> {
    Groups::set_up(&host_layout(), PathBuf::new(), false).findings()
}
