//! The layers that depend on kernel and profile: the requested ones and the active ones.
//!
//! Must not know how they are built.

use serde::{Deserialize, Serialize};

use super::{HostIds, IdMap};

/// The filter of system calls for everything inside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// The built-in allow-list.
    #[default]
    BuiltIn,
    /// The profile in this file of the host (OCI form), instead of the built-in one.
    File(String),
    /// No filter.
    Off,
}

/// The active layers, besides those without which nothing runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveLayers {
    /// Who the agent is outside.
    pub ids: HostIds,
    /// The active ABI of Landlock, 0 for none.
    pub landlock: u8,
    /// The filter of system calls.
    pub seccomp: Seccomp,
}

impl ActiveLayers {
    /// Their description, a few words each.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let uid = match self.ids {
            HostIds::Root { .. } => "uid slot",
            HostIds::Own { .. } => "uid shared",
        };
        let landlock = match self.landlock {
            0 => "landlock none".to_owned(),
            abi => format!("landlock {abi}"),
        };
        let seccomp = match &self.seccomp {
            Seccomp::BuiltIn => "seccomp default".to_owned(),
            Seccomp::File(path) => format!("seccomp {path}"),
            Seccomp::Off => "seccomp off".to_owned(),
        };
        vec![uid.to_owned(), landlock, seccomp]
    }
}

/// What a [`super::Mount::Overlay`] is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayLayers {
    /// The visible directory of the host, without what is mounted below it.
    pub lower: OverlayLayer,
    /// A directory of the supervisor with `upper` for what is written, and `work` for the kernel.
    pub upper: OverlayLayer,
}

/// One directory of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlayLayer {
    /// Where it is on the host.
    pub path: String,
    /// Its owner on disk, who becomes the user inside.
    pub idmap: Option<IdMap>,
    /// Device and inode at the time of planning.
    pub expect: Option<(u64, u64)>,
}
