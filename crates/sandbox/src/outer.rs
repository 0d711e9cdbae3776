//! The outer helper: switches to the slot's uid, creates the namespaces, opens the host's
//! directories for the sandbox, and starts pid 1.
//!
//! It is the process that the supervisor knows. When it ends, the kernel ends pid 1 and with it
//! every process inside. It ends only after all of them are gone, so its end is the proof. The
//! order of steps matters: each step needs rights that a later one drops.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::CapabilitySet;

use super::failure::{FailureContext, StepResult, failure};
use super::host_trees::{self, OpenedTrees, SupervisorBinary};
use super::{control, loopback, overlay_layers, privilege, seccomp, warden};
use marshal_wire::shim::{
    AGENT_ID, ARG0_INIT, CgroupReady, EnterMessage, HelperReport, HostIds, MARKER, NetworkMode,
    Seccomp, ShimPlan, Stage, StartMessage, VERSION,
};

/// Runs as the outer helper. Its stdin is the control socket.
pub(super) fn main() -> ExitCode {
    if privilege::close_inherited().is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(control) = control::from_stdin() else {
        return ExitCode::FAILURE;
    };
    match prepare(&control) {
        Ok((init, link)) => {
            // From here on pid 1 reports. A second open copy would hide its death from the
            // supervisor.
            drop(control);
            let code = watch(init);
            drop(link);
            code
        }
        Err(failure) => {
            let _ = control::send(&control, &HelperReport::Failed(failure), &[]);
            ExitCode::FAILURE
        }
    }
}

fn prepare(control: &UnixStream) -> StepResult<(Child, UnixStream)> {
    warden::redirect_stdio_to_null()?;
    let _ = rustix::thread::set_name(c"marshal-sandbox");
    let (start, mut stdio): (StartMessage, Vec<OwnedFd>) =
        control::receive(control).at(Stage::Shim, "read the plan")?;
    let program = start.program_beside.then(|| stdio.pop()).flatten();
    let (Some(plan), VERSION) = (&start.plan, start.version) else {
        return Err(failure(Stage::Shim, "the plan is not one for a sandbox"));
    };
    if stdio.len() != 3 + usize::from(plan.has_entry) {
        return Err(failure(Stage::Shim, "the agent's pipes did not arrive"));
    }
    let stay_with_supervisor = || privilege::die_with_parent(Signal::KILL, Some(start.parent));
    stay_with_supervisor()?;
    rustix::process::setsid().at(Stage::Shim, "start a session")?;
    rustix::process::chdir("/").on(Stage::Shim, "enter", "/")?;

    // Read as the user that runs marshal, before any id changes.
    let filter = match &plan.seccomp {
        Seccomp::File(path) => Some(seccomp::read_profile_file(path)?),
        Seccomp::BuiltIn | Seccomp::Off => None,
    };
    let opened_as_root = match plan.ids {
        HostIds::Root { slot_uid } => {
            let binary = host_trees::own_binary(program.as_ref())?;
            // Trees opened in the host's mount namespace are peers of its shared mounts: what is
            // then mounted inside such a tree would appear on the host too.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
                .at(Stage::Mount, "unshare the host's mounts")?;
            let private = rustix::mount::MountPropagationFlags::PRIVATE
                | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).on(Stage::Mount, "make private", "/")?;
            let trees = host_trees::open(plan, SupervisorBinary::Tree(binary))?;
            privilege::become_user(slot_uid, slot_uid)?;
            stay_with_supervisor()?;
            Some(trees)
        }
        HostIds::Own { uid, gid } => {
            check_own(uid, gid)?;
            None
        }
    };
    privilege::no_new_privileges()?;
    make_namespaces(plan)?;
    stay_with_supervisor()?;
    let mut trees = match opened_as_root {
        Some(trees) => trees,
        None => host_trees::open(
            plan,
            SupervisorBinary::Path(host_trees::own_binary_path(program.as_ref())?),
        )?,
    };
    overlay_layers::mount_overlays(&mut trees)?;
    privilege::set_dumpable(DumpableBehavior::NotDumpable)?;
    if plan.network == NetworkMode::Loopback {
        loopback::up()?;
        loopback::hand_out(control, &plan.listen)?;
    }
    rustix::system::sethostname(plan.hostname.as_bytes()).at(Stage::Uts, "set the host name")?;
    // What pid 1 still needs: to mount, and to empty its bounding set.
    privilege::keep_capabilities_across_exec(CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP)?;
    let (CgroupReady, _) = control::receive(control).at(Stage::Shim, "wait for the cgroups")?;
    // After the supervisor moved this process into its cgroup, which becomes the namespace's root.
    nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP)
        .at(Stage::Userns, "create the cgroup namespace")?;
    let (init, link) = spawn_init(control)?;
    privilege::drop_capabilities()?;
    hand_over(&link, start, &stdio, trees, filter)?;
    Ok((init, link))
}

