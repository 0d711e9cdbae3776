//! The layers that depend on kernel and profile: which are asked for, and which stand.
//!
//! Must not know how they are put up.

use serde::{Deserialize, Serialize};

use super::{HostIds, IdMap};

/// The filter of system calls that everything inside wears.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// The built-in allow-list.
    #[default]
    BuiltIn,
    /// The profile in this file of the host (OCI form), instead of the built-in one.
    File(String),
    /// None.
    Off,
}

/// Which walls stand, beside those without which nothing runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveLayers {
    /// Who the agent is outside.
    pub ids: HostIds,
    /// The ABI of Landlock in force, 0 for none.
    pub landlock: u8,
    /// The filter of system calls.
    pub seccomp: Seccomp,
}

impl ActiveLayers {
    /// What is told of them, a few words each.
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
    /// The directory of the host that is seen, without what is mounted below it.
    pub lower: OverlayLayer,
    /// A directory of ours that holds two, `upper` and `work`: what is written, and the kernel's own
    /// place beside it.
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
    /// Device and inode that were looked at when the walls were planned.
    pub expect: Option<(u64, u64)>,
}
