//! Adds the evaluation context to the audit record of a request, so that the evaluation can be
//! repeated later.
//!
//! Must not evaluate anything.

use serde_json::{Map, Value};

use super::shell_directory::ShellDirectory;
use crate::session::workspace::prepare::PreparedSession;
use crate::setup::PoolShared;
use marshal_model::Decision;
use marshal_policy::EvaluationContext;

/// Adds the context to the facts: the workspace and home as the agent sees them, the possible
/// directories of its shell, the agent, its protocol and its mode, and the facts about its sandbox. `null` stands for an unknown
/// directory. `floor` is the decision with the secrets, where that is more severe; secrets
/// themselves are never recorded.
pub(super) fn with_place(
    facts: &str,
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    occasion: &EvaluationContext<'_>,
    floor: Option<Decision>,
) -> String {
    let Some(prepared) = prepared else {
        return facts.to_owned(); // Nothing was evaluated.
    };
    let Ok(mut facts) = serde_json::from_str::<Map<String, Value>>(facts) else {
        return facts.to_owned();
    };
    let places = directory.possible_places(prepared);
    let from: Vec<Value> = places.iter().map(|place| place.cwd.into()).collect();
    let place = prepared.place();
    let mut at = serde_json::json!({
        "workspace": place.workspace, "home": place.home, "from": from,
        "agent": occasion.agent, "mode": occasion.mode,
        "protocol": pool.config.dialect.as_str(), "sandbox": occasion.sandbox.names(),
    });
    if let Some(table) = pool.config.dialect_definition() {
        at["table"] = table.digest.as_str().into();
    }
    facts.insert("at".to_owned(), at);
    if let Some(floor) = floor {
        facts.insert("with_secrets".to_owned(), floor.as_str().into());
    }
    Value::Object(facts).to_string()
}

/// Adds one field to the facts.
pub(super) fn with_fact(facts: &str, name: &str, value: &Value) -> String {
    let Ok(mut facts) = serde_json::from_str::<Map<String, Value>>(facts) else {
        return facts.to_owned();
    };
    facts.insert(name.to_owned(), value.clone());
    Value::Object(facts).to_string()
}
