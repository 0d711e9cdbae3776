//! Resource limits of a sandbox, and the layers that it can lack.

use super::string_enum;

string_enum!(
    /// The backend that enforces such limits.
    LimitBackend {
        /// The best backend of this host, for each limit.
        Auto = "auto",
        /// cgroup v2, or the child does not start.
        V2 = "v2",
        /// cgroup v1, or the child does not start.
        V1 = "v1",
        /// Resource limits of processes only: none for memory and cpu.
        Rlimit = "rlimit",
    }
);

/// The limits of one child together with its descendants; `None` means not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Processes and threads, helpers included.
    pub pids: Option<u32>,
    /// Memory, page cache included, in bytes.
    pub memory: Option<u64>,
    /// Swap in addition to it, in bytes. Applies only if `memory` is limited too.
    pub swap: Option<u64>,
    /// CPU time, in thousandths of a CPU.
    pub cpu_millis: Option<u32>,
    /// The backend that enforces them.
    pub backend: LimitBackend,
}

impl ResourceLimits {
    /// No limit at all.
    pub const NONE: Self = Self {
        pids: None,
        memory: None,
        swap: None,
        cpu_millis: None,
        backend: LimitBackend::Auto,
    };
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self::NONE
    }
}

string_enum!(
    /// A layer that is missing, as events and `marshal_sandbox_degraded_total{feature}`
    /// name it.
    SandboxGap {
        /// It has the uid of the supervisor's user, like all its neighbours.
        SharedUid = "shared_uid",
        /// Landlock, or the version of it that its profile names.
        Landlock = "landlock",
        /// Landlock's rules for ports, on the host's network: it can listen on the port of another
        /// service.
        LandlockNet = "landlock_net",
        /// Landlock's scope of abstract sockets, on the host's network: it reaches those of the
        /// host.
        LandlockScope = "landlock_scope",
        /// The limit of memory by a cgroup.
        Memory = "cgroup.memory",
        /// The limit of processes by a cgroup.
        Pids = "cgroup.pids",
        /// The limit of CPU time by a cgroup.
        Cpu = "cgroup.cpu",
    }
);
