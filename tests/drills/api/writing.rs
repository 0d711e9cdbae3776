//! Routes that act: submit and end tasks, pause pools, stop slots and sessions.

use serde_json::{Value, json};

use crate::api::api_daemon::{ApiDaemon, LONG, POOL};
use crate::drill::eventually;

/// One slot, so that tasks wait for each other.
const NARROW: &str = r#"
[pool.demo]
size = 1
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
session = "SCOPE"
workspace = { path = "project", mode = "copy" }
env = { set = { DRILL = "MARK" } }
"#;

fn narrow() -> ApiDaemon {
    ApiDaemon::of(&NARROW.replace("SCOPE", "task"))
}

/// Gives a task; gives its id.
fn give(api: &ApiDaemon, task: &Value) -> String {
    let response = api.post("/tasks", &task.to_string());
    assert_eq!(response.status, 202, "{response:?}");
    response.json()["id"].as_str().expect("an id").to_owned()
}

fn state(api: &ApiDaemon, id: &str) -> String {
    let task = api.see(&format!("/tasks/{id}"));
    let outcome = task["outcome"].as_str();
    outcome
        .or(task["state"].as_str())
        .expect("a word")
        .to_owned()
}

fn until(api: &ApiDaemon, id: &str, word: &str) {
    eventually(LONG, word, || state(api, id) == word);
}

/// What an order gave.
fn order(api: &ApiDaemon, path: &str, body: &str, status: u16) -> Value {
    let response = api.post(path, body);
    assert_eq!(response.status, status, "{path}: {response:?}");
    response.json()
}

#[test]
fn a_task_is_taken_in_worked_and_watched() {
    let api = narrow();
    let id = give(&api, &json!({"prompt": "say hello", "pool": "demo"}));
    until(&api, &id, "done");
    let task = api.see(&format!("/tasks/{id}"));
    let path = format!(
        "/sessions/{}/events",
        task["session"].as_str().expect("one")
    );
    let events = api.stream(&path, None, |_| false);
    let turn_text = events.iter().find(|event| event.name == "text");
    assert_eq!(turn_text.expect("a text").data["body"]["delta"], "hello\n");
    let late = api.post(&format!("/tasks/{id}/cancel"), "");
    late.assert_problem(409);
    for (task, status) in [
        (json!({"prompt": " "}), 400),
        (json!({"prompt": "x", "workspace": "/etc"}), 422),
        (json!({"prompt": "x", "workspace": "none"}), 422),
        (json!({"prompt": "x", "check": []}), 400),
        (json!({"prompt": "x", "check": "true"}), 400),
        (json!({"prompt": "x", "priority": 101}), 400),
        (json!({"prompt": "x", "attempts": 0}), 400),
        (json!({"prompt": "x", "files": ["../x"]}), 400),
        (json!({"prompt": "x", "pool": "UPPER"}), 400),
        (json!({"prompt": "x", "pool": "none"}), 422),
        (json!({"prompt": "x", "policy_layer": "none"}), 422),
        (json!({"prompt": "x", "land": "main"}), 422),
        (json!({"prompt": "x", "land": "../main"}), 400),
    ] {
        api.post("/tasks", &task.to_string()).assert_problem(status);
    }
}

#[test]
fn the_same_key_takes_a_task_in_once_also_after_a_kill() {
    let api = narrow();
    let body = json!({"prompt": "say once"}).to_string();
    let send = |api: &ApiDaemon, key: &str, body: &str| {
        let bearer = format!("Authorization: Bearer {}", api.token);
        let key = format!("Idempotency-Key: {key}");
        let head = [bearer.as_str(), "Content-Type: application/json", &key];
        api.plain("POST /api/v1/tasks", &head, body)
    };
    let ids: Vec<Value> = std::thread::scope(|scope| {
        let sent: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| send(&api, "k-1", &body)))
            .collect();
        let reported = sent.into_iter().map(|one| one.join().expect("answered"));
        reported
            .map(|reported| {
                assert_eq!(reported.status, 202, "{reported:?}");
                reported.json()
            })
            .collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let other = json!({"prompt": "say twice"}).to_string();
    send(&api, "k-1", &other).assert_problem(422);
    send(&api, "", &body).assert_problem(400);
    send(&api, &"k".repeat(201), &body).assert_problem(400);
    let api = api.again();
    let again = send(&api, "k-1", &body);
    assert_eq!((again.status, again.json()), (202, ids[0].clone()));
    assert_eq!(api.see("/tasks")["items"].as_array().map(Vec::len), Some(1));
    let new = send(&api, "k-2", &body);
    assert_ne!(new.json(), ids[0]);
    until(&api, new.json()["id"].as_str().expect("an id"), "done");
}

