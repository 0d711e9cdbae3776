//! Routes that read: each resource has the form that the OpenAPI document describes.

use serde_json::Value;

use crate::api::api_daemon::{ApiDaemon, LONG, POOL};
use crate::drill::eventually;

/// Asserts that a document has the form of a schema of the OpenAPI document.
fn assert_form(document: &Value, schema: &str, found: &Value) {
    let whole = serde_json::json!({
        "$ref": format!("#/components/schemas/{schema}"),
        "components": document["components"],
    });
    let validator = jsonschema::validator_for(&whole).expect("a schema");
    let faults: Vec<String> = validator
        .iter_errors(found)
        .map(|fault| format!("{} at {}", fault, fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{schema}: {faults:?}\n{found}");
}

fn names<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    let items = list["items"].as_array().expect("items");
    items.iter().filter_map(|item| item[key].as_str()).collect()
}

#[test]
fn every_resource_is_there_in_the_form_that_the_document_says() {
    let api = ApiDaemon::of(POOL);
    let ran = api.drill.run(&["run", "say one", "say two", "say three"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let document = api.see("/openapi.json");
    for (path, schema) in [
        ("/fleet", "Fleet"),
        ("/pools", "PoolList"),
        ("/pools/demo", "Pool"),
        ("/slots", "SlotList"),
        ("/slots/demo/1", "Slot"),
        ("/sessions", "SessionList"),
        ("/tasks", "TaskList"),
        ("/approvals", "ApprovalList"),
        ("/approvals?ended=true", "ApprovalList"),
        ("/agents", "AgentList"),
        ("/policies", "Policies"),
        ("/config", "Config"),
        ("/workspaces", "WorkspaceList"),
    ] {
        assert_form(&document, schema, &api.see(path));
    }
    let fleet = api.see("/fleet");
    assert_eq!(fleet["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(fleet["pools"], serde_json::json!(["demo"]));
    eventually(LONG, "both rest", || {
        api.see("/fleet")["slots"]["unloaded"] == 2
    });
    let tasks = api.see("/tasks");
    let ids = names(&tasks, "id");
    assert_eq!(ids.len(), 3, "{tasks}");
    let task = api.see(&format!("/tasks/{}", ids[0]));
    assert_form(&document, "Task", &task);
    assert_eq!(
        (&task["state"], &task["outcome"]),
        (&"ended".into(), &"done".into())
    );
    assert!(task["result"].is_object(), "{task}");
    let session = api.see(&format!(
        "/sessions/{}",
        task["session"].as_str().expect("one")
    ));
    assert_form(&document, "Session", &session);
    assert_eq!(
        (&session["task"], &session["open"]),
        (&task["id"], &false.into())
    );
    assert!(
        session["ended_at"]
            .as_str()
            .is_some_and(|at| at.ends_with('Z'))
    );
    assert!(api.see("/config")["pool"]["demo"].is_object());
}

#[test]
fn lists_come_in_pages_that_have_everything_once() {
    let api = ApiDaemon::of(POOL);
    let ran = api
        .drill
        .run(&["run", "say 1", "say 2", "say 3", "say 4", "say 5"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for (list, key, count) in [
        ("/tasks", "id", 5),
        ("/sessions", "session", 5),
        ("/slots", "slot", 2),
    ] {
        let whole = api.see(list);
        let whole = names(&whole, key);
        assert_eq!(whole.len(), count, "{list}");
        let mut found: Vec<String> = Vec::new();
        let mut next = String::new();
        loop {
            let page = api.see(&format!("{list}?limit=1{next}"));
            found.extend(names(&page, key).iter().map(ToString::to_string));
            let Some(cursor) = page["next"].as_str() else {
                break;
            };
            next = format!("&cursor={cursor}");
        }
        assert_eq!(found, whole, "{list}");
    }
    let run = api.see("/tasks")["items"][0]["run"].clone();
    let run = run.as_str().expect("a run");
    for (list, count) in [
        (format!("/tasks?run={run}"), 5),
        ("/tasks?run=none".to_owned(), 0),
        ("/tasks?state=queued".to_owned(), 0),
        ("/tasks?pool=demo&state=ended".to_owned(), 5),
        ("/sessions?open=true".to_owned(), 0),
        ("/sessions?open=false&pool=demo".to_owned(), 5),
        ("/slots?state=busy".to_owned(), 0),
    ] {
        let found = api.see(&list);
        assert_eq!(
            found["items"].as_array().map(Vec::len),
            Some(count),
            "{list}"
        );
    }
}
