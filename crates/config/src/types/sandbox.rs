//! A sandbox profile, checked.
//!
//! Must not know how a sandbox is built.

use std::path::PathBuf;

use super::ProcMode;
use crate::HostRequirements;
use marshal_model::ResourceLimits;

/// `[sandbox.NAME]`.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Directories of the host that are visible read-only at the same path, including `/usr`.
    pub ro_bind: Vec<PathBuf>,
    /// Names below `/etc` that are visible read-only.
    pub etc: Vec<String>,
    /// The home's size limit, in bytes (measured, while quotas do not exist).
    pub home_bytes: u64,
    /// The size of `/tmp`, and of `/dev/shm`, in bytes.
    pub tmp_bytes: u64,
    /// Inodes of `/tmp`.
    pub tmp_inodes: u64,
    /// The view of `/proc`.
    pub proc_mode: ProcMode,
    /// RLIMIT_NOFILE.
    pub nofile: u64,
    /// RLIMIT_FSIZE, in bytes.
    pub fsize: u64,
    /// What it requires of its host.
    pub requirements: HostRequirements,
    /// The least ABI of Landlock, 0 to 6; the highest that the kernel has is used.
    pub landlock_min_abi: u8,
    /// The filter of system calls.
    pub seccomp: Seccomp,
    /// The resource limits of a child together with its descendants.
    pub group_limits: ResourceLimits,
}

/// `sandbox.NAME.seccomp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seccomp {
    /// The built-in allow-list.
    Default,
    /// No filter.
    Off,
    /// A profile in OCI form, instead of the built-in one.
    File(PathBuf),
}
