//! Facts that are read from a host without trying anything: settings, programs, id ranges.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Feature;
use super::probe::{ProbeRequest, ProbeResult};
use super::probe_helper::{feature_missing, feature_present};
use crate::HostIds;
use crate::uids::{self, Sources};
use marshal_config::UidRange;

/// Maximum size of a setting that is read, in bytes.
const SETTING_BYTES: usize = 4096;

/// Checks one feature.
pub(super) fn check_feature(feature: Feature, order: &ProbeRequest) -> ProbeResult {
    match feature {
        Feature::UidPerSlot => uid_per_slot(order),
        Feature::SubordinateIds => subordinate_ids(order),
        Feature::Nofile => nofile(),
        Feature::ProjectQuota => project_quota(order),
        Feature::LoopDevices => loop_devices(),
        Feature::Git => program(order, &["git"]),
        Feature::Bwrap => program(order, &["bwrap"]),
        Feature::Ssh => program(order, &["ssh"]),
        Feature::Container => container(order),
        Feature::IoUring => setting("kernel/io_uring_disabled", "2"),
        Feature::LegacyTiocsti => setting("dev/tty/legacy_tiocsti", "0"),
        Feature::Yama => setting("kernel/yama/ptrace_scope", "1"),
        Feature::ProtectedLinks => setting("fs/protected_symlinks", "1"),
        Feature::ApparmorUserns => match apparmor_hint() {
            Some(hint) => ProbeResult {
                hint: Some(hint),
                ..feature_present("kernel.apparmor_restrict_unprivileged_userns = 1")
            },
            None => feature_missing("not restricted"),
        },
        Feature::Vsock => {
            if Path::new("/dev/vsock").exists() || Path::new("/sys/module/vsock").exists() {
                feature_missing(
                    "processes can open AF_VSOCK sockets, which no network namespace restricts",
                )
            } else {
                feature_present("none")
            }
        }
        _ => feature_missing("not checked"),
    }
}

/// What to do if AppArmor denies user namespaces to ordinary users; `None` if it does not.
pub(super) fn apparmor_hint() -> Option<String> {
    let value = read("kernel/apparmor_restrict_unprivileged_userns")?;
    (value == "1" && !rustix::process::geteuid().is_root()).then(|| {
        "AppArmor userns restriction: give this program a profile with `userns,`, or set \
         kernel.apparmor_restrict_unprivileged_userns=0"
            .to_owned()
    })
}

/// Reads a setting below /proc/sys.
fn read(name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/sys/{name}")).ok()?;
    let text = String::from_utf8_lossy(bytes.get(..SETTING_BYTES.min(bytes.len()))?).into_owned();
    Some(text.trim().to_owned())
}

/// Checks a setting for the value that protects.
fn setting(name: &str, good: &str) -> ProbeResult {
    let shown = name.replace('/', ".");
    match read(name) {
        Some(value) if value == good => feature_present(format!("{shown} = {value}")),
        Some(value) => feature_missing(format!(
            "{shown} = {value}: no extra protection from the host"
        )),
        None => feature_missing(format!("no {shown}")),
    }
}

/// The type of the file system that contains a directory.
pub(super) fn file_system(path: &Path) -> Option<String> {
    mount_of(path).map(|(kind, _)| kind)
}

/// Type and options of the mount that contains a directory.
fn mount_of(path: &Path) -> Option<(String, String)> {
    let real = fs::canonicalize(path).ok()?;
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        real.starts_with(&point)
            .then(|| (point, kind.to_owned(), options.to_owned()))
    });
    // If several mounts are stacked on one point, the last one is visible.
    let deepest = mounts.max_by_key(|(point, ..)| point.as_os_str().len());
    deepest.map(|(_, kind, options)| (kind, options))
}

fn uid_per_slot(order: &ProbeRequest) -> ProbeResult {
    if let HostIds::Own { .. } = order.ids {
        let mut result =
            feature_missing("agents run with the uid of the user that runs marshal (shared_uid)");
        result.hint = Some(
            "run the supervisor as root, or use a profile with uid_per_slot = false".to_owned(),
        );
        return result;
    }
    let range = order
        .at
        .as_deref()
        .and_then(UidRange::parse)
        .unwrap_or_default();
    match uids::acquire(&Sources::host(), order.slots, range) {
        Ok(lock) => {
            let block = lock.block();
            ProbeResult {
                count: u64::from(block.count),
                ..feature_present(format!(
                    "{} to {} are free",
                    block.first,
                    block.first + (block.count - 1)
                ))
            }
        }
        Err(error) => {
            let line = "add the line marshal:1000000000:65536 to /etc/subuid and /etc/subgid";
            ProbeResult {
                hint: Some(line.to_owned()),
                ..feature_missing(error.to_string())
            }
        }
    }
}

