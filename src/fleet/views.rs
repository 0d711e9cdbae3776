//! The fleet's pools as others see them. Plain data; must not know who looks.

use super::FleetHandle;
use super::session::lacks_now;
use crate::config::{Launcher, Network};
use crate::model::{PoolFlow, PoolName, Weakness};

/// One pool: what was settled when the fleet started, and what waits for it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// Its name.
    pub name: PoolName,
    /// How its children are started.
    pub launcher: Launcher,
    /// The profile of their walls; `None` where it has none here.
    pub sandbox: Option<String>,
    /// What they reach.
    pub network: Network,
    /// The policy that judges them.
    pub policy: String,
    /// Whether its tasks begin.
    pub flow: PoolFlow,
    /// In how many of its slots, from the first one.
    pub width: u16,
    /// How many it has.
    pub size: u16,
    /// Tasks that were taken in and are not over.
    pub tasks: usize,
    /// Asks that wait for a person.
    pub asks: usize,
    /// Layers that its children do without on this host.
    pub lacks: Vec<Weakness>,
    /// Where its walls are weak by configuration, one phrase each.
    pub weak: Vec<String>,
}

impl FleetHandle {
    /// The pools, in the order of their names.
    #[must_use]
    pub fn pool_views(&self) -> Vec<PoolView> {
        let pools = self.0.pools.values();
        let view = |pool: &super::setup::PoolShared| PoolView {
            name: pool.config.name.clone(),
            launcher: pool.config.launcher,
            sandbox: pool
                .config
                .launcher
                .has_walls()
                .then(|| pool.config.sandbox.clone()),
            network: pool.config.network,
            policy: pool.config.policy.clone(),
            flow: pool.flow(),
            width: pool.width(),
            size: pool.config.max_size,
            tasks: pool.tasks.load(std::sync::atomic::Ordering::Relaxed),
            asks: self.0.shared.questions.waiting(&pool.config.name),
            lacks: lacks_now(&self.0.shared, pool),
            weak: pool.config.weaknesses(),
        };
        pools.map(|entry| view(&entry.shared)).collect()
    }
}