#[test]
fn what_has_more_priority_begins_first() {
    let api = narrow();
    order(&api, "/pools/demo/pause", "", 200);
    let mut ids = Vec::new();
    for (word, priority) in [("a", -5), ("b", 0), ("c", 100), ("d", 0), ("e", 7)] {
        let task = json!({"prompt": format!("say {word}"), "priority": priority});
        ids.push(give(&api, &task));
    }
    order(&api, "/pools/demo/resume", "", 200);
    for id in &ids {
        until(&api, id, "done");
    }
    let mut begun: Vec<(String, usize)> = ids
        .iter()
        .enumerate()
        .map(|(at, id)| {
            let task = api.see(&format!("/tasks/{id}"));
            (task["begun_at"].as_str().expect("a time").to_owned(), at)
        })
        .collect();
    begun.sort();
    let order: Vec<usize> = begun.into_iter().map(|(_, at)| at).collect();
    assert_eq!(order, [2, 4, 1, 3, 0]);
}

#[test]
fn a_paused_or_draining_pool_begins_nothing_and_goes_on() {
    let api = narrow();
    for (how, flow) in [("pause", "paused"), ("drain", "draining")] {
        let working = give(&api, &json!({"prompt": "sleep 300s"}));
        until(&api, &working, "running");
        let pool = order(&api, &format!("/pools/demo/{how}"), "", 200);
        assert_eq!(pool["flow"], flow);
        assert_eq!(api.see("/pools/demo")["flow"], flow);
        let shown = api.drill.run(&["ls"]);
        assert!(
            shown.stdout.contains(&format!("tasks wait: {flow}")),
            "{}",
            shown.all()
        );
        let waiting = give(&api, &json!({"prompt": "say later"}));
        // What runs goes on until it ends, and then nothing else begins.
        assert_eq!(state(&api, &working), "running");
        order(&api, &format!("/tasks/{working}/cancel"), "", 202);
        until(&api, &working, "cancelled");
        eventually(LONG, "it rests", || {
            api.see("/slots/demo/0")["state"] == "unloaded"
        });
        assert_eq!(state(&api, &waiting), "queued");
        assert_eq!(api.see("/pools/demo")["tasks"], 1);
        assert_eq!(
            order(&api, "/pools/demo/resume", "", 200)["flow"],
            "running"
        );
        until(&api, &waiting, "done");
    }
}

#[test]
fn a_task_that_waits_can_be_cancelled_and_others_stay() {
    let api = narrow();
    order(&api, "/pools/demo/pause", "", 200);
    let gone = give(&api, &json!({"prompt": "say gone"}));
    let stays = give(&api, &json!({"prompt": "say stays"}));
    order(&api, &format!("/tasks/{gone}/cancel"), "", 202);
    until(&api, &gone, "skipped");
    let task = api.see(&format!("/tasks/{gone}"));
    assert_eq!(task["detail"], "the task was cancelled before it began");
    order(&api, "/pools/demo/resume", "", 200);
    until(&api, &stays, "done");
}

#[test]
fn a_pool_works_with_fewer_slots_and_with_all_again() {
    let api = ApiDaemon::of(POOL);
    let tasks: Vec<String> = (0..2)
        .map(|_| give(&api, &json!({"prompt": "sleep 300s"})))
        .collect();
    for id in &tasks {
        until(&api, id, "running");
    }
    let size = |size: u16| json!({"size": size}).to_string();
    let pool = order(&api, "/pools/demo/resize", &size(1), 200);
    assert_eq!((&pool["size"], &pool["slots"]), (&json!(1), &json!(2)));
    for bad in [
        size(0),
        size(3),
        "{}".to_owned(),
        "{\"size\":-1}".to_owned(),
    ] {
        api.post("/pools/demo/resize", &bad).assert_problem(400);
    }
    // Both end what they work.
    for id in &tasks {
        assert_eq!(state(&api, id), "running");
        order(&api, &format!("/tasks/{id}/cancel"), "", 202);
        until(&api, id, "cancelled");
    }
    let one = give(&api, &json!({"prompt": "sleep 300s"}));
    until(&api, &one, "running");
    let two = give(&api, &json!({"prompt": "say two"}));
    assert_eq!(api.see("/slots/demo/1")["state"], "unloaded");
    assert_eq!(state(&api, &two), "queued");
    order(&api, "/pools/demo/resize", &size(2), 200);
    until(&api, &two, "done");
    order(&api, &format!("/tasks/{one}/cancel"), "", 202);
    until(&api, &one, "cancelled");
}

