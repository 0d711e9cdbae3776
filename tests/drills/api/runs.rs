//! Runs of several tasks, the supervisor itself and logs: what a token may do, and what only the
//! supervisor's user may.

use serde_json::{Value, json};

use crate::api::api_daemon::{ApiDaemon, POOL};

fn submit(api: &ApiDaemon, body: &Value) -> String {
    let response = api.post("/runs", &body.to_string());
    assert_eq!(response.status, 202, "{response:?}");
    let run = response.json()["run"].as_str().expect("an id").to_owned();
    let place = format!("/api/v1/runs/{run}");
    assert_eq!(response.header("location"), Some(&*place));
    run
}

/// The tasks whose reports a stream has.
fn ended(api: &ApiDaemon, run: &str) -> Vec<String> {
    let events = api.stream(&format!("/runs/{run}/events"), None, |events| {
        events.iter().any(|event| event.name == "complete")
    });
    let reports = events.iter().filter(|event| event.name == "ended");
    let ids = reports.map(|event| event.data["report"]["id"].as_str().expect("an id"));
    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_run_is_submitted_whole_and_each_watcher_gets_each_report_once() {
    let api = ApiDaemon::of(POOL);
    let tasks = json!([{"id": "a", "prompt": "say one"}, {"id": "b", "prompt": "say two"}]);
    let run = submit(&api, &json!({"tasks": tasks, "bounds": {"jobs": 1}}));
    // The first one, and one that comes when all is over.
    for _ in 0..2 {
        assert_eq!(ended(&api, &run), ["a", "b"]);
    }
    let done = api.see(&format!("/runs/{run}"));
    let expect = json!({"run": run, "tasks": 2, "ended": 2, "complete": true});
    assert_eq!(done, expect);
    let listed = api.see(&format!("/tasks?run={run}"));
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    // One bad task, and none is taken.
    for (tasks, part) in [
        (json!([]), "at least one"),
        (
            json!([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}]),
            "given twice",
        ),
        (
            json!([{"id": "a", "prompt": "x"}, {"id": "b", "prompt": " "}]),
            "task 2",
        ),
        (json!([{"prompt": "x"}]), "\"id\""),
        (json!([["a", "x"]]), "invalid body"),
    ] {
        let refused = api.post("/runs", &json!({"tasks": tasks}).to_string());
        refused.assert_problem(400);
        let body = refused.json();
        let detail = body["detail"].as_str().expect("a detail");
        assert!(detail.contains(part), "{detail}");
    }
    api.get("/runs/none").assert_problem(404);
    api.post("/runs/none/cancel", "").assert_problem(404);
}

#[test]
fn a_cancelled_run_ends_with_all_of_its_reports() {
    let api = ApiDaemon::of(POOL);
    let tasks = json!([{"id": "a", "prompt": "hang"}, {"id": "b", "prompt": "hang"}, {"id": "c", "prompt": "hang"}]);
    let run = submit(&api, &json!({"tasks": tasks}));
    let cancelled = api.post(&format!("/runs/{run}/cancel"), "");
    assert_eq!(cancelled.status, 202, "{cancelled:?}");
    assert_eq!(ended(&api, &run), ["a", "b", "c"]);
}

#[test]
fn only_the_supervisors_user_names_a_directory_of_the_host() {
    let api = ApiDaemon::of(POOL);
    let path = api.drill.workspace();
    let path = path.to_str().expect("UTF-8");
    let body = json!({"tasks": [{"id": "a", "prompt": "x", "workspace": path}]});
    let refused = api.post("/runs", &body.to_string());
    refused.assert_problem(422);
    assert!(refused.text.contains("over its socket"), "{refused:?}");
    // The command line is that user.
    let task = json!({"id": "a", "prompt": "say hi", "workspace": path});
    std::fs::write(api.drill.path("tasks.jsonl"), format!("{task}\n")).expect("written");
    let ran = api.drill.run(&["run", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let conversation = format!("/pools/demo/conversation?directory={path}");
    api.get(&conversation).assert_problem(403);
    let about = api.see("/supervisor");
    assert_eq!(about["kind"], "daemon", "{about}");
    assert!(about["pid"].is_u64() && about["configuration"].is_string());
}
