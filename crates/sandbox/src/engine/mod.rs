//! The helper that lets another program create the sandbox: bubblewrap, or a container engine.
//!
//! It stages the mounts where that program can name them, starts it, and waits until the first
//! process inside, which is this binary again (`entrypoint`), connects back. That process gets the
//! supervisor's control socket and the agent's pipes, so that from then on everything works as in
//! our own sandbox: reports, orders, exit codes, the sandbox entry. The helper stays until
//! everything is gone, and makes sure of it:
//!
//! ```text
//! supervisor -- control socket --> helper -- starts --> bwrap or podman -- starts --> entry --> agent
//!            <-- reports, orders ----------- link ----------------------------------> entry
//! ```
//!
//! Another such program needs its part of `wire/engine.rs`, its command line beside `bwrap.rs` and
//! `container.rs`, its checks in `entrypoint.rs`, and its discovery in `cli/engines.rs`.

use std::fs;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Resource, Signal, getpid, getrlimit};

use super::failure::{FailureContext, StepResult, failure};
use super::{control, privilege, seccomp, warden};
use marshal_model::limits::{
    ENGINE_COMMAND, ENGINE_SETTLE, ENGINE_START, KILL_HELPER_GRACE, KILL_LEFTOVERS_TIMEOUT,
};
use marshal_wire::engine::{Container, ContainerCli, EXIT_CONTAINER_LEFT, Engine};
use marshal_wire::shim::{
    ARG0_ENTRY, EnterMessage, HelperReport, HostIds, MARKER, OpenedMount, Seccomp, ShimPlan, Stage,
    StartMessage, VERSION,
};

mod bwrap;
mod container;
mod entrypoint;
mod own_binary;
mod program_run;
mod stage;

pub(super) use entrypoint::main as entry_main;
pub(super) use own_binary::{argv_inside as own_inside, command as own_command};

use container::ContainerSpec;
use program_run::{CommandError, RunningProgram, Signals, WaitOutcome};
use stage::{StagedMount, StagedMounts as Shown};

/// The argument that tells the entrypoint that its stdin is the link.
const BY_STDIN: &str = "stdin";
/// Maximum number of processes of a container's user. podman cannot raise its own limit where its
/// root lacks SYS_RESOURCE.
const PROCESSES: u64 = 32_768;
/// Sent by the entrypoint when it has everything.
const ENTRYPOINT_READY: u8 = b'+';

/// Runs as the helper. Its stdin is the control socket.
pub(super) fn main() -> ExitCode {
    if privilege::close_inherited().is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(control) = control::from_stdin() else {
        return ExitCode::FAILURE;
    };
    match start_engine(&control) {
        Ok(mut guest) => {
            // From here on the entrypoint reports. A second open copy would hide its death from the
            // supervisor.
            drop(control);
            guest.watch();
            guest.end()
        }
        Err(failure) => {
            let _ = control::send(&control, &HelperReport::Failed(failure), &[]);
            ExitCode::FAILURE
        }
    }
}

/// A running sandbox, and what must be cleaned up when it has ended.
struct EngineSandbox {
    link: UnixStream,
    instance: EngineInstance,
}

enum EngineInstance {
    Bwrap(Box<RunningProgram>),
    Container(Box<OwnedContainer>),
}

/// A container that must be removed in the end, and the directory that was created for it.
struct OwnedContainer {
    container: Container,
    directory: Option<PathBuf>,
}

/// The content of the first message.
struct EngineStart {
    start: StartMessage,
    plan: ShimPlan,
    stdio: Vec<OwnedFd>,
    /// The text of the profile's seccomp file.
    filter: Option<String>,
}

