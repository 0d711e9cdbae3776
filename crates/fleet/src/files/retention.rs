//! Retention of versions, cleanup of temporary files after a kill, and closing the store.
//!
//! Must not know when these run.

use std::collections::HashSet;
use std::path::Path;

use super::{FilesError, WorkspaceFiles};
use crate::FleetHandle;
use marshal_model::WorkspaceName;
use marshal_model::limits::{LEFTOVER_DIRS, STORE_PAGE, STORE_SWEEPS};
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::leftovers::clear;
use marshal_store::{Retention, Store, WorkspaceId};

impl FleetHandle {
    /// Removes versions that exceed the retention; a bounded number a call.
    pub async fn sweep_versions(&self) {
        let Ok(store) = self.0.shared.files.store() else {
            return;
        };
        let config = &self.0.shared.config.store;
        let retention = Retention {
            keep_newest: config.newest,
            keep_younger_than: config.keep,
            max_bytes: config.max_size,
        };
        for _ in 0..STORE_SWEEPS {
            match store.sweep(retention).await {
                Ok(swept) if swept.has_more => {}
                Ok(swept) => {
                    tracing::debug!(
                        versions = swept.versions,
                        files = swept.files,
                        freed = swept.bytes_freed,
                        "removed old versions of files"
                    );
                    if swept.bytes_left > config.max_size {
                        tracing::warn!(
                            left = swept.bytes_left,
                            max_size = config.max_size,
                            "the versions of files exceed store.max_size, and the retention allows no further removal: raise store.max_size, or lower store.newest"
                        );
                    }
                    return;
                }
                Err(error) => {
                    let error = FilesError::from(error);
                    tracing::warn!(%error, "old versions of files could not be removed");
                    return;
                }
            }
        }
    }

    /// Removes temporary files that a kill left in the registered workspaces: in their roots, and
    /// next to files that have versions. Searches at most [`LEFTOVER_DIRS`] directories a
    /// workspace.
    pub async fn clear_leftovers(&self) {
        let files = &self.0.shared.files;
        let Ok(store) = files.store() else {
            return;
        };
        for (name, root) in &files.roots.current().all {
            if let Err(error) = files.clear(store, name, root).await {
                tracing::warn!(workspace = %name, %error, "cannot remove all temporary files that a kill may have left");
            }
        }
    }

    /// Waits until the store has finished the accepted requests, and closes it.
    pub async fn close_versions(&self) {
        if let Ok(store) = self.0.shared.files.store() {
            store.close().await;
        }
    }
}

impl WorkspaceFiles {
    async fn clear(
        &self,
        store: &Store,
        name: &WorkspaceName,
        root: &Path,
    ) -> Result<(), FilesError> {
        let id = WorkspaceId::new(name.as_str())?;
        let mut seen = HashSet::from([String::from(".")]);
        let mut dirs = vec![String::from(".")];
        let mut after: Option<String> = None;
        loop {
            let page = store.list(&id, "", after.as_deref(), STORE_PAGE).await?;
            for file in page.rows {
                let path = file.current.path.as_str();
                let above = path.rsplit_once('/').map_or(".", |(above, _)| above);
                if seen.len() < LEFTOVER_DIRS && seen.insert(above.to_owned()) {
                    dirs.push(above.to_owned());
                }
            }
            let (batch, root) = (std::mem::take(&mut dirs), root.to_owned());
            let cleared = self.ambient.run_blocking(move || {
                let root = Root::open_resolved(&root)?;
                let mut removed = 0;
                for dir in batch {
                    // A directory that cannot be opened is skipped.
                    removed += clear(&root, &dir).unwrap_or(0);
                }
                Ok::<_, FilesError>(removed)
            });
            let removed = cleared.await.map_err(|_| FilesError::Stopping)??;
            if removed > 0 {
                tracing::info!(workspace = %name, removed, "removed temporary files that a kill left");
            }
            after = page.next;
            if after.is_none() || seen.len() >= LEFTOVER_DIRS {
                return Ok(());
            }
        }
    }
}
