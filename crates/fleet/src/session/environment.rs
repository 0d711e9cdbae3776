//! A child's environment: what every child has, what the configuration passes on and sets, base URLs
//! of routes filled in.
//!
//! Must not know how a child is started.

use std::collections::BTreeMap;

use crate::setup::Shared;
use marshal_config::{HOME_OF_CHILD, Launcher, Pool, WorkspaceMode, fill_routes};

/// A child's PATH, unless the configuration says more.
pub(super) const PATH_INSIDE: &str = "/usr/local/bin:/usr/bin:/bin";

/// The child's whole environment.
/// `home` and `workspace` are paths as it sees them.
pub(super) fn environment(
    shared: &Shared,
    pool: &Pool,
    home: &str,
    workspace: &str,
) -> Vec<(String, String)> {
    let config = &pool.env;
    let mut path = String::new();
    for directory in &config.path_add {
        let directory = directory.to_string_lossy();
        match directory.strip_prefix(HOME_OF_CHILD) {
            Some(below) => path.extend([home, below]),
            None => path.push_str(&directory),
        }
        path.push(':');
    }
    match (pool.launcher, shared.environment.get("PATH")) {
        (Launcher::None, Some(own)) => path.push_str(own),
        _ => path.push_str(PATH_INSIDE),
    }
    let fixed = [
        ("HOME", home.to_owned()),
        ("PATH", path),
        ("USER", "agent".to_owned()),
        ("LOGNAME", "agent".to_owned()),
        ("SHELL", "/bin/sh".to_owned()),
        // The workspace's owner inside is the agent, or is shown as such; git must believe it.
        ("GIT_CONFIG_COUNT", "2".to_owned()),
        ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
        ("GIT_CONFIG_VALUE_0", workspace.to_owned()),
        // A directory that only looks like a repository, and may have come with the tree, is none.
        ("GIT_CONFIG_KEY_1", "safe.bareRepository".to_owned()),
        ("GIT_CONFIG_VALUE_1", "explicit".to_owned()),
    ];
    let mut env: BTreeMap<String, String> = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    if pool.workspace.mode == WorkspaceMode::Overlay {
        // What only looks, such as `git status`, writes nothing: a changed index would be a change
        // in `.git`, which is never applied.
        env.insert("GIT_OPTIONAL_LOCKS".to_owned(), "0".to_owned());
    }
    let proxy = pool.proxy_variables().into_iter();
    env.extend(proxy.map(|(name, value)| (name.to_owned(), value)));
    let caches = pool.cache_variables();
    env.extend(caches.map(|(name, value)| (name.to_owned(), value)));
    for name in &config.pass {
        if let Some(value) = shared.environment.get(name) {
            env.insert(name.clone(), value.clone());
        }
    }
    env.extend(config.set.iter().map(|(name, value)| {
        let value = fill_routes(value, &pool.routes);
        (name.clone(), value)
    }));
    // Read at the start: a configuration with an unread secret starts no fleet.
    env.extend(config.secrets.iter().filter_map(|(name, secret)| {
        let value = secret.expose()?;
        Some((name.clone(), value.to_owned()))
    }));
    env.into_iter().collect()
}
