//! Why a fleet did not start.

use super::slot_history::SlotHistoryError;
use marshal_model::PoolName;
use marshal_proxy::model_proxy::{UpstreamError, WebhookSetupError};
use marshal_store::StoreError;

/// Why a fleet did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The policy that a pool names was not given.
    #[error("pool {pool}: policy {policy:?} is not loaded")]
    NoPolicy {
        /// The pool.
        pool: PoolName,
        /// Its policy's name.
        policy: String,
    },
    /// The extractor of a pool was not given.
    #[error("pool {0}: no extractor is loaded")]
    NoExtractor(PoolName),
    /// A sandbox profile that a pool names does not exist.
    #[error("pool {pool}: sandbox profile {profile:?} does not exist")]
    NoSandbox {
        /// The pool.
        pool: PoolName,
        /// The profile's name.
        profile: String,
    },
    /// A route cannot be served.
    #[error("pool {pool}: {source}")]
    Route {
        /// The pool.
        pool: PoolName,
        /// Why.
        source: UpstreamError,
    },
    /// A delegate cannot be asked.
    #[error("pool {pool}: delegate {delegate}: {why}")]
    Delegate {
        /// The pool.
        pool: PoolName,
        /// The delegate's name.
        delegate: String,
        /// Why.
        why: String,
    },
    /// A hook cannot be used.
    #[error(transparent)]
    Hook(#[from] WebhookSetupError),
    /// The journal does not say what the slots remember.
    #[error("what the slots remember of earlier starts: {0}")]
    SlotHistory(#[from] SlotHistoryError),
    /// The store of workspaces' files takes no workspaces.
    #[error("the versions of files: {0}")]
    Store(#[from] StoreError),
    /// An actor could not be started.
    #[error("an actor could not be started: {0}")]
    Actor(String),
}
