//! What a session wrote over its workspace, seen and applied over HTTP.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::chat_client::{Answer, Daemon, LONG};
use crate::drill::{Drill, eventually};

const POOL: &str = r#"
[token.hand]
file = "hand.token"
role = "operate"

[pool.demo]
agent     = "script"
policy    = "careful"
workspace = { path = "project", mode = "overlay" }
env       = { set = { DRILL = "MARK" } }

[policy.careful]
file = "careful.toml"
"#;

const POLICY: &str = r#"
schema  = 1
name    = "careful"
extends = ["builtin:guard"]
default = "allow"
"#;

/// What is added to it when the agent has worked.
const STRICTER: &str = r#"
[[rule]]
id       = "asks"
decision = "ask"
tool     = "write"
path     = "asked"

[paths]
asked = ["@/asked*"]
"#;

fn problem(answer: &Answer, status: u16) -> &str {
    assert_eq!(answer.status, status, "{answer:?}");
    answer.body["detail"].as_str().expect("a detail")
}

/// Has an agent work; gives the path of its session.
fn worked(daemon: &Daemon, prompt: &str) -> String {
    let given = daemon.post("/api/v1/tasks", &json!({ "prompt": prompt }));
    assert_eq!(given.status, 202, "{given:?}");
    let path = format!("/api/v1/tasks/{}", given.body["id"].as_str().expect("one"));
    let mut task = Value::Null;
    eventually(LONG, "the task is over", || {
        task = daemon.get(&path).body;
        task["state"] == "ended"
    });
    assert_eq!(task["outcome"], "done", "{task}");
    let session = task["session"].as_str().expect("one");
    let path = format!("/api/v1/sessions/{session}");
    // Its session lets go of what it wrote a moment later.
    eventually(LONG, "its files are looked at", || {
        let diff = daemon.get(&format!("{path}/diff"));
        let detail = diff.body["detail"].as_str().unwrap_or_default();
        !detail.contains("is still running")
    });
    path
}

#[test]
fn what_a_session_wrote_is_shown_judged_and_applied() {
    let drill = Drill::new(POOL);
    fs::write(drill.path("careful.toml"), POLICY).expect("written");
    let token = "hand-hand-hand-hand-hand-hand-hand-hand";
    fs::write(drill.path("hand.token"), token).expect("written");
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(drill.path("hand.token"), mode).expect("mode");
    fs::write(drill.path("project/README.md"), "old\n").expect("written");
    let mut daemon = Daemon::start(&drill);
    let session = worked(&daemon, "write README.md new\nwrite made.txt text");
    let diff = daemon.get(&format!("{session}/diff"));
    assert_eq!(diff.status, 200, "{diff:?}");
    assert_eq!(diff.body["changes"], 2, "{diff:?}");
    assert_eq!(diff.body["items"][0]["path"], "README.md", "{diff:?}");
    let lines = diff.body["items"][0]["diff"].as_str().expect("lines");
    assert!(lines.contains("-old\n+new"), "{lines}");
    let apply = |body: &Value| daemon.post(&format!("{session}/apply"), body);
    let checked = apply(&json!({"check": true}));
    assert_eq!(checked.body["applied"], false, "{checked:?}");
    let read = |name: &str| fs::read_to_string(drill.path("project").join(name));
    assert_eq!(read("README.md").expect("there"), "old\n");
    let applied = apply(&json!({}));
    assert_eq!(applied.status, 200, "{applied:?}");
    assert_eq!(applied.body["applied"], true, "{applied:?}");
    assert!(read("README.md").expect("there").starts_with("new"));
    assert!(read("made.txt").expect("there").starts_with("text"));

    // The workspace goes on meanwhile: a conflict, which says where.
    let late = worked(&daemon, "write README.md mine");
    fs::write(drill.path("project/README.md"), "theirs, and longer\n").expect("written");
    let refused = daemon.post(&format!("{late}/apply"), &json!({}));
    assert!(problem(&refused, 409).contains("README.md"), "{refused:?}");
    assert_eq!(read("README.md").expect("there"), "theirs, and longer\n");

    // What the policy asks a person for: only who may answer asks says yes.
    let requested = worked(&daemon, "write other.txt x\nwrite asked.txt y");
    let stricter = format!("{POLICY}{STRICTER}");
    fs::write(drill.path("careful.toml"), stricter).expect("written");
    let path = format!("{requested}/apply");
    let refused = daemon.post(&path, &json!({}));
    assert!(problem(&refused, 409).contains("asked.txt"), "{refused:?}");
    let owner = std::mem::replace(&mut daemon.token, token.to_owned());
    let refused = daemon.post(&path, &json!({"yes": true}));
    assert!(problem(&refused, 403).contains("admin"), "{refused:?}");
    assert!(read("asked.txt").is_err() && read("other.txt").is_err());
    daemon.token = owner;
    let applied = daemon.post(&path, &json!({"yes": true}));
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(read("asked.txt").is_ok() && read("other.txt").is_ok());
}
