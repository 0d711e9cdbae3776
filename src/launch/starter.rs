//! Starts helpers, on the spawner's thread: the process, its pipes and lines, its groups, its first
//! message; and keeps one ready for the next sandbox.
//!
//! Must not know who asked for a child, nor wait for what it says.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::sync::mpsc;

use super::cgroup::{By, Groups, Held, Leaf};
use super::control::{self, Control, OneWay};
use super::program::HelperProgram;
use super::spawner::{Job, Launched, Process};
use super::{Door, LaunchPlan, SpawnError, Walls};
use crate::limits;
use crate::model::GroupLimits;
use crate::wire::engine::{Engine, Taken};
use crate::wire::shim::{
    self, ARG0_ENGINE, ARG0_LEASH, ARG0_OUTER, Ids, MARKER, Placed, Program, Start, VERSION,
};

/// What the spawner thread has.
pub(super) struct Starter {
    helpers: HelperProgram,
    groups: Groups,
    spare: Option<Spare>,
}

/// The helper of a sandbox that is to be: started, in groups of its own, and told nothing yet. The
/// kernel takes milliseconds to move a process into a group, which no start has to wait for.
struct Spare {
    begun: Begun,
    leaf: Option<Leaf>,
}

impl Starter {
    /// Takes this host's groups; helpers are this very program, or the small binary of the same
    /// build beside it.
    pub(super) fn open(executable: PathBuf) -> Self {
        Self {
            groups: Groups::open(&executable),
            helpers: HelperProgram::find(executable),
            spare: None,
        }
    }

    /// Starts a child's helper and tells it what to do.
    pub(super) fn start(
        &mut self,
        plan: &LaunchPlan,
        thread: mpsc::Sender<Job>,
    ) -> Result<Launched, SpawnError> {
        match &plan.walls {
            Walls::None => self.start_plain(plan, ARG0_LEASH, None, thread),
            Walls::Engine(_, engine) => self.start_plain(plan, ARG0_ENGINE, Some(engine), thread),
            Walls::Shim(_) => self.start_sandbox(plan, thread),
        }
    }

    /// One that starts others as soon as it is told what: it is in its groups before.
    fn start_plain(
        &mut self,
        plan: &LaunchPlan,
        arg0: &'static str,
        engine: Option<&Engine>,
        thread: mpsc::Sender<Job>,
    ) -> Result<Launched, SpawnError> {
        let counts_own = counts_own_processes(&plan.walls);
        let (leaf, held) = match (engine, plan.walls.plan()) {
            (Some(engine), Some(walls)) if engine.is_container() => {
                let why_not = engines_lack(engine, walls.ids);
                let held = Groups::of_container(&plan.limits.group, why_not, counts_own)?;
                (None, held)
            }
            _ => self.groups.leaf(&plan.limits.group, counts_own)?,
        };
        let begun = Begun::start(&self.helpers, arg0)?;
        begun.place(leaf.as_ref())?;
        let engine = engine.zip(plan.walls.plan()).map(|(engine, walls)| {
            let takes = taken(&plan.limits.group, &held);
            of_child(engine, &walls.hostname, &begun.marker, takes)
        });
        let (door, theirs) = door_of(plan, &begun.marker)?;
        let message = message_of(plan, &begun.marker, counts_own, engine, false)?;
        begun.tell(&message, theirs.as_ref(), None)?;
        begun.launched(door, Grouped { leaf, held }, thread)
    }

    /// A sandbox of ours: by the helper that is ready, or else by a fresh one, which opens what is
    /// to be seen while the kernel moves it.
    fn start_sandbox(
        &mut self,
        plan: &LaunchPlan,
        thread: mpsc::Sender<Job>,
    ) -> Result<Launched, SpawnError> {
        let counts_own = counts_own_processes(&plan.walls);
        let ready = self.spare.take_if(Spare::is_there);
        let (begun, ready) = match ready {
            Some(Spare { begun, leaf }) => (begun, Some(leaf)),
            None => (Begun::start(&self.helpers, ARG0_OUTER)?, None),
        };
        let (door, theirs) = door_of(plan, &begun.marker)?;
        let program = self.helpers.program();
        let message = message_of(plan, &begun.marker, counts_own, None, program.is_some())?;
        let limits = &plan.limits.group;
        let (leaf, held) = if let Some(leaf) = ready {
            // Limits first: it goes on at once.
            let found = self.groups.furnish(leaf, limits, counts_own)?;
            begun.tell(&message, theirs.as_ref(), program)?;
            found
        } else {
            begun.tell(&message, theirs.as_ref(), program)?;
            let (leaf, held) = self.groups.leaf(limits, counts_own)?;
            begun.place(leaf.as_ref())?;
            (leaf, held)
        };
        begun.say(&shim::encode(&Placed)?)?;
        begun.launched(door, Grouped { leaf, held }, thread)
    }

