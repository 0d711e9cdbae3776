//! Hosts: what a fleet needs of a machine, and the implementation for this machine.
//!
//! One trait, so that a simulation can replace processes: it returns the same pipes, a keeper's
//! handle and the report of the child's end. Must not know the purpose of a child.

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
    /// The handle of its keeper.
    pub keeper: KeeperHandle,
    /// Receives the report of its end, once no process of it is left.
    pub exit: oneshot::Receiver<ChildExit>,
    /// Notes for the operator, one sentence each.
    pub notes: Vec<String>,
    /// What enforces its limits, in one line; empty if unknown.
    pub limits: String,
    /// Its control groups, for usage.
    pub group: Option<Group>,
    /// The layers of its sandbox, a few words each.
    pub sandbox_layers: Vec<String>,
    /// The entry into its sandbox, if the plan has one.
    pub sandbox_entry: Option<SandboxEntry>,
    /// Sockets that listen inside its sandbox, in the order of its plan's ports.
    pub listeners: Vec<TcpListener>,
}

/// What takes its time, on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A machine that children run on.
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Starts a child, its keeper included; returns when its program runs. `waits` are those of
    /// the ladder. Dropping the future ends what was started.
    ///
    /// # Errors
    /// [`SpawnError`]: nothing runs then.
    fn start(
        &self,
        plan: LaunchPlan,
        waits: StopTimeouts,
    ) -> BoxFuture<'_, Result<Child, SpawnError>>;

    /// Runs a program to its end: see [`crate::run_to_end`].
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
            let group = launched
                .process
                .leaf
                .as_ref()
                .map(|leaf| leaf.group().clone());
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