fn subordinate_ids(order: &ProbeRequest) -> ProbeResult {
    let (uid, _) = match order.ids {
        HostIds::Own { uid, gid } => (uid, gid),
        // Agents of root get their ids from the range of slots instead.
        HostIds::Root { .. } => (0, 0),
    };
    let name = account(uid).unwrap_or_else(|| uid.to_string());
    let count_ids = |file: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let counts = text.lines().filter_map(|line| {
            let mut parts = line.split(':');
            let owner = parts.next()?;
            let count: u64 = parts.nth(1)?.trim().parse().ok()?;
            (owner == name || owner == uid.to_string()).then_some(count)
        });
        counts.sum::<u64>()
    };
    let (uids, gids) = (count_ids("/etc/subuid"), count_ids("/etc/subgid"));
    let helpers: Vec<&str> = ["newuidmap", "newgidmap"]
        .into_iter()
        .filter(|name| !find(order, name).is_some_and(|path| gains_privileges(&path)))
        .collect();
    let summary = format!("{uids} uids and {gids} gids for {name}");
    if uids > 0 && gids > 0 && helpers.is_empty() {
        return ProbeResult {
            count: uids.min(gids),
            ..feature_present(summary)
        };
    }
    let hint = if helpers.is_empty() {
        format!("add the line {name}:100000:65536 to /etc/subuid and /etc/subgid")
    } else {
        format!(
            "{} missing: install the package uidmap",
            helpers.join(" and ")
        )
    };
    ProbeResult {
        hint: Some(hint),
        ..feature_missing(summary)
    }
}

/// Whether a program runs with more rights than its caller: set-uid, or file capabilities.
fn gains_privileges(path: &Path) -> bool {
    let is_set_uid = fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o4000 != 0);
    let mut value = [0_u8; 64];
    is_set_uid || rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok()
}

fn account(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    user.ok().flatten().map(|user| user.name)
}

fn nofile() -> ProbeResult {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let can_raise = rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_RESOURCE)
    });
    let shown = hard.map_or("none".to_owned(), |hard| hard.to_string());
    ProbeResult {
        count: hard.unwrap_or(u64::MAX),
        hint: (!can_raise && rustix::process::geteuid().is_root())
            .then(|| format!("no CAP_SYS_RESOURCE: the hard limit of open files stays at {shown}")),
        ..feature_present(format!("hard limit {shown}"))
    }
}

fn project_quota(order: &ProbeRequest) -> ProbeResult {
    let at = order.at.as_deref().unwrap_or("/");
    let there = Path::new(at).ancestors().find(|path| path.is_dir());
    let Some((kind, options)) = there.and_then(mount_of) else {
        return feature_missing("its mount was not found");
    };
    let names = ["prjquota", "pquota"];
    if options.split(',').any(|option| names.contains(&option)) {
        feature_present(kind)
    } else {
        feature_missing(format!("{kind} is mounted without prjquota"))
    }
}

fn loop_devices() -> ProbeResult {
    match fs::OpenOptions::new().read(true).open("/dev/loop-control") {
        Ok(_) => feature_present("/dev/loop-control"),
        Err(error) => ProbeResult {
            errno: error.raw_os_error(),
            ..feature_missing("open /dev/loop-control")
        },
    }
}

/// Finds a program in the PATH.
fn find(order: &ProbeRequest, name: &str) -> Option<PathBuf> {
    let places = order.path.split(':').filter(|place| place.starts_with('/'));
    places
        .map(|place| Path::new(place).join(name))
        .find(|path| {
            fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
        })
}

fn program(order: &ProbeRequest, names: &[&str]) -> ProbeResult {
    match names.iter().find_map(|name| find(order, name)) {
        Some(path) => feature_present(path.display().to_string()),
        None => ProbeResult {
            hint: Some(format!("install {}", names.join(" or "))),
            ..feature_missing(format!("no {} in the PATH", names.join(" or ")))
        },
    }
}

fn container(order: &ProbeRequest) -> ProbeResult {
    let mut result = match order.at.as_deref() {
        Some(engine) => program(order, &[engine]),
        None => program(order, &["podman", "docker"]),
    };
    let runtimes: Vec<&str> = ["crun", "runc"]
        .into_iter()
        .filter(|name| find(order, name).is_some() || Path::new("/usr/sbin").join(name).exists())
        .collect();
    if result.has {
        result.detail = format!("{}, runtimes: {}", result.detail, runtimes.join(", "));
    }
    let is_hybrid = fs::read_to_string("/proc/self/mountinfo").is_ok_and(|table| {
        let has = |kind: &str| {
            table
                .lines()
                .any(|line| line.contains(&format!(" - {kind} ")))
        };
        has("cgroup") && has("cgroup2")
    });
    if result.has && is_hybrid && runtimes.contains(&"crun") {
        result.hint =
            Some("crun does not work with hybrid cgroups: set runtime = \"runc\"".to_owned());
    }
    result
}
