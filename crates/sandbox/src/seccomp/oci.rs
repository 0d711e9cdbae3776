//! Reads a seccomp profile from a file in the format of Docker, podman and the OCI runtimes.
//!
//! Anything in the file that this reader does not support is an error: a dropped rule could be the
//! one that matters. Must not know where the file came from.

use serde::Deserialize;

use super::bpf::{self, FilterError};
use super::{Action, Compare, Profile, Test, syscalls};

/// Maximum number of rules in one file.
const MOST_RULES: usize = 4096;
/// EPERM: the errno of an error action that names none.
const EPERM: u16 = 1;
/// The largest errno that the kernel can return (MAX_ERRNO).
const MOST_ERRNO: u16 = 4095;

/// The name of this architecture in profiles.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: (&str, &str) = ("SCMP_ARCH_X86_64", "amd64");
/// The name of this architecture in profiles.
#[cfg(not(target_arch = "x86_64"))]
const ARCHITECTURE: (&str, &str) = ("SCMP_ARCH_AARCH64", "arm64");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    default_action: String,
    default_errno_ret: Option<u16>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    arch_map: Vec<ArchMap>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    syscalls: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ArchMap {
    architecture: String,
    /// Ignored: the program kills calls of every other architecture.
    #[serde(default, rename = "subArchitectures")]
    _subs: serde::de::IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    names: Vec<String>,
    action: String,
    errno_ret: Option<u16>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    /// Ignored.
    #[serde(default, rename = "comment")]
    _comment: serde::de::IgnoredAny,
    #[serde(default)]
    includes: Condition,
    #[serde(default)]
    excludes: Condition,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// When an entry applies. Agents have no capabilities, and every kernel that marshal supports is
/// newer than those that `minKernel` asks for.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Condition {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
    #[serde(default)]
    min_kernel: Option<String>,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    /// A syntax error, an unknown key, a wrong type.
    #[error("it is not a seccomp profile in OCI format: {0}")]
    Syntax(serde_json::Error),
    /// It does not name this architecture.
    #[error("it is for other architectures: {} is not among them", ARCHITECTURE.0)]
    Architecture,
    /// It sets a flag with an effect that marshal does not support.
    #[error("the flag {0:?} is not supported: remove it")]
    Flag(String),
    /// Its default action allows.
    #[error(
        "defaultAction {0:?} would allow every call that is not named, by other numbers too: \
         write a list of what is allowed, with defaultAction \"SCMP_ACT_ERRNO\""
    )]
    DefaultAllows(String),
    /// A system call, an action or a comparison that does not exist: which of them, and its name.
    #[error("there is no {0} {1:?}")]
    Unknown(&'static str, String),
    /// It has too many rules.
    #[error("it has more than {MOST_RULES} rules")]
    TooManyRules,
    /// An entry does not apply to newer kernels.
    #[error("excludes.minKernel is not supported: remove the entry")]
    ExcludedKernel,
    /// An action's errno is out of range.
    #[error("{0} is not an error number: expected 1 to {MOST_ERRNO}")]
    Errno(u16),
    /// An action that asks another process.
    #[error(
        "{0} needs a process that handles notifications, and marshal has none: use another action"
    )]
    Notification(String),
    /// The index of an argument is out of range.
    #[error("a system call has no argument {0}")]
    Argument(u8),
    /// It cannot be compiled.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Parses a file's text.
pub(crate) fn parse(text: &str) -> Result<Profile, ProfileError> {
    let file: File = serde_json::from_str(text).map_err(ProfileError::Syntax)?;
    let known = |name: &String| name == ARCHITECTURE.0;
    let maps = file.arch_map.iter().map(|map| &map.architecture);
    let named: Vec<&String> = file.architectures.iter().chain(maps).collect();
    if !named.is_empty() && !named.iter().any(|name| known(name)) {
        return Err(ProfileError::Architecture);
    }
    for flag in &file.flags {
        // Two flags that change only logging or notification, and the kernel's default.
        if !matches!(
            flag.as_str(),
            "SECCOMP_FILTER_FLAG_LOG" | "SECCOMP_FILTER_FLAG_TSYNC"
        ) {
            return Err(ProfileError::Flag(flag.clone()));
        }
    }
    let default = action(&file.default_action, file.default_errno_ret)?;
    if default <= Action::Log {
        return Err(ProfileError::DefaultAllows(file.default_action));
    }
    let mut profile = Profile::new(default);
    let mut rules = 0;
    for entry in &file.syscalls {
        let action = action(&entry.action, entry.errno_ret)?;
        let mut tests = Vec::new();
        for argument in entry.args.iter().flatten() {
            tests.push((argument, compare(argument)?));
        }
        for name in &entry.names {
            if !syscalls::is_known(name) && syscalls::number(name).is_none() {
                return Err(ProfileError::Unknown("system call", name.clone()));
            }
        }
        if !applies_here(entry)? {
            continue;
        }
        for name in &entry.names {
            rules += 1;
            let tests: Vec<(u8, Test)> = tests
                .iter()
                .map(|(argument, test)| (argument.index, narrow_to_low32(name, argument, *test)))
                .collect();
            profile.add(name, action, &tests);
        }
        if rules > MOST_RULES {
            return Err(ProfileError::TooManyRules);
        }
    }
    bpf::assemble(&profile)?;
    Ok(profile)
}

