//! One probe, in its own process: it does what the shim would do, and reports how far it got.
//!
//! Started as `marshal-probe` with the request as its only argument; it prints one JSON object to
//! stdout. Must not leave anything behind: what it creates is in its own namespaces, or removed.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sched::CloneFlags;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::CapabilitySet;

use super::probe::{ProbeRequest, ProbeResult};
use super::{Feature, host};
use crate::failure::{FailureContext, StepResult, failure};
use crate::{idmap, loopback, privilege};
use marshal_wire::shim::{AGENT_ID, ARG0_PROBE, HostIds, IdMap, SetupFailure, Stage};

/// Inodes of the tmpfs that shows whether a limit is applied.
const INODES: u64 = 64;
/// Suffix of the feature's name in the request to pid 1 of a probe.
const INSIDE_SUFFIX: &str = "/inside";

/// Runs a probe.
pub(crate) fn main() -> ExitCode {
    let Some(order) = std::env::args().nth(1) else {
        return ExitCode::FAILURE;
    };
    if privilege::close_inherited().is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(order) = serde_json::from_str::<ProbeRequest>(&order) else {
        return ExitCode::FAILURE;
    };
    let (word, is_inside) = match order.feature.strip_suffix(INSIDE_SUFFIX) {
        Some(word) => (word, true),
        None => (&*order.feature, false),
    };
    let Some(feature) = Feature::parse(word) else {
        return ExitCode::FAILURE;
    };
    // Inside a new pid namespace the parent has no pid.
    let parent = (!is_inside).then_some(order.parent);
    if privilege::die_with_parent(Signal::KILL, parent).is_err() {
        return ExitCode::FAILURE;
    }
    let result = match probe_feature(feature, is_inside, &order) {
        // Pid 1 of the probe has printed the answer.
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(result)) => result,
        Err(failed) => ProbeResult {
            errno: failed.errno,
            hint: hint(feature, &failed),
            detail: match &failed.path {
                Some(path) => format!("{} {path}", failed.what),
                None => failed.what,
            },
            ..ProbeResult::unknown()
        },
    };
    let written = serde_json::to_vec(&result)
        .map_err(std::io::Error::other)
        .and_then(|bytes| std::io::stdout().write_all(&bytes));
    if written.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A feature that is available.
pub(super) fn feature_present(detail: impl Into<String>) -> ProbeResult {
    ProbeResult {
        has: true,
        detail: detail.into(),
        ..ProbeResult::unknown()
    }
}

/// A feature that is missing.
pub(super) fn feature_missing(detail: impl Into<String>) -> ProbeResult {
    ProbeResult {
        detail: detail.into(),
        ..ProbeResult::unknown()
    }
}

fn hint(feature: Feature, failed: &SetupFailure) -> Option<String> {
    const PERMISSION: [i32; 2] = [libc::EPERM, libc::EACCES];
    let denied = failed
        .errno
        .is_some_and(|errno| PERMISSION.contains(&errno));
    if feature == Feature::UserNs
        && denied
        && let Some(why) = host::apparmor_hint()
    {
        return Some(why);
    }
    if failed.errno == Some(libc::ENOSYS) {
        return Some(
            "this kernel lacks the system call, or a seccomp filter around marshal blocks it"
                .to_owned(),
        );
    }
    failed.hint().map(str::to_owned)
}

