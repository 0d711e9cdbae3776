//! The layers that a child's sandbox can lack.

use super::string_enum;

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
