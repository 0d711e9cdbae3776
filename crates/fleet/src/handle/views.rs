//! Views of the fleet's pools for display. Plain data; must not know the caller.

use crate::FleetHandle;
use crate::session::current_sandbox_gaps;
use marshal_config::{Launcher, Network};
use marshal_model::{PoolName, PoolPhase, SandboxGap};

/// One pool: its settings from the start of the fleet, and its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// The pool's name.
    pub name: PoolName,
    /// How its children are started.
    pub launcher: Launcher,
    /// The sandbox profile; `None` if the launcher builds no sandbox on this host.
    pub sandbox: Option<String>,
    /// Their network access.
    pub network: Network,
    /// The policy's name.
    pub policy: String,
    /// Whether the pool runs, pauses or drains.
    pub phase: PoolPhase,
    /// How many slots receive tasks, counted from the first one.
    pub width: u16,
    /// How many slots the pool has.
    pub size: u16,
    /// Accepted tasks that have not ended.
    pub tasks: usize,
    /// Approvals that wait for a person.
    pub pending_approvals: usize,
    /// Sandbox layers that its children lack on this host.
    pub sandbox_gaps: Vec<SandboxGap>,
    /// Weak points of the sandbox by configuration, one phrase each.
    pub configured_gaps: Vec<String>,
}

impl FleetHandle {
    /// The pools, in the order of their names.
    #[must_use]
    pub fn pool_views(&self) -> Vec<PoolView> {
        let pools = self.0.pools.values();
        let view = |pool: &crate::setup::PoolShared| PoolView {
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
