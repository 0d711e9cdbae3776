//! `[policy.NAME]`: the policies that the file brings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{RenderedTable, path};
use crate::PolicyUses;

/// The tables of all policies, as `config show` has them.
pub(super) fn tables(
    policies: &BTreeMap<String, PathBuf>,
    site: Option<&str>,
    uses: &PolicyUses,
) -> Vec<RenderedTable> {
    let table = |(name, file): (&String, &PathBuf)| {
        let mut table = RenderedTable::new(&["policy", name]);
        table.put("file", path(file));
        if site == Some(name.as_str()) {
            table.put("site", true);
        }
        if uses.layers.contains(name) {
            table.put("layer", true);
        }
        table.put_optional("test_dir", uses.test_dirs.get(name).map(|of| path(of)));
        table
    };
    policies.iter().map(table).collect()
}