fn probe_feature(
    feature: Feature,
    is_inside: bool,
    order: &ProbeRequest,
) -> StepResult<Option<ProbeResult>> {
    let none = CloneFlags::empty();
    let result = match feature {
        Feature::UserNs => {
            enter_user_namespace(order.ids, none)?;
            match order.ids {
                HostIds::Root { .. } => feature_present("for a slot's uid"),
                HostIds::Own { .. } => feature_present("for this user"),
            }
        }
        Feature::MountNs => probe_namespace(order.ids, CloneFlags::CLONE_NEWNS)?,
        Feature::PidNs => probe_namespace(order.ids, CloneFlags::CLONE_NEWPID)?,
        Feature::NetNs => probe_namespace(order.ids, CloneFlags::CLONE_NEWNET)?,
        Feature::IpcNs => probe_namespace(order.ids, CloneFlags::CLONE_NEWIPC)?,
        Feature::UtsNs => probe_namespace(order.ids, CloneFlags::CLONE_NEWUTS)?,
        Feature::CgroupNs => probe_namespace(order.ids, CloneFlags::CLONE_NEWCGROUP)?,
        Feature::NoMoreUserNs => {
            const BOUND: &str = "/proc/sys/user/max_user_namespaces";
            enter_user_namespace(order.ids, none)?;
            fs::write(BOUND, "0\n").on(Stage::Userns, "write", BOUND)?;
            feature_present("0 inside")
        }
        Feature::MountApi => mount_api(order.ids)?,
        Feature::TmpfsInodes => tmpfs_inodes(order.ids)?,
        Feature::PivotRoot => pivot_root(order.ids)?,
        Feature::ProcPid | Feature::ProcFull if is_inside => proc(feature)?,
        Feature::ProcPid | Feature::ProcFull => return start_pid_1(feature, order),
        Feature::Loopback => {
            enter_user_namespace(order.ids, CloneFlags::CLONE_NEWNET)?;
            loopback::up()?;
            feature_present("up in a new network namespace")
        }
        Feature::IdmapState | Feature::IdmapWorkspace => idmapped(order)?,
        Feature::Overlay => overlay(order.ids)?,
        Feature::NoNewPrivs => {
            privilege::no_new_privileges()?;
            feature_present("set")
        }
        Feature::Caps => {
            enter_user_namespace(order.ids, none)?;
            privilege::empty_bounding_set()?;
            privilege::drop_capabilities()?;
            feature_present("all can be dropped")
        }
        Feature::Seccomp => seccomp()?,
        Feature::Landlock | Feature::LandlockNet | Feature::LandlockScope => landlock(feature)?,
        _ => host::check_feature(feature, order),
    };
    Ok(Some(result))
}

/// Enters a user namespace as the agent's user would, together with the namespaces `more`.
fn enter_user_namespace(ids: HostIds, more: CloneFlags) -> StepResult {
    if let HostIds::Root { slot_uid } = ids {
        privilege::become_user(slot_uid, slot_uid)?;
        privilege::die_with_parent(Signal::KILL, None)?;
    }
    let (uid, gid) = ids.uid_and_gid();
    // After a change of uid, the process's own files in /proc belong to root until it is dumpable
    // again.
    privilege::set_dumpable(DumpableBehavior::Dumpable)?;
    privilege::no_new_privileges()?;
    let at = "create a user namespace";
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER).at(Stage::Userns, at)?;
    privilege::set_dumpable(DumpableBehavior::Dumpable)?;
    for (path, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{AGENT_ID} {uid} 1\n")),
        ("/proc/self/gid_map", format!("{AGENT_ID} {gid} 1\n")),
    ] {
        fs::write(path, text).on(Stage::Userns, "write", path)?;
    }
    if !more.is_empty() {
        nix::sched::unshare(more).at(Stage::Shim, "create the namespace")?;
    }
    Ok(())
}

fn probe_namespace(ids: HostIds, kind: CloneFlags) -> StepResult<ProbeResult> {
    enter_user_namespace(ids, kind)?;
    Ok(feature_present(""))
}

/// Enters user and mount namespaces whose mounts the host does not see.
fn enter_mount_namespace(ids: HostIds) -> StepResult {
    enter_user_namespace(ids, CloneFlags::CLONE_NEWNS)?;
    make_private()
}

fn make_private() -> StepResult {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).on(Stage::Mount, "make private", "/")
}

/// A directory that exists on every host and that the probe may cover.
fn scratch_mount_point() -> &'static str {
    if Path::new("/tmp").is_dir() {
        "/tmp"
    } else {
        "/usr"
    }
}

/// Mounts a tmpfs on that directory.
fn mount_tmpfs() -> StepResult<std::os::fd::OwnedFd> {
    let context =
        rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).at(Stage::Mount, "fsopen")?;
    for (key, value) in [
        ("size", "1048576".to_owned()),
        ("nr_inodes", INODES.to_string()),
    ] {
        rustix::mount::fsconfig_set_string(&context, key, value)
            .at(Stage::Mount, &format!("fsconfig {key}"))?;
    }
    rustix::mount::fsconfig_create(&context).at(Stage::Mount, "fsconfig")?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
        .at(Stage::Mount, "fsmount")?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&memory, "", CWD, scratch_mount_point(), empty)
        .at(Stage::Mount, "move_mount")?;
    Ok(memory)
}

