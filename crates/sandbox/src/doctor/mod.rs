//! What a host has of what walls are made of, what profiles need of it, and what is missing.
//!
//! `probe` asks the host, each thing in a process of its own (`trials`), so that a probe that is
//! killed or hangs is an answer as well; [`requirements_of`] says what a profile needs, [`judge`] joins
//! the two, both pure. Must not know who asks, or how a table is written.

mod host;
mod probe;
mod probe_helper;
mod requirements;

use marshal_model::string_enum;

pub use probe::{FeatureQuery, ProbeContext, ProbeResult, probe};
pub(super) use probe_helper::main;
pub use requirements::{
    CheckStatus, LANDLOCK_NET, LANDLOCK_SCOPE, MIN_LANDLOCK_ABI, ProfileContext, Requirement, Row,
    evaluate, missing_rows, requirements_of,
};

string_enum!(
    /// One thing that a host has or lacks.
    Feature {
        /// User namespaces, with the agent's uid mapped.
        UserNs = "user_ns",
        /// Mount namespaces.
        MountNs = "mount_ns",
        /// Pid namespaces.
        PidNs = "pid_ns",
        /// Network namespaces.
        NetNs = "net_ns",
        /// Namespaces of System V and POSIX messages.
        IpcNs = "ipc_ns",
        /// Namespaces of the host's name.
        UtsNs = "uts_ns",
        /// Namespaces of cgroups.
        CgroupNs = "cgroup_ns",
        /// Closing user namespaces to those inside.
        NoMoreUserNs = "max_user_namespaces",
        /// fsopen, fsmount, open_tree and move_mount.
        MountApi = "mount_api",
        /// A file system in memory with a bound of inodes.
        TmpfsInodes = "tmpfs_inodes",
        /// Another root.
        PivotRoot = "pivot_root",
        /// `/proc` with processes only.
        ProcPid = "proc_subset",
        /// A whole `/proc` of the own pid namespace.
        ProcFull = "proc",
        /// The loopback of an own network.
        Loopback = "loopback",
        /// Id maps of mounts on the state directory's file system.
        IdmapState = "idmap_state",
        /// The same on a workspace's.
        IdmapWorkspace = "idmap_workspace",
        /// Overlays.
        Overlay = "overlay",
        /// No new privileges by exec.
        NoNewPrivs = "no_new_privs",
        /// Giving up capabilities for good.
        Caps = "caps",
        /// Filters of system calls.
        Seccomp = "seccomp",
        /// Landlock.
        Landlock = "landlock",
        /// Landlock's rules for TCP.
        LandlockNet = "landlock_net",
        /// Landlock's bounds of signals and abstract sockets.
        LandlockScope = "landlock_scope",
        /// A uid of its own for every slot.
        UidPerSlot = "uid_per_slot",
        /// Ids below this user, in /etc/subuid and /etc/subgid.
        SubordinateIds = "subordinate_ids",
        /// A cgroup that kills and freezes all its processes.
        CgroupKill = "cgroup.kill",
        /// Memory and swap, bounded by a cgroup.
        CgroupMemory = "cgroup.memory",
        /// Processes, bounded by a cgroup.
        CgroupPids = "cgroup.pids",
        /// Processor time, bounded by a cgroup.
        CgroupCpu = "cgroup.cpu",
        /// How many files a process may open.
        Nofile = "nofile",
        /// Quotas of projects on the state directory's file system.
        ProjectQuota = "project_quota",
        /// Devices made of files.
        LoopDevices = "loop_devices",
        /// git.
        Git = "git",
        /// bubblewrap.
        Bwrap = "bwrap",
        /// podman or docker.
        Container = "container",
        /// The ssh client.
        Ssh = "ssh",
        /// Whether io_uring is switched off for all.
        IoUring = "io_uring",
        /// Whether sockets to the machine's own host can be made.
        Vsock = "vsock",
        /// Whether a terminal's input can be forged.
        LegacyTiocsti = "legacy_tiocsti",
        /// Whether AppArmor keeps ordinary users from user namespaces.
        ApparmorUserns = "apparmor_userns",
        /// Yama's bound of tracing.
        Yama = "yama",
        /// Whether links in directories of everybody are followed.
        ProtectedLinks = "protected_links",
        /// The walls as a whole, where no single thing is to blame.
        Sandbox = "sandbox",
    }
);

impl Feature {
    /// What is a layer below or around the walls and never a need: how this host is set.
    #[must_use]
    pub const fn is_informational(self) -> bool {
        matches!(
            self,
            Self::IoUring
                | Self::Vsock
                | Self::LegacyTiocsti
                | Self::ApparmorUserns
                | Self::Yama
                | Self::ProtectedLinks
        )
    }
}
