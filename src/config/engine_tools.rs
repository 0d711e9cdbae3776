//! Which tools of the supervisor's own the agents of a pool get.
//!
//! Must not know what the tools do.

use toml::de::DeValue;

use super::form::Form;
use super::table::{Ledger, Place, Section, word};
use super::types::{Pool, WorkspaceMode};
use crate::model::{ENGINE_SERVER, EngineTool};

word!(EngineTool);

/// The word for all of them.
const ALL: &str = "all";

/// Reads the key, and says where it stands.
pub(super) fn read(pool: &Section<'_>) -> (Vec<EngineTool>, Option<Place>) {
    let Some(item) = pool.item("engine_tools") else {
        return (Vec::new(), None);
    };
    let place = Some(item.place.clone());
    item.may_hold(Form::Words(vec![ALL]));
    if matches!(item.value(), DeValue::String(_)) {
        let found = item.text_among(&[ALL]);
        return match found {
            Some(found) if found.value == ALL => (EngineTool::ALL.to_vec(), place),
            Some(found) => {
                let expected = "\"all\" or an array of tools";
                item.unknown_word(&found.value, &[ALL], &[], expected);
                (Vec::new(), place)
            }
            None => (Vec::new(), place),
        };
    }
    let mut tools = Vec::new();
    let expected = "\"all\" or an array of tools";
    for item in item.items(expected).unwrap_or_default() {
        let Some(found) = item.word::<EngineTool>(&[]) else {
            continue;
        };
        if tools.contains(&found.value) {
            item.fault(format!("{} is there twice", found.value), None);
        }
        tools.push(found.value);
    }
    (tools, place)
}

/// What the key must agree on with the rest of the pool.
pub(super) fn agree(ledger: &Ledger, pool: &Pool, place: Option<&Place>) {
    let (Some(place), false) = (place, pool.engine_tools.is_empty()) else {
        return;
    };
    if !pool.dialect.takes_servers() {
        let message = format!(
            "engine_tools needs dialect = \"acp\", \"claude\" or \"codex\": an agent that speaks {} takes no tool servers",
            pool.dialect
        );
        ledger.fault(place, message, None);
    }
    if !pool.launcher.has_walls() {
        let message = format!(
            "engine_tools needs a sandbox of this host: with launcher = \"{}\" no socket is the agent's alone",
            pool.launcher
        );
        ledger.fault(place, message, None);
        return;
    }
    let writes = pool.engine_tools.iter().find(|tool| tool.writes());
    if let Some(tool) = writes
        && pool.workspace.mode == WorkspaceMode::Ro
    {
        let message = format!("{tool} needs a workspace that can be written");
        let help = "leave it out of engine_tools, or use mode \"copy\"";
        ledger.fault(place, message, Some(help.to_owned()));
    }
    let is_taken = |name: &str| name == ENGINE_SERVER;
    if pool.acp.mcp_servers.iter().any(|of| is_taken(&of.name)) {
        let message = format!(
            "the server of engine_tools is called {ENGINE_SERVER:?}, and one of mcp_servers is, too"
        );
        let help = "give the other one another name".to_owned();
        ledger.fault(place, message, Some(help));
    }
}
