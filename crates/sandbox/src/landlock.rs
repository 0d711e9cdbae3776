//! Landlock: the same view of the file system once more, by a mechanism that has nothing to do
//! with mounts. What is read-only is read-only twice, and a mount that slipped in would be empty.
//!
//! Done by pid 1 when its root stands, from the plan's mounts alone. Beside files it keeps signals
//! and abstract sockets inside, and with the host's network nobody listens on a port of its choice.
//! Must not know profiles: the plan says what must be had.

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

/// What is used of Landlock, the best first. ABI 1 is not among them: it forbids moving a file from
/// one directory to another, which no version control does without.
const USED: [(u8, ABI); 5] = [
    (6, ABI::V6),
    (5, ABI::V5),
    (4, ABI::V4),
    (3, ABI::V3),
    (2, ABI::V2),
];

/// Restricts this process and all that it starts, for good, to what the plan's mounts are for;
/// gives the ABI in force, 0 for none.
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
            // The kernel was asked for it, and could not: that is no kernel without it.
            Err(error @ RulesetError::CreateRuleset(_)) => {
                return Err(landlock_failure(&error, "make a ruleset", None));
            }
            // What the kernel knows was compared with this ABI: it knows less.
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
        format!("this kernel has no Landlock of ABI {least} or later"),
    ))
}

/// Whether this kernel has any Landlock that can be used. An answer that is not the kernel's word for
/// having none is an error: what fails for want of memory is not missing. Where none will do, one that
/// is forbidden, as old container engines forbid it to what is in them, is none.
fn is_supported(least: u8) -> StepResult<bool> {
    let ruleset = Ruleset::default();
    // The call's, if it failed; the library keeps no more of it than that it did.
    let asked = io::Error::last_os_error();
    let ruleset = ruleset.set_compatibility(CompatLevel::HardRequirement);
    if ruleset.handle_access(AccessFs::from_all(ABI::V1)).is_ok() {
        return Ok(true);
    }
    match Errno::from_io_error(&asked) {
        Some(Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Some(Errno::PERM | Errno::ACCESS) if least == 0 => Ok(false),
        _ => Err(landlock_failure(
            &asked,
            "ask the kernel for its version",
            None,
        )),
    }
}

/// Puts this thread, and what it starts, one domain further inside, which forbids nothing more. A
/// process of a domain can trace nobody outside of it, nor open what of another is only for its
/// tracers (`/proc/PID/mem`, `fd`): so what an agent is started by this, marshal's own helpers inside
/// are out of its reach at every moment, also in that between their start and their first call.
/// Nothing where there is no Landlock that is used.
pub(super) fn enter_nested_domain() -> StepResult {
    if !is_supported(0)? {
        return Ok(());
    }
    // Every domain forbids moving a file to another directory unless it says otherwise: this one says
    // so, and nothing else.
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer);
    let Ok(ruleset) = ruleset else {
        // ABI 1, which does not know it.
        return Ok(());
    };
    let failed = |error: &(dyn Error + 'static)| {
        landlock_failure(error, "put the agent further inside", None)
    };
    let ruleset = ruleset.create().map_err(|error| failed(&error))?;
    let ruleset = rule(ruleset, "/", AccessFs::Refer.into(), ABI::V2);
    let domain = ruleset.map_err(|error| failed(&*error))?.restrict_self();
    domain.map(drop).map_err(|error| failed(&error))
}

/// A ruleset of all that this ABI can restrict, or nothing at all.
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
    // Who lists `/` must not be told that it may not.
    ruleset = allow(ruleset, "/", AccessFs::ReadDir.into())?;
    for (mount, opened) in mounts.iter().zip(opened) {
        if let Some((path, access)) = granted_access(mount, opened, abi) {
            ruleset = allow(ruleset, path, access)?;
        }
    }
    // Helpers behind the door are this program again, wherever on the host it is.
    ruleset = allow(
        ruleset,
        "/proc/self/exe",
        AccessFs::ReadFile | AccessFs::Execute,
    )?;
    if network == NetworkMode::Host && abi >= ABI::V4 {
        // A port that the kernel chooses; not one at which somebody else is expected.
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

/// What may be done at and below a mount, if it is there.
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
        // Nothing in it needs to be written, and much of it had better not be.
        Mount::Proc { .. } => ("/proc", AccessFs::ReadFile | AccessFs::ReadDir),
        Mount::Terminals => (
            PTS,
            AccessFs::ReadFile
                | AccessFs::WriteFile
                | AccessFs::ReadDir
                | (AccessFs::from_all(abi) & AccessFs::IoctlDev),
        ),
        Mount::File { target, .. } => (target, AccessFs::ReadFile.into()),
        // What is not there; directories, listed as `/` is; links, whose targets are judged
        // where they lead.
        Mount::Tree { .. }
        | Mount::Mirror { .. }
        | Mount::Dir { .. }
        | Mount::Hidden { .. }
        | Mount::Held { .. }
        | Mount::Link { .. } => {
            return None;
        }
    })
}

/// The kernel's word, wherever in the chain of causes it is.
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
        });
        let from_inside = from_inside.join();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(from_here, "without a domain of its own it does");
        let has_landlock = is_supported(0).unwrap();
        assert_eq!(from_inside.unwrap().unwrap(), !has_landlock);
    }
}
