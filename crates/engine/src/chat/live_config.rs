//! The configuration that chats go by: roles, workspaces, how long one may be idle.
//!
//! Owns that it may change while chats run: each looks when it needs something. Must not know who
//! changes it.

use std::sync::{Arc, PoisonError, RwLock};

use marshal_config::Config;

/// See the head of this file.
pub(super) struct LiveConfig(RwLock<Arc<Config>>);

impl LiveConfig {
    pub(super) fn new(config: Config) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    /// As it is now.
    pub(super) fn current(&self) -> Arc<Config> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on.
    pub(super) fn set(&self, config: Config) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}
