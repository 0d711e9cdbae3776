//! Pid 1 in a sandbox that another program created: verifies it, adds the layers that it can add
//! itself, and becomes the agent's warden, as in our own sandbox.
//!
//! It trusts nothing: it asks the kernel for the user, capabilities, root, network and directories
//! that the plan demands, and any mismatch ends the start.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::fs::{
    AtFlags, CWD, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, getpid};
use rustix::thread::CapabilitySet;

use super::super::failure::{FailureContext, StepResult, failure};
use super::super::open::open_within;
use super::super::sandbox_entry::EntryListener;
use super::super::warden::{Scope, Warden};
use super::super::{control, landlock, loopback, privilege, seccomp, warden};
use super::container::{BY_SOCKET, LINK};
use super::{BY_STDIN, ENTRYPOINT_READY, own_binary};
use marshal_model::limits::ENGINE_START;
use marshal_wire::engine::{ContainerCli, Engine};
use marshal_wire::shim::{
    AGENT_ID, ActiveLayers, EnterMessage, HelperReport, Mount, MountAccess, MountSource,
    NetworkMode, OpenedMount, SetupFailure, ShimPlan, Stage, VERSION,
};

/// Where the kernel lists the interfaces of the process's network namespace.
const INTERFACES: &str = "/proc/self/net/dev";

/// Runs as pid 1.
pub(in super::super) fn main() -> ExitCode {
    // The warden kills every process that it can see: make sure that this is only the sandbox's pid
    // namespace.
    if getpid() != Pid::INIT
        || privilege::close_inherited().is_err()
        || privilege::set_dumpable(DumpableBehavior::NotDumpable).is_err()
    {
        return ExitCode::FAILURE;
    }
    let Some((link, enter, mut descriptors)) = connect_to_helper() else {
        return ExitCode::FAILURE;
    };
    if descriptors.is_empty() {
        return ExitCode::FAILURE;
    }
    let control = UnixStream::from(descriptors.remove(0));
    match prepare(&control, enter, descriptors).and_then(|prepared| {
        let reports = control
            .try_clone()
            .at(Stage::Shim, "copy the control socket")?;
        Ok((prepared, reports))
    }) {
        Ok((prepared, reports)) => Warden {
            agent: prepared.agent,
            control,
            reports: File::from(OwnedFd::from(reports)),
            link: Some(link),
            entry_listener: prepared.entry_listener,
            scope: Scope::Namespace,
        }
        .watch(prepared.notes, Some(prepared.layers), || Ok(())),
        Err(failure) => {
            let _ = control::send(&control, &HelperReport::Failed(failure), &[]);
            ExitCode::FAILURE
        }
    }
}

/// Connects to the helper and receives the plan. Without a helper there is nobody to report to.
fn connect_to_helper() -> Option<(UnixStream, EnterMessage, Vec<OwnedFd>)> {
    let by = std::env::args().nth(1);
    let mut link = match by.as_deref() {
        Some(BY_STDIN) => control::from_stdin().ok()?,
        Some(BY_SOCKET) => UnixStream::connect(LINK).ok()?,
        _ => return None,
    };
    warden::redirect_stdio_to_null().ok()?;
    let _ = rustix::thread::set_name(c"marshal-entry");
    link.set_read_timeout(Some(ENGINE_START)).ok()?;
    let (enter, descriptors) = control::receive(&link).ok()?;
    link.set_read_timeout(None).ok()?;
    link.write_all(&[ENTRYPOINT_READY]).ok()?;
    Some((link, enter, descriptors))
}

/// The started agent and everything needed to watch it.
struct PreparedAgent {
    agent: Pid,
    entry_listener: Option<EntryListener>,
    notes: Vec<String>,
    layers: ActiveLayers,
}

