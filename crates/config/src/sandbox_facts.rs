//! What a pool's configuration says of its sandbox, as facts that a policy can rely on.
//!
//! Must not know hosts: what a host lacks is found at the start.

use std::collections::BTreeMap;

use super::Config;
use super::route::Route;
use super::types::{Network, Pool, Sandbox, Seccomp, WorkspaceMode};
use marshal_model::SandboxFacts;

impl Config {
    /// The facts about a pool's sandbox, if the host lacks nothing that the profile may do without.
    ///
    /// A uid that is shared with other agents, and limits that nothing enforces, are no gaps here:
    /// they let no process reach more files.
    #[must_use]
    pub fn sandbox_facts(&self, pool: &Pool) -> SandboxFacts {
        of_pool(pool, &self.sandboxes, &self.routes)
    }
}

/// [`Config::sandbox_facts`], before there is a [`Config`].
pub(super) fn of_pool(
    pool: &Pool,
    sandboxes: &BTreeMap<String, Sandbox>,
    routes: &BTreeMap<String, Route>,
) -> SandboxFacts {
    let profile = sandboxes.get(&pool.sandbox);
    let is_filtered = profile.is_some_and(|profile| profile.seccomp != Seccomp::Off);
    let has_sandbox = pool.launcher.has_built_in_sandbox();
    let has_confined_network = match pool.network {
        Network::None => true,
        Network::Routes => pool.routes.iter().all(|port| {
            let route = routes.get(&port.name);
            route.is_some_and(Route::is_confined)
        }),
        Network::Proxy | Network::Host => false,
    };
    SandboxFacts {
        has_no_gaps: has_sandbox && is_filtered && pool.network != Network::Host,
        has_private_workspace: has_sandbox
            && matches!(
                pool.workspace.mode,
                WorkspaceMode::Copy | WorkspaceMode::Overlay | WorkspaceMode::Worktree
            ),
        has_confined_network: has_sandbox && has_confined_network,
    }
}
