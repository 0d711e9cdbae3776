//! `engine_tools` of a pool: the supervisor's own tools that its agents get.
//!
//! Must not know what the tools do.

use std::path::Path;

use toml::de::DeValue;

use super::error::quote;
use super::key_types::ValueType;
use super::pool::PoolDraft;
use super::role::RegisteredWorkspace;
use super::table::{Diagnostics, Place, Section, keywords};
use super::types::{Pool, WorkspaceMode};
use marshal_model::{ENGINE_SERVER, EngineTool};

keywords!(EngineTool);

/// The word for all of them.
const ALL: &str = "all";

/// Reads the key, and returns its place.
pub(super) fn read(pool: &Section<'_>) -> (Vec<EngineTool>, Option<Place>) {
    let Some(item) = pool.get("engine_tools") else {
        return (Vec::new(), None);
    };
    let place = Some(item.place.clone());
    item.record_type(ValueType::Enum(vec![ALL]));
    if matches!(item.value(), DeValue::String(_)) {
        let found = item.text_among(&[ALL]);
        return match found {
            Some(found) if found.value == ALL => (EngineTool::ALL.to_vec(), place),
            Some(found) => {
                let expected = "\"all\" or an array of tools";
                item.report_unknown(&found.value, &[ALL], &[], expected);
                (Vec::new(), place)
            }
            None => (Vec::new(), place),
        };
    }
    let mut tools = Vec::new();
    let expected = "\"all\" or an array of tools";
    for item in item.elements(expected).unwrap_or_default() {
        let Some(found) = item.keyword::<EngineTool>(&[]) else {
            continue;
        };
        if tools.contains(&found.value) {
            item.report(format!("{} is listed twice", found.value), None);
        }
        tools.push(found.value);
    }
    (tools, place)
}

/// Checks the key against the rest of the pool.
pub(super) fn check_consistency(diagnostics: &Diagnostics, pool: &Pool, place: Option<&Place>) {
    let (Some(place), false) = (place, pool.engine_tools.is_empty()) else {
        return;
    };
    if !pool.dialect.accepts_mcp_servers() {
        let message = format!(
            "engine_tools needs dialect = \"acp\", \"claude\" or \"codex\": an agent that speaks {} takes no tool servers",
            pool.dialect
        );
        diagnostics.report(place, message, None);
    }
    if !pool.launcher.has_sandbox() {
        let message = format!(
            "engine_tools needs a sandbox on this host: with launcher = \"{}\" other processes could reach the agent's socket",
            pool.launcher
        );
        diagnostics.report(place, message, None);
        return;
    }
    let is_taken = |name: &str| name == ENGINE_SERVER;
    if pool
        .acp
        .mcp_servers
        .iter()
        .any(|entry| is_taken(&entry.name))
    {
        let message = format!(
            "the server of engine_tools is named {ENGINE_SERVER:?}, and one of mcp_servers has the same name"
        );
        let help = "rename the one in mcp_servers".to_owned();
        diagnostics.report(place, message, Some(help));
    }
}

/// In a read-only workspace the supervisor writes the files, each as a version of a registered
/// workspace: that is how the change is attributed and can be taken back.
pub(super) fn check_read_only<'w>(
    root: &Section<'_>,
    drafts: &[PoolDraft],
    workspaces: impl Iterator<Item = &'w RegisteredWorkspace>,
) {
    let registered: Vec<&Path> = workspaces.map(|entry| &*entry.workspace.path).collect();
    for draft in drafts {
        let workspace = &draft.pool.workspace;
        let writes = draft.pool.engine_tools.iter().find(|tool| tool.writes());
        let is_read_only = workspace.mode == WorkspaceMode::Ro && draft.pool.launcher.has_sandbox();
        let Some(tool) = writes.filter(|_| is_read_only) else {
            continue;
        };
        if registered
            .iter()
            .any(|path| workspace.path.starts_with(path))
        {
            continue;
        }
        let message = format!(
            "{tool} in a read-only workspace needs a [workspace.NAME] that has {}: what it writes are versions of that",
            quote(&workspace.path.to_string_lossy())
        );
        let help =
            "register the workspace, leave the tool out of engine_tools, or use mode \"copy\"";
        root.diagnostics
            .report(&draft.workspace_place, message, Some(help.to_owned()));
    }
}
