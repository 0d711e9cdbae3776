//! Pid 1 of the sandbox: builds the file system inside, drops all privileges, starts the agent and
//! watches it.
//!
//! Its stdin is the control socket, its stdout the link to the outer helper. It applies all layers
//! to itself before it starts the agent, so that no further helper is needed and a failure to start
//! the agent is known here.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::process::{DumpableBehavior, Pid, Signal, getpid};

use super::failure::{FailureContext, StepResult, failure};
use super::sandbox_entry::EntryListener;
use super::warden::{Scope, Warden};
use super::{control, landlock, privilege, root, seccomp, warden};
use marshal_wire::shim::{ActiveLayers, EnterMessage, HelperReport, Stage, VERSION};

/// Runs as pid 1 of the sandbox.
pub(super) fn main() -> ExitCode {
    if privilege::close_inherited().is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(control) = control::from_stdin() else {
        return ExitCode::FAILURE;
    };
    let Ok(reports) = control.try_clone() else {
        return ExitCode::FAILURE;
    };
    match prepare() {
        Ok(PreparedAgent {
            agent,
            link,
            entry_listener: entry,
            notes,
            layers,
        }) => Warden {
            agent,
            control,
            reports: File::from(OwnedFd::from(reports)),
            link: Some(link),
            entry_listener: entry,
            scope: Scope::Namespace,
        }
        .watch(notes, Some(layers), || Ok(())),
        Err(failure) => {
            let _ = control::send(&control, &HelperReport::Failed(failure), &[]);
            ExitCode::FAILURE
        }
    }
}

/// The started agent and everything needed to watch it.
struct PreparedAgent {
    agent: Pid,
    link: UnixStream,
    entry_listener: Option<EntryListener>,
    notes: Vec<String>,
    layers: ActiveLayers,
}

fn prepare() -> StepResult<PreparedAgent> {
    // The warden kills every process that it can see: make sure that this is only the sandbox's pid
    // namespace.
    if getpid() != Pid::INIT {
        return Err(failure(
            Stage::Shim,
            "this helper runs only as pid 1 of a sandbox",
        ));
    }
    // The outer helper is outside this pid namespace, so its pid cannot be checked. If it ended
    // before this call, the link has closed too, and the warden notices that.
    privilege::die_with_parent(Signal::KILL, None)?;
    // The agent will have the same uid as this process, which has the control socket.
    privilege::set_dumpable(DumpableBehavior::NotDumpable)?;
    let link =
        control::link_from_stdout().at(Stage::Shim, "take the socket to the outer helper")?;
    warden::redirect_stdio_to_null()?;
    let _ = rustix::thread::set_name(c"marshal-init");
    let (enter, mut descriptors): (EnterMessage, _) =
        control::receive(&link).at(Stage::Shim, "read the plan")?;
    let (Some(plan), VERSION) = (&enter.start.plan, enter.start.version) else {
        return Err(failure(Stage::Shim, "the plan is not one for a sandbox"));
    };
    let trees = descriptors.split_off((3 + usize::from(plan.has_entry)).min(descriptors.len()));
    let entry = descriptors.split_off(3.min(descriptors.len())).pop();
    let stdio: [OwnedFd; 3] = descriptors
        .try_into()
        .map_err(|_| failure(Stage::Shim, "the agent's pipes did not arrive"))?;

    rustix::process::setsid().at(Stage::Shim, "start a session")?;
    rustix::process::umask(rustix::fs::Mode::empty());
    root::build(&plan.mounts, &enter.opened, trees)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let program = &enter.start.program;
    rustix::process::chdir(&*program.cwd).on(Stage::Mount, "enter", &program.cwd)?;
    privilege::set_rlimits(program.limits)?;
    privilege::empty_bounding_set()?;
    privilege::drop_capabilities()?;
    let landlock = landlock::enforce(
        &plan.mounts,
        &enter.opened,
        plan.network,
        plan.landlock_min_abi,
    )?;
    // The filter goes last, just before the agent starts: every process started from here on
    // inherits it.
    let seal = seccomp::install_planned(&plan.seccomp, enter.filter.as_deref())?;
    let agent = warden::start_agent(program, stdio, seal)?;
    Ok(PreparedAgent {
        agent,
        link,
        entry_listener: entry.map(|socket| EntryListener::new(socket, seal)),
        notes: enter.notes,
        layers: ActiveLayers {
            ids: plan.ids,
            landlock,
            seccomp: plan.seccomp.clone(),
        },
    })
}
