//! The one thread that starts every child.
//!
//! One thread, and a permanent one, because the kernel sends a parent-death signal when the
//! *thread* that started a process ends (prctl(2)); and a thread of its own, so that no spawn
//! holds up a runtime. Never a `pre_exec` hook: it would make every spawn copy the page tables.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::cgroup::{By, Group, Groups, Held, Leaf};
use super::control::{self, Control, OneWay};
use super::program::HelperProgram;
use super::{Door, LaunchPlan, SpawnError, Walls};
use crate::limits;
use crate::model::GroupLimits;
use crate::wire::engine::{Engine, Taken};
use crate::wire::shim::{
    self, ARG0_ENGINE, ARG0_LEASH, ARG0_OUTER, Ids, Layers, MARKER, Program, Report, Start, VERSION,
};

/// Starts children. Cheap to clone. Every [`Process`] holds one too, so that the thread lives as
/// long as any child: its end would be the end of them, by their parent-death signal.
#[derive(Debug, Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
    places: Arc<Semaphore>,
}

/// A child that runs.
#[derive(Debug)]
pub struct Launched {
    /// The agent's stdin.
    pub stdin: pipe::Sender,
    /// The agent's stdout.
    pub stdout: pipe::Receiver,
    /// The agent's stderr.
    pub stderr: pipe::Receiver,
    /// The helper's pid: the process that the supervisor owns, above the agent.
    pub pid: u32,
    /// The value of `MARSHAL_MARKER` in the environment of every process of this child.
    pub marker: String,
    /// What an operator should know, a sentence each.
    pub notes: Vec<String>,
    /// Which walls stand; `None` without a sandbox.
    pub layers: Option<Layers>,
    /// By what its limits are held.
    pub held: Held,
    /// The way into its walls, if they were planned with one.
    pub door: Option<Door>,
    /// Sockets that listen inside the walls, in the order of [`super::ShimPlan::listen`].
    pub listeners: Vec<TcpListener>,
    /// The process, for its keeper. Dropped, it is the order to end everything.
    pub process: Process,
}

/// A child's helper and its control socket. When it is dropped the control socket ends, and the
/// helper kills everything and goes.
#[derive(Debug)]
pub struct Process {
    pub(super) helper: Child,
    pub(super) control: Control,
    pub(super) marker: String,
    /// Whether a pid namespace is around the agent, which ends with the helper.
    pub(super) has_namespace: bool,
    /// How long its helper may take to end after the agent did.
    pub(super) patience: Duration,
    /// Its control groups, where this host gives any.
    pub(super) leaf: Option<Leaf>,
    /// Keeps the thread.
    _thread: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    plan: LaunchPlan,
    reply: oneshot::Sender<Result<Launched, SpawnError>>,
    thread: mpsc::Sender<Job>,
}

impl Process {
    /// Its control groups, where this host gives any.
    #[must_use]
    pub fn group(&self) -> Option<&Group> {
        self.leaf.as_ref().map(Leaf::group)
    }
}

