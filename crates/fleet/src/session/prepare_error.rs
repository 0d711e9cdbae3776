//! Why a session could not be made ready, and whose fault that is.

use std::path::PathBuf;

use super::attachments::AttachError;
use marshal_config::Cache;
use marshal_launch::RunError;
use marshal_model::UntrustedText;
use marshal_sandbox::state_dir::StateError;
use marshal_sandbox::workspace::branch::BranchError;
use marshal_sandbox::workspace::{
    CopyError, HomeError, MaskError, OverlayError, SliceError, TreeError,
};
use marshal_sandbox::{self as sandbox, PlanError};

/// Why a session could not be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// The workspace cannot be read.
    #[error("workspace {path}: {source}")]
    Workspace {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: TreeError,
    },
    /// It would let the agent at the state directory.
    #[error("{0}")]
    State(#[from] StateError),
    /// It cannot be copied.
    #[error("workspace {path}: {source}")]
    Copy {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: CopyError,
    },
    /// Nothing can be laid over it.
    #[error("workspace {path}: {source}")]
    Overlay {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: OverlayError,
    },
    /// A cache of this host cannot be shared.
    #[error("cache {cache}: {path}: {why}")]
    Cache {
        /// Which.
        cache: Cache,
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Git could not list its files.
    #[error("workspace {path}: git could not list its files: {why}")]
    Git {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no clone of it, or no way for its branch.
    #[error("workspace {path}: {source}")]
    Branch {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: BranchError,
    },
    /// Git could not do its part of a clone or bundle.
    #[error("workspace {path}: git: {why}")]
    Cloned {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// What is to be hidden cannot be known.
    #[error("{0}")]
    Mask(#[from] MaskError),
    /// A slice cannot be had.
    #[error("{0}")]
    Slice(#[from] SliceError),
    /// The walls around git failed: the agent's would too.
    #[error("{0}")]
    GitSandbox(RunError),
    /// The home could not be made.
    #[error("{0}")]
    Home(#[from] HomeError),
    /// The walls cannot be planned.
    #[error("{0}")]
    Plan(#[from] sandbox::PlanError),
    /// A file that belongs to the prompt cannot be had.
    #[error("{0}")]
    Attach(#[from] AttachError),
    /// The session's own copy is not there any more.
    #[error("the copy of the session's workspace, {0}, is gone")]
    CopyGone(PathBuf),
    /// The directory that its client works in is not there for the agent.
    #[error("the directory {} is not in the session's workspace: git may ignore it, or it is a link", .0.escape_for_display(300))]
    NoDirectory(UntrustedText),
    /// A variable cannot be told to the far end.
    #[error("the variable {0} cannot be sent to the far end: {1}")]
    Unsendable(String, &'static str),
    /// The program that prepares was stopped.
    #[error("the preparation was interrupted")]
    Interrupted,
}

impl PrepareError {
    /// Whether trying again later is vain.
    pub(crate) const fn is_permanent(&self) -> bool {
        matches!(self, Self::CopyGone(_))
    }

    /// Whether the slot is at fault, so that another task's child would fare no better. What only
    /// this task's workspace brings about is the task's own.
    pub(crate) const fn is_slot_fault(&self) -> bool {
        match self {
            Self::GitSandbox(error) => matches!(error, RunError::Spawn(_)),
            Self::Home(_) | Self::Cache { .. } | Self::Unsendable(..) => true,
            Self::Plan(error) => !matches!(
                error,
                PlanError::RootOwned { .. } | PlanError::NotUtf8(_) | PlanError::NotAbsolute(_)
            ),
            Self::Workspace { .. }
            | Self::State(_)
            | Self::Copy { .. }
            | Self::Overlay { .. }
            | Self::Git { .. }
            | Self::Branch { .. }
            | Self::Cloned { .. }
            | Self::Mask(_)
            | Self::Slice(_)
            | Self::CopyGone(_)
            | Self::Attach(_)
            | Self::NoDirectory(_)
            | Self::Interrupted => false,
        }
    }
}
