//! A container engine's arguments for a plan: pure, so that tests need no engine.
//!
//! The image provides the programs, so the plan's mounts of the host's programs are left out. Every
//! limit with an option is explicit, so that no default of the engine applies. Must not touch the
//! host.

use super::super::plan::{self, HOME, MARSHAL, WORKSPACE};
use super::stage::StagedMount;
use marshal_wire::engine::{Container, ContainerCli};
use marshal_wire::shim::{
    AGENT_ID, ARG0_ENTRY, HostIds, MARKER, Mount, MountAccess, MountSource, NetworkMode,
    ProcessLimits, ShimPlan,
};

/// Directory inside for the libraries of this program.
pub(super) const LIBRARIES: &str = "/run/marshal/lib";
/// The socket inside by which pid 1 connects to its helper.
pub(super) const LINK: &str = "/run/marshal/link";
/// The argument that tells the entrypoint to connect to that socket.
pub(super) const BY_SOCKET: &str = "socket";

/// A library that this program needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Library {
    /// Its path on this host.
    pub(super) path: String,
    /// The name by which the loader searches for it.
    pub(super) name: String,
}

impl Library {
    /// Whether it is the dynamic loader itself.
    pub(super) fn is_loader(&self) -> bool {
        self.name.starts_with("ld-") || self.name.starts_with("ld64")
    }
}

/// Everything that determines a container's arguments.
#[derive(Debug)]
pub(super) struct ContainerSpec<'a> {
    pub(super) container: &'a Container,
    pub(super) plan: &'a ShimPlan,
    /// One entry for each mount of the plan.
    pub(super) placed: &'a [StagedMount],
    /// Empty for a statically linked program.
    pub(super) libraries: &'a [Library],
    /// The path of the socket on this host.
    pub(super) link: &'a str,
    pub(super) marker: &'a str,
    pub(super) limits: ProcessLimits,
    /// Maximum number of processes of the container's user.
    pub(super) processes: u64,
}

/// Whether a container gets this mount: the child's own directories, and what the profile adds to
/// the system's programs.
pub(super) fn is_shown(mount: &Mount) -> bool {
    match mount {
        Mount::Tree {
            source: MountSource::OwnBinary,
            ..
        }
        | Mount::Tmpfs { .. }
        | Mount::File { .. } => true,
        Mount::Tree {
            target,
            access,
            optional,
            ..
        } => *access != MountAccess::Device && !optional && target != "/usr",
        // Covers are already part of the staged trees.
        Mount::Overlay { .. }
        | Mount::Hidden { .. }
        | Mount::Held { .. }
        | Mount::ReadOnly { .. }
        | Mount::Replaced { .. }
        | Mount::Mirror { .. }
        | Mount::Proc { .. }
        | Mount::Dir { .. }
        | Mount::Terminals
        | Mount::Link { .. } => false,
    }
}

/// The command of pid 1: this program, started by the host's loader where it needs one, so that it
/// runs in every image.
pub(super) fn entrypoint_argv(libraries: &[Library], words: &[&str]) -> Vec<String> {
    let own = |word: &str| word.to_owned();
    let mut argv = match libraries.iter().find(|library| library.is_loader()) {
        Some(loader) => vec![
            format!("{LIBRARIES}/{}", loader.name),
            own("--argv0"),
            own(ARG0_ENTRY),
            own("--library-path"),
            own(LIBRARIES),
            own(MARSHAL),
        ],
        // An engine has no option for argv[0], so the path carries the name.
        None => vec![own(ARG0_ENTRY)],
    };
    argv.extend(words.iter().copied().map(own));
    argv
}

/// The engine's complete command line.
pub(super) fn run_argv(spec: &ContainerSpec<'_>) -> Vec<String> {
    let ContainerSpec {
        container, plan, ..
    } = spec;
    let podman = container.flavour == ContainerCli::Podman;
    let mut args = container.program.clone();
    let mut say = |word: String| args.push(word);
    for word in ["run", "--detach", "--rm", "--pull=never", "--read-only"] {
        say(word.to_owned());
    }
    say(format!("--name={}", container.name));
    for label in &container.labels {
        say(format!("--label={label}"));
    }
    say(match plan.network {
        NetworkMode::Loopback => "--network=none".to_owned(),
        NetworkMode::Host => "--network=host".to_owned(),
    });
    say(format!("--hostname={}", plan.hostname));
    for word in [
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--ipc=private",
        "--cgroupns=private",
        "--workdir=/",
        "--log-driver=none",
        "--no-healthcheck",
        "--restart=no",
        "--ulimit=core=0:0",
    ] {
        say(word.to_owned());
    }
    let nofile = spec.limits.nofile;
    say(format!("--ulimit=nofile={nofile}:{nofile}"));
    let limit = spec.processes;
    say(format!("--ulimit=nproc={limit}:{limit}"));
    say(format!("--env={MARKER}={}", spec.marker));
    push_id_options(container.flavour, plan.ids, &mut say);
    if podman {
        for word in [
            "--read-only-tmpfs=false",
            "--unsetenv-all",
            "--http-proxy=false",
            "--no-hosts",
            "--passwd=false",
            "--image-volume=ignore",
            "--systemd=false",
            "--sdnotify=ignore",
        ] {
            say(word.to_owned());
        }
        say(format!(
            "--security-opt=mask={}",
            plan::masked_proc_paths().0.join(":")
        ));
        // Agents do not need these, and they reveal much about the host.
        for target in ["/sys", "/sys/fs/cgroup"] {
            say(format!(
                "--mount=type=tmpfs,destination={target},ro=true,tmpfs-size=4096"
            ));
        }
    }
    push_mount_options(spec, &mut say);
    push_limit_options(container, &mut say);
    for word in &container.extra {
        say(word.clone());
    }
    let mut start = entrypoint_argv(spec.libraries, &[BY_SOCKET]).into_iter();
    say(format!("--entrypoint={}", start.next().unwrap_or_default()));
    say(container.image.clone());
    start.for_each(say);
    args
}