    /// Has the helper of the next sandbox ready. What fails here fails again, and is told, when one
    /// is asked for.
    pub(super) fn prepare(&mut self) {
        if self.spare.as_mut().is_some_and(Spare::is_there) {
            return;
        }
        let mut spare = || -> Result<Spare, SpawnError> {
            let begun = Begun::start(&self.helpers, ARG0_OUTER)?;
            let leaf = self.groups.blank()?;
            begun.place(leaf.as_ref())?;
            Ok(Spare { begun, leaf })
        };
        self.spare = spare()
            .map_err(|error| tracing::debug!(%error, "no helper is ready for the next sandbox"))
            .ok();
    }
}

impl Spare {
    /// Whether it lives.
    fn is_there(&mut self) -> bool {
        matches!(self.begun.helper.try_wait(), Ok(None))
    }
}

/// The way into a child's walls, if it is planned with one, and the end of pid 1.
fn door_of(plan: &LaunchPlan, marker: &str) -> Result<(Option<Door>, Option<OwnedFd>), SpawnError> {
    let door = plan.walls.plan().is_some_and(|walls| walls.door);
    let door = door.then(|| Door::make(marker)).transpose();
    Ok(door.map_err(SpawnError::Fork)?.unzip())
}

/// The first message to a child's helper.
fn message_of(
    plan: &LaunchPlan,
    marker: &str,
    counts_own: bool,
    engine: Option<Engine>,
    program_beside: bool,
) -> Result<Vec<u8>, SpawnError> {
    let mut limits = plan.limits;
    limits.nproc = plan.limits.group.pids.filter(|_| counts_own).map(u64::from);
    let mut env = plan.env.clone();
    env.retain(|(name, _)| name != MARKER);
    env.push((MARKER.to_owned(), marker.to_owned()));
    Ok(shim::encode(&Start {
        version: VERSION,
        parent: std::process::id(),
        program: Program {
            argv: plan.argv.clone(),
            env,
            cwd: plan.cwd.clone(),
            limits,
        },
        program_beside,
        walls: plan.walls.plan().cloned(),
        no_links: false,
        engine,
    })?)
}

/// The groups of a child that is to be.
struct Grouped {
    leaf: Option<Leaf>,
    held: Held,
}

/// Whether RLIMIT_NPROC counts only processes of this child: where its uid is its own, or, since
/// Linux 5.14, by its user namespace.
fn counts_own_processes(walls: &Walls) -> bool {
    match walls {
        Walls::None => false,
        Walls::Engine(plan, engine) if engine.has_no_user_namespace() => {
            matches!(plan.ids, Ids::Root { .. })
        }
        Walls::Shim(plan) | Walls::Engine(plan, _) => {
            matches!(plan.ids, Ids::Root { .. }) || linux_is_at_least(5, 14)
        }
    }
}

/// Why the engine of a container does not hold limits; `None`: it does.
fn engines_lack(engine: &Engine, ids: Ids) -> Option<&'static str> {
    let is_somebodys = matches!(ids, Ids::Own { .. }) && !engine.has_no_user_namespace();
    // podman says so itself, and goes on without.
    (is_somebodys && !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists())
        .then_some("podman of an ordinary user holds limits only where cgroup v2 is the only one")
}

/// What the engine is to hold.
fn taken(limits: &GroupLimits, held: &Held) -> Taken {
    let by = |by: By| by == By::Engine;
    Taken {
        pids: limits.pids.filter(|_| by(held.pids)),
        memory: limits.memory.filter(|_| by(held.memory)),
        swap: limits.swap.filter(|_| by(held.swap)),
        cpu_millis: limits.cpu_millis.filter(|_| by(held.cpu)),
    }
}

fn linux_is_at_least(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    matches!((number(), number()), (Some(a), Some(b)) if (a, b) >= (major, minor))
}

/// The engine as this one child's helper has it: with a name of its own for its container, and what
/// that may take.
fn of_child(engine: &Engine, host: &str, marker: &str, takes: Taken) -> Engine {
    let mut engine = engine.clone();
    if let Engine::Container(container) = &mut engine {
        let short = marker.get(..12).unwrap_or(marker);
        container.limits = Some(takes);
        container.name = format!("marshal-{}-{host}-{short}", std::process::id());
    }
    engine
}

/// A helper that was started, and what leads to it and to its agent. Dropped, it ends the helper.
struct Begun {
    helper: Child,
    pid: u32,
    /// Which helper it is.
    arg0: &'static str,
    /// The value of `MARSHAL_MARKER` in the environment of every process of this child.
    marker: String,
    ours: StdStream,
    reports: Option<OwnedFd>,
    /// Our ends of the agent's pipes: stdin, stdout, stderr.
    stdio: [OwnedFd; 3],
    /// The agent's.
    theirs: [OwnedFd; 3],
}

