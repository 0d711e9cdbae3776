//! The helper that has another program put the walls up: bubblewrap, or a container engine.
//!
//! It puts what is to be shown where that program can name it, starts it, and is called back by the
//! first process inside, which is this binary again (`entry`). That one gets the supervisor's
//! control socket and the agent's pipes, so that from there on everything is as in walls of our own:
//! reports, orders, exit codes, the door. What is left to the helper is to be there until everything
//! is gone, and to see to it:
//!
//! ```text
//! supervisor -- control socket --> helper -- starts --> bwrap or podman -- starts --> entry --> agent
//!            <-- reports, orders ----------- link ----------------------------------> entry
//! ```
//!
//! Another such program needs its part of `wire/engine.rs`, its command line beside `bwrap.rs` and
//! `container.rs`, its checks in `entry.rs`, and its discovery in `cli/engines.rs`.

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
use program_run::{RunningProgram, Signals, WaitOutcome};
use stage::{StagedMount, StagedMounts as Shown};

/// The word that tells the entry that its stdin is the link.
const BY_STDIN: &str = "stdin";
/// The most processes of a container's user. podman gives itself no more, and what it has not it
/// cannot give where its root lacks SYS_RESOURCE.
const PROCESSES: u64 = 32_768;
/// Says that the entry has everything.
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
            // The entry reports from here on; two ends held would hide its death.
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

/// What runs, and what must be done when it has ended.
struct EngineSandbox {
    link: UnixStream,
    instance: EngineInstance,
}

enum EngineInstance {
    Bwrap(Box<RunningProgram>),
    Container(Box<OwnedContainer>),
}

/// A container that is to be gone in the end, and the directory that was made for it.
struct OwnedContainer {
    container: Container,
    directory: Option<PathBuf>,
}

/// What came with the first message.
struct EngineStart {
    start: StartMessage,
    plan: ShimPlan,
    stdio: Vec<OwnedFd>,
    /// What stands in the profile's own file of system calls.
    filter: Option<String>,
}

fn start_engine(control: &UnixStream) -> StepResult<EngineSandbox> {
    warden::redirect_stdio_to_null()?;
    let _ = rustix::thread::set_name(c"marshal-engine");
    let (mut start, stdio): (StartMessage, _) =
        control::receive(control).at(Stage::Shim, "read the plan")?;
    let (Some(plan), Some(engine), VERSION) =
        (start.walls.clone(), start.engine.take(), start.version)
    else {
        return Err(failure(Stage::Shim, "the plan is none for another program"));
    };
    if stdio.len() != 3 + usize::from(plan.door) {
        return Err(failure(Stage::Shim, "the agent's pipes did not arrive"));
    }
    let parent = start.parent;
    privilege::die_with_parent(Signal::TERM, Some(parent))?;
    rustix::process::setsid().at(Stage::Shim, "begin a session")?;
    rustix::process::chdir("/").on(Stage::Shim, "enter", "/")?;
    rustix::process::set_child_subreaper(Some(getpid())).at(Stage::Shim, "become a subreaper")?;
    // As whoever marshal is, and before any id is changed.
    let filter = match &plan.seccomp {
        Seccomp::File(path) => Some(seccomp::read_profile_file(path)?),
        Seccomp::BuiltIn | Seccomp::Off => None,
    };
    // The entry is to know who made its walls, but not how.
    let mut told = engine.clone();
    if let Engine::Container(container) = &mut told {
        container.env.clear();
    }
    start.engine = Some(told);
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

/// The marker of this child, which every process of it has in its environment.
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
    // The texts are there until bubblewrap has started; nobody else gets these descriptors.
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
        |path| fs::symlink_metadata(path).ok().map(|found| found.is_dir()),
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
    let (link, theirs) = UnixStream::pair().at(Stage::Shim, "make the link")?;
    let mut command = Command::new(program);
    command
        .env_clear()
        .env(MARKER, marker())
        .args(["--args", &options.as_raw_fd().to_string(), "--"])
        .args([ARG0_ENTRY, BY_STDIN])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null());
    let running = program_run::start(&mut command, program);
    // Its copy of the link's other end.
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

/// A text in memory, from its beginning, in a descriptor that the next program inherits.
fn text_in_memory(text: &[u8]) -> StepResult<fs::File> {
    let make = || -> std::io::Result<fs::File> {
        let mut file = fs::File::from(rustix::fs::memfd_create("text", MemfdFlags::empty())?);
        file.write_all(text)?;
        rustix::fs::seek(&file, SeekFrom::Start(0))?;
        Ok(file)
    };
    make().at(Stage::Engine, "keep a text in memory")
}

