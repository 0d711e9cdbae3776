//! The keys of a workspace, which stand in `[workspace.NAME]` or in the table `workspace` of a pool. A
//! pool may name a registered workspace instead of having a table.
//!
//! Must not know pools: what depends on a pool's launcher is decided when a pool takes the workspace.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::DeValue;

use super::error::quote;
use super::key_types::ValueType;
use super::paths;
use super::pool::workspace_view;
use super::sandbox::NAME_PATTERN;
use super::table::{Diagnostics, Located, Place, Section, one_of};
use super::types::{Launcher, Workspace, WorkspaceMode};
use super::{workspace_branches, workspace_repos, workspace_setup};

/// A workspace as the file has it.
#[derive(Clone)]
pub(super) struct WorkspaceDraft {
    workspace: Workspace,
    /// Whether the file has a path: without one it is the directory of the file.
    pub(super) has_path: bool,
    /// The places of keys that a pool's checks may report.
    pub(super) places: WorkspacePlaces,
}

/// The places of keys of a workspace.
#[derive(Clone)]
pub(super) struct WorkspacePlaces {
    pub(super) path: Place,
    pub(super) mode: Place,
    pub(super) setup: Option<Place>,
    pub(super) repos: Option<Place>,
    mask: Option<Place>,
}

/// The registered workspaces of a file.
#[derive(Default)]
pub(super) struct WorkspaceDrafts {
    /// Those that can be used.
    pub(super) known: BTreeMap<String, WorkspaceDraft>,
    /// Names of all that the file has, faulty ones too.
    pub(super) names: Vec<String>,
}

/// Reads every key of a workspace that is not of one of the two places alone.
pub(super) fn read(table: &Section<'_>, dir: &Path, is_discovered: bool) -> WorkspaceDraft {
    let path = table
        .get("path")
        .and_then(|item| item.text_like(paths::PATTERN));
    let written: Option<Located<WorkspaceMode>> = table.keyword("mode", &[]);
    let mode = written
        .as_ref()
        .map_or(WorkspaceMode::Copy, |mode| mode.value);
    let (mask, slice) = workspace_view::read(table, mode, is_discovered);
    let text = path.as_ref().map_or(".", |found| found.value.as_str());
    if let (Some(fault), Some(found)) = (paths::path_error(text), &path) {
        table.diagnostics.report(&found.place, fault, None);
    }
    let directory = paths::absolute(dir, text);
    let (branches, author) = workspace_branches::read(table, mode);
    let workspace = Workspace {
        repos: workspace_repos::read(table, (&directory, mode), dir, is_discovered),
        path: directory,
        mode,
        mask,
        slice,
        base: workspace_view::read_base(table, mode),
        include: workspace_view::read_include(table, mode),
        setup: workspace_setup::read(table, mode, is_discovered),
        branches,
        author,
    };
    let place_or_table = |found: Option<&Place>| found.unwrap_or(&table.place).clone();
    WorkspaceDraft {
        workspace,
        has_path: path.is_some(),
        places: WorkspacePlaces {
            path: place_or_table(path.as_ref().map(|found| &found.place)),
            mode: place_or_table(written.as_ref().map(|found| &found.place)),
            setup: table.place_of("setup"),
            repos: table.place_of("repos"),
            mask: table.place_of("mask"),
        },
    }
}

/// Keys that people write for those of a workspace.
pub(super) const MISPLACED_KEYS: &[(&str, &str)] = &[("branch", "base"), ("commit", "base")];

/// Reads `workspace` of a pool: a table, or the name of a registered workspace.
pub(super) fn read_of_pool(
    section: &Section<'_>,
    registered: &WorkspaceDrafts,
    dir: &Path,
    is_discovered: bool,
) -> WorkspaceDraft {
    let item = section.get("workspace");
    let name = item.as_ref().and_then(|item| {
        item.record_type(ValueType::Pattern(NAME_PATTERN));
        item.record_type(ValueType::Table);
        let is_text = matches!(item.value(), DeValue::String(_));
        if !is_text && !item.is_table() {
            let _: Option<()> = item.report_unexpected("the name of a [workspace.NAME] or a table");
        }
        is_text.then(|| item.text_like(NAME_PATTERN)).flatten()
    });
    if let Some(found) = name {
        if let Some(draft) = registered.known.get(&found.value) {
            return draft.clone();
        }
        if !registered.names.contains(&found.value) {
            let names: Vec<&str> = registered.names.iter().map(String::as_str).collect();
            let known = match &names[..] {
                [] => "the name of a [workspace.NAME]".to_owned(),
                names => one_of(names),
            };
            let message = format!(
                "there is no workspace {}: expected {known}, or a table such as {{ path = \".\", mode = \"copy\" }}",
                quote(&found.value)
            );
            section.diagnostics.report(&found.place, message, None);
        }
        return WorkspaceDraft::absent(section, dir);
    }
    if item.is_some_and(|item| !item.is_table()) {
        return WorkspaceDraft::absent(section, dir);
    }
    let table = section.section("workspace");
    let draft = read(&table, dir, is_discovered);
    table.reject_unknown_keys(&[], MISPLACED_KEYS);
    draft
}

impl WorkspaceDraft {
    /// What a pool has instead of a faulty workspace.
    fn absent(section: &Section<'_>, dir: &Path) -> Self {
        let place = section.place_of("workspace");
        let place = place.unwrap_or_else(|| section.place.clone());
        Self {
            workspace: Workspace {
                path: dir.to_owned(),
                mode: WorkspaceMode::Copy,
                mask: Vec::new(),
                slice: Vec::new(),
                base: None,
                include: Vec::new(),
                setup: None,
                repos: Vec::new(),
                branches: false,
                author: None,
            },
            has_path: false,
            places: WorkspacePlaces {
                path: place.clone(),
                mode: place,
                setup: None,
                repos: None,
                mask: None,
            },
        }
    }

    /// The workspace by itself, for what uses no launcher.
    pub(super) const fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// The workspace of a pool with this launcher.
    pub(super) fn for_launcher(&self, diagnostics: &Diagnostics, launcher: Launcher) -> Workspace {
        let mut workspace = self.workspace.clone();
        if !workspace_view::can_be_masked(workspace.mode, launcher) {
            if let Some(place) = &self.places.mask {
                let message =
                    "a mask needs a sandbox on this host: without one nothing hides a file";
                diagnostics.report(place, message, Some("use mode \"copy\"".to_owned()));
            }
            workspace.mask.clear();
        }
        workspace
    }
}
