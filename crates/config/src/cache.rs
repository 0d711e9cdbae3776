//! `[cache]` and `cache` of a pool: which package manager caches of this host agents see, and their
//! directories.
//!
//! Must not know the content of a cache, nor its default directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::{one_of, quote};
use super::paths;
use super::pool::{PoolDraft, TRUST_HELP};
use super::table::Section;
use super::types::{Pool, SessionScope, WorkspaceMode};
use marshal_model::string_enum;

string_enum!(
    /// A package manager whose cache can be shared.
    Cache {
        /// Cargo: `registry` and `git` of its home.
        Cargo = "cargo",
        /// npm: `_cacache` of its directory.
        Npm = "npm",
        /// The cache of Python packages: its whole directory.
        Pip = "pip",
    }
);

/// The directory of all caches inside the sandbox.
const SANDBOX_CACHE_DIR: &str = "/run/marshal/cache";

impl Cache {
    /// The shared entries of its directory; empty: the whole directory.
    #[must_use]
    pub const fn shared_subdirs(self) -> &'static [&'static str] {
        match self {
            Self::Cargo => &["registry", "git"],
            Self::Npm => &["_cacache"],
            Self::Pip => &[],
        }
    }

    /// Its directory inside.
    #[must_use]
    pub fn sandbox_dir(self) -> String {
        format!("{SANDBOX_CACHE_DIR}/{self}")
    }

    /// The variable that tells its programs the directory.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Cargo => "CARGO_HOME",
            Self::Npm => "npm_config_cache",
            Self::Pip => "PIP_CACHE_DIR",
        }
    }
}

/// The JSON-schema pattern of a word of `cache`.
const PATTERN: &str = "^(cargo|npm|pip)$";

/// Directories of caches that the file names, absolute.
pub type CacheDirs = BTreeMap<Cache, PathBuf>;

/// Reads `[cache]`. `is_discovered`: the file was discovered, not named.
pub(super) fn read_dirs(section: &Section<'_>, dir: &Path, is_discovered: bool) -> CacheDirs {
    let mut dirs = CacheDirs::new();
    for (name, cache) in [
        ("cargo", Cache::Cargo),
        ("npm", Cache::Npm),
        ("pip", Cache::Pip),
    ] {
        let item = section.get(name);
        let Some(found) = item.and_then(|item| item.text_like(paths::PATTERN)) else {
            continue;
        };
        if let Some(fault) = paths::path_error(&found.value) {
            section.diagnostics.report(&found.place, fault, None);
        } else if is_discovered {
            // The directory of a discovered file may contain links to anywhere.
            let message = "a discovered supervisor.toml may not set cache directories";
            let help = Some(TRUST_HELP.to_owned());
            section.diagnostics.report(&found.place, message, help);
        }
        dirs.insert(cache, paths::absolute(dir, &found.value));
    }
    section.reject_unknown_keys(&[], &[]);
    dirs
}

/// Reads `cache` of a pool, each with the directory that the file names for it.
pub(super) fn read_pool_caches(
    section: &Section<'_>,
    dirs: &CacheDirs,
    is_discovered: bool,
) -> BTreeMap<Cache, Option<PathBuf>> {
    let mut caches = BTreeMap::new();
    let Some(list) = section.texts_like("cache", PATTERN) else {
        return caches;
    };
    for found in &list.value {
        let message = match Cache::parse(&found.value) {
            Some(cache) if caches.contains_key(&cache) => {
                format!("the cache {} is in the list twice", quote(&found.value))
            }
            Some(cache) => {
                caches.insert(cache, dirs.get(&cache).cloned());
                continue;
            }
            None => {
                let words: Vec<_> = Cache::ALL.iter().map(|cache| cache.as_str()).collect();
                format!("expected {}, found {}", one_of(&words), quote(&found.value))
            }
        };
        section.diagnostics.report(&found.place, message, None);
    }
    if is_discovered && !list.value.is_empty() {
        let message =
            "a discovered supervisor.toml may not share caches of this host with its agents";
        let help = Some(TRUST_HELP.to_owned());
        section.diagnostics.report(&list.place, message, help);
    }
    caches
}

/// Checks a pool's caches against its other keys.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool) {
    let Some(item) = section.get("cache") else {
        return;
    };
    if pool.caches.is_empty() {
        return;
    }
    if !pool.launcher.has_built_in_sandbox() {
        let message = format!(
            "a cache needs a sandbox on this host: with launcher = \"{}\" nothing keeps the agent's writes out of it",
            pool.launcher
        );
        section.diagnostics.report(&item.place, message, None);
    } else if pool.options.session == SessionScope::Slot && !pool.check.is_empty() {
        let message = "cache with session = \"slot\" excludes a check: the check would run beside the agent on the same files";
        let help = Some("use session = \"task\"".to_owned());
        section.diagnostics.report(&item.place, message, help);
    }
}

/// Other agents' programs are built from a cache, so no agent may write it.
pub(super) fn check_outside_workspaces(root: &Section<'_>, drafts: &[PoolDraft], dirs: &CacheDirs) {
    for draft in drafts {
        let pool = &draft.pool;
        let workspace = &pool.workspace;
        if workspace.mode != WorkspaceMode::Rw || pool.local_workspace().is_none() {
            continue;
        }
        if let Some(dir) = dirs.values().find(|dir| dir.starts_with(&workspace.path)) {
            let message = format!(
                "the agent could write the cache {}, which other agents take packages from",
                quote(&dir.to_string_lossy())
            );
            let help = Some("keep it outside of every workspace with mode \"rw\"".to_owned());
            root.diagnostics
                .report(&draft.workspace_place, message, help);
        }
    }
}

impl Pool {
    /// The variables that tell programs inside where the caches are.
    pub fn cache_variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let caches = self.caches.keys();
        caches.map(|cache| (cache.variable(), cache.sandbox_dir()))
    }
}
