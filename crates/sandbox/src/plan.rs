//! From a profile to the plan of a sandbox: pure, so that tests need no kernel.
//!
//! Must not touch the file system: what depends on the host (where `/bin` leads, which optional
//! file exists) is left to the shim.
//!
//! A new layer of the sandbox has its place in the plan (`wire/shim.rs`), its planning here and its
//! step in `init.rs`.

use std::path::{Component, Path, PathBuf};

pub use self::extra_mounts::ExtraMounts;
use marshal_config::{self as config, ProcMode};
use marshal_wire::shim::{
    AGENT_ID, BINARY_PATH_INSIDE, HostIds, IdMap, Mount, MountAccess, MountSource, NetworkMode,
    OverlayLayer, OverlayLayers, ProcessLimits, Seccomp, ShimPlan,
};

/// Path of the session's home inside.
pub const HOME: &str = "/home/agent";
/// Path of the workspace inside.
pub const WORKSPACE: &str = "/workspace";
/// Path of this binary inside.
pub const MARSHAL: &str = BINARY_PATH_INSIDE;
/// Path of the tool server's socket inside, if the agent has tools.
pub const TOOLS: &str = "/run/marshal/tools.sock";
/// Paths that the plan fills itself; a profile can mount nothing at, below or above them.
const SANDBOX_MOUNTS: [&str; 6] = ["/proc", "/dev", "/etc", HOME, WORKSPACE, "/run/marshal"];
/// Directories that are links into `/usr` on most hosts.
const MIRRORED: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Entries of `/etc` that are always mounted, if the host has them: the linker's cache, and the
/// links through which many programs of Debian's `/usr/bin` lead.
const ETC_ALWAYS: [&str; 2] = ["alternatives", "ld.so.cache"];
/// Entries of `/etc` that are mounted with the host's network.
const ETC_HOST_NETWORK: [&str; 2] = ["hosts", "resolv.conf"];
/// Names below `/etc` that the sandbox creates itself or must never show.
const ETC_REFUSED: [&str; 6] = [
    "passwd",
    "group",
    "shadow",
    "gshadow",
    "sudoers",
    "sudoers.d",
];
/// Inodes of `/dev/shm`, and of a home or workspace in memory.
const MEMORY_INODES: u64 = 4096;
/// Maximum length of a host name in bytes, sethostname(2).
const HOSTNAME_BYTES: usize = 64;

/// Everything that determines a sandbox.
#[derive(Debug, Clone)]
pub struct SandboxRequest<'a> {
    /// The profile.
    pub profile: &'a config::Sandbox,
    /// What the agent's network reaches.
    pub network: config::Network,
    /// Ports inside that the supervisor listens on, for routes and the egress proxy.
    pub listen: Vec<u16>,
    /// The agent's user outside.
    pub ids: HostIds,
    /// The host name inside: letters, digits and `-`, at most 64 bytes; anything else becomes `-`.
    pub hostname: &'a str,
    /// The session's home; `None`: a tmpfs, for a probe.
    pub home: Option<Tree>,
    /// The workspace; `None`: a tmpfs, for a probe.
    pub workspace: Option<Tree>,
    /// The directory that stores all changes of the workspace, which itself is then never written:
    /// our directory with `upper` and `work`, and its owner on disk.
    pub overlay: Option<OverlayUpper>,
    /// Further read-only mounts: path outside, path inside.
    pub extra_ro: Vec<(PathBuf, String)>,
    /// Further trees, and which parts of the workspace are visible.
    pub extra_mounts: ExtraMounts,
    /// Whether the supervisor may start its own helpers inside.
    pub has_sandbox_entry: bool,
    /// Whether the sandbox has pseudo-terminals.
    pub has_terminals: bool,
}

/// Our directory that stores the changes of another, and its owner on disk: uid and gid.
pub type OverlayUpper = (PathBuf, (u32, u32));

/// A directory of the host that the agent uses as its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its path on the host.
    pub path: PathBuf,
    /// Its owner on disk, uid and gid. If marshal is root, that owner becomes the user inside.
    pub owner: (u32, u32),
    /// Whether it is writable. A copy is `Rw`.
    pub access: MountAccess,
    /// Its device and inode, if another user could replace the directory.
    pub identity: Option<(u64, u64)>,
}

