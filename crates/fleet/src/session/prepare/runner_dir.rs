//! The directory of this host by whose files a pool's tool is driven, if the file names one.

use std::sync::Arc;

use super::{PrepareError, SessionDirs, blocking, host_tree};
use crate::setup::{PoolShared, Shared};

/// Adds the directory to what the session sees. Its owner on disk is the agent inside.
pub(super) async fn mount_runner_dir(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    space: &mut SessionDirs,
) -> Result<(), PrepareError> {
    let Some((dir, inside)) = pool.config.runner_dir() else {
        return Ok(());
    };
    let (shared, dir) = (Arc::clone(shared), dir.to_owned());
    let ambient = shared.ambient.clone();
    let shown = blocking(&ambient, move || {
        // Whoever writes there must not reach others' homes and copies.
        shared.state.check_workspace(&dir)?;
        host_tree(&dir, true)
    });
    space.beside.trees.push((shown.await??, inside.to_owned()));
    Ok(())
}
