//! What a helper is told of the program that puts walls up in its place: bubblewrap, or the command
//! line of a container engine.
//!
//! Plain data, a part of [`super::shim::StartMessage`]. Whoever makes it has looked the programs up, pinned
//! the image and judged the options. Must not know what command lines come of it.

use serde::{Deserialize, Serialize};

/// Who puts the walls up.
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
    /// Whether its walls are a container's.
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

/// Which command line a container engine understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerCli {
    /// podman's.
    Podman,
    /// docker's, whose daemon starts the container.
    Docker,
}

/// A container engine, and what it is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    /// What it understands.
    pub flavour: ContainerCli,
    /// The program, an absolute path, and the options that stand before every command.
    pub program: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// What it may take, where the engine is to hold it.
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

/// What a container with everything in it may take of the host; `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerLimits {
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// Swap beside it, in bytes.
    pub swap: Option<u64>,
    /// Time of processors, in thousandths of one.
    pub cpu_millis: Option<u32>,
}

/// What a helper ends with that could not remove its container.
pub const EXIT_CONTAINER_LEFT: u8 = 3;
