//! A child's environment: fixed variables, those that the configuration passes on or sets, and base
//! URLs of routes.
//!
//! Must not know how a child is started.

use std::collections::BTreeMap;

use crate::setup::Shared;
use marshal_config::{HOME_OF_CHILD, Pool, Route, WorkspaceMode, fill_routes};

/// A child's PATH; the configuration may add to it.
pub(crate) const PATH_INSIDE: &str = "/usr/local/bin:/usr/bin:/bin";

/// The child's whole environment. `home` and `workspace` are paths as the child sees them.
pub(crate) fn environment(
    shared: &Shared,
    pool: &Pool,
    home: &str,
    workspace: &str,
) -> Vec<(String, String)> {
    let config = &pool.env;
    let mut env = fixed_variables(shared, pool, home);
    let routes = pool.routes.iter();
    let routes = routes.filter_map(|port| shared.config.routes.get(&port.name));
    env.extend(git_settings(workspace, routes));
    if pool.workspace.mode == WorkspaceMode::Overlay {
        // Read-only commands such as `git status` must not write: a changed index would be a change
        // in `.git`, which is never applied.
        env.insert("GIT_OPTIONAL_LOCKS".to_owned(), "0".to_owned());
    }
    let proxy = pool.proxy_variables().into_iter();
    env.extend(proxy.map(|(name, value)| (name.to_owned(), value)));
    let registries = pool.registry_variables().into_iter();
    env.extend(registries.map(|(name, value)| (name.to_owned(), value)));
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
    // Secrets were read at startup: a fleet with an unreadable secret does not start.
    env.extend(config.secrets.iter().filter_map(|(name, secret)| {
        let value = secret.expose()?;
        Some((name.clone(), value.as_ref().to_owned()))
    }));
    env.into_iter().collect()
}

/// The environment of the command that prepares clones: no value that the configuration sets or
/// passes on, and no secret. What it leaves is seen by every later session.
pub(crate) fn setup_environment(
    shared: &Shared,
    pool: &Pool,
    home: &str,
    workspace: &str,
) -> Vec<(String, String)> {
    let mut env = fixed_variables(shared, pool, home);
    env.extend(git_settings(workspace, std::iter::empty()));
    env.insert("LANG".to_owned(), "C.UTF-8".to_owned());
    let caches = pool.cache_variables();
    env.extend(caches.map(|(name, value)| (name.to_owned(), value)));
    env.into_iter().collect()
}

fn fixed_variables(shared: &Shared, pool: &Pool, home: &str) -> BTreeMap<String, String> {
    let mut path = String::new();
    for directory in &pool.env.path_add {
        let directory = directory.to_string_lossy();
        match directory.strip_prefix(HOME_OF_CHILD) {
            Some(below) => path.extend([home, below]),
            None => path.push_str(&directory),
        }
        path.push(':');
    }
    let own = shared
        .environment
        .get("PATH")
        .filter(|_| pool.launcher.is_unsandboxed());
    path.push_str(own.map_or(PATH_INSIDE, String::as_str));
    let fixed = [
        ("HOME", home.to_owned()),
        ("PATH", path),
        ("USER", "agent".to_owned()),
        ("LOGNAME", "agent".to_owned()),
        ("SHELL", "/bin/sh".to_owned()),
    ];
    fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The configuration of the agent's git, as variables.
fn git_settings<'r>(
    workspace: &str,
    routes: impl Iterator<Item = &'r Route>,
) -> Vec<(String, String)> {
    let mut settings = vec![
        // Inside, the workspace belongs to the agent or appears to; git must trust it.
        ("safe.directory".to_owned(), workspace.to_owned()),
        // A directory that only looks like a bare repository may have come with the workspace: git
        // must not use it.
        ("safe.bareRepository".to_owned(), "explicit".to_owned()),
    ];
    settings.extend(routes.flat_map(Route::git_settings));
    let count = ("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string());
    let pairs = settings
        .into_iter()
        .enumerate()
        .flat_map(|(at, (key, value))| {
            [
                (format!("GIT_CONFIG_KEY_{at}"), key),
                (format!("GIT_CONFIG_VALUE_{at}"), value),
            ]
        });
    std::iter::once(count).chain(pairs).collect()
}
