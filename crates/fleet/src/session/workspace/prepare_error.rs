//! Why a session could not be prepared, and whether the slot or the task is at fault.

use std::path::PathBuf;

use super::attachments::AttachError;
use marshal_config::Cache;
use marshal_launch::RunError;
use marshal_model::UntrustedText;
use marshal_sandbox::state_dir::StateError;
use marshal_sandbox::workspace::branch::BranchError;
use marshal_sandbox::workspace::layer::LayerError;
use marshal_sandbox::workspace::{
    CopyError, HomeError, MaskError, OverlayError, PlaceError, ProtectedError, SliceError,
    TreeError,
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
        /// The cause.
        source: TreeError,
    },
    /// The workspace would give the agent access to the state directory.
    #[error("{0}")]
    State(#[from] StateError),
    /// The workspace cannot be copied.
    #[error("workspace {path}: {source}")]
    Copy {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: CopyError,
    },
    /// No overlay can be put on the workspace.
    #[error("workspace {path}: {source}")]
    Overlay {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: OverlayError,
    },
    /// A cache of this host cannot be shared.
    #[error("cache {cache}: {path}: {why}")]
    Cache {
        /// The cache.
        cache: Cache,
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The command that prepares clones failed: how, and what to do.
    #[error("{0}")]
    Setup(String),
    /// The layer of the setup cannot be made or used.
    #[error("workspace {path}: its setup: {source}")]
    Layer {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: LayerError,
    },
    /// Git could not list the files of the workspace.
    #[error("workspace {path}: git could not list its files: {why}")]
    Git {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The workspace cannot be cloned, or its branch cannot be bundled.
    #[error("workspace {path}: {source}")]
    Branch {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: BranchError,
    },
    /// A further directory has no place in the workspace.
    #[error("workspace {path}: {source}")]
    Place {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: PlaceError,
    },
    /// A git command for a clone or bundle failed.
    #[error("workspace {path}: git: {why}")]
    Cloned {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The protected files of the workspace cannot be determined.
    #[error(transparent)]
    Protected(#[from] ProtectedError),
    /// The masked paths cannot be determined.
    #[error("{0}")]
    Mask(#[from] MaskError),
    /// A slice of the workspace cannot be mounted.
    #[error("{0}")]
    Slice(#[from] SliceError),
    /// The sandbox around git failed; the agent's would too.
    #[error("{0}")]
    GitSandbox(RunError),
    /// The home could not be created.
    #[error("{0}")]
    Home(#[from] HomeError),
    /// The sandbox cannot be planned.
    #[error("{0}")]
    Plan(#[from] sandbox::PlanError),
    /// A file of the prompt cannot be attached.
    #[error("{0}")]
    Attach(#[from] AttachError),
    /// The session's own copy no longer exists.
    #[error("the copy of the session's workspace, {0}, is gone")]
    CopyGone(PathBuf),
    /// The directory of the client is not in the session's workspace.
    #[error("the directory {} is not in the session's workspace: git may ignore it, or it is a link", .0.escape_for_display(300))]
    NoDirectory(UntrustedText),
    /// A variable cannot be sent to the remote host.
    #[error("the variable {0} cannot be sent to the remote host: {1}")]
    Unsendable(String, &'static str),
    /// The preparation was cancelled.
    #[error("the preparation was interrupted")]
    Interrupted,
}

impl PrepareError {
    /// Whether a later attempt would fail, too.
    pub(crate) const fn is_permanent(&self) -> bool {
        let is_layer_gone = matches!(
            self,
            Self::Layer {
                source: LayerError::Gone(_),
                ..
            }
        );
        is_layer_gone || matches!(self, Self::CopyGone(_))
    }

    /// Whether the slot is at fault, so that the child of another task would also fail. An error
    /// that only this task's workspace causes is the task's own.
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
            | Self::Place { .. }
            | Self::Setup(_)
            | Self::Layer { .. }
            | Self::Mask(_)
            | Self::Protected(_)
            | Self::Slice(_)
            | Self::CopyGone(_)
            | Self::Attach(_)
            | Self::NoDirectory(_)
            | Self::Interrupted => false,
        }
    }
}
