//! The one thread that starts every child.
//!
//! One thread, and a permanent one, because the kernel sends a parent-death signal when the
//! *thread* that started a process ends (prctl(2)); and a thread of its own, so that no spawn
//! holds up a runtime. Never a `pre_exec` hook: it would make every spawn copy the page tables.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::cgroup::{Group, Leaf, LimitEnforcement};
use super::control::Control;
use super::starter::Starter;
use super::{LaunchPlan, SandboxEntry, SandboxSpec, SpawnError};
use marshal_model::limits;
use marshal_wire::shim::{ActiveLayers, HelperReport, VERSION};

/// Starts children. Cheap to clone. Every [`Process`] holds one too, so that the thread lives as
/// long as any child: its end would be the end of them, by their parent-death signal.
#[derive(Debug, Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
}

/// A child that runs.
#[derive(Debug)]
pub struct LaunchedChild {
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
    /// The active layers; `None` without a sandbox.
    pub layers: Option<ActiveLayers>,
    /// What enforces its resource limits.
    pub limit_enforcement: LimitEnforcement,
    /// The entry into its sandbox, if the plan has one.
    pub sandbox_entry: Option<SandboxEntry>,
    /// Sockets that listen inside the sandbox, in the order of [`super::ShimPlan::listen`].
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
    pub(super) exit_timeout: Duration,
    /// Its control groups, where this host gives any.
    pub(super) leaf: Option<Leaf>,
    /// Keeps the thread.
    pub(super) _thread: mpsc::Sender<Job>,
}

/// What the thread is asked for.
#[derive(Debug)]
pub(super) enum Job {
    /// Start a child.
    Start {
        plan: Box<LaunchPlan>,
        reply: oneshot::Sender<Result<LaunchedChild, SpawnError>>,
        thread: mpsc::Sender<Job>,
    },
    /// A sandbox stands: have the helper of the next one ready.
    Prepare,
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
    /// build beside it, whose file contains `build`. Must be called inside a runtime with IO, which
    /// also reaps the helpers.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(build: &'static str) -> io::Result<Self> {
        Self::with_executable(PathBuf::from("/proc/self/exe"), build)
    }

    /// The same with another `marshal` as helper: for tests, whose own binary is none.
    ///
    /// # Errors
    /// When there can be no thread, or no runtime is around.
    pub fn with_executable(executable: PathBuf, build: &'static str) -> io::Result<Self> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let (jobs, mut queue) = mpsc::channel::<Job>(limits::CONCURRENT_SPAWNS);
        thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                let _inside = runtime.enter();
                let mut starter = Starter::open(executable, build);
                while let Some(job) = queue.blocking_recv() {
                    match job {
                        // A caller who left in between drops what was started, which ends it.
                        Job::Start {
                            plan,
                            reply,
                            thread,
                        } => {
                            let _ = reply.send(starter.start(&plan, thread));
                        }
                        // Whoever waits goes first.
                        Job::Prepare if queue.is_empty() => starter.prepare(),
                        Job::Prepare => {}
                    }
                }
            })?;
        Ok(Self {
            jobs,
            permits: Arc::new(Semaphore::new(limits::CONCURRENT_SPAWNS)),
        })
    }

    /// Starts a child and waits until its agent runs. Dropping the future ends what was begun.
    ///
    /// # Errors
    /// Every error means that nothing runs.
    pub async fn spawn(&self, plan: LaunchPlan) -> Result<LaunchedChild, SpawnError> {
        check_plan(&plan)?;
        let _place = self
            .permits
            .acquire()
            .await
            .map_err(|_| SpawnError::Closed)?;
        let is_sandbox = matches!(plan.sandbox, SandboxSpec::Shim(_));
        let listens = plan
            .sandbox
            .shim_plan()
            .map_or(0, |shim_plan| shim_plan.listen.len());
        let (reply, answer) = oneshot::channel();
        let mut plan = plan;
        let preamble = std::mem::take(&mut plan.preamble);
        let job = Job::Start {
            plan: Box::new(plan),
            reply,
            thread: self.jobs.clone(),
        };
        self.jobs.send(job).await.map_err(|_| SpawnError::Closed)?;
        let mut launched = answer.await.map_err(|_| SpawnError::Closed)??;
        let process = &mut launched.process;
        let begun = async {
            let mut report = process.control.next().await;
            if let Ok(Some(HelperReport::Listening { .. })) = &report {
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
            Ok(Some(HelperReport::Started { .. })) if launched.listeners.len() != listens => Err(
                SpawnError::HelperLost("the sockets of its ports were not received".to_owned()),
            ),
            Ok(Some(HelperReport::Started {
                version: VERSION,
                notes,
                layers,
            })) => {
                if is_sandbox {
                    // A full queue has no use for it.
                    let _ = self.jobs.try_send(Job::Prepare);
                }
                launched.notes = notes;
                launched.layers = layers;
                write_preamble(&mut launched.stdin, &preamble).await?;
                Ok(launched)
            }
            Ok(Some(HelperReport::Failed(failure))) => Err(failure.into()),
            Ok(Some(other)) => Err(SpawnError::HelperLost(format!(
                "unexpected report {other:?}"
            ))),
            Ok(None) => Err(SpawnError::HelperLost(describe_exit(process).await)),
            Err(error) => Err(SpawnError::HelperLost(error.to_string())),
        }
    }
}

/// Writes the first part of a child's stdin. A child that closed its stdin is no error here: its
/// exit explains it.
async fn write_preamble(stdin: &mut pipe::Sender, preamble: &[u8]) -> Result<(), SpawnError> {
    if preamble.is_empty() {
        return Ok(());
    }
    match tokio::time::timeout(limits::PREAMBLE_WRITE, stdin.write_all(preamble)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(SpawnError::StdinNotRead),
    }
}

/// How a helper that sent no report ended.
async fn describe_exit(process: &mut Process) -> String {
    match tokio::time::timeout(limits::KILL_HELPER_GRACE, process.helper.wait()).await {
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it hangs".to_owned(),
    }
}

/// Refuses what exec cannot accept.
fn check_plan(plan: &LaunchPlan) -> Result<(), SpawnError> {
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
    Err(SpawnError::InvalidCommand { what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::ResourceLimits;
    use marshal_wire::shim::ProcessLimits;

    fn plan(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> LaunchPlan {
        LaunchPlan {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            env: env
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            cwd: cwd.to_owned(),
            limits: ProcessLimits {
                nofile: 1024,
                fsize: 1 << 30,
                nproc: None,
                group: ResourceLimits::NONE,
            },
            sandbox: SandboxSpec::None,
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
            let refused = check_plan(&bad);
            assert!(
                matches!(refused, Err(SpawnError::InvalidCommand { .. })),
                "{bad:?}"
            );
        }
        assert!(check_plan(&plan(&["a", ""], &[("A", "")], "/")).is_ok());
    }
}
