//! The host user's caches in a session: which directories they are, and which directories of the
//! session take the writes to them.
//!
//! Must not know what is in a cache, nor how one is layered over the other.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{PrepareError, SessionDirs, blocking, host_tree};
use crate::setup::{PoolShared, Shared};
use marshal_config::Cache;
use marshal_model::SessionId;
use marshal_sandbox::workspace::Owner;
use marshal_sandbox::workspace::cache::{self, upper_dir};
use marshal_sandbox::{ExtraMounts, Tree};

/// Mounts the pool's caches in the session.
pub(crate) async fn mount_caches(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    session: &SessionId,
    space: &mut SessionDirs,
    owner: Option<Owner>,
) -> Result<(), PrepareError> {
    if pool.config.caches.is_empty() || !pool.config.launcher.has_built_in_sandbox() {
        return Ok(());
    }
    let (fleet, pool, session) = (Arc::clone(shared), Arc::clone(pool), session.clone());
    let mounts = blocking(&shared.ambient, move || {
        let mut mounts = CacheMounts::default();
        for (&cache, named) in &pool.config.caches {
            let dir = named
                .clone()
                .or_else(|| default_cache_dir(cache, &fleet.environment));
            mounts.add(&fleet, &session, (cache, dir.as_deref()), owner)?;
        }
        Ok::<_, PrepareError>(mounts)
    })
    .await??;
    space.beside.trees.extend(mounts.beside.trees);
    space.beside.layered.extend(mounts.beside.layered);
    space.written.extend(mounts.written);
    Ok(())
}

/// The cache directory of the user that runs the supervisor, by the environment variables of its
/// tools.
fn default_cache_dir(cache: Cache, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = env.get(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let own = absolute(cache.variable());
    own.or_else(|| match cache {
        Cache::Cargo => Some(absolute("HOME")?.join(".cargo")),
        Cache::Npm => Some(absolute("HOME")?.join(".npm")),
        Cache::Pip => {
            let caches = absolute("XDG_CACHE_HOME");
            Some(
                caches
                    .or_else(|| Some(absolute("HOME")?.join(".cache")))?
                    .join("pip"),
            )
        }
    })
}

/// The mounts collected so far.
#[derive(Default)]
struct CacheMounts {
    beside: ExtraMounts,
    written: Vec<PathBuf>,
}

impl CacheMounts {
    fn add(
        &mut self,
        shared: &Shared,
        session: &SessionId,
        (cache, dir): (Cache, Option<&Path>),
        owner: Option<Owner>,
    ) -> Result<(), PrepareError> {
        let parts = cache.shared_subdirs();
        let prepared = cache::prepare(&shared.state, session, cache.as_str(), parts, owner);
        let prepared =
            prepared.map_err(|error| cache_error(cache, shared.state.homes().path(), &error))?;
        let inside = cache.sandbox_dir();
        if let Some(around) = prepared.parts_dir {
            let own = host_tree(&around, true)?;
            self.beside.trees.push((own, inside.clone()));
            self.written.push(around);
        }
        let whole = parts.is_empty().then_some(&"");
        for (part, layer) in parts.iter().chain(whole).zip(prepared.layers) {
            let target = Path::new(&inside)
                .join(part)
                .to_string_lossy()
                .trim_end_matches('/')
                .to_owned();
            let upper = upper_dir(&layer);
            let lower = dir.map(|dir| dir.join(part)).filter(|dir| is_there(dir));
            if let Some(lower) = lower {
                let lower = open_lower_dir(shared, cache, &lower)?;
                let owner = host_tree(&layer, true)?.owner;
                let layered = (lower, (layer, owner), target);
                self.beside.layered.push(layered);
            } else {
                tracing::info!(%cache, part, "this host has no such cache: the session begins with an empty one");
                self.beside.trees.push((host_tree(&upper, true)?, target));
            }
            self.written.push(upper);
        }
        Ok(())
    }
}

/// Whether a directory exists; on any other error the later open reports it.
fn is_there(dir: &Path) -> bool {
    let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    dir.metadata()
        .map_or_else(|error| !missing.contains(&error.kind()), |_| true)
}

/// A directory of the host, mounted read-only.
fn open_lower_dir(shared: &Shared, cache: Cache, dir: &Path) -> Result<Tree, PrepareError> {
    let error_at = |error: &dyn std::fmt::Display| cache_error(cache, dir, error);
    let real = dir.canonicalize().map_err(|error| error_at(&error))?;
    // The agent must not read the homes and copies of other sessions through a cache.
    let checked = shared.state.check_workspace(&real);
    checked.map_err(|error| error_at(&error))?;
    host_tree(&real, false).map_err(|error| match error {
        PrepareError::Workspace { source, .. } => error_at(&source),
        other => other,
    })
}

fn cache_error(cache: Cache, path: &Path, error: &dyn std::fmt::Display) -> PrepareError {
    PrepareError::Cache {
        cache,
        path: path.to_owned(),
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_where_its_programs_have_it() {
        let check = |cache, env: &[(&str, &str)], expect: Option<&str>| {
            let env = env
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            assert_eq!(
                default_cache_dir(cache, &env.collect()),
                expect.map(PathBuf::from)
            );
        };
        let home = ("HOME", "/h");
        check(Cache::Cargo, &[home], Some("/h/.cargo"));
        check(Cache::Cargo, &[home, ("CARGO_HOME", "/c")], Some("/c"));
        check(
            Cache::Cargo,
            &[home, ("CARGO_HOME", "c")],
            Some("/h/.cargo"),
        );
        check(Cache::Npm, &[home], Some("/h/.npm"));
        check(Cache::Pip, &[home], Some("/h/.cache/pip"));
        check(
            Cache::Pip,
            &[home, ("XDG_CACHE_HOME", "/x")],
            Some("/x/pip"),
        );
        check(Cache::Pip, &[("HOME", "")], None);
    }
}
