//! Starts helpers, on the spawner's thread: the process, its pipes and lines, its groups, its first
//! message; and keeps one ready for the next sandbox.
//!
//! Must not know who requested a child, nor wait for its reports.

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

use super::cgroup::{Enforcement, Groups, Leaf, LimitEnforcement};
use super::control::{self, Control, OneWayLink};
use super::helper_program::HelperProgram;
use super::spawner::{Job, LaunchedChild, Process};
use super::{LaunchPlan, SandboxEntry, SandboxSpec, SpawnError};
use marshal_model::ResourceLimits;
use marshal_model::limits;
use marshal_wire::engine::{ContainerLimits, Engine};
use marshal_wire::shim::{
    self, ARG0_ENGINE, ARG0_LEASH, ARG0_OUTER, CgroupReady, HostIds, MARKER, Program, StartMessage,
    VERSION,
};

/// The state of the spawner thread.
pub(super) struct Starter {
    helpers: HelperProgram,
    groups: Groups,
    spare: Option<SpareHelper>,
}

/// The helper of the next sandbox: started, in its own groups, without a plan yet. The kernel takes
/// milliseconds to move a process into a group, and so no start has to wait for that.
struct SpareHelper {
    started: StartedHelper,
    leaf: Option<Leaf>,
}

impl Starter {
    /// Takes this host's groups; helpers are this very program, or the small binary of the same
    /// build beside it.
    pub(super) fn open(executable: PathBuf, build: &str) -> Self {
        Self {
            groups: Groups::open(&executable),
            helpers: HelperProgram::find(executable, build),
            spare: None,
        }
    }

    /// Starts a child's helper and sends it the plan.
    pub(super) fn start(
        &mut self,
        plan: &LaunchPlan,
        thread: mpsc::Sender<Job>,
    ) -> Result<LaunchedChild, SpawnError> {
        match &plan.sandbox {
            SandboxSpec::None => self.start_plain(plan, ARG0_LEASH, None, thread),
            SandboxSpec::Engine(_, engine) => {
                self.start_plain(plan, ARG0_ENGINE, Some(engine), thread)
            }
            SandboxSpec::Shim(_) => self.start_sandbox(plan, thread),
        }
    }

    /// One that starts others as soon as it is told what: it is in its groups before.
    fn start_plain(
        &mut self,
        plan: &LaunchPlan,
        arg0: &'static str,
        engine: Option<&Engine>,
        thread: mpsc::Sender<Job>,
    ) -> Result<LaunchedChild, SpawnError> {
        let counts_own = counts_own_processes(&plan.sandbox);
        let (leaf, enforcement) = match (engine, plan.sandbox.shim_plan()) {
            (Some(engine), Some(shim_plan)) if engine.is_container() => {
                let why_not = container_limits_gap(engine, shim_plan.ids);
                let enforcement =
                    Groups::container_enforcement(&plan.limits.group, why_not, counts_own)?;
                (None, enforcement)
            }
            _ => self.groups.create_leaf(&plan.limits.group, counts_own)?,
        };
        let begun = StartedHelper::start(&self.helpers, arg0)?;
        begun.attach(leaf.as_ref())?;
        let engine = engine
            .zip(plan.sandbox.shim_plan())
            .map(|(engine, shim_plan)| {
                let takes = container_limits(&plan.limits.group, &enforcement);
                engine_for_child(engine, &shim_plan.hostname, &begun.marker, takes)
            });
        let (entry, helper_end) = open_sandbox_entry(plan, &begun.marker)?;
        let message = encode_start(plan, &begun.marker, counts_own, engine, false)?;
        begun.send_start(&message, helper_end.as_ref(), None)?;
        begun.into_launched(
            entry,
            ChildGroups {
                leaf,
                limit_enforcement: enforcement,
            },
            thread,
        )
    }

    /// A sandbox of ours: by the helper that is ready, or else by a fresh one, which opens what is
    /// to be seen while the kernel moves it.
    fn start_sandbox(
        &mut self,
        plan: &LaunchPlan,
        thread: mpsc::Sender<Job>,
    ) -> Result<LaunchedChild, SpawnError> {
        let counts_own = counts_own_processes(&plan.sandbox);
        let ready = self.spare.take_if(SpareHelper::is_running);
        let (begun, ready) = match ready {
            Some(SpareHelper {
                started: begun,
                leaf,
            }) => (begun, Some(leaf)),
            None => (StartedHelper::start(&self.helpers, ARG0_OUTER)?, None),
        };
        let (entry, helper_end) = open_sandbox_entry(plan, &begun.marker)?;
        let program = self.helpers.supervisor_program();
        let message = encode_start(plan, &begun.marker, counts_own, None, program.is_some())?;
        let limits = &plan.limits.group;
        let (leaf, enforcement) = if let Some(leaf) = ready {
            // Limits first: it goes on at once.
            let found = self.groups.apply_limits(leaf, limits, counts_own)?;
            begun.send_start(&message, helper_end.as_ref(), program)?;
            found
        } else {
            begun.send_start(&message, helper_end.as_ref(), program)?;
            let (leaf, enforcement) = self.groups.create_leaf(limits, counts_own)?;
            begun.attach(leaf.as_ref())?;
            (leaf, enforcement)
        };
        begun.send_message(&shim::encode(&CgroupReady)?)?;
        begun.into_launched(
            entry,
            ChildGroups {
                leaf,
                limit_enforcement: enforcement,
            },
            thread,
        )
    }