/// Gives the entry at the other end of the link everything, and waits until it says that it has
/// it. A failure that is `None` is the end of whoever was to start it.
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
    // To somebody who is already gone nothing can be sent: its end says why.
    let _ = link.set_write_timeout(Some(KILL_HELPER_GRACE));
    let _ = control::send(&link, &enter, &sent);
    drop(stdio);
    match wait(link.as_fd(), Instant::now() + ENGINE_START) {
        WaitOutcome::Ready => {}
        WaitOutcome::Ended => return Err(None),
        WaitOutcome::Cancelled => {
            return Err(Some(failure(
                Stage::Engine,
                "the supervisor wants it no more",
            )));
        }
        WaitOutcome::TimedOut => {
            return Err(Some(failure(
                Stage::Engine,
                format!("nothing came from inside for {ENGINE_START:?}"),
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
                let what = format!("{} (and the container {name} may be left)", fault.what);
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
    // Only where the engine runs as this process's own child, in its mount namespace.
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
        .ok_or_else(|| failure(Stage::Engine, "there is no place for the link"))?;
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
    .map_err(|said| failure(Stage::Engine, said))?;
    let link = accept(&listener, control, &order, &ours.container)?;
    drop(listener);
    let mut signals = Signals::block()?;
    let follows = ours.container.flavour == ContainerCli::Podman;
    hand_to_entrypoint(control, order, shown, link, &mut |link, until| {
        wait_for_entrypoint(link, control, follows.then_some(&mut signals), until)
    })
    .map_err(|fault| {
        fault.unwrap_or_else(|| failure(Stage::Engine, "the container ended before it began"))
    })
}

/// Waits for something from inside. `monitor`: the container's monitor is a child of this process,
/// and its end is the container's.
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

/// The first caller is pid 1 of the container: nobody else is in it, and nobody else has a way to
/// the socket.
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
            let (link, _) = listener.accept().at(Stage::Engine, "hear from inside")?;
            let caller = socket_peercred(&link).at(Stage::Engine, "ask who calls")?;
            if caller.uid.as_raw() == order.plan.ids.uid_and_gid().0 {
                return Ok(link);
            }
            "somebody else called from inside".to_owned()
        }
        WaitOutcome::Ended => {
            "the container ended before it began: is its image for this architecture?".to_owned()
        }
        WaitOutcome::Cancelled => "the supervisor wants it no more".to_owned(),
        WaitOutcome::TimedOut => format!("nothing came from inside for {ENGINE_START:?}"),
    };
    Err(failure(Stage::Engine, what))
}

impl EngineSandbox {
    /// Waits until the entry is gone, which is the order to clean up. SIGTERM is the order to kill.
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
            // The entry says nothing more: whatever comes is its end.
            if link {
                return;
            }
        }
    }

    fn end(self) -> ExitCode {
        drop(self.link);
        let is_gone = match self.instance {
            EngineInstance::Bwrap(running) => {
                // Its end is that of the pid namespace; who does not end is killed.
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
    /// The engine, for messages.
    fn engine_name(&self) -> String {
        let program = self.container.program.first();
        let name = program.and_then(|path| path.rsplit('/').next());
        name.unwrap_or("the engine").to_owned()
    }

    fn command(&self, line: &[String]) -> StepResult<Command> {
        let (program, words) = line
            .split_first()
            .ok_or_else(|| failure(Stage::Shim, "the engine has no program"))?;
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .envs(self.container.env.iter().map(|(name, value)| (name, value)))
            .env(MARKER, marker());
        Ok(command)
    }

    /// Sees to it that the container is gone: by itself, as every container is that has ended, or
    /// removed. `false` if it may still be there.
    fn end(&mut self) -> bool {
        // As long as its monitor lives, which removes it.
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
        matches!(self.run_command(&container::inspect_argv(&self.container)), Some(Err(said)) if said.to_lowercase().contains("no such"))
    }

    fn run_command(&self, line: &[String]) -> Option<Result<(), String>> {
        let mut command = self.command(line).ok()?;
        program_run::run_to_end(&mut command, &self.engine_name(), None, ENGINE_COMMAND).ok()
    }
}

#[cfg(test)]
mod tests;
