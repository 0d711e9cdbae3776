//! The groups of one child: made, limited, entered from outside, read, emptied and removed.
//!
//! Must not know which trees there are: the caller passes the groups' paths.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::cgroup_fs::{CgroupFs, KernelCgroupFs};
use super::kill;
use super::usage::{Usage, UsageCounters};
use super::{CgroupOperation, GroupError, LimitEnforcement};
use marshal_model::ResourceLimits;
use marshal_model::limits;
use marshal_telemetry::event::child::CgroupFailed;

/// The period in microseconds in which a child gets its share of CPU time.
const PERIOD_MICROS: u64 = 100_000;

/// Where a child's groups are. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Group {
    inner: Arc<Inner>,
    /// The enforced memory limit, in bytes.
    memory: Option<u64>,
}

#[derive(Debug)]
struct Inner {
    /// The name of its directory in each tree.
    name: String,
    /// Its group of cgroup v2, by which it is killed and frozen.
    v2: Option<PathBuf>,
    /// All of its groups, each tree's once.
    all: Vec<PathBuf>,
    counters: UsageCounters,
}

impl Group {
    pub(super) fn new(
        name: String,
        v2: Option<PathBuf>,
        all: Vec<PathBuf>,
        counted: UsageCounters,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                name,
                v2,
                all,
                counters: counted,
            }),
            memory: None,
        }
    }

    /// The name of its directory in each tree.
    pub(super) fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its past and current usage. Reads a handful of small files.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.counters.read()
    }

    /// The enforced memory limit, in bytes.
    #[must_use]
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory
    }

    /// The directories of its groups.
    #[must_use]
    pub fn directories(&self) -> &[PathBuf] {
        &self.inner.all
    }

    /// Freezes everything in it, or thaws it; false without cgroup v2.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn freeze(&self, frozen: bool) -> io::Result<bool> {
        let Some(dir) = &self.inner.v2 else {
            return Ok(false);
        };
        let text = if frozen { "1" } else { "0" };
        KernelCgroupFs.write(&dir.join("cgroup.freeze"), text)?;
        Ok(true)
    }

    /// Whether it is frozen, so that no process in it handles signals.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let frozen = |dir: &PathBuf| {
            let text = KernelCgroupFs.read(&dir.join("cgroup.events"));
            text.is_ok_and(|text| text.lines().any(|line| line == "frozen 1"))
        };
        self.inner.v2.as_ref().is_some_and(frozen)
    }
}

/// The groups of one child, and the duty to end it: when this is dropped, everything in them is
/// killed and they are removed.
#[derive(Debug)]
pub struct Leaf {
    group: Group,
    is_ended: bool,
}

impl Leaf {
    pub(super) const fn new(group: Group) -> Self {
        Self {
            group,
            is_ended: false,
        }
    }

    /// The same, with this memory limit.
    pub(super) const fn with_memory_limit(mut self, memory: Option<u64>) -> Self {
        self.group.memory = memory;
        self
    }

    /// Where it is.
    #[must_use]
    pub const fn group(&self) -> &Group {
        &self.group
    }

    /// Puts a process into all of its groups.
    ///
    /// # Errors
    /// The first group that refused it.
    pub fn attach(&self, pid: u32) -> Result<(), GroupError> {
        for dir in &self.group.inner.all {
            let file = dir.join("cgroup.procs");
            KernelCgroupFs
                .write(&file, &pid.to_string())
                .map_err(|error| GroupError::report(CgroupOperation::Attach, &file, error))?;
        }
        Ok(())
    }

    /// Lets the kernel kill everything in it, where the kernel supports that. Returns at once.
    pub fn kill(&self) {
        let Some(dir) = &self.group.inner.v2 else {
            return;
        };
        if let Err(error) = kill::kill_v2(dir) {
            report_failure(CgroupOperation::Kill, dir, &error);
        }
    }

    /// Kills what is in it, waits until it is empty, and removes it. Blocks, at most for
    /// [`limits::KILL_LEFTOVERS_TIMEOUT`]. Gives what it had used, and the number of processes that were
    /// killed and that are left.
    pub fn end(mut self) -> GroupOutcome {
        self.is_ended = true;
        end_group(&self.group)
    }
}

/// The end of a child's groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupOutcome {
    /// The usage.
    pub usage: Usage,
    /// The enforced memory limit, in bytes.
    pub memory_limit: Option<u64>,
    /// Processes that were still in it, and were killed.
    pub killed: u32,
    /// Processes that are still in it.
    pub left: u32,
}