fn mount_api(ids: HostIds) -> StepResult<ProbeResult> {
    enter_mount_namespace(ids)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(CWD, "/usr", flags).on(Stage::Mount, "open_tree", "/usr")?;
    mount_tmpfs()?;
    Ok(feature_present("fsopen, fsmount, open_tree, move_mount"))
}

fn tmpfs_inodes(ids: HostIds) -> StepResult<ProbeResult> {
    enter_mount_namespace(ids)?;
    let memory = mount_tmpfs()?;
    let has_inodes = rustix::fs::fstatvfs(&memory)
        .at(Stage::Mount, "statvfs")?
        .f_files;
    Ok(if has_inodes == INODES {
        feature_present("bounded")
    } else {
        feature_missing(format!(
            "{has_inodes} inodes instead of the requested {INODES}"
        ))
    })
}

fn pivot_root(ids: HostIds) -> StepResult<ProbeResult> {
    enter_mount_namespace(ids)?;
    let memory = mount_tmpfs()?;
    rustix::process::fchdir(&memory).at(Stage::Mount, "enter the new root")?;
    rustix::process::pivot_root(".", ".").at(Stage::Mount, "pivot_root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).at(Stage::Mount, "unmount the old root")?;
    Ok(feature_present(""))
}

/// Starts pid 1 of a new pid namespace, which prints the answer instead.
fn start_pid_1(feature: Feature, order: &ProbeRequest) -> StepResult<Option<ProbeResult>> {
    enter_user_namespace(
        order.ids,
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID,
    )?;
    make_private()?;
    privilege::keep_capabilities_across_exec(CapabilitySet::SYS_ADMIN)?;
    let order = ProbeRequest {
        feature: format!("{}{INSIDE_SUFFIX}", feature.as_str()),
        ..order.clone()
    };
    let order = serde_json::to_string(&order)
        .map_err(std::io::Error::other)
        .at(Stage::Shim, "write the probe request")?;
    let status = Command::new("/proc/self/exe")
        .arg0(ARG0_PROBE)
        .arg(order)
        .env_clear()
        .stdin(Stdio::null())
        .status()
        .at(Stage::Shim, "start pid 1 of the pid namespace")?;
    if status.success() {
        Ok(None)
    } else {
        Err(failure(
            Stage::Shim,
            format!("pid 1 of the pid namespace: {status}"),
        ))
    }
}

fn proc(feature: Feature) -> StepResult<ProbeResult> {
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)
        .at(Stage::Proc, "fsopen proc")?;
    if feature == Feature::ProcPid {
        rustix::mount::fsconfig_set_string(&context, "subset", "pid")
            .at(Stage::Proc, "fsconfig subset=pid")?;
    }
    rustix::mount::fsconfig_create(&context).at(Stage::Proc, "mount proc")?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)
        .at(Stage::Proc, "mount proc")?;
    Ok(feature_present(""))
}

/// Maps the owner of a directory to the agent, in a new mount.
fn idmapped(order: &ProbeRequest) -> StepResult<ProbeResult> {
    let HostIds::Root { slot_uid } = order.ids else {
        return Ok(feature_missing("only root can create an id-mapped mount"));
    };
    let Some(at) = &order.at else {
        return Ok(feature_missing("no directory to check"));
    };
    // The directory may not exist yet: the nearest existing parent has the same file system.
    let there = Path::new(at)
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    let stat = rustix::fs::stat(there).on(Stage::Idmap, "examine", there)?;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).at(Stage::Mount, "unshare the host's mounts")?;
    make_private()?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, there, flags).on(Stage::Idmap, "open_tree", there)?;
    let map = IdMap {
        uid: stat.st_uid,
        gid: stat.st_gid,
        or_plain: false,
    };
    idmap::apply(
        &tree,
        map,
        (slot_uid, slot_uid),
        &mut idmap::Maps::default(),
    )
    .map_err(|failed| SetupFailure {
        what: if failed.errno.is_some() && failed.path.is_none() {
            "mount_setattr".to_owned()
        } else {
            failed.what.clone()
        },
        path: failed
            .path
            .clone()
            .or_else(|| Some(there.to_string_lossy().into_owned())),
        ..failed
    })?;
    Ok(feature_present(
        host::file_system(there).unwrap_or_default(),
    ))
}

