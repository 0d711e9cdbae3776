//! The host features that a configuration needs: by its profiles and its pools' launchers.

use std::collections::BTreeSet;

use marshal_config::{Config, Launcher, Network, Pool, Sandbox, WorkspaceMode};
use marshal_sandbox::doctor::{
    Feature, FeatureQuery, ProfileContext, Requirement, requirements_of,
};

/// What all profiles and pools need, or only the profile `only`.
pub(super) fn of_all(config: &Config, state: &str, only: Option<&str>) -> Vec<Requirement> {
    let mut needs = of_used(config, state, only);
    let names: Vec<&str> = config.sandboxes.keys().map(String::as_str).collect();
    for name in names {
        let is_wanted = only.is_none_or(|only| only == name);
        let is_known = needs
            .iter()
            .any(|need| need.profile.as_deref() == Some(name));
        if is_wanted && !is_known {
            needs.extend(of_profile(
                config,
                name,
                &config.sandboxes[name],
                state,
                None,
            ));
        }
    }
    if only.is_none() {
        let remote = config.pools.iter().filter(|pool| pool.launcher.is_remote());
        needs.extend(remote.map(|pool| of_launcher(pool, Feature::Ssh, None)));
        needs.extend(of_launchers(config));
    }
    needs
}

/// The programs that build the pools' sandboxes.
pub(super) fn of_launchers(config: &Config) -> Vec<Requirement> {
    let engine = config.container.engine.as_str();
    let needs = config.pools.iter().filter_map(|pool| match pool.launcher {
        Launcher::Bwrap => Some(of_launcher(pool, Feature::Bwrap, None)),
        Launcher::Container => Some(of_launcher(pool, Feature::Container, Some(engine))),
        Launcher::Unshare | Launcher::Pty | Launcher::None | Launcher::Ssh => None,
    });
    needs.collect()
}

fn of_launcher(pool: &Pool, feature: Feature, at: Option<&str>) -> Requirement {
    Requirement {
        query: FeatureQuery {
            feature,
            at: at.map(str::to_owned),
        },
        least: 0,
        required_by: format!("pool {}: launcher", pool.name),
        profile: None,
        may_degrade: None,
    }
}

/// What the sandboxed pools need.
pub(super) fn of_used(config: &Config, state: &str, only: Option<&str>) -> Vec<Requirement> {
    let mut needs: Vec<Requirement> = Vec::new();
    for pool in sandboxed_pools(config) {
        if only.is_some_and(|only| only != pool.sandbox) {
            continue;
        }
        let Some(profile) = config.sandboxes.get(&pool.sandbox) else {
            continue;
        };
        for need in of_profile(config, &pool.sandbox, profile, state, Some(pool)) {
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
    }
    needs
}

/// What one command in the sandbox of a profile needs.
pub(super) fn of_command(name: &str, profile: &Sandbox, own_network: bool) -> Vec<Requirement> {
    requirements_of(&ProfileContext {
        name,
        profile,
        own_network,
        is_root: rustix::process::geteuid().is_root(),
        slots: 1,
        state: None,
        writable_workspace: None,
    })
}

/// The pools whose agents run in a sandbox of this host, whatever builds it. Git's sandbox is built
/// by this program or by bubblewrap, which needs the same.
pub(super) fn sandboxed_pools(config: &Config) -> impl Iterator<Item = &Pool> {
    let pools = config.pools.iter();
    pools.filter(|pool| pool.launcher.has_sandbox())
}

/// The workspaces that are mounted themselves, without a copy.
pub(super) fn workspaces(config: &Config) -> Vec<String> {
    let pools = sandboxed_pools(config).filter(|pool| pool.workspace.mode != WorkspaceMode::Copy);
    let paths: BTreeSet<String> = pools
        .map(|pool| pool.workspace.path.to_string_lossy().into_owned())
        .collect();
    paths.into_iter().collect()
}

fn of_profile(
    config: &Config,
    name: &str,
    profile: &Sandbox,
    state: &str,
    pool: Option<&Pool>,
) -> Vec<Requirement> {
    let written = pool
        .filter(|pool| pool.workspace.mode == WorkspaceMode::Rw)
        .map(|pool| pool.workspace.path.to_string_lossy());
    requirements_of(&ProfileContext {
        name,
        profile,
        own_network: pool.is_none_or(|pool| pool.network != Network::Host),
        is_root: rustix::process::geteuid().is_root(),
        slots: u32::from(config.supervisor.max_children),
        state: Some(state),
        writable_workspace: written.as_deref(),
    })
}
