//! What a helper is told of the program that puts walls up in its place: bubblewrap, or the command
//! line of a container engine.
//!
//! Plain data, a part of [`super::shim::Start`]. Whoever makes it has looked the programs up, pinned
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

/// Which command line a container engine understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
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
    pub flavour: Flavour,
    /// The program, an absolute path, and the options that stand before every command.
    pub program: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// More options of `run`.
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

/// What a helper ends with that could not remove its container.
pub const CONTAINER_LEFT: u8 = 3;
