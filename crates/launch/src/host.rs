//! Where children run: what a fleet needs of a machine, and that machine itself.
//!
//! One trait, so that a simulation can stand in for processes: it hands out the same pipes, a
//! keeper's handle and the word of the child's end. Must not know what a child is for.

use std::net::TcpListener;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::cgroup::Group;
use super::keeper::{self, ChildExit, KeeperHandle};
use super::oneshot_program::{self, ProgramOutput, RunError};
use super::{LaunchPlan, SandboxEntry, SpawnError, Spawner};
use marshal_config::StopTimeouts;

/// A child that runs and has its keeper. Dropping the handle kills everything of it.
#[derive(Debug)]
pub struct Child {
    /// Its process, as far as the supervisor sees it.
    pub pid: u32,
    /// Its stdin.
    pub stdin: pipe::Sender,
    /// Its stdout.
    pub stdout: pipe::Receiver,
    /// Its stderr.
    pub stderr: pipe::Receiver,
    /// The way to its end.
    pub keeper: KeeperHandle,
    /// Gets its end, once nothing of it is left.
    pub exit: oneshot::Receiver<ChildExit>,
    /// What an operator should know, a sentence each.
    pub notes: Vec<String>,
    /// By what its limits are held, in one line; empty where nobody can say.
    pub limits: String,
    /// Its control groups, to be read.
    pub group: Option<Group>,
    /// Which walls stand around it, a few words each.
    pub sandbox_layers: Vec<String>,
    /// The way into its walls, if they were planned with one.
    pub sandbox_entry: Option<SandboxEntry>,
    /// Sockets that listen inside its walls, in the order of its plan's ports.
    pub listeners: Vec<TcpListener>,
}

/// What takes its time, on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A machine that children run on.
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Starts a child, its keeper included; returns when its program runs. `waits` are those of
    /// the ladder. Dropping the future ends what was begun.
    ///
    /// # Errors
    /// [`SpawnError`]: nothing runs then.
    fn start(
        &self,
        plan: LaunchPlan,
        waits: StopTimeouts,
    ) -> BoxFuture<'_, Result<Child, SpawnError>>;

    /// Runs a program to its end: see [`once::run_to_end`].
    ///
    /// # Errors
    /// See [`RunError`].
    fn run_to_end(
        &self,
        plan: LaunchPlan,
        timeout: Duration,
        cap: usize,
    ) -> BoxFuture<'_, Result<ProgramOutput, RunError>>;
}

impl Host for Spawner {
    fn start(
        &self,
        plan: LaunchPlan,
        waits: StopTimeouts,
    ) -> BoxFuture<'_, Result<Child, SpawnError>> {
        Box::pin(async move {
            let launched = self.spawn(plan).await?;
            let group = launched.process.leaf.as_ref();
            let group = group.map(|leaf| leaf.group().clone());
            let (keeper, ended) = keeper::start_keeper(launched.process, waits);
            Ok(Child {
                pid: launched.pid,
                stdin: launched.stdin,
                stdout: launched.stdout,
                stderr: launched.stderr,
                keeper,
                exit: ended,
                notes: launched.notes,
                limits: launched.limit_enforcement.to_string(),
                group,
                sandbox_layers: launched
                    .layers
                    .map(|layers| layers.describe())
                    .unwrap_or_default(),
                sandbox_entry: launched.sandbox_entry,
                listeners: launched.listeners,
            })
        })
    }

    fn run_to_end(
        &self,
        plan: LaunchPlan,
        timeout: Duration,
        cap: usize,
    ) -> BoxFuture<'_, Result<ProgramOutput, RunError>> {
        Box::pin(oneshot_program::run_to_end(self, plan, timeout, cap))
    }
}