/// Why a sandbox cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The agent would be root on the host.
    #[error(
        "an agent must not be uid or gid 0 of the host: the kernel trusts that uid inside any sandbox"
    )]
    RootAgent,
    /// A path is relative or contains `..`.
    #[error("{0:?} is not an absolute path, or contains `..`")]
    NotAbsolute(PathBuf),
    /// A path is not UTF-8.
    #[error("{0:?} is not UTF-8")]
    NotUtf8(PathBuf),
    /// The profile mounts something over the sandbox's own directories.
    #[error("ro_bind {path:?} overlaps with {own}, which the sandbox itself provides")]
    Collides {
        /// The path in the profile.
        path: PathBuf,
        /// The sandbox's own directory.
        own: &'static str,
    },
    /// A name below `/etc` that a profile cannot use.
    #[error(
        "etc {0:?} cannot be shown: it is not a name below /etc, or the sandbox itself provides it"
    )]
    Etc(String),
    /// A directory of root would be writable.
    #[error(
        "{path:?} belongs to root and cannot be writable in a sandbox: an agent could leave a \
         set-uid program of root there; use workspace mode \"copy\", or \"ro\""
    )]
    RootOwned {
        /// The directory.
        path: PathBuf,
    },
    /// A home or workspace is mounted as a device.
    #[error("{path:?} can be mounted read-only or writable, not as a device")]
    Device {
        /// The path.
        path: PathBuf,
    },
}

/// The resource limits of a profile.
#[must_use]
pub const fn limits_of(profile: &config::Sandbox) -> ProcessLimits {
    ProcessLimits {
        nofile: profile.nofile,
        fsize: profile.fsize,
        nproc: None,
        group: profile.group_limits,
    }
}

/// A sandbox to test whether a profile works: everything of the profile, with home and workspace in
/// memory.
#[must_use]
pub const fn probe_request(profile: &config::Sandbox, ids: HostIds) -> SandboxRequest<'_> {
    SandboxRequest {
        profile,
        network: config::Network::None,
        listen: Vec::new(),
        ids,
        hostname: "probe",
        home: None,
        workspace: None,
        overlay: None,
        extra_ro: Vec::new(),
        extra_mounts: ExtraMounts::none(),
        has_sandbox_entry: false,
        has_terminals: false,
    }
}

/// Plans the sandbox, as the shim will build it.
///
/// # Errors
/// [`PlanError`]: a request that no sandbox may grant.
pub fn plan(request: &SandboxRequest<'_>) -> Result<ShimPlan, PlanError> {
    let (uid, gid) = request.ids.uid_and_gid();
    if uid == 0 || gid == 0 {
        return Err(PlanError::RootAgent);
    }
    let mut mounts = vec![Mount::Tmpfs {
        target: "/tmp".to_owned(),
        bytes: request.profile.tmp_bytes,
        inodes: request.profile.tmp_inodes,
        mode: 0o1777,
    }];
    programs(request.profile, &mut mounts)?;
    devices(request.profile, &mut mounts);
    if request.has_terminals {
        mounts.push(Mount::Terminals);
    }
    mounts.push(proc(request.profile.proc_mode));
    etc(request, &mut mounts)?;
    mounts.push(read_only(MountSource::OwnBinary, MARSHAL, false));
    for (tree, target, upper) in [
        (&request.home, HOME, None),
        (&request.workspace, WORKSPACE, request.overlay.as_ref()),
    ] {
        if target == WORKSPACE && extra_mounts::add_slice(request, &mut mounts)? {
            continue;
        }
        mounts.push(match tree {
            Some(tree) => overlay_or_tree(tree, upper, target, request.ids)?,
            None => Mount::Tmpfs {
                target: target.to_owned(),
                bytes: request.profile.tmp_bytes,
                inodes: MEMORY_INODES,
                mode: 0o700,
            },
        });
    }
    for (outside, inside) in &request.extra_ro {
        absolute(Path::new(inside))?;
        mounts.push(read_only(
            MountSource::Path(absolute(outside)?),
            inside,
            false,
        ));
    }
    extra_mounts::add_extra(request, &mut mounts)?;
    Ok(ShimPlan {
        ids: request.ids,
        network: match request.network {
            config::Network::None | config::Network::Routes | config::Network::Proxy => {
                NetworkMode::Loopback
            }
            config::Network::Host => NetworkMode::Host,
        },
        listen: match request.network {
            config::Network::Routes | config::Network::Proxy => request.listen.clone(),
            config::Network::None | config::Network::Host => Vec::new(),
        },
        hostname: hostname(request.hostname),
        mounts,
        has_entry: request.has_sandbox_entry,
        landlock_min_abi: request.profile.landlock_min_abi,
        seccomp: match &request.profile.seccomp {
            config::Seccomp::Default => Seccomp::BuiltIn,
            config::Seccomp::Off => Seccomp::Off,
            config::Seccomp::File(path) => Seccomp::File(absolute(path)?),
        },
    })
}