    /// Prepares the helper of the next sandbox. An error here occurs again, and is reported, at the
    /// next start.
    pub(super) fn prepare(&mut self) {
        if self.spare.as_mut().is_some_and(SpareHelper::is_running) {
            return;
        }
        let mut spare = || -> Result<SpareHelper, SpawnError> {
            let begun = StartedHelper::start(&self.helpers, ARG0_OUTER)?;
            let leaf = self.groups.create_unlimited()?;
            begun.attach(leaf.as_ref())?;
            Ok(SpareHelper {
                started: begun,
                leaf,
            })
        };
        self.spare = spare()
            .map_err(|error| tracing::debug!(%error, "no helper is ready for the next sandbox"))
            .ok();
    }
}

impl SpareHelper {
    /// Whether it lives.
    fn is_running(&mut self) -> bool {
        matches!(self.started.helper.try_wait(), Ok(None))
    }
}

/// The entry into a child's sandbox, if its plan has one, and pid 1's end of it.
fn open_sandbox_entry(
    plan: &LaunchPlan,
    marker: &str,
) -> Result<(Option<SandboxEntry>, Option<OwnedFd>), SpawnError> {
    let entry = plan
        .sandbox
        .shim_plan()
        .is_some_and(|shim_plan| shim_plan.has_entry)
        .then(|| SandboxEntry::open(marker))
        .transpose();
    Ok(entry.map_err(SpawnError::Fork)?.unzip())
}

/// The first message to a child's helper.
fn encode_start(
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
    Ok(shim::encode(&StartMessage {
        version: VERSION,
        parent: std::process::id(),
        program: Program {
            argv: plan.argv.clone(),
            env,
            cwd: plan.cwd.clone(),
            limits,
        },
        program_beside,
        plan: plan.sandbox.shim_plan().cloned(),
        no_links: false,
        engine,
    })?)
}

/// The groups of a child that is to be.
struct ChildGroups {
    leaf: Option<Leaf>,
    limit_enforcement: LimitEnforcement,
}

/// Whether RLIMIT_NPROC counts only processes of this child: where its uid is its own, or, since
/// Linux 5.14, by its user namespace.
fn counts_own_processes(sandbox: &SandboxSpec) -> bool {
    match sandbox {
        SandboxSpec::None => false,
        SandboxSpec::Engine(plan, engine) if engine.has_no_user_namespace() => {
            matches!(plan.ids, HostIds::Root { .. })
        }
        SandboxSpec::Shim(plan) | SandboxSpec::Engine(plan, _) => {
            matches!(plan.ids, HostIds::Root { .. }) || linux_is_at_least(5, 14)
        }
    }
}

/// Why the engine of a container cannot enforce limits; `None` if it can.
fn container_limits_gap(engine: &Engine, ids: HostIds) -> Option<&'static str> {
    let is_somebodys = matches!(ids, HostIds::Own { .. }) && !engine.has_no_user_namespace();
    // podman only warns about this itself, and starts the container without limits.
    (is_somebodys && !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists())
        .then_some("rootless podman enforces limits only on a host that has cgroup v2 alone")
}