fn start_engine(control: &UnixStream) -> StepResult<EngineSandbox> {
    warden::redirect_stdio_to_null()?;
    let _ = rustix::thread::set_name(c"marshal-engine");
    let (mut start, stdio): (StartMessage, _) =
        control::receive(control).at(Stage::Shim, "read the plan")?;
    let (Some(plan), Some(engine), VERSION) =
        (start.plan.clone(), start.engine.take(), start.version)
    else {
        return Err(failure(
            Stage::Shim,
            "the plan is not one for this launcher",
        ));
    };
    if stdio.len() != 3 + usize::from(plan.has_entry) {
        return Err(failure(Stage::Shim, "the agent's pipes did not arrive"));
    }
    let parent = start.parent;
    privilege::die_with_parent(Signal::TERM, Some(parent))?;
    rustix::process::setsid().at(Stage::Shim, "start a session")?;
    rustix::process::chdir("/").on(Stage::Shim, "enter", "/")?;
    rustix::process::set_child_subreaper(Some(getpid()))
        .at(Stage::Shim, "become a child subreaper")?;
    // Read as the user that runs marshal, before any id changes.
    let filter = match &plan.seccomp {
        Seccomp::File(path) => Some(seccomp::read_profile_file(path)?),
        Seccomp::BuiltIn | Seccomp::Off => None,
    };
    // The entrypoint needs to know the launcher, but not its command and environment.
    let mut forwarded = engine.clone();
    if let Engine::Container(container) = &mut forwarded {
        container.env.clear();
    }
    start.engine = Some(forwarded);
    let order = EngineStart {
        start,
        plan,
        stdio,
        filter,
    };
    match engine {
        Engine::Bwrap { program } => start_bwrap(control, order, &program),
        Engine::Container(container) => start_or_remove_container(control, order, container),
    }
}

/// The marker of this child, an environment variable that every process of it inherits.
fn marker() -> String {
    std::env::var(MARKER).unwrap_or_default()
}

fn start_bwrap(
    control: &UnixStream,
    order: EngineStart,
    program: &str,
) -> StepResult<EngineSandbox> {
    let plan = &order.plan;
    let shown = match plan.ids {
        HostIds::Root { slot_uid } => {
            let shown = stage::build(plan, bwrap::is_shown)?;
            privilege::become_user(slot_uid, slot_uid)?;
            privilege::die_with_parent(Signal::TERM, Some(order.start.parent))?;
            shown
        }
        HostIds::Own { .. } => stage::locate_in_place(plan, bwrap::is_shown, None)?,
    };
    if rustix::process::geteuid().is_root() || rustix::process::getegid().is_root() {
        return Err(failure(
            Stage::Uid,
            "bubblewrap must not run as uid or gid 0 of the host",
        ));
    }
    privilege::no_new_privileges()?;
    // The texts must stay open until bubblewrap has started; no other process gets these
    // descriptors.
    let mut texts = Vec::new();
    let mut fault = None;
    let words = bwrap::options(
        plan,
        &shown.placed,
        &marker(),
        |text| match text_in_memory(text.as_bytes()) {
            Ok(file) => {
                let number = file.as_raw_fd();
                texts.push(file);
                number
            }
            Err(failed) => {
                fault = Some(failed);
                -1
            }
        },
        |path| fs::symlink_metadata(path).ok().map(|meta| meta.is_dir()),
    );
    if let Some(fault) = fault {
        return Err(fault);
    }
    let mut line = Vec::new();
    for word in words {
        line.extend_from_slice(word.as_bytes());
        line.push(0);
    }
    let options = text_in_memory(&line)?;
    let (link, theirs) = UnixStream::pair().at(Stage::Shim, "create the socket pair to pid 1")?;
    let mut command = Command::new(program);
    command
        .env_clear()
        .env(MARKER, marker())
        .args(["--args", &options.as_raw_fd().to_string(), "--"])
        .args([ARG0_ENTRY, BY_STDIN])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null());
    let running = program_run::start(&mut command, program);
    // Closes our copy of the other end of the link.
    drop(command);
    drop((texts, options));
    let mut running = running?;
    match hand_to_entrypoint(control, order, shown, link, &mut |link, until| {
        running.wait(Some(link), Some(control), until)
    }) {
        Ok(link) => Ok(EngineSandbox {
            link,
            instance: EngineInstance::Bwrap(Box::new(running)),
        }),
        Err(fault) => {
            let how = running.end();
            let _ = end_descendants();
            Err(fault.unwrap_or_else(|| {
                failure(
                    Stage::Engine,
                    format!("{program}: {how}: {}", running.stderr_tail()),
                )
            }))
        }
    }
}

