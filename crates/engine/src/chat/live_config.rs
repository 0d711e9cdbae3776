//! The configuration of chats: roles, workspaces, idle times.
//!
//! Owns that it may change while chats run: each chat reads it when it needs a value. Must not know
//! who changes it.

use std::sync::{Arc, PoisonError, RwLock};

use marshal_config::Config;

/// The configuration in force.
pub(super) struct LiveConfig(RwLock<Arc<Config>>);

impl LiveConfig {
    pub(super) fn new(config: Config) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    /// Returns the current configuration.
    pub(super) fn current(&self) -> Arc<Config> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the configuration.
    pub(super) fn set(&self, config: Config) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}
