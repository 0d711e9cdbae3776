//! A container engine's arguments for a plan: pure, so that they can be read and tested without it.
//!
//! The image gives the programs, so what a plan shows of the host's own is left out. Every bound is
//! said and nothing is left to the engine's settings where there is an option for it. Must not touch
//! the host.

use super::super::plan::{self, HOME, MARSHAL, WORKSPACE};
use super::stage::StagedMount;
use marshal_wire::engine::{Container, ContainerCli};
use marshal_wire::shim::{
    AGENT_ID, ARG0_ENTRY, HostIds, MARKER, Mount, MountAccess, MountSource, NetworkMode,
    ProcessLimits, ShimPlan,
};

/// Where the libraries of this program are inside.
pub(super) const LIBRARIES: &str = "/run/marshal/lib";
/// Where the socket is by which pid 1 finds its helper.
pub(super) const LINK: &str = "/run/marshal/link";
/// The word that tells the entry to look there.
pub(super) const BY_SOCKET: &str = "socket";

/// A library that this program needs, and the name by which it is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Library {
    /// On this host.
    pub(super) path: String,
    /// Its name.
    pub(super) name: String,
}

impl Library {
    /// Whether it is the one that loads the others.
    pub(super) fn is_loader(&self) -> bool {
        self.name.starts_with("ld-") || self.name.starts_with("ld64")
    }
}

/// What a container is made of.
#[derive(Debug)]
pub(super) struct ContainerSpec<'a> {
    pub(super) container: &'a Container,
    pub(super) plan: &'a ShimPlan,
    /// One entry for each mount.
    pub(super) placed: &'a [StagedMount],
    /// None for a program that needs none.
    pub(super) libraries: &'a [Library],
    /// The socket, on this host.
    pub(super) link: &'a str,
    pub(super) marker: &'a str,
    pub(super) limits: ProcessLimits,
    /// The most processes of its user.
    pub(super) processes: u64,
}

/// Whether a container is to be shown this mount: what belongs to the child, and what the profile
/// adds to the programs of the system.
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
        // A cover is a part of the tree that it covers.
        Mount::Overlay { .. }
        | Mount::Hidden { .. }
        | Mount::Held { .. }
        | Mount::Mirror { .. }
        | Mount::Proc { .. }
        | Mount::Dir { .. }
        | Mount::Terminals
        | Mount::Link { .. } => false,
    }
}

/// How pid 1 starts: this program, by the loader of the host where it needs one, so that it runs in
/// every image.
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
        // Its place is its name: an engine has no option for another.
        None => vec![own(ARG0_ENTRY)],
    };
    argv.extend(words.iter().copied().map(own));
    argv
}

/// The engine's whole command line.
pub(super) fn run_argv(asked: &ContainerSpec<'_>) -> Vec<String> {
    let ContainerSpec {
        container, plan, ..
    } = asked;
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
    let nofile = asked.limits.nofile;
    say(format!("--ulimit=nofile={nofile}:{nofile}"));
    let most = asked.processes;
    say(format!("--ulimit=nproc={most}:{most}"));
    say(format!("--env={MARKER}={}", asked.marker));
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
        // No use to an agent, and much to be learned of the host.
        for target in ["/sys", "/sys/fs/cgroup"] {
            say(format!(
                "--mount=type=tmpfs,destination={target},ro=true,tmpfs-size=4096"
            ));
        }
    }
    push_mount_options(asked, &mut say);
    push_limit_options(container, &mut say);
    for word in &container.extra {
        say(word.clone());
    }
    let mut start = entrypoint_argv(asked.libraries, &[BY_SOCKET]).into_iter();
    say(format!("--entrypoint={}", start.next().unwrap_or_default()));
    say(container.image.clone());
    start.for_each(say);
    args
}

/// Who the container's users are outside. Never root of the host, as which the agent would be
/// trusted by procfs.
fn push_id_options(flavour: ContainerCli, ids: HostIds, say: &mut impl FnMut(String)) {
    let id = AGENT_ID;
    match (flavour, ids) {
        // The engine maps one range only, from 0: it is the slot's own uid that becomes the agent's, and
        // those below it, which the supervisor holds too, are nobody's.
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

/// What the engine holds the container to. An option that stands in the file goes before ours.
fn push_limit_options(container: &Container, say: &mut impl FnMut(String)) {
    let Some(limits) = &container.limits else {
        return;
    };
    if let Some(pids) = limits.pids {
        say(format!("--pids-limit={pids}"));
    }
    if let Some(memory) = limits.memory {
        say(format!("--memory={memory}b"));
        // The engines' word for both together.
        if let Some(both) = limits.swap.and_then(|swap| memory.checked_add(swap)) {
            say(format!("--memory-swap={both}b"));
        }
    }
    if let Some(millis) = limits.cpu_millis {
        say(format!("--cpus={}.{:03}", millis / 1000, millis % 1000));
    }
}

fn push_mount_options(asked: &ContainerSpec<'_>, say: &mut impl FnMut(String)) {
    let flavour = asked.container.flavour;
    for (mount, placed) in asked.plan.mounts.iter().zip(asked.placed) {
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
                // It would belong to root inside: what is to be the agent's own is open instead,
                // with nobody else there.
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
    for library in asked.libraries {
        let target = format!("{LIBRARIES}/{}", library.name);
        say(bind_mount_option(flavour, &library.path, &target, false));
    }
    if asked.libraries.is_empty()
        && let Some(path) = own_binary(asked)
    {
        say(bind_mount_option(flavour, path, ARG0_ENTRY, false));
    }
    say(bind_mount_option(flavour, asked.link, LINK, false));
}

fn own_binary<'a>(asked: &'a ContainerSpec<'_>) -> Option<&'a str> {
    let mut both = asked.plan.mounts.iter().zip(asked.placed);
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

/// A field of a line of comma-separated values, which is what the engines read here.
fn quote_csv(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// The commands by which a container is looked for and removed.
pub(super) fn inspect_argv(container: &Container) -> Vec<String> {
    let words = ["container", "inspect", "--format={{.Id}}"];
    engine_argv(container, &words)
}

/// See [`look`].
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