fn hostname(wanted: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    wanted.chars().take(HOSTNAME_BYTES).map(plain).collect()
}

/// The profile's directories, parents first, and the links to them.
fn programs(profile: &config::Sandbox, mounts: &mut Vec<Mount>) -> Result<(), PlanError> {
    let mut bound = Vec::new();
    for path in &profile.ro_bind {
        let text = absolute(path)?;
        let near = |own: &&&str| path.starts_with(own) || Path::new(own).starts_with(path);
        if let Some(own) = SANDBOX_MOUNTS.iter().find(near) {
            return Err(PlanError::Collides {
                path: path.clone(),
                own,
            });
        }
        if path == Path::new("/tmp") {
            return Err(PlanError::Collides {
                path: path.clone(),
                own: "/tmp",
            });
        }
        bound.push(text);
    }
    bound.sort();
    bound.dedup();
    for path in MIRRORED
        .iter()
        .filter(|path| !bound.iter().any(|bound| bound == *path))
    {
        mounts.push(Mount::Mirror {
            path: (*path).to_owned(),
        });
    }
    for path in bound {
        mounts.push(read_only(MountSource::Path(path.clone()), &path, false));
    }
    Ok(())
}

fn devices(profile: &config::Sandbox, mounts: &mut Vec<Mount>) {
    for name in ["null", "zero", "full", "random", "urandom"] {
        let path = format!("/dev/{name}");
        mounts.push(Mount::Tree {
            source: MountSource::Path(path.clone()),
            target: path,
            access: MountAccess::Device,
            optional: false,
            idmap: None,
            expect: None,
        });
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        mounts.push(Mount::Link {
            target: format!("/dev/{name}"),
            to: to.to_owned(),
        });
    }
    mounts.push(Mount::Tmpfs {
        target: "/dev/shm".to_owned(),
        bytes: profile.tmp_bytes,
        inodes: MEMORY_INODES,
        mode: 0o1777,
    });
}

/// The paths of procfs that containers usually hide, and those that they make read-only.
pub(super) fn masked_proc_paths() -> (Vec<String>, Vec<String>) {
    let below = |names: &[&str]| names.iter().map(|name| format!("/proc/{name}")).collect();
    let covered = below(&[
        "acpi",
        "asound",
        "bus",
        "irq",
        "kallsyms",
        "kcore",
        "keys",
        "kmsg",
        "latency_stats",
        "sched_debug",
        "scsi",
        "sysrq-trigger",
        "timer_list",
        "timer_stats",
    ]);
    (covered, below(&["fs", "sys"]))
}

fn proc(mode: ProcMode) -> Mount {
    let (covered, read_only) = match mode {
        ProcMode::Pid => (Vec::new(), Vec::new()),
        ProcMode::Masked => masked_proc_paths(),
    };
    Mount::Proc {
        pid_only: mode == ProcMode::Pid,
        covered,
        read_only,
    }
}

