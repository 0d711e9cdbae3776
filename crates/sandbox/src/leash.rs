//! The leash: the helper of an agent without a sandbox.
//!
//! It stays the agent's parent and is a child subreaper. So everything that the agent leaves
//! behind, double forks and new sessions included, is its descendant and is killed with the agent,
//! at any stop, and when the supervisor is killed. It does not confine: the agent is an ordinary
//! process of the caller.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::SigSet;
use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, getpid};

use super::failure::{FailureContext, StepResult, failure};
use super::open::open_within;
use super::seccomp::AgentRestriction;
use super::warden::{Scope, Warden};
use super::{control, privilege, warden};
use marshal_wire::shim::{HelperReport, SetupFailure, Stage, StartMessage, VERSION};

/// Runs as the leash. Its stdin is the control socket, its stdout the pipe for reports.
pub(super) fn main() -> ExitCode {
    // Agents may have the same uid: they must not trace this process or open its descriptors.
    if privilege::set_dumpable(DumpableBehavior::NotDumpable).is_err()
        || privilege::close_inherited().is_err()
    {
        return ExitCode::FAILURE;
    }
    // Inside a sandbox, the leash inherits pid 1's signal mask, which blocks the signals that pid 1
    // reads; without a reset a command would inherit it, too.
    let _ = SigSet::empty().thread_set_mask();
    let (Ok(control), Ok(reports)) = (control::from_stdin(), control::reports_from_stdout()) else {
        return ExitCode::FAILURE;
    };
    match prepare(&control) {
        // A death signal before the warden handles signals would leave the agent behind; until
        // then, the closed control socket reports the supervisor's end.
        Ok((agent, parent)) => Warden {
            agent,
            control,
            reports,
            link: None,
            entry_listener: None,
            scope: Scope::Descendants,
        }
        .watch(Vec::new(), None, || {
            privilege::die_with_parent(Signal::TERM, Some(parent))
        }),
        Err(failure) => {
            let _ = control::send_report(&reports, &HelperReport::Failed(failure));
            ExitCode::FAILURE
        }
    }
}

fn prepare(control: &UnixStream) -> StepResult<(Pid, u32)> {
    warden::redirect_stdio_to_null()?;
    let _ = rustix::thread::set_name(c"marshal-leash");
    let (start, descriptors): (StartMessage, _) =
        control::receive(control).at(Stage::Shim, "read the plan")?;
    if start.version != VERSION || start.plan.is_some() {
        return Err(failure(Stage::Shim, "the plan is not one for a leash"));
    }
    let stdio: [OwnedFd; 3] = descriptors
        .try_into()
        .map_err(|_| failure(Stage::Shim, "the agent's pipes did not arrive"))?;
    rustix::process::setsid().at(Stage::Shim, "start a session")?;
    rustix::process::set_child_subreaper(Some(getpid()))
        .at(Stage::Shim, "become a child subreaper")?;
    let program = &start.program;
    enter(&program.cwd, start.no_links).map_err(|errno| SetupFailure {
        stage: Stage::Exec,
        what: "enter the working directory".to_owned(),
        path: Some(program.cwd.clone()),
        errno: Some(errno.raw_os_error()),
    })?;
    privilege::set_rlimits(program.limits)?;
    let agent = warden::start_agent(program, stdio, AgentRestriction::from_args())?;
    Ok((agent, start.parent))
}

fn enter(cwd: &str, no_links: bool) -> Result<(), Errno> {
    if !no_links {
        return rustix::process::chdir(cwd);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let dir = open_within(CWD, cwd, flags, resolve)?;
    rustix::process::fchdir(dir)
}
