//! Starts children, owns them, stops them, and leaves nothing of them.
//!
//! ```text
//! async caller -- job (bounded queue) --> spawner thread: pipes, control socket, posix_spawn
//!              <-- Launched ------------- after the helper reported that the agent runs
//! keeper task: owns the process and its control socket until everything of it is gone
//! ```
//!
//! Every child has a helper between itself and the supervisor: the sandbox's shim, or the leash
//! where there are no walls. The helper kills and reaps what an agent leaves, and does so by itself
//! when its control socket ends; so nothing here needs a clean-up that could be skipped, and
//! whoever drops a process has ended it. Must not know protocols, and not what walls are made of.

use std::sync::Arc;

pub mod cgroup;
mod control;
mod error;
mod helper_program;
mod host;
mod keeper;
mod oneshot_program;
mod sandbox_entry;
mod spawner;
pub mod ssh;
mod starter;
mod survivors;

pub use error::SpawnError;
pub use host::{BoxFuture, Child, Host};
pub use keeper::{ChildExit, KeeperHandle, KeeperOrder, OrderReceiver, Step, start_keeper as keep};
pub use marshal_wire::engine::{Container, ContainerCli, Engine};
pub use marshal_wire::shim::{
    ActiveLayers, ProcessLimits, Seccomp as WallsFilter, SetupFailure as WallsFailure, ShimPlan,
    Stage,
};
pub use oneshot_program::{ProgramOutput, RunError, probe_sandbox, probe_shim_plan, run_to_end};
pub use sandbox_entry::{ExecRequest, FileError, RunningCommand, SandboxEntry};
pub use spawner::{LaunchedChild, Process, Spawner};

/// What to start.
#[derive(Debug, Clone)]
pub struct LaunchPlan {
    /// Program and arguments. A program without a slash is looked up in the PATH of `env`, inside
    /// the walls.
    pub argv: Vec<String>,
    /// The whole environment; beside it stands only `MARSHAL_MARKER`.
    pub env: Vec<(String, String)>,
    /// The working directory: a path of the host without walls, else one inside.
    pub cwd: String,
    /// Resource limits.
    pub limits: ProcessLimits,
    /// What stands around it.
    pub sandbox: SandboxSpec,
    /// What its stdin begins with, before anything that its user writes.
    pub preamble: Vec<u8>,
}

/// What stands around an agent. Resource groups are entered from outside, before a helper starts
/// anybody else.
#[derive(Debug, Clone)]
pub enum SandboxSpec {
    /// Nothing: a plain process on a leash.
    None,
    /// The namespaces of the sandbox.
    Shim(Box<ShimPlan>),
    /// The same, put up by another program.
    Engine(Box<ShimPlan>, Arc<Engine>),
}

impl SandboxSpec {
    /// The plan of the walls, if there are any.
    #[must_use]
    pub fn shim_plan(&self) -> Option<&ShimPlan> {
        match self {
            Self::None => None,
            Self::Shim(plan) | Self::Engine(plan, _) => Some(plan),
        }
    }
}
