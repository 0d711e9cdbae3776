//! Replaces keys of routes and delegates while the fleet runs.
//!
//! Owns the order: first what masks the new values, then what uses them. Must not know where the
//! values come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::FleetHandle;
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
    /// An error text for display: all keys stay as they were.
    pub fn replace_keys(
        &self,
        keys: &[ChangedKey],
        mask: impl FnOnce() -> Mask,
    ) -> Result<(), String> {
        let of_route: BTreeMap<&String, &Secret> = keys
            .iter()
            .filter_map(|key| Some((key.route.as_ref()?, &key.fresh)))
            .collect();
        let pools = self.0.pools.values();
        let renewed = pools
            .flat_map(|entry| &entry.shared.upstreams)
            .filter_map(|upstream| {
                let secret = of_route.get(upstream.route_name())?;
                Some(upstream.prepare_key(secret).map(|key| (upstream, key)))
            });
        let renewed: Vec<_> = renewed
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        for key in keys {
            key.in_force.replace_value(&key.fresh);
        }
        self.0.shared.mask.store(Arc::new(mask()));
        for (upstream, key) in renewed {
            upstream.use_key(key);
        }
        Ok(())
    }
}
