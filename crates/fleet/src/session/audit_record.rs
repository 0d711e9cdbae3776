//! Where a request was judged, as its audit record keeps it: without that nobody could judge it
//! again.
//!
//! Must not judge anything.

use serde_json::{Map, Value};

use super::prepare::PreparedSession;
use super::shell_directory::ShellDirectory;
use crate::setup::PoolShared;
use marshal_model::Decision;
use marshal_policy::EvaluationContext;

/// The facts of a request with its place: the workspace and the home as the agent sees them, and
/// the directories that it was judged from; and with the agent, the protocol that it speaks, and the
/// mode that it was set to.
/// `null` among these is one that nobody knows. `floor` is what it was with its secrets, where that is
/// more severe: they are not on record.
pub(super) fn with_place(
    facts: &str,
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    occasion: &EvaluationContext<'_>,
    floor: Option<Decision>,
) -> String {
    let Some(prepared) = prepared else {
        return facts.to_owned(); // Nothing was judged.
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
        "protocol": pool.config.dialect.word(),
    });
    if let Some(table) = pool.config.dialect_table() {
        at["table"] = table.digest.as_str().into();
    }
    facts.insert("at".to_owned(), at);
    if let Some(floor) = floor {
        facts.insert("with_secrets".to_owned(), floor.word().into());
    }
    Value::Object(facts).to_string()
}

/// The facts with one more member.
pub(super) fn with_fact(facts: &str, name: &str, value: &Value) -> String {
    let Ok(mut facts) = serde_json::from_str::<Map<String, Value>>(facts) else {
        return facts.to_owned();
    };
    facts.insert(name.to_owned(), value.clone());
    Value::Object(facts).to_string()
}