impl Spawner {
    /// Starts the thread; children's helpers are this very program, or the small binary of the same
    /// build beside it. Must be called inside a runtime
    /// with IO, which also reaps the helpers.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start() -> io::Result<Self> {
        Self::with_executable(PathBuf::from("/proc/self/exe"))
    }

    /// The same with another `marshal` as helper: for tests, whose own binary is none.
    ///
    /// # Errors
    /// When there can be no thread, or no runtime is around.
    pub fn with_executable(executable: PathBuf) -> io::Result<Self> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let (jobs, mut queue) = mpsc::channel::<Job>(limits::SPAWNS_AT_ONCE);
        thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                let _inside = runtime.enter();
                let mut groups = Groups::open(&executable);
                let helpers = HelperProgram::find(executable);
                while let Some(Job {
                    plan,
                    reply,
                    thread,
                }) = queue.blocking_recv()
                {
                    // A caller who left in between drops what was started, which ends it.
                    let _ = reply.send(fork(&helpers, &plan, &mut groups, thread));
                }
            })?;
        Ok(Self {
            jobs,
            places: Arc::new(Semaphore::new(limits::SPAWNS_AT_ONCE)),
        })
    }

    /// Starts a child and waits until its agent runs. Dropping the future ends what was begun.
    ///
    /// # Errors
    /// Every error means that nothing runs.
    pub async fn spawn(&self, plan: LaunchPlan) -> Result<Launched, SpawnError> {
        check(&plan)?;
        let _place = self
            .places
            .acquire()
            .await
            .map_err(|_| SpawnError::Closed)?;
        let listens = plan.walls.plan().map_or(0, |walls| walls.listen.len());
        let (reply, answer) = oneshot::channel();
        let mut plan = plan;
        let preamble = std::mem::take(&mut plan.preamble);
        let job = Job {
            plan,
            reply,
            thread: self.jobs.clone(),
        };
        self.jobs.send(job).await.map_err(|_| SpawnError::Closed)?;
        let mut launched = answer.await.map_err(|_| SpawnError::Closed)??;
        let process = &mut launched.process;
        let begun = async {
            let mut report = process.control.next().await;
            if let Ok(Some(Report::Listening { .. })) = &report {
                let sockets = process.control.take_descriptors();
                launched.listeners = sockets.into_iter().map(TcpListener::from).collect();
                report = process.control.next().await;
            }
            report
        };
        let report = tokio::time::timeout(limits::SHIM_START, begun)
            .await
            .map_err(|_| SpawnError::TimedOut)?;
        match report {
            Ok(Some(Report::Started { .. })) if launched.listeners.len() != listens => Err(
                SpawnError::HelperLost("the sockets of its ports did not arrive".to_owned()),
            ),
            Ok(Some(Report::Started {
                version: VERSION,
                notes,
                layers,
            })) => {
                launched.notes = notes;
                launched.layers = layers;
                say_first(&mut launched.stdin, &preamble).await?;
                Ok(launched)
            }
            Ok(Some(Report::Failed(failure))) => Err(failure.into()),
            Ok(Some(other)) => Err(SpawnError::HelperLost(format!("it said {other:?}"))),
            Ok(None) => Err(SpawnError::HelperLost(end_of(process).await)),
            Err(error) => Err(SpawnError::HelperLost(error.to_string())),
        }
    }
}

/// Writes what a child's stdin begins with. A child that closed it is nobody's fault here: its end
/// says why.
async fn say_first(stdin: &mut pipe::Sender, preamble: &[u8]) -> Result<(), SpawnError> {
    if preamble.is_empty() {
        return Ok(());
    }
    match tokio::time::timeout(limits::PREAMBLE_WRITE, stdin.write_all(preamble)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(SpawnError::Deaf),
    }
}

/// How a helper that said nothing ended.
async fn end_of(process: &mut Process) -> String {
    match tokio::time::timeout(limits::KILL_HELPER, process.helper.wait()).await {
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it hangs".to_owned(),
    }
}

/// What no exec takes.
fn check(plan: &LaunchPlan) -> Result<(), SpawnError> {
    let is_bad = |text: &String| text.contains('\0');
    let what =
        if plan.argv.first().is_none_or(String::is_empty) || plan.argv.iter().any(is_bad) {
            "an argument"
        } else if plan.env.iter().any(|(name, value)| {
            name.is_empty() || name.contains('=') || is_bad(name) || is_bad(value)
        }) {
            "an environment variable"
        } else if plan.cwd.is_empty() || is_bad(&plan.cwd) {
            "the working directory"
        } else {
            return Ok(());
        };
    Err(SpawnError::Unspeakable { what })
}