/// Whether an entry applies here, to a process without capabilities.
fn applies_here(entry: &Entry) -> Result<bool, ProfileError> {
    let here = |arches: &[String]| {
        arches
            .iter()
            .any(|arch| arch == ARCHITECTURE.0 || arch == ARCHITECTURE.1)
    };
    if entry.excludes.min_kernel.is_some() {
        return Err(ProfileError::ExcludedKernel);
    }
    let (includes, excludes) = (&entry.includes, &entry.excludes);
    Ok(includes.caps.is_empty()
        && (includes.arches.is_empty() || here(&includes.arches))
        && !here(&excludes.arches))
}

fn action(name: &str, errno: Option<u16>) -> Result<Action, ProfileError> {
    if let Some(errno) = errno
        && !(1..=MOST_ERRNO).contains(&errno)
    {
        return Err(ProfileError::Errno(errno));
    }
    Ok(match name {
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_LOG" => Action::Log,
        "SCMP_ACT_ERRNO" => Action::Errno(errno.unwrap_or(EPERM)),
        "SCMP_ACT_TRAP" => Action::Trap,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Action::Kill,
        "SCMP_ACT_NOTIFY" | "SCMP_ACT_TRACE" => {
            return Err(ProfileError::Notification(name.to_owned()));
        }
        _ => return Err(ProfileError::Unknown("action", name.to_owned())),
    })
}

fn compare(argument: &Argument) -> Result<Test, ProfileError> {
    if argument.index > 5 {
        return Err(ProfileError::Argument(argument.index));
    }
    let compare = match argument.op.as_str() {
        "SCMP_CMP_EQ" => Compare::Eq,
        "SCMP_CMP_NE" => Compare::Ne,
        "SCMP_CMP_LT" => Compare::Lt,
        "SCMP_CMP_LE" => Compare::Le,
        "SCMP_CMP_GT" => Compare::Gt,
        "SCMP_CMP_GE" => Compare::Ge,
        "SCMP_CMP_MASKED_EQ" => {
            return Ok(Test::Full64Masked(
                argument.value,
                argument.value_two & argument.value,
            ));
        }
        other => return Err(ProfileError::Unknown("comparison", other.to_owned())),
    };
    Ok(Test::Full64(compare, argument.value))
}

/// Arguments of which the kernel itself uses only 32 bits: a rule that compared all 64 could be
/// evaded by setting an upper bit.
const LOW32_ARGUMENTS: &[(&str, u8)] = &[
    ("socket", 0),
    ("socket", 1),
    ("socket", 2),
    ("socketpair", 0),
    ("socketpair", 1),
    ("socketpair", 2),
    ("ioctl", 1),
    ("fcntl", 1),
    ("prctl", 0),
    ("personality", 0),
    ("clone", 0),
    ("open", 1),
    ("open", 2),
    ("openat", 2),
    ("openat", 3),
    ("chmod", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("creat", 1),
    ("mkdir", 1),
    ("mkdirat", 2),
    ("mknod", 1),
    ("mknodat", 2),
    ("setsockopt", 1),
    ("setsockopt", 2),
    ("keyctl", 0),
    ("bpf", 0),
    ("arch_prctl", 0),
    ("setns", 1),
    ("prlimit64", 0),
    ("prlimit64", 1),
    ("mq_open", 1),
    ("mq_open", 2),
    ("madvise", 2),
    ("kill", 0),
    ("kill", 1),
    ("tkill", 0),
    ("tkill", 1),
    ("tgkill", 0),
    ("tgkill", 1),
    ("tgkill", 2),
];

fn narrow_to_low32(name: &str, argument: &Argument, test: Test) -> Test {
    if !LOW32_ARGUMENTS.contains(&(name, argument.index)) {
        return test;
    }
    let short = |number: u64| u32::try_from(number).ok();
    match test {
        Test::Full64(compare, number) => {
            short(number).map_or(test, |number| Test::Low32(compare, number))
        }
        Test::Full64Masked(mask, wanted) => match (short(mask), short(wanted)) {
            (Some(mask), Some(wanted)) => Test::Low32Masked(mask, wanted),
            _ => test,
        },
        half => half,
    }
}
