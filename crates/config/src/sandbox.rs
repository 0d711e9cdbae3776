//! `[sandbox.NAME]`: the profiles, with `standard` and `strict` built in.
//!
//! Must not know pools or how a sandbox is built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::quote;
use super::host_requirements::{self, HostRequirements};
use super::paths;
use super::sandbox_limits;
use super::table::{Located, Section, keywords};
use super::types::{ProcMode, Sandbox, Seccomp};
use marshal_model::limits;

keywords!(ProcMode);

/// The built-in profile that works on every host. The file may change both profiles key by key.
pub(super) const STANDARD: &str = "standard";

/// The built-in profile with every layer; without one of them the fleet does not start.
pub(super) const STRICT: &str = "strict";

/// Paths that the sandbox makes itself: nothing of the host can be bound over them.
const SANDBOX_MOUNTS: &[&str] = &[
    "/dev",
    "/proc",
    "/sys",
    "/workspace",
    "/run/marshal",
    "/home/agent",
];

/// Paths that the sandbox makes itself, and that may have binds below them.
const SANDBOX_PARENT_DIRS: &[&str] = &["/", "/tmp", "/run", "/home"];

/// Files of `/etc` that no profile shows, or that the sandbox writes itself.
const HIDDEN_ETC_FILES: &[&str] = &[
    "passwd",
    "group",
    "hosts",
    "hostname",
    "resolv.conf",
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "sudoers",
    "sudoers.d",
    "machine-id",
    "krb5.keytab",
    "ssh",
];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The built-in profile `standard`.
pub(super) fn standard() -> Sandbox {
    let etc = [
        "alternatives",
        "ld.so.cache",
        "localtime",
        "nsswitch.conf",
        "ssl",
    ];
    Sandbox {
        ro_bind: vec![PathBuf::from("/usr")],
        etc: etc.map(str::to_owned).to_vec(),
        home_bytes: limits::HOME_BYTES,
        tmp_bytes: 256 * MIB,
        tmp_inodes: 16_384,
        proc_mode: ProcMode::Pid,
        nofile: 1024,
        fsize: GIB,
        landlock_min_abi: 0,
        seccomp: Seccomp::Default,
        requirements: HostRequirements::default(),
        group_limits: sandbox_limits::STANDARD,
    }
}

/// The built-in profile `strict`: it requires what `standard` uses only if it is available.
fn strict() -> Sandbox {
    Sandbox {
        landlock_min_abi: MAX_LANDLOCK_ABI,
        requirements: HostRequirements {
            uid_per_slot: true,
            limits_held: true,
            ..HostRequirements::default()
        },
        group_limits: sandbox_limits::STRICT,
        ..standard()
    }
}

/// The highest ABI of Landlock that is used.
const MAX_LANDLOCK_ABI: u8 = 6;

/// Reads the table `sandbox`.
pub(super) fn read_all(
    section: &Section<'_>,
    dir: &Path,
    is_discovered: bool,
) -> BTreeMap<String, Sandbox> {
    let mut profiles = BTreeMap::from([
        (STANDARD.to_owned(), standard()),
        (STRICT.to_owned(), strict()),
    ]);
    for (name, item) in section.named_entries(NAME_PATTERN) {
        let place = &item.place;
        if !is_valid_name(&name) {
            let message = format!("the profile name {} must match {NAME_FORM}", quote(&name));
            section.diagnostics.report(place, message, None);
            continue;
        }
        if let Some(table) = item.section() {
            let base = if name == STRICT { strict() } else { standard() };
            profiles.insert(name, read(&table, base, dir, is_discovered));
        }
    }
    profiles
}

/// The form of the names of profiles and policies.
pub(super) const NAME_FORM: &str = "[a-z0-9][a-z0-9-]{0,31}";

/// The same as a pattern of the schema.
pub(super) const NAME_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";

/// Whether a name has the form [`NAME_FORM`].
pub(super) fn is_valid_name(name: &str) -> bool {
    marshal_model::PoolName::new(name).is_ok()
}

fn read(section: &Section<'_>, base: Sandbox, dir: &Path, is_discovered: bool) -> Sandbox {
    let home = section.section("home");
    let home_bytes = home.size("size", MIB..=TIB);
    home.reject_unknown_keys(&["inodes"], &[]);
    let tmp = section.section("tmp");
    let tmp_bytes = tmp.size("size", 64 * KIB..=64 * GIB);
    let tmp_inodes = tmp.integer("inodes", 64..=10_000_000_u64);
    tmp.reject_unknown_keys(&[], &[]);
    let limit = section.section("limits");
    let nofile = limit.integer("nofile", 16..=1_048_576_u64);
    let fsize = limit.size("fsize", 64 * KIB..=TIB);
    let group = sandbox_limits::read(&limit, base.group_limits);
    limit.reject_unknown_keys(&["core"], &[("nproc", "pids")]);
    let profile = Sandbox {
        ro_bind: read_ro_bind(section, dir, is_discovered).unwrap_or(base.ro_bind),
        etc: read_etc(section).unwrap_or(base.etc),
        home_bytes: value_or(home_bytes, base.home_bytes),
        tmp_bytes: value_or(tmp_bytes, base.tmp_bytes),
        tmp_inodes: value_or(tmp_inodes, base.tmp_inodes),
        proc_mode: value_or(section.keyword("proc", &[]), base.proc_mode),
        nofile: value_or(nofile, base.nofile),
        fsize: value_or(fsize, base.fsize),
        landlock_min_abi: value_or(
            section.integer("landlock_min_abi", 0..=MAX_LANDLOCK_ABI),
            base.landlock_min_abi,
        ),
        seccomp: read_seccomp(section, dir).unwrap_or(base.seccomp),
        requirements: host_requirements::read(section, is_discovered, base.requirements),
        group_limits: group,
    };
    let elsewhere = [("nofile", "limits.nofile"), ("fsize", "limits.fsize")];
    section.reject_unknown_keys(&[], &elsewhere);
    profile
}

