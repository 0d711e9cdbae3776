//! Landing the bundle of a session that has ended, and opening a pull request for it.

use crate::session::{
    LandRequest, Landing, LandingError, PullRequestError, PullRequestOrder, PushedBranch,
    land_bundles, open_pull_request,
};
use crate::{FleetHandle, PoolEntry};
use marshal_model::{PoolName, SlotId};

impl FleetHandle {
    /// Lands a bundle, with the check and the sandbox of a pool. Its first slot must not work
    /// meanwhile: the sandboxes have its user id.
    ///
    /// # Errors
    /// [`LandingError`]; the branch is unchanged.
    pub async fn land(
        &self,
        pool: &PoolName,
        request: LandRequest,
    ) -> Result<Landing, LandingError> {
        let entry: &PoolEntry = self
            .0
            .pools
            .get(pool)
            .ok_or_else(|| LandingError::NoPool(pool.clone()))?;
        let slot = SlotId {
            pool: pool.clone(),
            index: 0,
        };
        land_bundles(&self.0.shared, &entry.shared, slot, request).await
    }

    /// Pushes a bundle to a git server and opens a pull request for it, with the mask and the sandbox of
    /// a pool. Its first slot must not work meanwhile: the sandboxes have its user id.
    ///
    /// # Errors
    /// [`PullRequestError`]
    pub async fn open_pull_request(
        &self,
        pool: &PoolName,
        order: PullRequestOrder,
    ) -> Result<PushedBranch, PullRequestError> {
        let entry = self.0.pools.get(pool);
        let entry = entry.ok_or_else(|| LandingError::NoPool(pool.clone()))?;
        let slot = SlotId {
            pool: pool.clone(),
            index: 0,
        };
        Box::pin(open_pull_request(
            &self.0.shared,
            &entry.shared,
            &slot,
            order,
        ))
        .await
    }
}
