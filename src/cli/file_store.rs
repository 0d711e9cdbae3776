//! Opens the store of workspaces' file versions, as configured.
//!
//! Must not know what is stored in it.

use std::sync::Arc;

use marshal_config::{Config, ConfigErrors, Secret};
use marshal_sandbox::state_dir::StateDir;
use marshal_store::{Server, Store, StoreError};

/// The configured database server, with its secret.
fn server(config: &Config) -> Option<Result<Server, StoreError>> {
    let text = config.store.postgres.as_ref().and_then(Secret::expose)?;
    let ca = config.store.ca.as_ref().and_then(|ca| ca.pem.as_deref());
    Some(Server::new(text.trim(), ca))
}

/// Checks that the connection string can be used.
///
/// # Errors
/// The error in it. The message has nothing of the string, which is a secret.
pub(super) fn check(config: &Config) -> Result<(), Box<ConfigErrors>> {
    match server(config) {
        Some(Err(error)) => {
            let faults = vec![("store.postgres".to_owned(), error.to_string(), None)];
            Err(Box::new(config.source_map.locate_errors(faults)))
        }
        _ => Ok(()),
    }
}

/// Opens the store. Only a daemon stores versions: the changes of a single `run` are in its
/// workspace.
///
/// # Errors
/// [`StoreError`], also if the server cannot be reached: no work starts whose versions cannot be
/// stored.
pub(super) async fn open(
    config: &Config,
    state: &Arc<StateDir>,
    is_daemon: bool,
) -> Result<Option<Store>, StoreError> {
    if !is_daemon {
        return Ok(None);
    }
    if let Some(server) = server(config) {
        return Ok(Some(Store::connect(&server?).await?));
    }
    let state = Arc::clone(state);
    let opened = tokio::task::spawn_blocking(move || Store::open(state.path())).await;
    opened.map_err(|_| StoreError::Closed)?.map(Some)
}