fn overlay(ids: HostIds) -> StepResult<ProbeResult> {
    let options = match ids {
        HostIds::Root { .. } => {
            nix::sched::unshare(CloneFlags::CLONE_NEWNS)
                .at(Stage::Mount, "unshare the host's mounts")?;
            make_private()?;
            ""
        }
        HostIds::Own { .. } => {
            enter_mount_namespace(ids)?;
            ",userxattr"
        }
    };
    mount_tmpfs()?;
    let at = scratch_mount_point();
    for name in ["lower", "upper", "work", "over"] {
        let path = format!("{at}/{name}");
        fs::create_dir(&path).on(Stage::Mount, "make", &path)?;
    }
    let data = format!("lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work{options}");
    let data = std::ffi::CString::new(data).unwrap_or_default();
    rustix::mount::mount(
        "overlay",
        format!("{at}/over"),
        "overlay",
        MountFlags::NOSUID | MountFlags::NODEV,
        &*data,
    )
    .at(Stage::Mount, "mount an overlay")?;
    Ok(feature_present(options.trim_start_matches(',')))
}

/// Installs a filter that refuses one harmless call, then makes that call.
fn seccomp() -> StepResult<ProbeResult> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
    let refused =
        |error: &dyn std::fmt::Display| failure(Stage::Caps, format!("seccomp filter: {error}"));
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|error| refused(&error))?;
    let filter = SeccompFilter::new(
        [(libc::SYS_getpriority, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(Errno::DOM.raw_os_error().unsigned_abs()),
        arch,
    );
    let filter: BpfProgram = filter
        .and_then(TryInto::try_into)
        .map_err(|error| refused(&error))?;
    apply_filter(&filter).map_err(|error| {
        let errno = std::io::Error::last_os_error().raw_os_error();
        SetupFailure {
            errno,
            ..refused(&error)
        }
    })?;
    Ok(match rustix::process::getpriority_process(None) {
        Err(Errno::DOM) => feature_present("filters are enforced"),
        _ => feature_missing("the kernel accepted a filter and does not enforce it"),
    })
}

fn landlock(feature: Feature) -> StepResult<ProbeResult> {
    use landlock::{
        ABI, Access as _, AccessFs, CompatLevel, Compatible as _, LandlockStatus, Ruleset,
        RulesetAttr as _,
    };
    let none = |detail: &str, errno: Option<i32>| ProbeResult {
        errno,
        hint: Some(
            "Landlock needs a kernel with CONFIG_SECURITY_LANDLOCK and landlock in lsm=; a \
             container's seccomp profile may block it"
                .to_owned(),
        ),
        ..feature_missing(detail)
    };
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(|error| failure(Stage::Caps, format!("landlock: {error}")))?;
    // The crate does not report the reason, so read errno: no other call came after the failed one.
    let errno = std::io::Error::last_os_error().raw_os_error();
    let errno = errno.filter(|errno| [libc::EPERM, libc::EACCES, libc::ENOSYS].contains(errno));
    let abi = match restricted.landlock {
        LandlockStatus::NotEnabled => return Ok(none("disabled at boot", Some(libc::EOPNOTSUPP))),
        LandlockStatus::NotImplemented => {
            return Ok(none("not supported by the kernel, or blocked", errno));
        }
        LandlockStatus::Available {
            effective_abi,
            kernel_abi,
        } => kernel_abi.unwrap_or(effective_abi as i32).unsigned_abs(),
    };
    let needs = match feature {
        Feature::LandlockNet => u32::from(super::LANDLOCK_NET),
        Feature::LandlockScope => u32::from(super::LANDLOCK_SCOPE),
        _ => 1,
    };
    Ok(ProbeResult {
        has: abi >= needs,
        count: u64::from(abi),
        detail: format!("ABI {abi}"),
        ..ProbeResult::unknown()
    })
}