/// Without root no ids change: the plan must be for the caller's own.
fn check_own(uid: u32, gid: u32) -> StepResult {
    let real = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if (uid, gid) == real && uid != 0 {
        Ok(())
    } else {
        Err(failure(
            Stage::Uid,
            format!("the plan is for uid {uid} and gid {gid}, but the helper runs as {real:?}"),
        ))
    }
}

/// Creates new namespaces of every kind except time, with the caller's ids as the user inside.
/// Nested user namespaces are disabled: agents do not need them, and attackers do.
fn make_namespaces(plan: &ShimPlan) -> StepResult {
    let mut flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    if plan.network == NetworkMode::Loopback {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    let (uid, gid) = plan.ids.uid_and_gid();
    // After a change of uid, the process's own files in /proc belong to root until it is dumpable
    // again.
    privilege::set_dumpable(DumpableBehavior::Dumpable)?;
    nix::sched::unshare(flags).at(Stage::Userns, "create the namespaces")?;
    privilege::set_dumpable(DumpableBehavior::Dumpable)?;
    for (path, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{AGENT_ID} {uid} 1\n")),
        ("/proc/self/gid_map", format!("{AGENT_ID} {gid} 1\n")),
        ("/proc/sys/user/max_user_namespaces", "0\n".to_owned()),
    ] {
        fs::write(path, text).on(Stage::Userns, "write", path)?;
    }
    Ok(())
}

/// Starts pid 1: the first process started after the pid namespace was created.
fn spawn_init(control: &UnixStream) -> StepResult<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair().at(Stage::Shim, "create the socket pair to pid 1")?;
    let control = control
        .as_fd()
        .try_clone_to_owned()
        .at(Stage::Shim, "copy the control socket")?;
    let marker = std::env::var_os(MARKER).unwrap_or_default();
    let init = Command::new("/proc/self/exe")
        .arg0(ARG0_INIT)
        .env_clear()
        .env(MARKER, marker)
        .stdin(Stdio::from(control))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::null())
        .spawn()
        .on(
            Stage::Shim,
            "start pid 1 of the sandbox from",
            "/proc/self/exe",
        )?;
    Ok((init, ours))
}

/// Sends pid 1 the plan, the agent's pipes and the trees, and closes its own copies.
fn hand_over(
    link: &UnixStream,
    start: StartMessage,
    stdio: &[OwnedFd],
    trees: OpenedTrees,
    filter: Option<String>,
) -> StepResult {
    let OpenedTrees {
        opened,
        descriptors,
        notes,
        ..
    } = trees;
    let sent: Vec<BorrowedFd<'_>> = stdio.iter().chain(&descriptors).map(AsFd::as_fd).collect();
    control::send(
        link,
        &EnterMessage {
            start,
            opened,
            notes,
            filter,
        },
        &sent,
    )
    .at(Stage::Shim, "send the plan to pid 1")
}

/// Waits for pid 1. SIGTERM is the order to kill it. When pid 1 ends, the kernel kills every
/// process inside, and reports pid 1's end only when all of them are gone.
fn watch(mut init: Child) -> ExitCode {
    let mut mask = SigSet::empty();
    for signal in [NixSignal::SIGCHLD, NixSignal::SIGTERM] {
        mask.add(signal);
    }
    let signals = mask
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC));
    if let Ok(signals) = signals {
        // Check now for an exit before the signal mask was set.
        while matches!(init.try_wait(), Ok(None)) {
            match signals.read_signal() {
                Ok(Some(signal)) if signal.ssi_signo == NixSignal::SIGTERM as u32 => break,
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(_) => break,
            }
        }
    }
    let _ = init.kill();
    match init.wait() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
