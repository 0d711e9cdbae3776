//! The fleet's pools as others see them. Plain data; must not know who looks.

use super::FleetHandle;
use super::session::current_sandbox_gaps;
use marshal_config::{Launcher, Network};
use marshal_model::{PoolName, PoolPhase, SandboxGap};

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
    pub phase: PoolPhase,
    /// In how many of its slots, from the first one.
    pub width: u16,
    /// How many it has.
    pub size: u16,
    /// Tasks that were taken in and are not over.
    pub tasks: usize,
    /// Approvals that wait for a person.
    pub pending_approvals: usize,
    /// Layers that its children do without on this host.
    pub sandbox_gaps: Vec<SandboxGap>,
    /// Where its walls are weak by configuration, one phrase each.
    pub configured_gaps: Vec<String>,
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
                .has_sandbox()
                .then(|| pool.config.sandbox.clone()),
            network: pool.config.network,
            policy: pool.config.policy.clone(),
            phase: pool.phase(),
            width: pool.width(),
            size: pool.config.max_size,
            tasks: pool.tasks.load(std::sync::atomic::Ordering::Relaxed),
            pending_approvals: self.0.shared.approvals.pending_count(&pool.config.name),
            sandbox_gaps: current_sandbox_gaps(&self.0.shared, pool),
            configured_gaps: pool.config.sandbox_gaps(),
        };
        pools.map(|entry| view(&entry.shared)).collect()
    }
}