/// The users that the container maps to outside. Never root of the host: procfs would trust the
/// agent as root.
fn push_id_options(flavour: ContainerCli, ids: HostIds, say: &mut impl FnMut(String)) {
    let id = AGENT_ID;
    match (flavour, ids) {
        // The engine maps only one range that starts at 0: the slot's uid becomes the agent's, and
        // the ids below it, which the supervisor reserves too, belong to nobody.
        (ContainerCli::Podman, HostIds::Root { slot_uid }) => {
            let first = slot_uid.saturating_sub(id);
            let count = id + 1;
            say(format!("--uidmap=0:{first}:{count}"));
            say(format!("--gidmap=0:{first}:{count}"));
            say(format!("--user={id}:{id}"));
        }
        (ContainerCli::Podman, HostIds::Own { .. }) => {
            say(format!("--userns=keep-id:uid={id},gid={id}"));
            say(format!("--user={id}:{id}"));
        }
        (ContainerCli::Docker, ids) => {
            let (uid, gid) = ids.uid_and_gid();
            say(format!("--user={uid}:{gid}"));
        }
    }
}

/// Resource limits. An option in the configuration file takes precedence over ours.
fn push_limit_options(container: &Container, say: &mut impl FnMut(String)) {
    let Some(limits) = &container.limits else {
        return;
    };
    if let Some(pids) = limits.pids {
        say(format!("--pids-limit={pids}"));
    }
    if let Some(memory) = limits.memory {
        say(format!("--memory={memory}b"));
        // The engines have one option for memory and swap together.
        if let Some(both) = limits.swap.and_then(|swap| memory.checked_add(swap)) {
            say(format!("--memory-swap={both}b"));
        }
    }
    if let Some(millis) = limits.cpu_millis {
        say(format!("--cpus={}.{:03}", millis / 1000, millis % 1000));
    }
}

fn push_mount_options(spec: &ContainerSpec<'_>, say: &mut impl FnMut(String)) {
    let flavour = spec.container.flavour;
    for (mount, placed) in spec.plan.mounts.iter().zip(spec.placed) {
        match (mount, placed) {
            (Mount::Tree { target, access, .. }, StagedMount::At { path, .. }) => {
                say(bind_mount_option(
                    flavour,
                    path,
                    target,
                    *access == MountAccess::Rw,
                ));
            }
            (Mount::File { target, .. }, StagedMount::At { path, .. }) => {
                say(bind_mount_option(flavour, path, target, false));
            }
            (Mount::Tmpfs { target, .. }, StagedMount::At { path, .. }) => {
                say(bind_mount_option(flavour, path, target, true));
            }
            (
                Mount::Tmpfs {
                    target,
                    bytes,
                    mode,
                    ..
                },
                StagedMount::MadeByEngine,
            ) => {
                // The directory would belong to root inside, so the agent's own directories are
                // world-writable instead; nobody else is in the container.
                let mode = if [HOME, WORKSPACE].contains(&target.as_str()) {
                    0o777
                } else {
                    *mode
                };
                say(format!(
                    "--tmpfs={target}:rw,nosuid,nodev,size={bytes},mode={mode:o}"
                ));
            }
            _ => {}
        }
    }
    for library in spec.libraries {
        let target = format!("{LIBRARIES}/{}", library.name);
        say(bind_mount_option(flavour, &library.path, &target, false));
    }
    if spec.libraries.is_empty()
        && let Some(path) = own_binary(spec)
    {
        say(bind_mount_option(flavour, path, ARG0_ENTRY, false));
    }
    say(bind_mount_option(flavour, spec.link, LINK, false));
}

fn own_binary<'a>(spec: &'a ContainerSpec<'_>) -> Option<&'a str> {
    let mut both = spec.plan.mounts.iter().zip(spec.placed);
    both.find_map(|(mount, placed)| match (mount, placed) {
        (
            Mount::Tree {
                source: MountSource::OwnBinary,
                ..
            },
            StagedMount::At { path, .. },
        ) => Some(&**path),
        _ => None,
    })
}

fn bind_mount_option(flavour: ContainerCli, from: &str, to: &str, writable: bool) -> String {
    let mut fields = vec![
        "type=bind".to_owned(),
        format!("source={from}"),
        format!("destination={to}"),
        "bind-propagation=rprivate".to_owned(),
    ];
    if !writable {
        fields.push("readonly=true".to_owned());
    }
    if flavour == ContainerCli::Podman {
        fields.extend(["nosuid", "nodev"].map(str::to_owned));
    }
    let fields: Vec<String> = fields.iter().map(|field| quote_csv(field)).collect();
    format!("--mount={}", fields.join(","))
}

/// Quotes a field of comma-separated values, the format of the engines' `--mount` option.
fn quote_csv(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// The command that checks whether a container exists.
pub(super) fn inspect_argv(container: &Container) -> Vec<String> {
    let words = ["container", "inspect", "--format={{.Id}}"];
    engine_argv(container, &words)
}

/// The command that removes a container.
pub(super) fn remove_argv(container: &Container) -> Vec<String> {
    match container.flavour {
        ContainerCli::Podman => engine_argv(container, &["rm", "--force", "--time=0"]),
        ContainerCli::Docker => engine_argv(container, &["rm", "--force"]),
    }
}

fn engine_argv(container: &Container, words: &[&str]) -> Vec<String> {
    let words = words.iter().map(|&word| word.to_owned());
    container
        .program
        .iter()
        .cloned()
        .chain(words)
        .chain([container.name.clone()])
        .collect()
}
