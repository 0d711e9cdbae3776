//! Why a child did not start.

use rustix::io::Errno;

use std::time::Duration;

use marshal_model::limits;
use marshal_wire::shim::{SetupFailure, Stage};

/// Why a child did not start. Nothing of it runs.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The command cannot be passed to the kernel.
    #[error("{what} of the command has a NUL byte or is empty")]
    InvalidCommand {
        /// Argument, variable or directory.
        what: &'static str,
    },
    /// The plan does not fit into a message.
    #[error("the command and its sandbox plan are too large: {0}")]
    TooLarge(#[from] marshal_wire::shim::FrameError),
    /// The kernel refused a process, pipe or socket.
    #[error("the child's helper cannot be started: {0}")]
    Fork(#[source] std::io::Error),
    /// The socket of its tools cannot be made.
    #[error("the socket of the child's tools cannot be made: {0}")]
    ToolSocket(#[source] std::io::Error),
    /// Its resource limits cannot be set.
    #[error(transparent)]
    Group(#[from] super::cgroup::GroupError),
    /// The sandbox was built, but the program did not start.
    #[error("{0}")]
    Exec(SetupFailure),
    /// A layer of the sandbox cannot be built. The agent never causes this.
    #[error("the sandbox cannot be built: {0}")]
    Sandbox(SetupFailure),
    /// The helper ended without a report.
    #[error("the child's helper ended before the agent started ({0})")]
    HelperLost(String),
    /// The helper took too long.
    #[error("the child's helper did not answer within {limit:?}", limit = limits::SHIM_START)]
    TimedOut,
    /// It does not read its stdin.
    #[error(
        "the child did not read the first part of its input within {limit:?}",
        limit = limits::PREAMBLE_WRITE
    )]
    StdinNotRead,
    /// The program is not the one that may be started.
    #[error("{0}")]
    Program(String),
    /// The spawner thread has ended, because the supervisor is stopping.
    #[error("the supervisor is stopping and starts no more children")]
    Closed,
}

impl SpawnError {
    /// Whether the program is missing, or is none: the next start fails as well.
    #[must_use]
    pub fn is_about_program(&self) -> bool {
        const NOT_STARTABLE: [Errno; 4] =
            [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::NOTDIR];
        let Self::Exec(failure) = self else {
            return false;
        };
        failure
            .errno
            .is_some_and(|errno| NOT_STARTABLE.contains(&Errno::from_raw_os_error(errno)))
    }
}

impl SpawnError {
    /// The word for `marshal_child_spawns_total{result}`.
    #[must_use]
    pub const fn metric_result(&self) -> &'static str {
        match self {
            Self::Fork(_) | Self::ToolSocket(_) | Self::Closed => "fork_failed",
            Self::Group(_) => "cgroup_failed",
            Self::Exec(_)
            | Self::InvalidCommand { .. }
            | Self::TooLarge(_)
            | Self::Program(_)
            | Self::StdinNotRead => "exec_failed",
            Self::Sandbox(_) | Self::HelperLost(_) | Self::TimedOut => "sandbox_failed",
        }
    }

    /// The word for `marshal_sandbox_failures_total{stage}`, if a layer of the sandbox failed.
    #[must_use]
    pub const fn stage(&self) -> Option<Stage> {
        match self {
            Self::Sandbox(failure) => Some(failure.stage),
            Self::HelperLost(_) | Self::TimedOut => Some(Stage::Shim),
            Self::Exec(_)
            | Self::Fork(_)
            | Self::ToolSocket(_)
            | Self::Group(_)
            | Self::Closed
            | Self::Program(_)
            | Self::StdinNotRead
            | Self::InvalidCommand { .. }
            | Self::TooLarge(_) => None,
        }
    }

    /// How long a start may take before it is [`SpawnError::TimedOut`].
    #[must_use]
    pub const fn deadline() -> Duration {
        limits::SHIM_START
    }
}

impl From<SetupFailure> for SpawnError {
    fn from(failure: SetupFailure) -> Self {
        match failure.stage {
            Stage::Exec => Self::Exec(failure),
            _ => Self::Sandbox(failure),
        }
    }
}
