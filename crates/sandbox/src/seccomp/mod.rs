//! Seccomp: which system calls a process in the sandbox may make.
//!
//! A profile is data: for each call the kernel's action, depending on arguments where that matters,
//! and the action for every other call. `rules` has the built-in profile, an allow-list; `oci`
//! reads another one from a file; `bpf` compiles it for the kernel. Must not know when a helper
//! installs the filter, nor what an agent is.
//!
//! Filters match numbers, which have a meaning only together with the architecture. So the program
//! kills a process that calls by another architecture (32 bits on 64), and applies the default
//! action to every unknown number, x32's included.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use super::failure::{FailureContext, StepResult, failure};
use super::landlock;
use marshal_wire::shim::{Seccomp, SetupFailure, Stage};

mod bpf;
mod oci;
mod rules;
mod syscalls;

/// Maximum size of a profile's file in bytes.
const FILE_BYTES: u64 = 256 << 10;

/// The kernel's action for a call, from the least to the most restrictive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// The call is allowed.
    Allow,
    /// The call is allowed and logged by the kernel.
    Log,
    /// The call fails with this errno, 1 to 4095.
    Errno(u16),
    /// The process gets SIGSYS, which it may handle.
    Trap,
    /// The thread is killed.
    KillThread,
    /// The process is killed.
    Kill,
}

/// A test of an argument. 32-bit tests compare only the lower half of the argument, because the
/// kernel itself ignores the upper half of a 32-bit parameter: setting upper bits must not evade a
/// rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// The lower half has any of these bits set.
    AnyOf(u32),
    /// The lower half compared with a number.
    Low32(Compare, u32),
    /// The lower half masked with the first number equals the second.
    Low32Masked(u32, u32),
    /// The whole argument compared with a number.
    Full64(Compare, u64),
    /// The whole argument masked with the first number equals the second.
    Full64Masked(u64, u64),
}

/// An unsigned comparison of an argument with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// One rule for a call: its action applies if all tests hold. Of several rules that apply, the most
/// restrictive action counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// The action if all tests hold.
    pub(super) action: Action,
    /// Argument index (0 to 5) and test.
    pub(super) tests: Vec<(u8, Test)>,
}

/// The rules of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallRules {
    /// The rules, in any order.
    pub(super) rules: Vec<Rule>,
    /// The action if no rule applies.
    pub(super) otherwise: Action,
}

/// A complete profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    /// The action for a call that is not listed.
    pub(super) default: Action,
    /// The listed calls by number, below 2^30.
    pub(super) calls: BTreeMap<u32, CallRules>,
}

impl Profile {
    fn new(default: Action) -> Self {
        Self {
            default,
            calls: BTreeMap::new(),
        }
    }

    /// The rules of a call, if this architecture has it.
    fn call_rules(&mut self, name: &str) -> Option<&mut CallRules> {
        let fresh = CallRules {
            rules: Vec::new(),
            otherwise: self.default,
        };
        Some(self.calls.entry(syscalls::number(name)?).or_insert(fresh))
    }

    /// Adds a rule for a call.
    fn add(&mut self, name: &str, action: Action, tests: &[(u8, Test)]) {
        if let Some(call) = self.call_rules(name) {
            call.rules.push(Rule {
                action,
                tests: tests.to_vec(),
            });
        }
    }

    /// Sets the action for a call to which none of its rules applies.
    fn otherwise(&mut self, name: &str, action: Action) {
        if let Some(call) = self.call_rules(name) {
            call.otherwise = action;
        }
    }
}

/// The built-in profile, for every process in the sandbox.
pub(super) fn built_in() -> Profile {
    rules::built_in()
}

/// Installs the plan's filter for this thread and its descendants; returns the further restriction
/// of agents. `file` is the text of the profile's file, if the plan names one.
pub(super) fn install_planned(
    planned: &Seccomp,
    file: Option<&str>,
) -> StepResult<AgentRestriction> {
    match planned {
        Seccomp::BuiltIn => {
            install(&built_in())?;
            Ok(AgentRestriction::LandlockAndNoOpenat2)
        }
        Seccomp::File(path) => {
            install(&parse_profile(path, file)?)?;
            Ok(AgentRestriction::LandlockDomain)
        }
        Seccomp::Off => Ok(AgentRestriction::LandlockDomain),
    }
}

