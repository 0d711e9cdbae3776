//! Agents that write by their client: what they ask it for is judged, on record, and done by it.

use std::fs;

use serde_json::Value;

use crate::agents::bench::{
    Model, PATIENCE, alone, events, in_copy, result, run_output, start, tools,
};
use crate::agents::five::{GEMINI, Kind, OPENCODE};
use crate::drill::Drill;

const POLICY: &str = r#"
schema  = 1
name    = "writing"
extends = ["builtin:guard"]
default = "deny"

[paths]
open = ["@/open.txt"]

[[rule]]
id       = "reads"
decision = "allow"
tool     = "read"
path     = "inside"

[[rule]]
id       = "open"
decision = "allow"
tool     = "write"
path     = "open"
"#;

/// Runs two tasks: one writes what the policy allows, the other what it does not.
fn wrote(kind: &Kind, keys: &str, home: &[(&str, &str)]) -> Drill {
    let model = Model::start();
    let Kind { name, route, .. } = kind;
    let files: Vec<String> = (0..home.len()).map(|at| format!("home-{at}")).collect();
    let home_files: Vec<String> = home
        .iter()
        .zip(&files)
        .map(|((to, _), from)| format!("{to:?} = {from:?}"))
        .collect();
    let drill = Drill::new(&format!(
        r#"
[route.{route}]
upstream = "{}"
secret   = "env:REHEARSAL_KEY"

[pool.real]
agent      = "{name}"
agent_dir  = {:?}
policy     = "writing"
session    = "slot"
workspace  = {{ path = "project", mode = "copy" }}
timeouts   = {{ handshake = "4m", cancel = "1m" }}
env        = {{ set = {{ DRILL = "MARK" }} }}
home_files = {{ {} }}
{keys}

[policy.writing]
file = "writing.toml"
"#,
        model.address,
        tools().join("five").join(name).display().to_string(),
        home_files.join(", "),
    ));
    fs::write(drill.path("writing.toml"), POLICY).expect("a policy");
    for ((_, text), file) in home.iter().zip(&files) {
        fs::write(drill.path(file), text).expect("a file");
    }
    for file in ["open.txt", "closed.txt"] {
        fs::write(drill.workspace().join(file), "old\n").expect("a file");
    }
    let tasks = [
        ("open", "WRITE: open.txt new words\nSAY: bye"),
        ("closed", "WRITE: closed.txt never\nSAY: bye"),
    ];
    let mut running = start(&drill, &model.key, "writes", &tasks);
    let _ = running.wait(PATIENCE);
    drill
}

/// The decisions about the client's methods, in order: method, path and decision.
fn by_client(drill: &Drill, session: &str) -> Vec<Called> {
    let decided = events(drill, session, "permission_decided");
    let requested = events(drill, session, "permission_requested").into_iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_client = requested.filter(|requested| text(&requested["tool"]).starts_with("fs/"));
    let with_verdict = of_client.map(|requested| {
        let of = decided.iter().find(|of| of["request"] == requested["id"]);
        let decision = text(&of.expect("a verdict")["decision"]);
        (
            text(&requested["tool"]),
            text(&requested["input"]["path"]),
            decision,
        )
    });
    with_verdict.collect()
}

/// What became of both files. Gives everything that the run said, and the session.
fn check_written_files(drill: &Drill) -> (String, String) {
    let all = run_output(drill, "writes");
    let of = |id: &str, file: &str| {
        let copy = in_copy(&result(drill, "writes", id), file);
        fs::read_to_string(copy).expect("a file")
    };
    assert_eq!(of("open", "open.txt").trim_end(), "new words", "{all}");
    assert_eq!(of("closed", "closed.txt"), "old\n", "{all}");
    let open = result(drill, "writes", "open");
    assert_eq!(open["outcome"], "done", "{all}");
    let closed = result(drill, "writes", "closed");
    assert_eq!(closed["requests"]["denied"], 1, "{all}");
    drill.assert_dense();
    (all, open["session"].as_str().expect("a session").to_owned())
}

/// One call: method, path, decision.
type Called = (String, String, String);

/// The same where the agent writes by its client. Gives its calls.
fn check(drill: &Drill) -> (String, Vec<Called>) {
    let (all, session) = check_written_files(drill);
    let called = by_client(drill, &session);
    assert!(
        called.contains(&write("open.txt", "allow")),
        "{called:?}\n{all}"
    );
    let updated = events(drill, &session, "file_updated");
    let by_us = |event: &&Value| event["tool"] == "fs/write_text_file";
    let updated: Vec<&Value> = updated.iter().filter(by_us).collect();
    assert_eq!(updated.len(), 1, "{updated:?}");
    assert_eq!(updated[0]["path"], "/workspace/open.txt");
    (all, called)
}

fn write(file: &str, decision: &str) -> Called {
    let path = format!("/workspace/{file}");
    ("fs/write_text_file".to_owned(), path, decision.to_owned())
}

#[test]
fn gemini_writes_by_its_client_where_the_policy_says_yes() {
    let _alone = alone();
    let drill = wrote(&GEMINI, "client_fs = \"write\"", &[]);
    let (all, called) = check(&drill);
    // The other was refused before it came to a file.
    for decision in ["allow", "deny"] {
        assert!(
            !called.contains(&write("closed.txt", decision)),
            "{called:?}\n{all}"
        );
    }
}

#[test]
fn gemini_that_does_not_ask_is_denied_what_it_writes_by_its_client() {
    let _alone = alone();
    // It goes into such a mode only in a folder that it trusts.
    let settings = r#"{"security":{"folderTrust":{"enabled":false}}}"#;
    let keys = "client_fs = \"write\"\nmode = \"autoEdit\"\nmode_skips_requests = true";
    let drill = wrote(&GEMINI, keys, &[(".gemini/settings.json", settings)]);
    let (all, called) = check(&drill);
    assert!(
        called.contains(&write("closed.txt", "deny")),
        "{called:?}\n{all}"
    );
    assert!(all.contains("Error writing to file"), "{all}");
}

#[test]
fn opencode_writes_what_the_policy_allows() {
    let _alone = alone();
    let (all, session) = check_written_files(&wrote(&OPENCODE, "", &[]));
    assert!(!session.is_empty(), "{all}");
}
