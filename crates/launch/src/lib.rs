//! Starts children, owns them, stops them, and leaves no process of them behind.
//!
//! ```text
//! async caller -- job (bounded queue) --> spawner thread: pipes, control socket, posix_spawn
//!              <-- Launched ------------- after the helper reported that the agent runs
//! keeper task: owns the process and its control socket until everything of it is gone
//! ```
//!
//! Every child has a helper between itself and the supervisor: the sandbox's shim, or the leash
//! for an agent without a sandbox. The helper kills and reaps what an agent leaves, and does so by
//! itself when its control socket closes. So nothing here needs a clean-up that could be skipped,
//! and dropping a process ends it. Must not know protocols, or the layers of a sandbox.

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
pub use sandbox_entry::{CommandPipes, ExecRequest, FileError, RunningCommand, SandboxEntry};
pub use spawner::{LaunchedChild, Process, Spawner};

/// What to start.
#[derive(Debug, Clone)]
pub struct LaunchPlan {
    /// Program and arguments. A program without a slash is looked up in the PATH of `env`, inside
    /// the sandbox.
    pub argv: Vec<String>,
    /// The whole environment; only `MARSHAL_MARKER` is added.
    pub env: Vec<(String, String)>,
    /// The working directory: a path inside the sandbox, or of the host if there is none.
    pub cwd: String,
    /// Resource limits.
    pub limits: ProcessLimits,
    /// The sandbox around it.
    pub sandbox: SandboxSpec,
    /// The first bytes of its stdin, before anything that the caller writes.
    pub preamble: Vec<u8>,
}

/// The sandbox around an agent. The supervisor puts a helper into its control groups before the
/// helper starts any other process.
#[derive(Debug, Clone)]
pub enum SandboxSpec {
    /// No sandbox: a plain process on a leash.
    None,
    /// A sandbox that the shim builds.
    Shim(Box<ShimPlan>),
    /// A sandbox that another program builds.
    Engine(Box<ShimPlan>, Arc<Engine>),
}

impl SandboxSpec {
    /// The plan of the sandbox, if there is one.
    #[must_use]
    pub fn shim_plan(&self) -> Option<&ShimPlan> {
        match self {
            Self::None => None,
            Self::Shim(plan) | Self::Engine(plan, _) => Some(plan),
        }
    }
}