/// Installs a profile permanently, for this thread and its descendants. Sets no_new_privs too.
pub(super) fn install(profile: &Profile) -> StepResult {
    let program = bpf::assemble(profile)
        .map_err(|what| failure(Stage::Seccomp, format!("compile the filter: {what}")))?;
    apply_program(&program)
}

/// What restricts an agent, or a command that runs for it, beyond marshal's own helpers inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentRestriction {
    /// Nothing: there is no sandbox.
    None,
    /// A nested Landlock domain.
    LandlockDomain,
    /// That, and no openat2: its mode argument is behind a pointer, which a filter cannot read, and
    /// could create a set-id program. The helpers need openat2 to open exactly the requested file.
    LandlockAndNoOpenat2,
}

impl AgentRestriction {
    /// The restriction that the arguments of this process, a leash, request.
    pub(super) fn from_args() -> Self {
        let is_requested =
            |seal: &Self| std::env::args_os().any(|word| seal.as_str().is_some_and(|w| word == w));
        [Self::LandlockAndNoOpenat2, Self::LandlockDomain]
            .into_iter()
            .find(is_requested)
            .unwrap_or(Self::None)
    }

    /// The argument for this restriction.
    pub(super) const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::LandlockDomain => Some("domain"),
            Self::LandlockAndNoOpenat2 => Some("agents"),
        }
    }
}

/// Starts something with restrictions that this process itself does not get. Filters and Landlock
/// domains apply to a thread and its descendants, so a temporary thread applies them and starts the
/// process.
pub(super) fn run_restricted<T: Send>(
    seal: AgentRestriction,
    start: impl FnOnce() -> T + Send,
) -> StepResult<T> {
    if seal == AgentRestriction::None {
        return Ok(start());
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .spawn_scoped(scope, || {
                landlock::enter_nested_domain()?;
                if seal == AgentRestriction::LandlockAndNoOpenat2 {
                    install(&rules::without_openat2())?;
                }
                Ok(start())
            })
            .at(Stage::Seccomp, "start the thread that starts the agent")?
            .join()
            .map_err(|_| failure(Stage::Seccomp, "the thread that starts the agent panicked"))?
    })
}

/// Reads a profile's file. It must not be writable by anyone but root and the user that runs
/// marshal.
pub(super) fn read_profile_file(path: &str) -> StepResult<String> {
    let wrong = |what: String| SetupFailure {
        path: Some(path.to_owned()),
        ..failure(Stage::Seccomp, what)
    };
    let flags = rustix::fs::OFlags::RDONLY
        | rustix::fs::OFlags::CLOEXEC
        | rustix::fs::OFlags::NONBLOCK
        | rustix::fs::OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map(File::from)
        .on(Stage::Seccomp, "open", path)?;
    let meta = file.metadata().on(Stage::Seccomp, "inspect", path)?;
    if !meta.is_file() {
        return Err(wrong(
            "the seccomp profile is not a regular file".to_owned(),
        ));
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&meta.uid()) || meta.mode() & 0o022 != 0 {
        return Err(wrong(
            "the seccomp profile could be changed by others: it must belong to root or to the \
             user that runs marshal, and be writable for nobody else"
                .to_owned(),
        ));
    }
    let mut text = String::new();
    let read = file.take(FILE_BYTES + 1).read_to_string(&mut text);
    read.on(Stage::Seccomp, "read", path)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(wrong(format!(
            "the seccomp profile is longer than {FILE_BYTES} bytes"
        )));
    }
    Ok(text)
}

/// Parses the profile in a file's text.
pub(super) fn parse_profile(path: &str, text: Option<&str>) -> StepResult<Profile> {
    let text = text.ok_or_else(|| failure(Stage::Seccomp, "the profile did not arrive"))?;
    oci::parse(text).map_err(|what| SetupFailure {
        path: Some(path.to_owned()),
        ..failure(Stage::Seccomp, format!("read the profile: {what}"))
    })
}

fn apply_program(program: &[seccompiler::sock_filter]) -> StepResult {
    seccompiler::apply_filter(program)
        .map_err(|error| match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            other => std::io::Error::other(other.to_string()),
        })
        .at(Stage::Seccomp, "install the filter")
}

#[cfg(test)]
mod tests;
