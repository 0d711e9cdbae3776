//! The host directory with the files of a pool's runner, if the configuration names one.

use std::sync::Arc;

use super::{PrepareError, SessionDirs, blocking, host_tree};
use crate::setup::{PoolShared, Shared};

/// Mounts the directory in the session. Inside, the agent owns it.
pub(crate) async fn mount_runner_dir(
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
        // A writer in this directory must not reach the homes and copies of other sessions.
        shared.state.check_workspace(&dir)?;
        host_tree(&dir, true)
    });
    space.beside.trees.push((shown.await??, inside.to_owned()));
    Ok(())
}