/// Starts a child's helper and tells it what to do; on the spawner thread only.
fn fork(
    helpers: &HelperProgram,
    plan: &LaunchPlan,
    groups: &mut Groups,
    thread: mpsc::Sender<Job>,
) -> Result<Launched, SpawnError> {
    let counts_own = counts_own_processes(&plan.walls);
    let (leaf, held) = match &plan.walls {
        Walls::Engine(walls, engine) if engine.is_container() => (
            None,
            Groups::of_container(
                &plan.limits.group,
                engines_lack(engine, walls.ids),
                counts_own,
            )?,
        ),
        Walls::None | Walls::Shim(_) | Walls::Engine(..) => {
            groups.leaf(&plan.limits.group, counts_own)?
        }
    };
    let mut limits = plan.limits;
    limits.nproc = plan.limits.group.pids.filter(|_| counts_own).map(u64::from);
    let marker = uuid::Uuid::new_v4().simple().to_string();
    let mut env = plan.env.clone();
    env.retain(|(name, _)| name != MARKER);
    env.push((MARKER.to_owned(), marker.clone()));
    let (arg0, engine) = match &plan.walls {
        Walls::None => (ARG0_LEASH, None),
        Walls::Shim(_) => (ARG0_OUTER, None),
        Walls::Engine(walls, engine) => (
            ARG0_ENGINE,
            Some(of_child(
                engine,
                &walls.hostname,
                &marker,
                taken(&plan.limits.group, &held),
            )),
        ),
    };
    let walls = plan.walls.plan().cloned();
    let message = shim::encode(&Start {
        version: VERSION,
        parent: std::process::id(),
        program: Program {
            argv: plan.argv.clone(),
            env,
            cwd: plan.cwd.clone(),
            limits,
        },
        program_beside: arg0 == ARG0_OUTER && helpers.program().is_some(),
        walls,
        no_links: false,
        engine,
    })?;
    let door = plan.walls.plan().is_some_and(|walls| walls.door);
    let door = door.then(|| Door::make(&marker)).transpose();
    let door = door.map_err(SpawnError::Fork)?;
    let of_group = Grouped { leaf, held };
    start_helper(helpers, arg0, &marker, &message, door, of_group, thread)
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

fn start_helper(
    helpers: &HelperProgram,
    arg0: &str,
    marker: &str,
    message: &[u8],
    door: Option<(Door, OwnedFd)>,
    of_group: Grouped,
    thread: mpsc::Sender<Job>,
) -> Result<Launched, SpawnError> {
    let fork = SpawnError::Fork;
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
        .env(MARKER, marker)
        .stdin(Stdio::from(theirs))
        .stdout(said)
        .stderr(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let helper = command.spawn().map_err(fork)?;
    // Its ends of the lines, so that the helper's death ends ours.
    drop(command);
    // Before it is told anything: it is the only process yet, and whatever it starts is in there.
    let gone = || fork(io::Error::other("the helper ended as it started"));
    let pid = helper.id().ok_or_else(gone)?;
    if let Some(leaf) = &of_group.leaf {
        leaf.place(pid)?;
    }
    // A helper reads at once; one that does not must not hold up all other children's starts.
    ours.set_write_timeout(Some(limits::KILL_HELPER))
        .map_err(fork)?;
    let (door, pid_1s_end) = door.unzip();
    let mut sent = vec![
        agent_stdin.as_fd(),
        agent_stdout.as_fd(),
        agent_stderr.as_fd(),
    ];
    sent.extend(pid_1s_end.as_ref().map(AsFd::as_fd));
    if arg0 == ARG0_OUTER {
        sent.extend(helpers.program());
    }
    // Where it is told that it ended before it read, its own report says why.
    match control::send_start(&ours, message, &sent) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(fork(error)),
        _ => {}
    }
    Ok(Launched {
        stdin: pipe::Sender::from_owned_fd(stdin).map_err(fork)?,
        stdout: pipe::Receiver::from_owned_fd(stdout).map_err(fork)?,
        stderr: pipe::Receiver::from_owned_fd(stderr).map_err(fork)?,
        pid,
        marker: marker.to_owned(),
        notes: Vec::new(),
        layers: None,
        held: of_group.held,
        door,
        listeners: Vec::new(),
        process: Process {
            helper,
            control: match reports {
                Some(reports) => Control::one_way(ours, reports).map_err(fork)?,
                None => Control::new(ours).map_err(fork)?,
            },
            marker: marker.to_owned(),
            has_namespace: arg0 != ARG0_LEASH,
            patience: if arg0 == ARG0_ENGINE {
                limits::ENGINE_END
            } else {
                limits::KILL_HELPER
            },
            leaf: of_group.leaf,
            _thread: thread,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::shim::Limits;

    fn plan(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> LaunchPlan {
        LaunchPlan {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            env: env
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            cwd: cwd.to_owned(),
            limits: Limits {
                nofile: 1024,
                fsize: 1 << 30,
                nproc: None,
                group: GroupLimits::NONE,
            },
            walls: Walls::None,
            preamble: Vec::new(),
        }
    }

    #[test]
    fn what_no_exec_takes_is_refused_before_anything_starts() {
        for bad in [
            plan(&[], &[], "/"),
            plan(&[""], &[], "/"),
            plan(&["a\0b"], &[], "/"),
            plan(&["a"], &[("", "x")], "/"),
            plan(&["a"], &[("A=B", "x")], "/"),
            plan(&["a"], &[("A", "x\0")], "/"),
            plan(&["a"], &[], ""),
        ] {
            let refused = check(&bad);
            assert!(
                matches!(refused, Err(SpawnError::Unspeakable { .. })),
                "{bad:?}"
            );
        }
        assert!(check(&plan(&["a", ""], &[("A", "")], "/")).is_ok());
    }
}