fn value_or<T>(found: Option<Located<T>>, default: T) -> T {
    found.map_or(default, |found| found.value)
}

/// The filter of system calls: one of two words, or a file.
fn read_seccomp(section: &Section<'_>, dir: &Path) -> Option<Seccomp> {
    let found = section.get("seccomp")?.text_like(paths::PATTERN)?;
    if let Some(fault) = paths::path_error(&found.value) {
        section.diagnostics.report(&found.place, fault, None);
        return None;
    }
    Some(match found.value.as_str() {
        SECCOMP_DEFAULT => Seccomp::Default,
        SECCOMP_OFF => Seccomp::Off,
        // A word without a slash is more likely a typo than a file.
        word if !word.contains('/') => {
            let message = format!(
                "expected \"{SECCOMP_DEFAULT}\", \"{SECCOMP_OFF}\" or the path of a profile in OCI form, found {}",
                quote(word)
            );
            let help = format!("for a file beside this one, write \"./{word}\"");
            section
                .diagnostics
                .report(&found.place, message, Some(help));
            return None;
        }
        path => Seccomp::File(paths::absolute(dir, path)),
    })
}

/// The word for the built-in filter.
pub(super) const SECCOMP_DEFAULT: &str = "default";

/// The word for no filter.
pub(super) const SECCOMP_OFF: &str = "off";

/// Directories of system programs, which contain no user data.
const SYSTEM_PROGRAM_DIRS: &[&str] = &["/usr", "/opt", "/nix/store"];

/// Whether a path is below one of them.
pub(super) fn is_in_system_program_dir(path: &Path) -> bool {
    SYSTEM_PROGRAM_DIRS
        .iter()
        .any(|place| path.starts_with(place))
}

/// `/usr` and what the profile adds.
fn read_ro_bind(section: &Section<'_>, dir: &Path, is_discovered: bool) -> Option<Vec<PathBuf>> {
    let mut binds = vec![PathBuf::from("/usr")];
    for found in section.texts_like("ro_bind", paths::PATTERN)?.value {
        let path = paths::absolute(dir, &found.value);
        let own = |place: &&&str| path.starts_with(place);
        let message = if let Some(fault) = paths::path_error(&found.value) {
            fault.to_owned()
        } else if is_discovered && !path.starts_with(dir) && !is_in_system_program_dir(&path) {
            format!(
                "a discovered supervisor.toml may bind only programs of the system ({}) and what is below its own directory; `marshal trust` says that you trust the file as it is; or name it with --config",
                SYSTEM_PROGRAM_DIRS.join(", ")
            )
        } else if let Some(place) = SANDBOX_MOUNTS.iter().find(own) {
            format!("the sandbox has its own {place}: nothing of the host can be bound there")
        } else if SANDBOX_PARENT_DIRS
            .iter()
            .any(|parent| path == Path::new(parent))
        {
            format!(
                "{} cannot be bound as a whole: name what is needed below it",
                path.display()
            )
        } else if path.starts_with("/etc") {
            "use the key etc for files of /etc".to_owned()
        } else {
            if !binds.contains(&path) {
                binds.push(path);
            }
            continue;
        };
        section.diagnostics.report(&found.place, message, None);
    }
    Some(binds)
}

fn read_etc(section: &Section<'_>) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for found in section
        .texts_like("etc", paths::SANDBOX_PATH_PATTERN)?
        .value
    {
        let name = found.value.as_str();
        let first = name.split('/').next().unwrap_or(name);
        let message = if name.starts_with("/etc/") {
            format!(
                "expected a name below /etc, such as \"ssl\", found {}",
                quote(name)
            )
        } else if let Some(fault) = paths::sandbox_path_error(name) {
            fault.replace("the home", "/etc")
        } else if HIDDEN_ETC_FILES.contains(&first) || name.starts_with("ssl/private") {
            format!("the sandbox never shows {} of the host's /etc", quote(name))
        } else {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
            continue;
        };
        section.diagnostics.report(&found.place, message, None);
    }
    Some(names)
}
