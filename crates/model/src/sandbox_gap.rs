//! What a child's walls lack.

use super::string_enum;

string_enum!(
    /// A layer that other children have, as events and `marshal_sandbox_degraded_total{feature}`
    /// name it.
    SandboxGap {
        /// It has the uid of whoever runs the supervisor, and so of its neighbours.
        SharedUid = "shared_uid",
        /// Landlock, or the version of it that its profile names.
        Landlock = "landlock",
        /// Landlock's rules for ports, on the host's network: it may listen where somebody else is
        /// expected.
        LandlockNet = "landlock_net",
        /// Landlock's bounds of abstract sockets, on the host's network: it reaches the host's.
        LandlockScope = "landlock_scope",
        /// The bound of memory by a cgroup.
        Memory = "cgroup.memory",
        /// The bound of processes by a cgroup.
        Pids = "cgroup.pids",
        /// The bound of processor time by a cgroup.
        Cpu = "cgroup.cpu",
    }
);