fn prepare(
    control: &UnixStream,
    enter: EnterMessage,
    mut descriptors: Vec<OwnedFd>,
) -> StepResult<PreparedAgent> {
    let EnterMessage {
        start,
        mut opened,
        notes,
        filter,
    } = enter;
    let (Some(plan), VERSION) = (&start.plan, start.version) else {
        return Err(failure(Stage::Shim, "the plan is not one for a sandbox"));
    };
    let entry = descriptors.split_off(3.min(descriptors.len())).pop();
    let stdio: [OwnedFd; 3] = descriptors
        .try_into()
        .map_err(|_| failure(Stage::Shim, "the agent's pipes did not arrive"))?;
    if entry.is_some() != plan.has_entry {
        return Err(failure(
            Stage::Shim,
            "the socket for further helpers did not arrive",
        ));
    }
    if rustix::process::getsid(None).ok() != Some(getpid()) {
        rustix::process::setsid().at(Stage::Shim, "start a session")?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    privilege::no_new_privileges()?;
    privilege::drop_capabilities()?;
    check_user(plan, start.engine.as_ref())?;
    check_bounding_set()?;
    check_root_read_only()?;
    for (mount, opened) in plan.mounts.iter().zip(&opened) {
        check_mount(mount, opened)?;
    }
    if plan.network == NetworkMode::Loopback {
        check_only_loopback()?;
        loopback::hand_out(control, &plan.listen)?;
    }
    let mut program = start.program.clone();
    rustix::process::chdir(&*program.cwd).on(Stage::Mount, "enter", &program.cwd)?;
    privilege::set_rlimits(program.limits)?;
    program.argv = own_binary::with_loader(program.argv);
    let mut mounts = plan.mounts.clone();
    if matches!(start.engine, Some(Engine::Container(_))) {
        add_image_mounts(&mut mounts, &mut opened);
    }
    let landlock = landlock::enforce(&mounts, &opened, plan.network, plan.landlock_min_abi)?;
    // The filter goes last, just before the agent starts: every process started from here on
    // inherits it.
    let seal = seccomp::install_planned(&plan.seccomp, filter.as_deref())?;
    let agent = warden::start_agent(&program, stdio, seal)?;
    Ok(PreparedAgent {
        agent,
        entry_listener: entry.map(|socket| EntryListener::new(socket, seal)),
        notes,
        layers: ActiveLayers {
            ids: plan.ids,
            landlock,
            seccomp: plan.seccomp.clone(),
        },
    })
}

/// Adds mounts that an image and its engine provide beside the plan's: a readable and executable
/// root, and the devices.
fn add_image_mounts(mounts: &mut Vec<Mount>, opened: &mut Vec<OpenedMount>) {
    for (mount, opened) in mounts.iter().zip(opened.iter_mut()) {
        let is_device = matches!(
            mount,
            Mount::Tree {
                access: MountAccess::Device,
                ..
            }
        );
        if is_device {
            *opened = OpenedMount::Tree { is_dir: false };
        }
    }
    mounts.push(Mount::Tree {
        source: MountSource::Path("/".to_owned()),
        target: "/".to_owned(),
        access: MountAccess::Ro,
        optional: false,
        idmap: None,
        expect: None,
    });
    opened.push(OpenedMount::Tree { is_dir: true });
}

/// Checks the user: the agent's, or its uid of the host with docker, which has no id map for a
/// single container.
fn check_user(plan: &ShimPlan, engine: Option<&Engine>) -> StepResult {
    let is_docker =
        matches!(engine, Some(Engine::Container(it)) if it.flavour == ContainerCli::Docker);
    let expected = if is_docker {
        plan.ids.uid_and_gid()
    } else {
        (AGENT_ID, AGENT_ID)
    };
    let uids = (rustix::process::getuid(), rustix::process::geteuid());
    let gids = (rustix::process::getgid(), rustix::process::getegid());
    let actual = (uids.0.as_raw(), gids.0.as_raw());
    let effective = (uids.1.as_raw(), gids.1.as_raw());
    if actual == expected && effective == expected && expected.0 != 0 {
        return Ok(());
    }
    let what =
        format!("the user inside the sandbox is {actual:?}, expected {expected:?} (uid, gid)");
    Err(failure(Stage::Uid, what))
}

/// Checks that the bounding set is empty: with no_new_privs nothing gains capabilities, and without
/// a bounding set nothing could.
fn check_bounding_set() -> StepResult {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(false) => {}
            Ok(true) => {
                let what = format!("the capability {capability:?} is still in the bounding set");
                return Err(failure(Stage::Caps, what));
            }
            // The first number after the kernel's last capability.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error).at(Stage::Caps, "read the bounding set"),
        }
    }
    Ok(())
}

fn check_root_read_only() -> StepResult {
    let stat = rustix::fs::statvfs("/").on(Stage::Mount, "inspect", "/")?;
    if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    Err(failure(
        Stage::Mount,
        "the root file system inside the sandbox is writable",
    ))
}

