//! What enforces each limit, computed from the wanted limits and the host's support. Pure.

use super::layout::Controller;
use marshal_model::{LimitBackend, ResourceLimits, string_enum};

string_enum!(
    /// What enforces a limit.
    Enforcement {
        /// A controller of cgroup v2.
        V2 = "cgroup v2",
        /// A controller of cgroup v1.
        V1 = "cgroup v1",
        /// A resource limit of processes.
        Rlimit = "rlimit",
        /// The container engine, which has its own groups.
        Engine = "container engine",
        /// The host does not have the resource: there is no swap.
        Absent = "none there",
        /// No limit is configured.
        Unwanted = "no limit",
        /// A limit is configured, and nothing enforces it.
        Unenforced = "not held",
    }
);

impl Enforcement {
    /// Whether a control group enforces it.
    #[must_use]
    pub const fn is_group(self) -> bool {
        matches!(self, Self::V1 | Self::V2)
    }
}

/// The control group support of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostSupport {
    /// Groups of cgroup v2, for the kill.
    pub(super) kill: bool,
    /// Controllers of v2.
    pub(super) v2: Vec<Controller>,
    /// Controllers of v1.
    pub(super) v1: Vec<Controller>,
    /// Whether v1 counts swap.
    pub(super) swap_v1: bool,
    /// Whether there is no swap.
    pub(super) no_swap: bool,
    /// Why v2 lacks controllers; `None` if it has all.
    pub(super) why_v2: Option<String>,
    /// Why v1 lacks controllers; `None` if it has all.
    pub(super) why_v1: Option<String>,
}

/// What enforces each limit of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitEnforcement {
    /// Processes.
    pub pids: Enforcement,
    /// Memory.
    pub memory: Enforcement,
    /// Swap.
    pub swap: Enforcement,
    /// CPU time.
    pub cpu: Enforcement,
    /// Whether the kernel can kill the child's whole group at once.
    pub kill: bool,
    /// Why a limit is not enforced; `None` if all are.
    pub why: Option<String>,
}

/// The configured backend does not enforce every limit.
#[derive(Debug, thiserror::Error)]
#[error("this backend does not enforce {} ({why})", .missing.join(", "))]
pub(super) struct BackendError {
    missing: Vec<&'static str>,
    why: String,
}

impl LimitEnforcement {
    /// Chooses what enforces each limit. `has_nproc` says whether RLIMIT_NPROC counts this child's
    /// processes alone.
    ///
    /// # Errors
    /// The configured backend cannot enforce a limit: the limit and the reason.
    pub(super) fn choose(
        limits: &ResourceLimits,
        has: &HostSupport,
        has_nproc: bool,
    ) -> Result<Self, BackendError> {
        let backend = limits.backend;
        let may = |of: LimitBackend| backend == LimitBackend::Auto || backend == of;
        let group = |wanted: bool, controller: Controller| {
            if !wanted {
                Enforcement::Unwanted
            } else if may(LimitBackend::V2) && has.v2.contains(&controller) {
                Enforcement::V2
            } else if may(LimitBackend::V1) && has.v1.contains(&controller) {
                Enforcement::V1
            } else {
                Enforcement::Unenforced
            }
        };
        let mut pids = group(limits.pids.is_some(), Controller::Pids);
        if pids == Enforcement::Unenforced && has_nproc && may(LimitBackend::Rlimit) {
            pids = Enforcement::Rlimit;
        }
        let memory = group(limits.memory.is_some(), Controller::Memory);
        let swap = match memory {
            _ if limits.swap.is_none() || limits.memory.is_none() => Enforcement::Unwanted,
            Enforcement::V1 if has.swap_v1 => Enforcement::V1,
            Enforcement::V2 => Enforcement::V2,
            _ if has.no_swap => Enforcement::Absent,
            _ => Enforcement::Unenforced,
        };
        let cpu = group(limits.cpu_millis.is_some(), Controller::Cpu);
        let mut enforcement = Self {
            pids,
            memory,
            swap,
            cpu,
            kill: has.kill,
            why: None,
        };
        let missing = enforcement.missing();
        if missing.is_empty() {
            return Ok(enforcement);
        }
        let why = match backend {
            LimitBackend::Rlimit => "rlimits cannot limit memory and cpu".to_owned(),
            LimitBackend::V2 => has.missing_reason(true, false),
            LimitBackend::V1 => has.missing_reason(false, true),
            LimitBackend::Auto => has.missing_reason(true, true),
        };
        if matches!(backend, LimitBackend::V2 | LimitBackend::V1) {
            return Err(BackendError { missing, why });
        }
        enforcement.why = Some(why);
        Ok(enforcement)
    }

