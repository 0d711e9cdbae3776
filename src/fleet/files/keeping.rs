//! How long versions are kept, and the store's end.
//!
//! Must not know when that is looked at.

use super::FilesError;
use crate::fleet::FleetHandle;
use crate::limits::STORE_SWEEPS;
use crate::store::Retention;

impl FleetHandle {
    /// Removes versions that are kept no longer, a bounded number at once.
    pub async fn sweep_versions(&self) {
        let Ok(store) = self.0.shared.files.store() else {
            return;
        };
        let config = &self.0.shared.config.store;
        let retention = Retention {
            newest: config.newest,
            younger: config.keep,
            bytes: config.max_size,
        };
        for _ in 0..STORE_SWEEPS {
            match store.sweep(retention).await {
                Ok(swept) if swept.more => {}
                Ok(swept) => {
                    tracing::debug!(
                        versions = swept.versions,
                        files = swept.files,
                        freed = swept.freed,
                        "swept files"
                    );
                    if swept.left > config.max_size {
                        tracing::warn!(
                            left = swept.left,
                            max_size = config.max_size,
                            "the versions of files have more content than store.max_size, and nothing of it may go: raise max_size, or lower store.newest"
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

    /// Waits for what the store of files accepted, and lets nothing in any more.
    pub async fn close_versions(&self) {
        if let Ok(store) = self.0.shared.files.store() {
            store.close().await;
        }
    }
}
