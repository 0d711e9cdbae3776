//! Resource limits of a child together with its descendants: processes, memory, swap, CPU.

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
