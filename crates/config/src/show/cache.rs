//! Shared caches, as they are shown.

use std::collections::BTreeMap;

use toml::Value;

use super::super::cache::{Cache, CacheDirs};
use super::{RenderedTable, path, texts};

/// `[cache]`, if the file says anything there.
pub(super) fn table(dirs: &CacheDirs) -> Option<RenderedTable> {
    let mut table = RenderedTable::new(&["cache"]);
    for (cache, dir) in dirs {
        table.put(cache.as_str(), path(dir));
    }
    (!dirs.is_empty()).then_some(table)
}

/// The caches of a pool. `[cache]` has their directories for all pools.
pub(super) fn cache_names<D>(caches: &BTreeMap<Cache, D>) -> Value {
    let words: Vec<String> = caches.keys().map(ToString::to_string).collect();
    texts(&words)
}