/// Checks that a mount is the directory that was seen when the sandbox was planned, and read-only
/// if it must be.
fn check_mount(mount: &Mount, opened: &OpenedMount) -> StepResult {
    match mount {
        Mount::Hidden { target } => return check_hidden(target),
        Mount::Held { target } => return check_pinned(target, false),
        Mount::ReadOnly { target } | Mount::Replaced { target, .. } => {
            return check_pinned(target, true);
        }
        _ => {}
    }
    let (
        Mount::Tree {
            target,
            access,
            expect,
            ..
        },
        OpenedMount::Tree { .. },
    ) = (mount, opened)
    else {
        return Ok(());
    };
    let wrong = |what: &str| SetupFailure {
        path: Some(target.clone()),
        ..failure(Stage::Mount, what)
    };
    if let Some(expected) = expect {
        let stat = rustix::fs::stat(&**target).on(Stage::Mount, "inspect", target)?;
        if (stat.st_dev, stat.st_ino) != *expected {
            return Err(wrong("another directory has replaced"));
        }
    }
    let flags = rustix::fs::statvfs(&**target)
        .on(Stage::Mount, "inspect", target)?
        .f_flag;
    if *access == MountAccess::Ro && !flags.contains(StatVfsMountFlags::RDONLY) {
        return Err(wrong("mounted writable instead of read-only:"));
    }
    if *access == MountAccess::Rw && flags.contains(StatVfsMountFlags::RDONLY) {
        return Err(wrong("mounted read-only instead of writable:"));
    }
    Ok(())
}

/// Checks that a hidden path is a node without permissions on a read-only mount, or unreachable.
fn check_hidden(target: &str) -> StepResult {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let handle = match open_within(CWD, target, flags, resolve) {
        Ok(handle) => handle,
        Err(Errno::ACCESS) => return Ok(()),
        Err(errno) => return Err(errno).on(Stage::Mount, "hide", target),
    };
    let node = rustix::fs::fstat(&handle).on(Stage::Mount, "inspect", target)?;
    let mount = rustix::fs::fstatvfs(&handle).on(Stage::Mount, "inspect", target)?;
    if node.st_mode.trailing_zeros() >= 9 && mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    Err(SetupFailure {
        path: Some(target.to_owned()),
        ..failure(Stage::Mount, "no cover is mounted on")
    })
}

/// Checks that a pinned path is a mount point, which cannot be moved, or unreachable; and read-only
/// if it must be.
fn check_pinned(target: &str, read_only: bool) -> StepResult {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let handle = match open_within(CWD, target, flags, resolve) {
        Ok(handle) => handle,
        Err(Errno::ACCESS) => return Ok(()),
        Err(errno) => return Err(errno).on(Stage::Mount, "pin", target),
    };
    let stat = rustix::fs::statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).on(
        Stage::Mount,
        "inspect",
        target,
    )?;
    let is_mount = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let mount = rustix::fs::fstatvfs(&handle).on(Stage::Mount, "inspect", target)?;
    if read_only && !mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(SetupFailure {
            path: Some(target.to_owned()),
            ..failure(Stage::Mount, "mounted writable instead of read-only:")
        });
    }
    if stat
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT)
        && is_mount
    {
        return Ok(());
    }
    Err(SetupFailure {
        path: Some(target.to_owned()),
        ..failure(Stage::Mount, "no mount pins")
    })
}

/// Checks that the network namespace has no interface except the loopback.
fn check_only_loopback() -> StepResult {
    let table = std::fs::read_to_string(INTERFACES).on(Stage::Net, "read", INTERFACES)?;
    match other_interface(&table) {
        None => Ok(()),
        Some(name) => Err(failure(
            Stage::Net,
            format!("the sandbox's network has the interface {name}, expected only the loopback"),
        )),
    }
}

/// The first interface that is not the loopback.
fn other_interface(table: &str) -> Option<&str> {
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names
        .map(|(name, _)| name.trim())
        .find(|name| *name != "lo" && !name.contains(' ') && !name.contains('|'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_is_no_other() {
        let head = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes\n";
        let lo = "    lo:       0       0    0\n";
        assert_eq!(other_interface(&format!("{head}{lo}")), None);
        let both = format!("{head}{lo}  eth0: 1 2\n");
        assert_eq!(other_interface(&both), Some("eth0"));
    }
}
