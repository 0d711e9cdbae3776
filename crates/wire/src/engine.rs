//! What a helper gets about the program that builds the sandbox in its place: bubblewrap, or the
//! command line of a container engine.
//!
//! Plain data, a part of [`super::shim::StartMessage`]. The caller has found the programs, pinned
//! the image and checked the options. Must not know the resulting command lines.

use serde::{Deserialize, Serialize};

/// The program that builds the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// bubblewrap.
    Bwrap {
        /// The program, an absolute path.
        program: String,
    },
    /// podman or docker.
    Container(Container),
}

impl Engine {
    /// Whether its sandbox is a container.
    #[must_use]
    pub const fn is_container(&self) -> bool {
        matches!(self, Self::Container(_))
    }

    /// Whether the users inside are those of the host: docker has no map for one container.
    #[must_use]
    pub fn has_no_user_namespace(&self) -> bool {
        matches!(self, Self::Container(container) if container.flavour == ContainerCli::Docker)
    }
}

/// The kind of a container engine's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerCli {
    /// podman.
    Podman,
    /// docker, whose daemon starts the container.
    Docker,
}

/// A container engine, and the container to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    /// The kind of its command line.
    pub flavour: ContainerCli,
    /// The program, an absolute path, and its global options.
    pub program: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// The resource limits, where the engine enforces them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ContainerLimits>,
    /// More options of `run`, which go before all others.
    pub extra: Vec<String>,
    /// The image, by its id: 64 hexadecimal digits.
    pub image: String,
    /// The container's name.
    pub name: String,
    /// Its labels, `NAME=VALUE` each.
    pub labels: Vec<String>,
    /// A directory of the supervisor's own where one of the container's may be made, for what it is
    /// shown; absolute. Not used where the helper can mount.
    pub directory: String,
}

/// The resource limits of a container with everything in it; `None` means not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerLimits {
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// Swap in addition to it, in bytes.
    pub swap: Option<u64>,
    /// CPU time, in thousandths of a CPU.
    pub cpu_millis: Option<u32>,
}

/// The exit code of a helper that could not remove its container.
pub const EXIT_CONTAINER_LEFT: u8 = 3;