fn etc(request: &SandboxRequest<'_>, mounts: &mut Vec<Mount>) -> Result<(), PlanError> {
    let mut shown: Vec<&str> = ETC_ALWAYS.to_vec();
    if request.network == config::Network::Host {
        shown.extend(ETC_HOST_NETWORK);
    }
    for name in &request.profile.etc {
        let path = Path::new(name);
        let first = path.components().next();
        let is_plain = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let is_refused = ETC_REFUSED
            .iter()
            .any(|refused| first == Some(Component::Normal(refused.as_ref())));
        if name.is_empty() || !is_plain || is_refused {
            return Err(PlanError::Etc(name.clone()));
        }
        shown.push(name);
    }
    shown.sort_unstable();
    shown.dedup();

    let id = AGENT_ID;
    let host = hostname(request.hostname);
    for (name, text) in [
        (
            "passwd",
            format!(
                "root:x:0:0:root:/:/usr/sbin/nologin\n\
                 agent:x:{id}:{id}:agent:{HOME}:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
            ),
        ),
        (
            "group",
            format!("root:x:0:\nagent:x:{id}:\nnogroup:x:65534:\n"),
        ),
        (
            "hosts",
            format!("127.0.0.1 localhost {host}\n::1 localhost {host}\n"),
        ),
        ("hostname", format!("{host}\n")),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n".to_owned(),
        ),
    ] {
        if !shown.contains(&name) {
            mounts.push(Mount::File {
                target: format!("/etc/{name}"),
                text,
            });
        }
    }
    for name in shown {
        let path = format!("/etc/{name}");
        mounts.push(read_only(MountSource::Path(path.clone()), &path, true));
    }
    Ok(())
}

fn read_only(source: MountSource, target: &str, optional: bool) -> Mount {
    Mount::Tree {
        source,
        target: target.to_owned(),
        access: MountAccess::Ro,
        optional,
        idmap: None,
        expect: None,
    }
}

/// A tree whose owner is the agent inside. If marshal is root, this needs an id map, unless the
/// owner already is the slot's uid. A map never grants write access as root of the host.
fn own_tree(tree: &Tree, target: &str, ids: HostIds) -> Result<Mount, PlanError> {
    let path = absolute(&tree.path)?;
    if tree.access == MountAccess::Device {
        return Err(PlanError::Device {
            path: tree.path.clone(),
        });
    }
    let (uid, gid) = tree.owner;
    let idmap = match ids {
        HostIds::Own { .. } => None,
        HostIds::Root { .. } if tree.owner == ids.uid_and_gid() => None,
        HostIds::Root { .. } if tree.access == MountAccess::Rw && (uid == 0 || gid == 0) => {
            return Err(PlanError::RootOwned {
                path: tree.path.clone(),
            });
        }
        HostIds::Root { .. } => Some(IdMap {
            uid,
            gid,
            or_plain: tree.access == MountAccess::Ro,
        }),
    };
    Ok(Mount::Tree {
        source: MountSource::Path(path),
        target: target.to_owned(),
        access: tree.access,
        optional: false,
        idmap,
        expect: tree.identity,
    })
}

/// An overlay over a tree, or the tree itself.
fn overlay_or_tree(
    tree: &Tree,
    upper_layer: Option<&OverlayUpper>,
    target: &str,
    ids: HostIds,
) -> Result<Mount, PlanError> {
    let Some((upper, owner)) = upper_layer else {
        return own_tree(tree, target, ids);
    };
    let layer = |path: &Path, owner: (u32, u32), expect| -> Result<OverlayLayer, PlanError> {
        Ok(OverlayLayer {
            path: absolute(path)?,
            idmap: layer_map(owner, ids),
            expect,
        })
    };
    Ok(Mount::Overlay {
        target: target.to_owned(),
        layers: Box::new(OverlayLayers {
            lower: layer(&tree.path, tree.owner, tree.identity)?,
            upper: layer(upper, *owner, None)?,
        }),
    })
}

/// The id map of an overlay's layer. A directory of root may be mapped here: changes become files
/// of the slot's uid, in the other layer.
fn layer_map(owner: (u32, u32), ids: HostIds) -> Option<IdMap> {
    let (uid, gid) = owner;
    let is_mapped = matches!(ids, HostIds::Root { .. }) && owner != ids.uid_and_gid();
    is_mapped.then_some(IdMap {
        uid,
        gid,
        or_plain: false,
    })
}

fn absolute(path: &Path) -> Result<String, PlanError> {
    let mut parts = path.components();
    let is_plain = parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)));
    if !is_plain {
        return Err(PlanError::NotAbsolute(path.to_owned()));
    }
    let text = path
        .to_str()
        .ok_or_else(|| PlanError::NotUtf8(path.to_owned()))?;
    Ok(match text.trim_end_matches('/') {
        "" => "/".to_owned(),
        trimmed => trimmed.to_owned(),
    })
}

mod extra_mounts;
#[cfg(test)]
mod tests;
