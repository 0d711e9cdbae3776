//! Landlock: restricts file access a second time, independently of mounts. What is read-only is
//! read-only twice, and an unexpected mount would be inaccessible.
//!
//! Pid 1 applies it when its root is complete, from the plan's mounts alone. It also confines
//! signals and abstract sockets, and with the host's network it denies listening on chosen ports.
//! Must not know profiles: the plan says which ABI is required.

use std::error::Error;
use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::io::Errno;

use super::failure::{StepResult, failure};
use super::root::PTS;
use marshal_wire::shim::{Mount, MountAccess, NetworkMode, OpenedMount, SetupFailure, Stage};

/// The ABIs in use, the newest first. ABI 1 is not among them: it forbids moving a file to another
/// directory, which version control needs.
const USED: [(u8, ABI); 5] = [
    (6, ABI::V6),
    (5, ABI::V5),
    (4, ABI::V4),
    (3, ABI::V3),
    (2, ABI::V2),
];

/// Restricts this process and its descendants permanently to the plan's mounts; returns the ABI in
/// force, 0 for none.
pub(super) fn enforce(
    mounts: &[Mount],
    opened: &[OpenedMount],
    network: NetworkMode,
    least: u8,
) -> StepResult<u8> {
    let usable = |(number, _): &&(u8, ABI)| *number >= least.max(1);
    let is_there = is_supported(least)?;
    for (number, abi) in USED.iter().filter(usable).filter(|_| is_there) {
        let ruleset = match create(*abi, network) {
            Ok(ruleset) => ruleset,
            // The kernel has Landlock, and creating the ruleset failed: that is an error, not a
            // missing feature.
            Err(error @ RulesetError::CreateRuleset(_)) => {
                return Err(landlock_failure(&error, "create a ruleset", None));
            }
            // The kernel supports less than this ABI: try the next.
            Err(_) => continue,
        };
        restrict(ruleset, *abi, mounts, opened, network)?;
        return Ok(*number);
    }
    if least == 0 {
        return Ok(0);
    }
    Err(failure(
        Stage::Landlock,
        format!("this kernel has no Landlock ABI {least} or later"),
    ))
}

/// Whether this kernel has a usable Landlock. Any failure except "not supported" is an error:
/// running out of memory does not mean that Landlock is missing. If none is required, EPERM counts
/// as missing too, because old container engines forbid Landlock inside.
fn is_supported(least: u8) -> StepResult<bool> {
    let ruleset = Ruleset::default();
    // The errno of the call, if it failed; the crate does not keep it.
    let error = io::Error::last_os_error();
    let ruleset = ruleset.set_compatibility(CompatLevel::HardRequirement);
    if ruleset.handle_access(AccessFs::from_all(ABI::V1)).is_ok() {
        return Ok(true);
    }
    match Errno::from_io_error(&error) {
        Some(Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Some(Errno::PERM | Errno::ACCESS) if least == 0 => Ok(false),
        _ => Err(landlock_failure(
            &error,
            "read the Landlock version of the kernel",
            None,
        )),
    }
}

/// Puts this thread and its descendants into a nested domain that forbids nothing more. A process
/// in a domain can neither trace a process outside of it nor open files that require that right
/// (`/proc/PID/mem`, `fd`). So marshal's own helpers in the sandbox are always out of reach of an
/// agent started this way, even between their start and their first call. Does nothing without
/// Landlock.
pub(super) fn enter_nested_domain() -> StepResult {
    if !is_supported(0)? {
        return Ok(());
    }
    // By default every domain forbids moving files between directories; this one allows it, and
    // restricts nothing else.
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer);
    let Ok(ruleset) = ruleset else {
        // ABI 1 does not have that right.
        return Ok(());
    };
    let failed = |error: &(dyn Error + 'static)| {
        landlock_failure(error, "put the agent into a nested Landlock domain", None)
    };
    let ruleset = ruleset.create().map_err(|error| failed(&error))?;
    let ruleset = rule(ruleset, "/", AccessFs::Refer.into(), ABI::V2);
    let domain = ruleset.map_err(|error| failed(&*error))?.restrict_self();
    domain.map(drop).map_err(|error| failed(&error))
}

/// A ruleset of everything that this ABI can restrict; it fails if the kernel supports less.
fn create(abi: ABI, network: NetworkMode) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))?;
    if network == NetworkMode::Host && abi >= ABI::V4 {
        ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
    }
    if abi >= ABI::V6 {
        ruleset = ruleset.scope(Scope::from_all(abi))?;
    }
    ruleset.create()
}