    /// Chooses what enforces each limit of a container, which is in none of marshal's groups: its
    /// engine, unless `why_not` says why it cannot.
    ///
    /// # Errors
    /// The configured backend does not exist for a container.
    pub(super) fn for_container(
        limits: &ResourceLimits,
        why_not: Option<&str>,
        has_nproc: bool,
    ) -> Result<Self, BackendError> {
        let holds = why_not.is_none() && limits.backend == LimitBackend::Auto;
        let by = |wanted: bool| match (wanted, holds) {
            (false, _) => Enforcement::Unwanted,
            (true, true) => Enforcement::Engine,
            (true, false) => Enforcement::Unenforced,
        };
        let mut pids = by(limits.pids.is_some());
        let may_rlimit = matches!(limits.backend, LimitBackend::Auto | LimitBackend::Rlimit);
        if pids == Enforcement::Unenforced && has_nproc && may_rlimit {
            pids = Enforcement::Rlimit;
        }
        let mut enforcement = Self {
            pids,
            memory: by(limits.memory.is_some()),
            swap: by(limits.memory.and(limits.swap).is_some()),
            cpu: by(limits.cpu_millis.is_some()),
            kill: false,
            why: None,
        };
        let missing = enforcement.missing();
        if missing.is_empty() {
            return Ok(enforcement);
        }
        let why = match (limits.backend, why_not) {
            (LimitBackend::Auto, Some(why)) => why,
            _ => "the engine of a container enforces its limits, which needs backend = \"auto\"",
        };
        if matches!(limits.backend, LimitBackend::V2 | LimitBackend::V1) {
            let why = why.to_owned();
            return Err(BackendError { missing, why });
        }
        enforcement.why = Some(why.to_owned());
        Ok(enforcement)
    }

    fn entries(&self) -> [(&'static str, Enforcement); 4] {
        [
            ("pids", self.pids),
            ("memory", self.memory),
            ("swap", self.swap),
            ("cpu", self.cpu),
        ]
    }

    /// The configured limits that nothing enforces.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let not = |(name, by): (&'static str, Enforcement)| {
            (by == Enforcement::Unenforced).then_some(name)
        };
        self.entries().into_iter().filter_map(not).collect()
    }

    /// The missing limits, as a sentence for the operator.
    #[must_use]
    pub fn describe_missing(&self) -> Option<String> {
        let missing = self.missing();
        let why = self.why.as_deref().unwrap_or("this host cannot enforce it");
        (!missing.is_empty()).then(|| format!("not limited: {} ({why})", missing.join(", ")))
    }
}

/// In one line: `pids: cgroup v1, memory: cgroup v1, …, kill: cgroup v2`.
impl std::fmt::Display for LimitEnforcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, by) in self.entries() {
            write!(f, "{name}: {by}, ")?;
        }
        let kill = if self.kill {
            "cgroup v2"
        } else {
            "process by process"
        };
        write!(f, "kill: {kill}")
    }
}

/// This host's support for one kind of limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The feature: `cgroup.pids`, `cgroup.memory`, `cgroup.swap`, `cgroup.cpu`, `cgroup.kill`.
    pub feature: &'static str,
    /// What would enforce it. [`Enforcement::Unenforced`] means no group; an rlimit may still apply
    /// to processes.
    pub enforcement: Enforcement,
    /// Why not cgroup v2.
    pub why: Option<String>,
    /// What to do about it; `None` if nothing can be done.
    pub hint: Option<&'static str>,
}

/// The hint where groups are missing.
const DELEGATE_HINT: &str = "run marshal as a systemd service with Delegate=yes, or delegate a group to it: a \
    cgroup v2 directory that its user owns and that contains no other process";

impl HostSupport {
    fn missing_reason(&self, v2: bool, v1: bool) -> String {
        let of_v2 = self.why_v2.as_deref().filter(|_| v2);
        let of_v1 = self.why_v1.as_deref().filter(|_| v1);
        let all: Vec<&str> = of_v2.into_iter().chain(of_v1).collect();
        if all.is_empty() {
            return "this host has no such controller".to_owned();
        }
        all.join("; ")
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let all = ResourceLimits {
            pids: Some(1),
            memory: Some(1),
            swap: Some(0),
            cpu_millis: Some(1),
            backend: LimitBackend::Auto,
        };
        let Ok(enforcement) = LimitEnforcement::choose(&all, self, false) else {
            return Vec::new();
        };
        let kill = if self.kill {
            Enforcement::V2
        } else {
            Enforcement::Unenforced
        };
        [
            ("cgroup.pids", enforcement.pids),
            ("cgroup.memory", enforcement.memory),
            ("cgroup.swap", enforcement.swap),
            ("cgroup.cpu", enforcement.cpu),
            ("cgroup.kill", kill),
        ]
        .map(|(feature, by)| Finding {
            feature,
            enforcement: by,
            why: match by {
                Enforcement::V2 | Enforcement::Absent => None,
                Enforcement::V1 => self.why_v2.clone(),
                _ => Some(self.missing_reason(true, true)),
            },
            hint: (by == Enforcement::Unenforced).then_some(DELEGATE_HINT),
        })
        .to_vec()
    }
}
