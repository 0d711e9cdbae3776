//! What a host provides for sandboxes, what profiles require, and what is missing.
//!
//! `probe` checks each feature in its own process (`probe_helper`), so that a probe that is killed
//! or hangs is a result as well. `requirements` says what a profile needs and compares it with the
//! results; that part is pure. Must not know callers or output formats.

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
    /// A feature that a host has or lacks.
    Feature {
        /// User namespaces, with the agent's uid mapped.
        UserNs = "user_ns",
        /// Mount namespaces.
        MountNs = "mount_ns",
        /// Pid namespaces.
        PidNs = "pid_ns",
        /// Network namespaces.
        NetNs = "net_ns",
        /// Ipc namespaces: System V and POSIX message queues.
        IpcNs = "ipc_ns",
        /// Uts namespaces: the host name.
        UtsNs = "uts_ns",
        /// Cgroup namespaces.
        CgroupNs = "cgroup_ns",
        /// A limit of 0 user namespaces inside the sandbox.
        NoMoreUserNs = "max_user_namespaces",
        /// fsopen, fsmount, open_tree and move_mount.
        MountApi = "mount_api",
        /// tmpfs with a limit of inodes.
        TmpfsInodes = "tmpfs_inodes",
        /// pivot_root(2).
        PivotRoot = "pivot_root",
        /// procfs with `subset=pid`: processes only.
        ProcPid = "proc_subset",
        /// A complete procfs for the sandbox's pid namespace.
        ProcFull = "proc",
        /// The loopback interface of a network namespace.
        Loopback = "loopback",
        /// Id-mapped mounts on the state directory's file system.
        IdmapState = "idmap_state",
        /// Id-mapped mounts on a workspace's file system.
        IdmapWorkspace = "idmap_workspace",
        /// overlayfs in a user namespace.
        Overlay = "overlay",
        /// no_new_privs: exec never adds privileges.
        NoNewPrivs = "no_new_privs",
        /// Dropping capabilities permanently.
        Caps = "caps",
        /// seccomp filters.
        Seccomp = "seccomp",
        /// Landlock.
        Landlock = "landlock",
        /// Landlock's rules for TCP.
        LandlockNet = "landlock_net",
        /// Landlock's scopes for signals and abstract sockets.
        LandlockScope = "landlock_scope",
        /// A separate uid for every slot.
        UidPerSlot = "uid_per_slot",
        /// The user's subordinate ids, in /etc/subuid and /etc/subgid.
        SubordinateIds = "subordinate_ids",
        /// A cgroup whose processes can be killed and frozen together.
        CgroupKill = "cgroup.kill",
        /// A cgroup limit of memory and swap.
        CgroupMemory = "cgroup.memory",
        /// A cgroup limit of processes.
        CgroupPids = "cgroup.pids",
        /// A cgroup limit of processor time.
        CgroupCpu = "cgroup.cpu",
        /// The limit of open files.
        Nofile = "nofile",
        /// Project quotas on the state directory's file system.
        ProjectQuota = "project_quota",
        /// Loop devices.
        LoopDevices = "loop_devices",
        /// The program git.
        Git = "git",
        /// The program bwrap (bubblewrap).
        Bwrap = "bwrap",
        /// The program podman or docker.
        Container = "container",
        /// The program ssh.
        Ssh = "ssh",
        /// Whether io_uring is disabled for all processes.
        IoUring = "io_uring",
        /// Whether AF_VSOCK sockets to the hypervisor can be created.
        Vsock = "vsock",
        /// Whether input of a terminal can be forged (TIOCSTI).
        LegacyTiocsti = "legacy_tiocsti",
        /// Whether AppArmor denies user namespaces to ordinary users.
        ApparmorUserns = "apparmor_userns",
        /// Yama's restriction of ptrace.
        Yama = "yama",
        /// Whether links in world-writable sticky directories are followed.
        ProtectedLinks = "protected_links",
        /// The sandbox as a whole, for a failure that no single feature explains.
        Sandbox = "sandbox",
    }
);

impl Feature {
    /// Whether the feature is only a setting of the host that adds protection, and never a
    /// requirement.
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