/// Creates a file in memory with a text, as a descriptor that the next program inherits.
fn text_in_memory(text: &[u8]) -> StepResult<fs::File> {
    let make = || -> std::io::Result<fs::File> {
        let mut file = fs::File::from(rustix::fs::memfd_create("text", MemfdFlags::empty())?);
        file.write_all(text)?;
        rustix::fs::seek(&file, SeekFrom::Start(0))?;
        Ok(file)
    };
    make().at(Stage::Engine, "create a file in memory")
}

/// Sends everything to the entrypoint over the link, and waits until it confirms. `Err(None)` means
/// that the program that starts it has ended.
fn hand_to_entrypoint(
    control: &UnixStream,
    order: EngineStart,
    shown: Shown,
    link: UnixStream,
    wait: &mut dyn FnMut(BorrowedFd<'_>, Instant) -> WaitOutcome,
) -> Result<UnixStream, Option<marshal_wire::shim::SetupFailure>> {
    let EngineStart {
        start,
        stdio,
        filter,
        ..
    } = order;
    let opened = shown.placed.iter().map(|placed| match placed {
        StagedMount::At { is_dir, .. } => OpenedMount::Tree { is_dir: *is_dir },
        StagedMount::Link { to } => OpenedMount::Link { to: to.clone() },
        StagedMount::Nothing | StagedMount::MadeByEngine => OpenedMount::Nothing,
    });
    let enter = EnterMessage {
        start,
        opened: opened.collect(),
        notes: shown.notes,
        filter,
    };
    let sent: Vec<BorrowedFd<'_>> = [control.as_fd()]
        .into_iter()
        .chain(stdio.iter().map(AsFd::as_fd))
        .collect();
    // A send to a process that has ended fails; how it ended is reported instead.
    let _ = link.set_write_timeout(Some(KILL_HELPER_GRACE));
    let _ = control::send(&link, &enter, &sent);
    drop(stdio);
    match wait(link.as_fd(), Instant::now() + ENGINE_START) {
        WaitOutcome::Ready => {}
        WaitOutcome::Ended => return Err(None),
        WaitOutcome::Cancelled => {
            return Err(Some(failure(
                Stage::Engine,
                "the supervisor cancelled the start",
            )));
        }
        WaitOutcome::TimedOut => {
            return Err(Some(failure(
                Stage::Engine,
                format!("pid 1 of the sandbox did not answer within {ENGINE_START:?}"),
            )));
        }
    }
    let mut word = [0];
    match rustix::io::read(&link, &mut word[..]) {
        Ok(1) if word == [ENTRYPOINT_READY] => Ok(link),
        _ => Err(None),
    }
}

fn start_or_remove_container(
    control: &UnixStream,
    order: EngineStart,
    container: Container,
) -> StepResult<EngineSandbox> {
    let mut ours = OwnedContainer {
        container,
        directory: None,
    };
    let begun = start_container(control, order, &mut ours);
    match begun {
        Ok(link) => Ok(EngineSandbox {
            link,
            instance: EngineInstance::Container(Box::new(ours)),
        }),
        Err(fault) => {
            if ours.end() {
                Err(fault)
            } else {
                let name = &ours.container.name;
                let what = format!(
                    "{} (the container {name} may still exist: check it and remove it)",
                    fault.what
                );
                Err(marshal_wire::shim::SetupFailure { what, ..fault })
            }
        }
    }
}

fn start_container(
    control: &UnixStream,
    order: EngineStart,
    ours: &mut OwnedContainer,
) -> StepResult<UnixStream> {
    let plan = &order.plan;
    let libraries = own_binary::libraries()?;
    // Staging works only if the engine runs as a child of this process, in its mount namespace.
    let is_staged =
        matches!(plan.ids, HostIds::Root { .. }) && ours.container.flavour == ContainerCli::Podman;
    let shown = if is_staged {
        stage::build(plan, container::is_shown)?
    } else {
        let directory = Path::new(&ours.container.directory).join(&ours.container.name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .on(Stage::Engine, "make", &directory)?;
        ours.directory = Some(directory.clone());
        stage::locate_in_place(plan, container::is_shown, Some(&directory))?
    };
    let directory = shown
        .directory
        .as_deref()
        .ok_or_else(|| failure(Stage::Engine, "no directory for the socket of pid 1"))?;
    let (listener, path) = stage::listen(directory, plan.ids.uid_and_gid())?;
    let hard = |resource| getrlimit(resource).maximum;
    let mut limits = order.start.program.limits;
    limits.nofile = hard(Resource::Nofile).map_or(limits.nofile, |hard| hard.min(limits.nofile));
    let line = container::run_argv(&ContainerSpec {
        container: &ours.container,
        plan,
        placed: &shown.placed,
        libraries: &libraries,
        link: &path,
        marker: &marker(),
        limits,
        processes: hard(Resource::Nproc).map_or(PROCESSES, |hard| hard.min(PROCESSES)),
    });
    let name = ours.engine_name();
    program_run::run_to_end(
        &mut ours.command(&line)?,
        &name,
        Some(control),
        ENGINE_START,
    )?
    .map_err(|error| failure(Stage::Engine, error.to_string()))?;
    let link = accept(&listener, control, &order, &ours.container)?;
    drop(listener);
    let mut signals = Signals::block()?;
    let follows = ours.container.flavour == ContainerCli::Podman;
    hand_to_entrypoint(control, order, shown, link, &mut |link, until| {
        wait_for_entrypoint(link, control, follows.then_some(&mut signals), until)
    })
    .map_err(|fault| {
        fault.unwrap_or_else(|| {
            failure(
                Stage::Engine,
                "the container ended before its first process answered",
            )
        })
    })
}

/// Waits for the entrypoint. `monitor`: the container's monitor is a child of this process, and
/// ends together with the container.
fn wait_for_entrypoint(
    inside: BorrowedFd<'_>,
    control: &UnixStream,
    mut monitor: Option<&mut Signals>,
    until: Instant,
) -> WaitOutcome {
    loop {
        if monitor.is_some() && program_run::reap() {
            return WaitOutcome::Ended;
        }
        let Some(left) = until.checked_duration_since(Instant::now()) else {
            return WaitOutcome::TimedOut;
        };
        let mut waits = vec![
            PollFd::new(&inside, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
        ];
        if let Some(signals) = &monitor {
            waits.push(PollFd::new(&**signals, PollFlags::IN));
        }
        let _ = poll(&mut waits, Some(&program_run::timespec(left)));
        let ready: Vec<bool> = waits
            .iter()
            .map(|wait| !wait.revents().is_empty())
            .collect();
        drop(waits);
        if ready.first() == Some(&true) {
            return WaitOutcome::Ready;
        }
        if ready.get(1) == Some(&true) {
            return WaitOutcome::Cancelled;
        }
        if let Some(signals) = &mut monitor
            && signals.received_sigterm()
        {
            return WaitOutcome::Cancelled;
        }
    }
}

/// Accepts the first connection, which comes from pid 1 of the container: no other process is in
/// it, and nobody else reaches the socket.
fn accept(
    listener: &UnixListener,
    control: &UnixStream,
    order: &EngineStart,
    container: &Container,
) -> StepResult<UnixStream> {
    let mut signals = Signals::block()?;
    let follows = container.flavour == ContainerCli::Podman;
    let until = Instant::now() + ENGINE_START;
    let what = match wait_for_entrypoint(
        listener.as_fd(),
        control,
        follows.then_some(&mut signals),
        until,
    ) {
        WaitOutcome::Ready => {
            let (link, _) = listener.accept().at(Stage::Engine, "accept the connection from pid 1")?;
            let caller = socket_peercred(&link).at(Stage::Engine, "read the uid of the caller")?;
            if caller.uid.as_raw() == order.plan.ids.uid_and_gid().0 {
                return Ok(link);
            }
            "the caller at the socket of pid 1 has an unexpected uid".to_owned()
        }
        WaitOutcome::Ended => {
            "the container ended before its first process connected: check that its image is for this architecture".to_owned()
        }
        WaitOutcome::Cancelled => "the supervisor cancelled the start".to_owned(),
        WaitOutcome::TimedOut => format!("pid 1 of the sandbox did not answer within {ENGINE_START:?}"),
    };
    Err(failure(Stage::Engine, what))
}

impl EngineSandbox {
    /// Waits until the entrypoint is gone, then returns for the cleanup. A SIGTERM is the order to
    /// kill.
    fn watch(&mut self) {
        let Ok(mut signals) = Signals::block() else {
            return;
        };
        let mut until = None;
        loop {
            let left = match until {
                None => None,
                Some(until) => match Instant::checked_duration_since(&until, Instant::now()) {
                    None => return,
                    left => left,
                },
            };
            let mut waits = [
                PollFd::new(&self.link, PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
            ];
            let _ = poll(&mut waits, left.map(program_run::timespec).as_ref());
            let [link, _] = waits.map(|wait| !wait.revents().is_empty());
            if signals.received_sigterm() && until.is_none() {
                let _ = self.link.shutdown(std::net::Shutdown::Write);
                until = Some(Instant::now() + KILL_LEFTOVERS_TIMEOUT);
            }
            // The entrypoint sends nothing more: any event is its end.
            if link {
                return;
            }
        }
    }

    fn end(self) -> ExitCode {
        drop(self.link);
        let is_gone = match self.instance {
            EngineInstance::Bwrap(running) => {
                // Its end is the end of the pid namespace; remaining processes are killed.
                let is_gone = end_descendants();
                drop(running);
                is_gone
            }
            EngineInstance::Container(mut ours) => ours.end(),
        };
        if is_gone {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_CONTAINER_LEFT)
        }
    }
}

fn end_descendants() -> bool {
    Signals::block().is_ok_and(|mut signals| {
        program_run::end_descendants(&mut signals, KILL_HELPER_GRACE, KILL_HELPER_GRACE)
    })
}

impl OwnedContainer {
    /// The engine's name, for messages.
    fn engine_name(&self) -> String {
        let program = self.container.program.first();
        let name = program.and_then(|path| path.rsplit('/').next());
        name.unwrap_or("the engine").to_owned()
    }

    fn command(&self, line: &[String]) -> StepResult<Command> {
        let (program, words) = line
            .split_first()
            .ok_or_else(|| failure(Stage::Shim, "the container engine has no program"))?;
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .envs(self.container.env.iter().map(|(name, value)| (name, value)))
            .env(MARKER, marker());
        Ok(command)
    }

    /// Makes sure that the container is gone: it ends by itself, or is removed. `false` if it may
    /// still exist.
    fn end(&mut self) -> bool {
        // The container's monitor removes the container, so wait for the monitor's end first.
        let patience = match self.container.flavour {
            ContainerCli::Podman => ENGINE_SETTLE,
            ContainerCli::Docker => std::time::Duration::ZERO,
        };
        {
            let Ok(mut signals) = Signals::block() else {
                return false;
            };
            let until = Instant::now() + patience;
            while !program_run::reap() {
                let Some(left) = until.checked_duration_since(Instant::now()) else {
                    break;
                };
                let mut wait = [PollFd::new(&signals, PollFlags::IN)];
                let _ = poll(&mut wait, Some(&program_run::timespec(left)));
                signals.received_sigterm();
            }
        }
        let mut is_gone = self.is_gone();
        if !is_gone {
            let line = container::remove_argv(&self.container);
            let _ = self.run_command(&line);
            is_gone = self.is_gone();
        }
        is_gone &= end_descendants();
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
        is_gone
    }

    fn is_gone(&self) -> bool {
        matches!(self.run_command(&container::inspect_argv(&self.container)), Some(Err(error)) if error.stderr.to_lowercase().contains("no such"))
    }

    fn run_command(&self, line: &[String]) -> Option<Result<(), CommandError>> {
        let mut command = self.command(line).ok()?;
        program_run::run_to_end(&mut command, &self.engine_name(), None, ENGINE_COMMAND).ok()
    }
}

#[cfg(test)]
mod tests;