fn restrict(
    mut ruleset: RulesetCreated,
    abi: ABI,
    mounts: &[Mount],
    opened: &[OpenedMount],
    network: NetworkMode,
) -> StepResult {
    let allow = |ruleset: RulesetCreated, path: &str, access| {
        rule(ruleset, path, access, abi)
            .map_err(|error| landlock_failure(&*error, "allow", Some(path)))
    };
    // Listing `/` must work, although other access to it is denied.
    ruleset = allow(ruleset, "/", AccessFs::ReadDir.into())?;
    for (mount, opened) in mounts.iter().zip(opened) {
        if let Some((path, access)) = granted_access(mount, opened, abi) {
            ruleset = allow(ruleset, path, access)?;
        }
    }
    // Helpers run this program's binary, wherever on the host it is.
    ruleset = allow(
        ruleset,
        "/proc/self/exe",
        AccessFs::ReadFile | AccessFs::Execute,
    )?;
    if network == NetworkMode::Host && abi >= ABI::V4 {
        // Port 0: the kernel chooses a free port, so the agent cannot occupy the port of another
        // service.
        ruleset = ruleset
            .add_rule(NetPort::new(0, AccessNet::BindTcp))
            .map_err(|error| {
                landlock_failure(&error, "allow the ports that the kernel chooses", None)
            })?;
    }
    ruleset
        .restrict_self()
        .map(drop)
        .map_err(|error| landlock_failure(&error, "restrict this process", None))
}

fn rule(
    ruleset: RulesetCreated,
    path: &str,
    access: BitFlags<AccessFs>,
    abi: ABI,
) -> Result<RulesetCreated, Box<dyn Error>> {
    let place = PathFd::new(path)?;
    let is_dir = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_dir();
    let fitting = if is_dir {
        access
    } else {
        access & AccessFs::from_file(abi)
    };
    Ok(ruleset.add_rule(PathBeneath::new(place, fitting))?)
}

/// The access to a mount and everything below it, if it exists.
fn granted_access<'m>(
    mount: &'m Mount,
    opened: &OpenedMount,
    abi: ABI,
) -> Option<(&'m str, BitFlags<AccessFs>)> {
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let read = AccessFs::from_read(abi);
    let write = AccessFs::from_all(abi) & !devices;
    let is_there = matches!(opened, OpenedMount::Tree { .. });
    Some(match mount {
        Mount::Tree { target, access, .. } if is_there => {
            let granted = match access {
                MountAccess::Ro => read,
                MountAccess::Rw => write,
                MountAccess::Device => {
                    (AccessFs::from_file(abi)) & !BitFlags::from(AccessFs::Execute)
                }
            };
            (target, granted)
        }
        Mount::Mirror { path } if is_there => (path, read),
        Mount::Tmpfs { target, .. } | Mount::Overlay { target, .. } => (target, write),
        // Agents never need to write in /proc, and some files there affect more than the sandbox.
        Mount::Proc { .. } => ("/proc", AccessFs::ReadFile | AccessFs::ReadDir),
        Mount::Terminals => (
            PTS,
            AccessFs::ReadFile
                | AccessFs::WriteFile
                | AccessFs::ReadDir
                | (AccessFs::from_all(abi) & AccessFs::IoctlDev),
        ),
        Mount::File { target, .. } => (target, AccessFs::ReadFile.into()),
        // Missing mounts; directories, which are listable like `/`; links, whose targets have their
        // own rules.
        Mount::Tree { .. }
        | Mount::Mirror { .. }
        | Mount::Dir { .. }
        | Mount::Hidden { .. }
        | Mount::Held { .. }
        | Mount::ReadOnly { .. }
        | Mount::Replaced { .. }
        | Mount::Link { .. } => {
            return None;
        }
    })
}

/// A failure with the errno from the chain of causes.
fn landlock_failure(error: &(dyn Error + 'static), what: &str, path: Option<&str>) -> SetupFailure {
    let mut cause = Some(error);
    let mut errno = None;
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            errno = error.raw_os_error();
        }
        cause = error.source();
    }
    let what = match errno {
        Some(_) => what.to_owned(),
        None => format!("{what}: {error}"),
    };
    SetupFailure {
        path: path.map(str::to_owned),
        errno,
        ..failure(Stage::Landlock, what)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Another process of this user, and whether its memory can be opened.
    #[test]
    fn what_is_started_further_inside_reaches_no_process_that_is_not() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let memory = format!("/proc/{}/mem", other.id());
        // Opened, and nothing of it read: by its ancestor, whom also Yama lets.
        let opens = move || std::fs::File::open(&memory).is_ok();
        let from_here = opens();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("there")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        let (from, to) = (at("file"), at("there/file"));
        let from_inside = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            enter_nested_domain().map(|()| {
                std::fs::rename(from, to).expect("a file goes to another directory as before");
                opens()
            })
        })
        .join();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(from_here, "without a domain of its own it does");
        let has_landlock = is_supported(0).unwrap();
        assert_eq!(from_inside.unwrap().unwrap(), !has_landlock);
    }
}