fn end_group(group: &Group) -> GroupOutcome {
    let inner = &group.inner;
    let count =
        |dirs: &[PathBuf]| u32::try_from(kill::list_readable(dirs).len()).unwrap_or(u32::MAX);
    let mut over = GroupOutcome {
        killed: inner
            .all
            .first()
            .map_or(0, |dir| count(std::slice::from_ref(dir))),
        memory_limit: group.memory,
        ..GroupOutcome::default()
    };
    let first = inner.all.first().map_or(Path::new(""), PathBuf::as_path);
    let deadline = Instant::now() + limits::KILL_LEFTOVERS_TIMEOUT;
    match kill::kill_and_wait(inner.v2.as_deref(), &inner.all, deadline) {
        Ok(true) => {}
        Ok(false) => over.left = count(&inner.all).max(1),
        Err(error) => {
            over.left = count(&inner.all).max(1);
            report_failure(CgroupOperation::Kill, first, &error);
        }
    }
    over.usage = inner.counters.read();
    if let Err(error) = kill::remove(&inner.all) {
        report_failure(CgroupOperation::Remove, first, &error);
    }
    over
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        self.kill();
        let group = self.group.clone();
        // Whoever drops it must not wait. Outside of a runtime, or in one that ends, it is left to
        // the janitor.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || end_group(&group));
        }
    }
}

pub(super) fn report_failure(step: CgroupOperation, path: &Path, error: &io::Error) {
    CgroupFailed {
        operation: step,
        path,
        error,
    }
    .emit();
}

/// The files and texts to write for the limits, in the order that the kernel requires.
pub(super) fn v2_settings(
    limits: &ResourceLimits,
    enforcement: &LimitEnforcement,
) -> Vec<(&'static str, String)> {
    use super::Enforcement::V2;
    let mut out = Vec::new();
    if let (Some(pids), V2) = (limits.pids, enforcement.pids) {
        out.push(("pids.max", pids.to_string()));
    }
    if let (Some(memory), V2) = (limits.memory, enforcement.memory) {
        out.push(("memory.max", memory.to_string()));
        if let (Some(swap), V2) = (limits.swap, enforcement.swap) {
            out.push(("memory.swap.max", swap.to_string()));
        }
    }
    if let (Some(millis), V2) = (limits.cpu_millis, enforcement.cpu) {
        out.push(("cpu.max", format!("{} {PERIOD_MICROS}", quota(millis))));
    }
    out
}

/// The same in v1, for one controller's group.
pub(super) fn v1_settings(
    controller: super::layout::Controller,
    limits: &ResourceLimits,
    enforcement: &LimitEnforcement,
) -> Vec<(&'static str, String)> {
    use super::Enforcement::V1;
    use super::layout::Controller;
    let mut out = Vec::new();
    match controller {
        Controller::Pids => {
            if let (Some(pids), V1) = (limits.pids, enforcement.pids) {
                out.push(("pids.max", pids.to_string()));
            }
        }
        Controller::Memory => {
            if let (Some(memory), V1) = (limits.memory, enforcement.memory) {
                out.push(("memory.limit_in_bytes", memory.to_string()));
                // There it is one limit for both together, which may not be below the other.
                if let (Some(swap), V1) = (limits.swap, enforcement.swap) {
                    let both = memory.saturating_add(swap);
                    out.push(("memory.memsw.limit_in_bytes", both.to_string()));
                }
            }
        }
        Controller::Cpu => {
            if let (Some(millis), V1) = (limits.cpu_millis, enforcement.cpu) {
                out.push(("cpu.cfs_period_us", PERIOD_MICROS.to_string()));
                out.push(("cpu.cfs_quota_us", quota(millis).to_string()));
            }
        }
        Controller::Cpuacct => {}
    }
    out
}

fn quota(millis: u32) -> u64 {
    u64::from(millis) * PERIOD_MICROS / 1000
}

/// Writes limits into a group.
pub(super) fn write_settings(
    files: &impl CgroupFs,
    dir: &Path,
    values: &[(&'static str, String)],
) -> Result<(), GroupError> {
    for (name, text) in values {
        let file = dir.join(name);
        files
            .write(&file, text)
            .map_err(|error| GroupError::report(CgroupOperation::Limit, &file, error))?;
    }
    Ok(())
}
