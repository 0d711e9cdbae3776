//! Where a request was judged, as its audit record keeps it: without that nobody could judge it
//! again.
//!
//! Must not judge anything.

use serde_json::{Map, Value};

use super::directory::Directory;
use super::prepare::Prepared;

/// The facts of a request with its place: the workspace and the home as the agent sees them, and
/// the directories that it was judged from. `null` among these is one that nobody knows.
pub(super) fn at_place(facts: &str, prepared: Option<&Prepared>, directory: &Directory) -> String {
    let Some(prepared) = prepared else {
        return facts.to_owned(); // Nothing was judged.
    };
    let Ok(mut facts) = serde_json::from_str::<Map<String, Value>>(facts) else {
        return facts.to_owned();
    };
    let places = directory.places(prepared);
    let from: Vec<Value> = places.iter().map(|place| place.cwd.into()).collect();
    let place = prepared.place();
    let at = serde_json::json!({
        "workspace": place.workspace, "home": place.home, "from": from,
    });
    facts.insert("at".to_owned(), at);
    Value::Object(facts).to_string()
}
