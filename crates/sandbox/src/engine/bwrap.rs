//! bubblewrap's arguments for a plan: pure, so that tests need no bubblewrap.
//!
//! Every option is explicit, so that no default of bubblewrap applies. Must not touch the host.

use super::super::plan;
use super::stage::StagedMount;
use marshal_wire::shim::{AGENT_ID, ARG0_ENTRY, MARKER, Mount, MountAccess, NetworkMode, ShimPlan};

/// The name of the entrypoint, as the target of a relative link.
const ENTRYPOINT_LINK_TARGET: &str = "marshal";

/// The options, without the program name and the command to start.
///
/// `placed` has one entry for each mount; `data` returns the number of a descriptor that a text can
/// be read from; `covers` says whether a path of `/proc` exists, and whether it is a directory.
pub(super) fn options(
    plan: &ShimPlan,
    placed: &[StagedMount],
    marker: &str,
    mut data: impl FnMut(&str) -> i32,
    covers: impl Fn(&str) -> Option<bool>,
) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut say = |words: &[&str]| args.extend(words.iter().map(|&word| word.to_owned()));
    say(&["--unshare-all", "--unshare-user", "--unshare-cgroup"]);
    if plan.network == NetworkMode::Host {
        say(&["--share-net"]);
    }
    let id = AGENT_ID.to_string();
    say(&["--disable-userns", "--new-session", "--die-with-parent"]);
    say(&["--as-pid-1", "--cap-drop", "ALL", "--clearenv"]);
    say(&["--uid", &id, "--gid", &id, "--hostname", &plan.hostname]);
    say(&["--setenv", MARKER, marker]);
    for (mount, placed) in plan.mounts.iter().zip(placed) {
        match (mount, placed) {
            (Mount::Tree { target, access, .. }, StagedMount::At { path, .. }) => {
                let how = match access {
                    MountAccess::Ro => "--ro-bind",
                    MountAccess::Rw => "--bind",
                    MountAccess::Device => "--dev-bind",
                };
                say(&[how, path, target]);
            }
            (
                Mount::Mirror { path: target } | Mount::File { target, .. },
                StagedMount::At { path, .. },
            ) => {
                say(&["--ro-bind", path, target]);
            }
            (Mount::Mirror { path }, StagedMount::Link { to }) => say(&["--symlink", to, path]),
            (Mount::Tmpfs { target, .. }, StagedMount::At { path, .. }) => {
                say(&["--bind", path, target]);
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
                let (mode, bytes) = (format!("{mode:04o}"), bytes.to_string());
                say(&["--perms", &mode, "--size", &bytes, "--tmpfs", target]);
            }
            (Mount::Proc { .. }, _) => {
                say(&["--proc", "/proc"]);
                let (covered, read_only) = plan::masked_proc_paths();
                for path in &covered {
                    match covers(path) {
                        Some(true) => say(&["--tmpfs", path, "--remount-ro", path]),
                        Some(false) => say(&["--ro-bind", "/dev/null", path]),
                        None => {}
                    }
                }
                for path in read_only.iter().filter(|path| covers(path).is_some()) {
                    say(&["--ro-bind", path, path]);
                }
            }
            (Mount::File { target, text }, StagedMount::MadeByEngine) => {
                let number = data(text).to_string();
                say(&["--perms", "0644", "--ro-bind-data", &number, target]);
            }
            (Mount::Dir { target }, _) => say(&["--dir", target]),
            (Mount::Link { target, to }, _) => say(&["--symlink", to, target]),
            // An optional source that does not exist, or a part of a tree.
            (
                Mount::Tree { .. }
                | Mount::Mirror { .. }
                | Mount::Tmpfs { .. }
                | Mount::Terminals
                | Mount::File { .. }
                | Mount::Overlay { .. }
                | Mount::Hidden { .. }
                | Mount::Held { .. }
                | Mount::ReadOnly { .. }
                | Mount::Replaced { .. },
                _,
            ) => {}
        }
    }
    say(&["--symlink", ENTRYPOINT_LINK_TARGET, ARG0_ENTRY]);
    say(&["--remount-ro", "/", "--chdir", "/"]);
    args
}

/// Whether bubblewrap mounts this: everything except covers and pins, which are already part of the
/// staged trees.
pub(super) const fn is_shown(mount: &Mount) -> bool {
    !matches!(
        mount,
        Mount::Hidden { .. } | Mount::Held { .. } | Mount::ReadOnly { .. } | Mount::Replaced { .. }
    )
}