/// The limits that the engine enforces.
fn container_limits(limits: &ResourceLimits, enforcement: &LimitEnforcement) -> ContainerLimits {
    let by = |by: Enforcement| by == Enforcement::Engine;
    ContainerLimits {
        pids: limits.pids.filter(|_| by(enforcement.pids)),
        memory: limits.memory.filter(|_| by(enforcement.memory)),
        swap: limits.swap.filter(|_| by(enforcement.swap)),
        cpu_millis: limits.cpu_millis.filter(|_| by(enforcement.cpu)),
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
fn engine_for_child(engine: &Engine, host: &str, marker: &str, takes: ContainerLimits) -> Engine {
    let mut engine = engine.clone();
    if let Engine::Container(container) = &mut engine {
        let short = marker.get(..12).unwrap_or(marker);
        container.limits = Some(takes);
        container.name = format!("marshal-{}-{host}-{short}", std::process::id());
    }
    engine
}

/// A helper that was started, and what leads to it and to its agent. Dropped, it ends the helper.
struct StartedHelper {
    helper: Child,
    pid: u32,
    /// Which helper it is.
    arg0: &'static str,
    /// The value of `MARSHAL_MARKER` in the environment of every process of this child.
    marker: String,
    control: StdStream,
    reports: Option<OwnedFd>,
    /// Our ends of the agent's pipes: stdin, stdout, stderr.
    stdio: [OwnedFd; 3],
    /// The agent's.
    agent_stdio: [OwnedFd; 3],
}

impl StartedHelper {
    fn start(helpers: &HelperProgram, arg0: &'static str) -> Result<Self, SpawnError> {
        let fork = SpawnError::Fork;
        let marker = uuid::Uuid::new_v4().simple().to_string();
        let (agent_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fork(e.into()))?;
        let (stdout, agent_stdout) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fork(e.into()))?;
        let (stderr, agent_stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| fork(e.into()))?;
        // A leash has the agent's uid and pid namespace; the helpers of a sandbox are out of its reach.
        let (own_end, reports, helper_end, reports_fd) = if arg0 == ARG0_LEASH {
            let lines = OneWayLink::open().map_err(fork)?;
            let reports_fd = Stdio::from(lines.helper_reports);
            (
                lines.orders,
                Some(lines.reports),
                lines.helper_orders,
                reports_fd,
            )
        } else {
            let (own_end, helper_end) = StdStream::pair().map_err(fork)?;
            (own_end, None, OwnedFd::from(helper_end), Stdio::null())
        };
        let program = if arg0 == ARG0_ENGINE {
            helpers.supervisor_path()
        } else {
            helpers.path().to_owned()
        };
        let mut command = Command::new(program);
        command
            .arg0(OsString::from(arg0))
            .env_clear()
            .env(MARKER, &marker)
            .stdin(Stdio::from(helper_end))
            .stdout(reports_fd)
            .stderr(Stdio::null());
        let mut command = tokio::process::Command::from(command);
        let helper = command.spawn().map_err(fork)?;
        // Its ends of the lines, so that the helper's death ends ours.
        drop(command);
        let ended = || fork(io::Error::other("the helper ended while it started"));
        let pid = helper.id().ok_or_else(ended)?;
        // A helper reads at once; one that does not must not hold up all other children's starts.
        own_end
            .set_write_timeout(Some(limits::KILL_HELPER_GRACE))
            .map_err(fork)?;
        Ok(Self {
            helper,
            pid,
            arg0,
            marker,
            control: own_end,
            reports,
            stdio: [stdin, stdout, stderr],
            agent_stdio: [agent_stdin, agent_stdout, agent_stderr],
        })
    }

    /// Puts the helper into its groups: whatever it starts later is in there too. What it may have
    /// started before only makes maps of ids, and is gone before the agent is there.
    fn attach(&self, leaf: Option<&Leaf>) -> Result<(), SpawnError> {
        match leaf {
            Some(leaf) => Ok(leaf.attach(self.pid)?),
            None => Ok(()),
        }
    }

    /// Sends the first message, beside it the agent's pipes and what else it is to have.
    fn send_start(
        &self,
        message: &[u8],
        pid_1s_end: Option<&OwnedFd>,
        program: Option<BorrowedFd<'_>>,
    ) -> Result<(), SpawnError> {
        let mut sent: Vec<_> = self.agent_stdio.iter().map(AsFd::as_fd).collect();
        sent.extend(pid_1s_end.map(AsFd::as_fd));
        sent.extend(program);
        Self::ignore_broken_pipe(control::send_start(&self.control, message, &sent))
    }

    /// Sends a message with nothing beside it.
    fn send_message(&self, message: &[u8]) -> Result<(), SpawnError> {
        Self::ignore_broken_pipe((&self.control).write_all(message))
    }

    /// Where a helper ended before it read, its own report says why.
    fn ignore_broken_pipe(sent: io::Result<()>) -> Result<(), SpawnError> {
        match sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(SpawnError::Fork(error)),
            _ => Ok(()),
        }
    }

    /// The child for the caller.
    fn into_launched(
        self,
        entry: Option<SandboxEntry>,
        of_group: ChildGroups,
        thread: mpsc::Sender<Job>,
    ) -> Result<LaunchedChild, SpawnError> {
        let fork = SpawnError::Fork;
        let [stdin, stdout, stderr] = self.stdio;
        Ok(LaunchedChild {
            stdin: pipe::Sender::from_owned_fd(stdin).map_err(fork)?,
            stdout: pipe::Receiver::from_owned_fd(stdout).map_err(fork)?,
            stderr: pipe::Receiver::from_owned_fd(stderr).map_err(fork)?,
            pid: self.pid,
            marker: self.marker.clone(),
            notes: Vec::new(),
            layers: None,
            limit_enforcement: of_group.limit_enforcement,
            sandbox_entry: entry,
            listeners: Vec::new(),
            process: Process {
                helper: self.helper,
                control: match self.reports {
                    Some(reports) => Control::from_one_way(self.control, reports).map_err(fork)?,
                    None => Control::new(self.control).map_err(fork)?,
                },
                marker: self.marker,
                has_namespace: self.arg0 != ARG0_LEASH,
                exit_timeout: if self.arg0 == ARG0_ENGINE {
                    limits::ENGINE_END
                } else {
                    limits::KILL_HELPER_GRACE
                },
                leaf: of_group.leaf,
                _thread: thread,
            },
        })
    }
}
