//! Seccomp: which system calls a process inside the walls may make.
//!
//! A profile is data: for each call what the kernel is to do, by its arguments where that matters,
//! and what it does with every other call. `rules` has the built-in one, an allow-list; `oci`
//! reads another from a file; `code` makes the kernel's program of it. Must not know when in the
//! life of a helper it is put on, nor what an agent is.
//!
//! What is allowed is decided by numbers, and numbers mean something only together with the
//! architecture: the program kills a process that calls by another one (32 bits on 64), and
//! treats every number that it does not know, x32's included, as the profile treats the unknown.

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

/// Bytes of a profile's file.
const FILE_BYTES: u64 = 256 << 10;

/// What the kernel does with a call. The later in this list, the more it takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// The call is made.
    Allow,
    /// The call is made and noted in the kernel's log.
    Log,
    /// The call is not made and gives this error, 1 to 4095.
    Errno(u16),
    /// The process gets SIGSYS, which it may handle.
    Trap,
    /// The thread is killed.
    KillThread,
    /// The process is killed.
    Kill,
}

/// What an argument is compared with. Numbers of 32 bits are compared with the lower half of the
/// argument alone, which is all that the kernel looks at where its own type has 32 bits: by the
/// upper half nobody slips past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// The lower half has any of these bits.
    AnyOf(u32),
    /// The lower half, by this comparison.
    Low32(Compare, u32),
    /// The lower half, of which only the bits of the first number count, is the second.
    Low32Masked(u32, u32),
    /// All of it, by this comparison.
    Full64(Compare, u64),
    /// All of it, of which only the bits of the first number count, is the second.
    Full64Masked(u64, u64),
}

/// A comparison of an argument with a number, without signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// The same.
    Eq,
    /// Another.
    Ne,
    /// Less.
    Lt,
    /// Less or the same.
    Le,
    /// More.
    Gt,
    /// More or the same.
    Ge,
}

/// One rule for a call: if all tests hold, the action. Of several rules that hold, the one that
/// takes away the most counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// What is done.
    pub(super) action: Action,
    /// Argument (0 to 5) and test.
    pub(super) tests: Vec<(u8, Test)>,
}

/// What is done with one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallRules {
    /// The rules, in any order.
    pub(super) rules: Vec<Rule>,
    /// What is done if none of them holds.
    pub(super) otherwise: Action,
}

/// What is done with every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    /// What is done with a call that is not named.
    pub(super) default: Action,
    /// The others by number, below 2^30.
    pub(super) calls: BTreeMap<u32, CallRules>,
}

impl Profile {
    fn new(default: Action) -> Self {
        Self {
            default,
            calls: BTreeMap::new(),
        }
    }

    /// What is done with a call, if this architecture has it.
    fn call_rules(&mut self, name: &str) -> Option<&mut CallRules> {
        let fresh = CallRules {
            rules: Vec::new(),
            otherwise: self.default,
        };
        Some(self.calls.entry(syscalls::number(name)?).or_insert(fresh))
    }

    /// One rule more for a call.
    fn add(&mut self, name: &str, action: Action, tests: &[(u8, Test)]) {
        if let Some(call) = self.call_rules(name) {
            call.rules.push(Rule {
                action,
                tests: tests.to_vec(),
            });
        }
    }

    /// What is done with a call if none of its rules holds.
    fn otherwise(&mut self, name: &str, action: Action) {
        if let Some(call) = self.call_rules(name) {
            call.otherwise = action;
        }
    }
}

/// The built-in profile, as every process inside wears it.
pub(super) fn built_in() -> Profile {
    rules::built_in()
}

/// Puts on what the plan names, for this thread and whatever it starts; gives what an agent wears
/// beyond it. `file` is the text of the file that the plan names, if it names one.
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

/// Puts a profile on, for this thread and whatever it starts, for good. Sets no_new_privs too.
pub(super) fn install(profile: &Profile) -> StepResult {
    let program = bpf::assemble(profile)
        .map_err(|what| failure(Stage::Seccomp, format!("make the filter: {what}")))?;
    apply_program(&program)
}

/// What an agent, or a command that is run for it, wears beyond what marshal's own helpers inside
/// do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentRestriction {
    /// Nothing: there are no walls.
    None,
    /// A domain of Landlock of its own.
    LandlockDomain,
    /// That, and no openat2: its mode is behind a pointer, where no filter can look, and could plant
    /// a set-id program. The helpers need it to open what they were told and nothing else.
    LandlockAndNoOpenat2,
}

impl AgentRestriction {
    /// What this process, a leash, was told by its arguments.
    pub(super) fn from_args() -> Self {
        let said =
            |seal: &Self| std::env::args_os().any(|word| seal.as_str().is_some_and(|w| word == w));
        [Self::LandlockAndNoOpenat2, Self::LandlockDomain]
            .into_iter()
            .find(said)
            .unwrap_or(Self::None)
    }

    /// The argument that says so.
    pub(super) const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::LandlockDomain => Some("domain"),
            Self::LandlockAndNoOpenat2 => Some("agents"),
        }
    }
}

/// Starts something under a seal that this process itself does not wear. A filter belongs to a
/// thread and to what that thread starts, and so does a domain of Landlock; so both are put on by a
/// thread that lives no longer.
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
            .map_err(|_| failure(Stage::Seccomp, "the thread that starts the agent broke"))?
    })
}

/// The text of a profile's file, which nobody but root and the user that runs marshal can have
/// written.
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
    let found = file.metadata().on(Stage::Seccomp, "inspect", path)?;
    if !found.is_file() {
        return Err(wrong("the seccomp profile is no regular file".to_owned()));
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) || found.mode() & 0o022 != 0 {
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

/// The profile in a file's text.
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
        .at(Stage::Seccomp, "put the filter on")
}

#[cfg(test)]
mod tests;
