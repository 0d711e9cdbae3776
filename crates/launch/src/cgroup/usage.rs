//! The usage of a group, from the texts of its control files.
//!
//! A group needs reads of a handful of small files; parsing is pure.

use std::path::PathBuf;

use super::cgroup_fs::{CgroupFs as _, KernelCgroupFs};

/// Stall times in microseconds, `some` and `full`; `None` where the kernel has none.
pub type Stalls = [Option<u64>; 2];

/// What a child used with everything that it started. `None`: this host does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, microseconds.
    pub cpu_micros: Option<u64>,
    /// Anonymous memory, bytes.
    pub rss: Option<u64>,
    /// Memory except what the kernel can drop at once, bytes.
    pub working_set: Option<u64>,
    /// Swap, bytes.
    pub swap: Option<u64>,
    /// The most memory at any time, bytes.
    pub peak: Option<u64>,
    /// Processes and threads now.
    pub processes: Option<u64>,
    /// Processes that the kernel killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Times that something was stalled for want of cpu, memory and io.
    pub stalls: [Stalls; 3],
}

/// The resources of [`parse_stalls`], in its order.
pub const STALL_RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// The group directories that usage is read from.
#[derive(Debug, Clone, Default)]
pub(super) struct UsageCounters {
    /// Its group of cgroup v2, for time and stalls.
    pub(super) v2: Option<PathBuf>,
    /// With the v2 controllers of pids and memory.
    pub(super) pids_v2: bool,
    pub(super) memory_v2: bool,
    /// Its groups of cgroup v1.
    pub(super) pids_v1: Option<PathBuf>,
    pub(super) memory_v1: Option<PathBuf>,
    pub(super) acct_v1: Option<PathBuf>,
}

impl UsageCounters {
    /// Reads everything that there is.
    pub(super) fn read(&self) -> Usage {
        let text = |dir: &Option<PathBuf>, name: &str| {
            let dir = dir.as_ref()?;
            KernelCgroupFs.read(&dir.join(name)).ok()
        };
        let number = |dir: &Option<PathBuf>, name: &str| text(dir, name)?.trim().parse().ok();
        let of = |dir: &Option<PathBuf>, name: &str, key: &str| field(&text(dir, name)?, key);
        let mut usage = Usage {
            cpu_micros: of(&self.v2, "cpu.stat", "usage_usec").or_else(|| {
                let nanos: u64 = number(&self.acct_v1, "cpuacct.usage")?;
                Some(nanos / 1000)
            }),
            ..Usage::default()
        };
        for (stall, resource) in usage.stalls.iter_mut().zip(STALL_RESOURCES) {
            *stall =
                parse_stalls(&text(&self.v2, &format!("{resource}.pressure")).unwrap_or_default());
        }
        usage.processes = if self.pids_v2 {
            number(&self.v2, "pids.current")
        } else {
            number(&self.pids_v1, "pids.current")
        };
        if self.memory_v2 {
            let stat = text(&self.v2, "memory.stat").unwrap_or_default();
            let now: Option<u64> = number(&self.v2, "memory.current");
            usage.rss = field(&stat, "anon");
            usage.working_set = subtract(now, field(&stat, "inactive_file"));
            usage.swap = number(&self.v2, "memory.swap.current");
            usage.peak = number(&self.v2, "memory.peak");
            usage.oom_kills = of(&self.v2, "memory.events", "oom_kill");
        } else if self.memory_v1.is_some() {
            let stat = text(&self.memory_v1, "memory.stat").unwrap_or_default();
            let now: Option<u64> = number(&self.memory_v1, "memory.usage_in_bytes");
            usage.rss = field(&stat, "total_rss");
            usage.working_set = subtract(now, field(&stat, "total_inactive_file"));
            usage.swap = field(&stat, "total_swap");
            usage.peak = number(&self.memory_v1, "memory.max_usage_in_bytes");
            usage.oom_kills = of(&self.memory_v1, "memory.oom_control", "oom_kill");
        }
        usage
    }
}

fn subtract(all: Option<u64>, part: Option<u64>) -> Option<u64> {
    Some(all?.saturating_sub(part.unwrap_or(0)))
}

/// The number behind a word at the beginning of a line.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The totals of a file of pressure-stall information.
#[must_use]
pub fn parse_stalls(text: &str) -> Stalls {
    ["some", "full"].map(|kind| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_word() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field(text, "oom"), None);
        assert_eq!(field("oom_kill x", "oom_kill"), None);
        assert_eq!(subtract(Some(5), Some(9)), Some(0));
        assert_eq!(subtract(None, Some(9)), None);
    }

    #[test]
    fn stalls_are_the_totals() {
        let text = "some avg10=0.12 avg60=0.01 avg300=0.00 total=123456\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=78\n";
        assert_eq!(parse_stalls(text), [Some(123_456), Some(78)]);
        // The cpu of a host has no `full` before Linux 5.13.
        assert_eq!(parse_stalls("some avg10=0.00 total=5\n"), [Some(5), None]);
        assert_eq!(parse_stalls(""), [None, None]);
    }
}
