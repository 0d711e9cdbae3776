//! What a child with everything that it starts may take of the host: processes, memory, swap, cpu.

use super::string_enum;

string_enum!(
    /// By what such limits are held.
    LimitBackend {
        /// The best that this host has, limit by limit.
        Auto = "auto",
        /// cgroup v2, or the child does not start.
        V2 = "v2",
        /// cgroup v1, or the child does not start.
        V1 = "v1",
        /// Resource limits of processes only: none for memory and cpu.
        Rlimit = "rlimit",
    }
);

/// The limits of one child and of everything that it starts; `None`: not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Processes and threads, helpers included.
    pub pids: Option<u32>,
    /// Memory, page cache included, in bytes.
    pub memory: Option<u64>,
    /// Swap beside it, in bytes. Holds only where `memory` is limited too.
    pub swap: Option<u64>,
    /// Time of processors, in thousandths of one.
    pub cpu_millis: Option<u32>,
    /// By what they are held.
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
