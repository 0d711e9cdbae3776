//! Replaces keys of routes and delegates while the fleet runs.
//!
//! Owns the order: first what masks the new values, then what uses them. Must not know where the
//! values come from.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::FleetHandle;
use marshal_config::Secret;
use marshal_policy::Mask;

/// A changed key.
#[derive(Debug, Clone)]
pub struct ChangedKey {
    /// The name of its route; `None` for that of a delegate.
    pub route: Option<String>,
    /// The secret of the configuration in force.
    pub in_force: Secret,
    /// The secret with the new value.
    pub fresh: Secret,
}

impl FleetHandle {
    /// Uses new keys for all requests from now on. Requests that are under way end with the former
    /// ones, which then are nowhere any more. `mask` masks all values that are in force afterwards;
    /// it is called when they are.
    ///
    /// # Errors
    /// An error text for display: a route keeps the key that it had.
    pub fn replace_keys(
        &self,
        keys: &[ChangedKey],
        mask: impl FnOnce() -> Mask,
    ) -> Result<(), String> {
        for key in keys {
            key.in_force.replace_value(&key.fresh);
        }
        self.0.shared.mask.store(Arc::new(mask()));
        let routes: BTreeSet<&String> = keys.iter().filter_map(|key| key.route.as_ref()).collect();
        let pools = self.0.pools.values();
        for upstream in pools.flat_map(|entry| &entry.shared.upstreams) {
            if routes.contains(upstream.route_name()) {
                upstream.renew_key().map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
