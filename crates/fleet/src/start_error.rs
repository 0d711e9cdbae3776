//! Why a fleet did not start.

use super::slot_history::SlotHistoryError;
use marshal_model::PoolName;
use marshal_proxy::model_proxy::{UpstreamError, WebhookSetupError};
use marshal_sandbox::workspace::MaskError;
use marshal_store::StoreError;

/// Why a fleet did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A pattern of `workspace.mask` is invalid.
    #[error("pool {pool}: {source}")]
    Mask {
        /// The pool's name.
        pool: PoolName,
        /// What is wrong.
        source: MaskError,
    },
    /// A policy that a pool names is missing from the setup.
    #[error("pool {pool}: policy {policy:?} is not loaded")]
    NoPolicy {
        /// The pool's name.
        pool: PoolName,
        /// The policy's name.
        policy: String,
    },
    /// A pool's extractor is missing from the setup.
    #[error("pool {0}: no extractor is loaded")]
    NoExtractor(PoolName),
    /// A sandbox profile that a pool names does not exist.
    #[error("pool {pool}: sandbox profile {profile:?} does not exist")]
    NoSandbox {
        /// The pool's name.
        pool: PoolName,
        /// The profile's name.
        profile: String,
    },
    /// A route cannot be served.
    #[error("pool {pool}: {source}")]
    Route {
        /// The pool's name.
        pool: PoolName,
        /// The cause.
        source: UpstreamError,
    },
    /// A delegate cannot be used.
    #[error("pool {pool}: delegate {delegate}: {why}")]
    Delegate {
        /// The pool's name.
        pool: PoolName,
        /// The delegate's name.
        delegate: String,
        /// The cause.
        why: String,
    },
    /// A hook cannot be used.
    #[error(transparent)]
    Hook(#[from] WebhookSetupError),
    /// The slots' history or the pool's spend cannot be read from the journal.
    #[error("the journal's records of earlier starts cannot be read: {0}")]
    SlotHistory(#[from] SlotHistoryError),
    /// The store of file versions cannot register the workspaces.
    #[error("the versions of files cannot be stored: {0}")]
    Store(#[from] StoreError),
    /// An actor could not be started.
    #[error("an actor could not be started: {0}")]
    Actor(String),
}