impl Begun {
    fn start(helpers: &HelperProgram, arg0: &'static str) -> Result<Self, SpawnError> {
        let fork = SpawnError::Fork;
        let marker = uuid::Uuid::new_v4().simple().to_string();
        let (agent_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fork(e.into()))?;
        let (stdout, agent_stdout) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fork(e.into()))?;
        let (stderr, agent_stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fork(e.into()))?;
        // A leash has the agent's uid and pid namespace; the helpers of a sandbox are out of its reach.
        let (ours, reports, theirs, said) = if arg0 == ARG0_LEASH {
            let lines = OneWay::make().map_err(fork)?;
            let said = Stdio::from(lines.their_reports);
            (lines.orders, Some(lines.reports), lines.their_orders, said)
        } else {
            let (ours, theirs) = StdStream::pair().map_err(fork)?;
            (ours, None, OwnedFd::from(theirs), Stdio::null())
        };
        let program = if arg0 == ARG0_ENGINE {
            helpers.own()
        } else {
            helpers.path().to_owned()
        };
        let mut command = Command::new(program);
        command
            .arg0(OsString::from(arg0))
            .env_clear()
            .env(MARKER, &marker)
            .stdin(Stdio::from(theirs))
            .stdout(said)
            .stderr(Stdio::null());
        let mut command = tokio::process::Command::from(command);
        let helper = command.spawn().map_err(fork)?;
        // Its ends of the lines, so that the helper's death ends ours.
        drop(command);
        let gone = || fork(io::Error::other("the helper ended as it started"));
        let pid = helper.id().ok_or_else(gone)?;
        // A helper reads at once; one that does not must not hold up all other children's starts.
        ours.set_write_timeout(Some(limits::KILL_HELPER))
            .map_err(fork)?;
        Ok(Self {
            helper,
            pid,
            arg0,
            marker,
            ours,
            reports,
            stdio: [stdin, stdout, stderr],
            theirs: [agent_stdin, agent_stdout, agent_stderr],
        })
    }

    /// Puts the helper into its groups: whatever it starts later is in there too. What it may have
    /// started before only makes maps of ids, and is gone before the agent is there.
    fn place(&self, leaf: Option<&Leaf>) -> Result<(), SpawnError> {
        match leaf {
            Some(leaf) => Ok(leaf.place(self.pid)?),
            None => Ok(()),
        }
    }

    /// Sends the first message, beside it the agent's pipes and what else it is to have.
    fn tell(
        &self,
        message: &[u8],
        pid_1s_end: Option<&OwnedFd>,
        program: Option<BorrowedFd<'_>>,
    ) -> Result<(), SpawnError> {
        let mut sent: Vec<_> = self.theirs.iter().map(AsFd::as_fd).collect();
        sent.extend(pid_1s_end.map(AsFd::as_fd));
        sent.extend(program);
        Self::unless_gone(control::send_start(&self.ours, message, &sent))
    }

    /// Sends a message with nothing beside it.
    fn say(&self, message: &[u8]) -> Result<(), SpawnError> {
        Self::unless_gone((&self.ours).write_all(message))
    }

    /// Where a helper ended before it read, its own report says why.
    fn unless_gone(sent: io::Result<()>) -> Result<(), SpawnError> {
        match sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(SpawnError::Fork(error)),
            _ => Ok(()),
        }
    }

    /// The child, for whoever asked for it.
    fn launched(
        self,
        door: Option<Door>,
        of_group: Grouped,
        thread: mpsc::Sender<Job>,
    ) -> Result<Launched, SpawnError> {
        let fork = SpawnError::Fork;
        let [stdin, stdout, stderr] = self.stdio;
        Ok(Launched {
            stdin: pipe::Sender::from_owned_fd(stdin).map_err(fork)?,
            stdout: pipe::Receiver::from_owned_fd(stdout).map_err(fork)?,
            stderr: pipe::Receiver::from_owned_fd(stderr).map_err(fork)?,
            pid: self.pid,
            marker: self.marker.clone(),
            notes: Vec::new(),
            layers: None,
            held: of_group.held,
            door,
            listeners: Vec::new(),
            process: Process {
                helper: self.helper,
                control: match self.reports {
                    Some(reports) => Control::one_way(self.ours, reports).map_err(fork)?,
                    None => Control::new(self.ours).map_err(fork)?,
                },
                marker: self.marker,
                has_namespace: self.arg0 != ARG0_LEASH,
                patience: if self.arg0 == ARG0_ENGINE {
                    limits::ENGINE_END
                } else {
                    limits::KILL_HELPER
                },
                leaf: of_group.leaf,
                _thread: thread,
            },
        })
    }
}