#[test]
fn turns_and_sessions_are_ended_by_their_ids_and_slots_restarted() {
    let api = ApiDaemon::of(&NARROW.replace("SCOPE", "slot"));
    let first = give(&api, &json!({"prompt": "sleep 300s"}));
    until(&api, &first, "running");
    // A turn that is not sent yet ends with its child.
    eventually(LONG, "its prompt was sent", || {
        api.see("/slots/demo/0")["state"] == "busy"
    });
    let slot = api.see("/slots/demo/0");
    let session = slot["session"].as_str().expect("a session").to_owned();
    let of = |what: &str| format!("/sessions/{session}/{what}");
    order(&api, &of("interrupt"), "", 202);
    until(&api, &first, "cancelled");
    // The session waits for its next task, and has no turn.
    eventually(LONG, "it waits", || {
        api.see("/slots/demo/0")["state"] == "ready"
    });
    api.post(&of("interrupt"), "").assert_problem(409);
    let context = json!({"command": "context", "args": ""}).to_string();
    let reported = order(&api, &of("commands"), &context, 200);
    assert_eq!(
        (&reported["ok"], &reported["cut"]),
        (&json!(true), &json!(false))
    );
    assert!(
        reported["text"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    for (bad, status) in [
        (json!({"command": "a b"}), 422),
        (json!({"command": "context", "args": "\u{7f}"}), 422),
        (json!({"command": 1}), 400),
        (json!({}), 400),
    ] {
        api.post(&of("commands"), &bad.to_string())
            .assert_problem(status);
    }
    api.post("/sessions/none/commands", &context)
        .assert_problem(404);
    let pid = api.see("/slots/demo/0")["pid"].clone();
    order(&api, "/slots/demo/0/restart", "", 202);
    eventually(LONG, "its child is gone", || {
        api.see("/slots/demo/0")["pid"] != pid
    });
    let second = give(&api, &json!({"prompt": "sleep 300s"}));
    until(&api, &second, "running");
    let now = api.see("/slots/demo/0")["session"].clone();
    let now = now.as_str().expect("a session");
    order(&api, &format!("/sessions/{now}/stop"), "", 202);
    until(&api, &second, "cancelled");
    eventually(LONG, "it has ended", || {
        api.see(&format!("/sessions/{now}"))["open"] == false
    });
    api.post(&format!("/sessions/{now}/stop"), "")
        .assert_problem(409);
    api.post("/slots/demo/7/restart", "").assert_problem(404);
    let third = give(&api, &json!({"prompt": "say on"}));
    until(&api, &third, "done");
    assert_ne!(api.see("/slots/demo/0")["session"], now);
}

#[test]
fn a_task_comes_after_others_or_never_also_after_a_kill() {
    let api = narrow();
    order(&api, "/pools/demo/pause", "", 200);
    let first = give(&api, &json!({"prompt": "say first"}));
    let fails = give(&api, &json!({"prompt": "exit 3"}));
    let after = |of: &[&String], priority: i8| json!({"prompt": "say then", "after": of, "priority": priority});
    // More priority does not bring it before what it comes after.
    let then = give(&api, &after(&[&first], 100));
    let never = give(&api, &after(&[&first, &fails], 0));
    let nor = give(&api, &after(&[&never], 0));
    for (bad, status) in [
        (json!({"prompt": "x", "after": ["none:1"]}), 422),
        (json!({"prompt": "x", "after": ["none"]}), 400),
        (json!({"prompt": "x", "after": vec![&first; 65]}), 400),
    ] {
        api.post("/tasks", &bad.to_string()).assert_problem(status);
    }
    assert_eq!(api.see(&format!("/tasks/{then}"))["after"], json!([first]));
    // Nothing has begun; the next start has no pause, and the same order.
    let api = api.again();
    until(&api, &then, "done");
    until(&api, &never, "skipped");
    until(&api, &nor, "skipped");
    let began = |id: &str, key: &str| api.see(&format!("/tasks/{id}"))[key].to_string();
    assert!(began(&then, "begun_at") >= began(&first, "ended_at"));
    let why = api.see(&format!("/tasks/{never}"))["detail"].to_string();
    assert!(
        why.contains(&format!("task {fails}, which ended lost")),
        "{why}"
    );
    // What has ended already counts as well, and one that waits can be cancelled.
    let late = give(&api, &after(&[&then], 0));
    until(&api, &late, "done");
    let late = give(&api, &after(&[&fails], 0));
    until(&api, &late, "skipped");
    let long = give(&api, &json!({"prompt": "sleep 300s"}));
    until(&api, &long, "running");
    let waits = give(&api, &after(&[&long], 0));
    order(&api, &format!("/tasks/{waits}/cancel"), "", 202);
    until(&api, &waits, "skipped");
    order(&api, &format!("/tasks/{long}/cancel"), "", 202);
    until(&api, &long, "cancelled");
}

/// Two registered workspaces beside the pool's own.
const WORKSPACES: &str = r#"
[workspace.other]
path = "other"

[workspace.lost]
path = "lost"

[pool.demo]
size = 1
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
workspace = { path = "project", mode = "copy" }
env = { set = { DRILL = "MARK" } }
"#;

#[test]
fn a_task_works_in_a_registered_workspace_and_its_check_decides() {
    let drill = crate::drill::Drill::new(WORKSPACES);
    std::fs::create_dir(drill.path("other")).expect("made");
    std::fs::write(drill.path("other/only-here"), "x").expect("written");
    std::fs::create_dir(drill.path("lost")).expect("made");
    let api = ApiDaemon::open(drill);
    std::fs::remove_dir(api.drill.path("lost")).expect("removed");
    let task = |check: &[&str]| json!({"prompt": "read only-here\nwrite made yes", "workspace": "other", "check": check});
    let good = give(&api, &task(&["grep", "-q", "yes", "made"]));
    until(&api, &good, "done");
    let bad = give(&api, &task(&["grep", "-q", "no", "made"]));
    until(&api, &bad, "failed");
    assert!(!api.drill.path("other/made").exists(), "it was a copy");
    let lost = json!({"prompt": "x", "workspace": "lost"});
    let response = api.post("/tasks", &lost.to_string());
    response.assert_problem(422);
    assert!(
        !response.text.contains("project"),
        "no path is told: {response:?}"
    );
    // The same once under a key, whose directory is told by its name.
    let keyed = || {
        let (bearer, key) = (
            format!("Authorization: Bearer {}", api.token),
            "Idempotency-Key: k",
        );
        let body = task(&["true"]).to_string();
        let head = [bearer.as_str(), key, "Content-Type: application/json"];
        api.plain("POST /api/v1/tasks", &head, &body)
    };
    let (first, second) = (keyed(), keyed());
    assert_eq!((first.status, second.status), (202, 202), "{second:?}");
    assert_eq!(first.json(), second.json());
}

#[test]
fn a_chat_is_prompted_by_its_session_and_others_say_where_to_ask() {
    let api = ApiDaemon::of(POOL);
    let begun = api
        .post("/workspaces/main/chats", r#"{"goal": "say one"}"#)
        .json();
    let path = format!("/sessions/{}", begun["chat_id"].as_str().expect("an id"));
    let response = api.post(&format!("{path}/prompt"), r#"{"content": "say two"}"#);
    assert_eq!(response.status, 202, "{response:?}");
    assert_eq!(response.json()["sequence"], 2);
    let events = begun["events"].as_str().expect("a path").to_owned();
    let events = events.strip_prefix("/api/v1").expect("below it").to_owned();
    let turn = response.json()["turn_id"].clone();
    let is_end = |event: &crate::api::api_daemon::Event| {
        event.name == "done" && event.data["turn_id"] == turn
    };
    let seen_events = api.stream(&events, None, |events| events.iter().any(is_end));
    assert_eq!(seen_events.last().expect("one").data["message"], "two\n");
    api.post(&format!("{path}/prompt"), r#"{"content": ""}"#)
        .assert_problem(422);
    let id = give(&api, &json!({"prompt": "say hello"}));
    until(&api, &id, "done");
    let session = api.see(&format!("/tasks/{id}"))["session"].clone();
    let session = format!("/sessions/{}", session.as_str().expect("one"));
    let refused = api.post(&format!("{session}/prompt"), r#"{"content": "x"}"#);
    refused.assert_problem(409);
    assert!(refused.text.contains("POST /api/v1/tasks"), "{refused:?}");
    // It wrote over nothing.
    api.get(&format!("{session}/diff")).assert_problem(404);
    api.post(&format!("{session}/apply"), "{}")
        .assert_problem(404);
    api.post("/sessions/none/apply", "{}").assert_problem(404);
}
