//! The leash: the helper of an agent that has no walls.
//!
//! It stays the agent's parent and is a subreaper, so that whatever the agent leaves behind, even
//! what forked twice and called setsid, is below it and dies with the agent, at any stop, and when
//! the supervisor itself is killed. It builds no wall: the agent is a plain process of the caller.

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
    // Whoever runs on it has its uid. What it holds is harmless in their hands, but its own.
    if privilege::set_dumpable(DumpableBehavior::NotDumpable).is_err()
        || privilege::close_inherited().is_err()
    {
        return ExitCode::FAILURE;
    }
    // A leash inside a sandbox has its mask from pid 1, which blocks what it reads; a command
    // would have it from here.
    let _ = SigSet::empty().thread_set_mask();
    let (Ok(control), Ok(reports)) = (control::from_stdin(), control::reports_from_stdout()) else {
        return ExitCode::FAILURE;
    };
    match prepare(&control) {
        // A death signal that came before the warden can catch it would leave the agent behind;
        // until then the end of the control socket says the same.
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
    if start.version != VERSION || start.walls.is_some() {
        return Err(failure(Stage::Shim, "the plan is none for a leash"));
    }
    let stdio: [OwnedFd; 3] = descriptors
        .try_into()
        .map_err(|_| failure(Stage::Shim, "the agent's pipes did not arrive"))?;
    rustix::process::setsid().at(Stage::Shim, "begin a session")?;
    rustix::process::set_child_subreaper(Some(getpid())).at(Stage::Shim, "become a subreaper")?;
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
