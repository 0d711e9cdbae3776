//! How the policies of the file are used: for pools, as the site's policy below all of them, as
//! layers on top of a session's policy; and the labelled requests that test them.
//!
//! Must not read a policy.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::paths;
use super::pool::{BUILT_IN_POLICIES, PoolContext, UNSUPPORTED_POLICIES};
use super::sandbox;
use super::table::{Section, one_of};
use marshal_model::limits::POLICY_LAYERS;

/// The keys of `[policy.NAME]` besides the file.
#[derive(Debug, Clone, Default)]
pub struct PolicyUses {
    /// The policies that a task may add as a layer on top of its pool's policy.
    pub layers: BTreeSet<String>,
    /// Directories of labelled requests: a policy that decides one of its own otherwise is not
    /// used.
    pub test_dirs: BTreeMap<String, PathBuf>,
}

/// Reads the keys of one policy's table; `is_site`: it is the site's policy.
pub(super) fn read(
    table: &Section<'_>,
    name: &str,
    is_site: bool,
    dir: &Path,
    uses: &mut PolicyUses,
) {
    if let Some(found) = table.boolean("layer").filter(|found| found.value) {
        let message = if is_site {
            "the site's policy already applies below every pool's policy".to_owned()
        } else if uses.layers.len() >= POLICY_LAYERS {
            format!("at most {POLICY_LAYERS} policies can have `layer = true`")
        } else {
            String::new()
        };
        if message.is_empty() {
            uses.layers.insert(name.to_owned());
        } else {
            let help = Some("leave `layer = true` out".to_owned());
            table.diagnostics.report(&found.place, &message, help);
        }
    }
    if let Some(found) = table
        .get("test_dir")
        .and_then(|item| item.text_like(paths::PATTERN))
    {
        if let Some(fault) = paths::path_error(&found.value) {
            table.diagnostics.report(&found.place, fault, None);
        }
        let path = paths::absolute(dir, &found.value);
        uses.test_dirs.insert(name.to_owned(), path);
    }
}

/// The policy that a pool names under this key, which must exist.
pub(super) fn read_policy_name(
    section: &Section<'_>,
    key: &'static str,
    context: &PoolContext<'_>,
) -> Option<String> {
    let item = section.get(key)?;
    let found = item.text_like(sandbox::NAME_PATTERN)?;
    let own = context.policy_names.iter().map(String::as_str);
    let names: Vec<_> = BUILT_IN_POLICIES.iter().copied().chain(own).collect();
    if !names.contains(&found.value.as_str()) {
        let expected = format!("{} or the name of a [policy.NAME]", one_of(&names));
        item.report_unknown(&found.value, &names, UNSUPPORTED_POLICIES, &expected);
    }
    Some(found.value)
}
