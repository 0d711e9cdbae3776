//! What outlives a kill, a Master that goes, and an order to stop.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::skillpilot::session::{ENDLESS, Runner, Session};

fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a clock").as_millis()
}

fn lease(in_ms: u128) -> String {
    let expires = (now_ms() + in_ms).to_string();
    json!({ "lease_id": "l", "expires_at": expires, "owner": "test" }).to_string()
}

#[test]
fn a_killed_runners_command_is_never_run_again() {
    let session = Session::new();
    let runner = session.tcl();
    let mark = session.path("ran");
    let payload = format!(
        "set f [open {} a]; puts $f once; close $f; {ENDLESS}",
        mark.display()
    );
    let stem = session.submit(1, &payload);
    let waits = session.submit(2, "puts waited");
    session.runs(&stem, "begun");
    runner.signal("KILL");
    drop(runner);
    assert_eq!(session.names("inflight"), [format!("{stem}.json")]);
    let id = session.state()["session_id"].clone();
    let _runner = session.start_busy();
    let done = session.result(&stem);
    assert_eq!(done.end(), "error tool_died: runner restarted");
    assert_eq!(session.result(&waits).output, "waited\n");
    assert_eq!(session.text("ran"), "once\n");
    session.is_empty("inflight");
    assert_eq!(session.state()["session_id"], id);
    assert!(session.events().contains(&"recovered".to_owned()));
}

#[test]
fn a_command_that_has_a_result_is_not_run() {
    let session = Session::new();
    session.lay();
    let stem = session.submit_with(1, "puts again", &json!({ "cmd_id": "done" }));
    session.put(&format!("result/{stem}.json"), "{}");
    let runner = session.tcl();
    assert_eq!(session.run(2, "puts next").output, "next\n");
    assert_eq!(session.text(&format!("result/{stem}.json")), "{}");
    session.is_empty("queue");
    assert!(session.events().contains(&"skipped".to_owned()));
    // What was claimed and answered is only tidied up.
    drop(runner);
    session.put("inflight/cmd_1_done.json", "{}");
    let _runner = session.start_busy();
    session.until("it is tidied up", |session| {
        session.names("inflight").is_empty()
    });
    assert_eq!(session.text(&format!("result/{stem}.json")), "{}");
}

#[test]
fn a_lease_that_expires_ends_command_and_runner() {
    let session = Session::new();
    let mut runner = session.tcl();
    let stem = session.submit(1, ENDLESS);
    session.runs(&stem, "begun");
    session.put("state/lease.json", &lease(1000));
    assert_eq!(session.result(&stem).end(), "cancelled lease_expired");
    assert_eq!(runner.ends(), Some(0));
    assert_eq!(session.state()["phase"], "stopping");
}

#[test]
fn a_lease_that_is_renewed_does_not() {
    let session = Session::new();
    let mut runner = session.tcl();
    session.put("state/lease.json", &lease(60_000));
    assert_eq!(session.run(1, "puts on").output, "on\n");
    // One that says nothing changes nothing of what was promised.
    session.put("state/lease.json", "{\"expires_at\":\"soon\"}");
    session.until("it is put aside", |session| {
        !session.names("rejected").is_empty()
    });
    assert_eq!(session.run(2, "puts on").output, "on\n");
    session.put("state/lease.json", &lease(0));
    assert_eq!(runner.ends(), Some(0));
}

#[test]
fn a_graceful_stop_lets_the_command_end_and_a_forced_one_does_not() {
    let session = Session::new();
    let mut runner = session.tcl();
    let go = session.path("go");
    let payload = format!(
        "puts begun; flush stdout; while {{![file exists {}]}} {{after 20}}; puts ended",
        go.display()
    );
    let stem = session.submit(1, &payload);
    let waits = session.submit(2, "puts waits");
    session.runs(&stem, "begun");
    session.put("ctl/stop.json", r#"{"mode":"graceful","ts":"1"}"#);
    session.until("it stops", |session| session.state()["phase"] == "stopping");
    assert!(session.json(&format!("result/{stem}.json")).is_none());
    session.put("go", "");
    assert_eq!(session.result(&stem).output, "begun\nended\n");
    assert_eq!(runner.ends(), Some(0));
    assert!(session.json(&format!("result/{waits}.json")).is_none());
    // The next start goes on with what waits.
    let mut runner = session.start_busy();
    assert_eq!(session.result(&waits).output, "waits\n");
    let stem = session.submit(3, ENDLESS);
    session.runs(&stem, "begun");
    session.put("ctl/stop.json", r#"{"mode":"force","ts":"1"}"#);
    assert_eq!(session.result(&stem).end(), "cancelled stop_requested");
    assert_eq!(runner.ends(), Some(0));
}

#[test]
fn a_signal_ends_it_with_its_tool() {
    let session = Session::new();
    let mut runner = session.tcl();
    let stem = session.submit(1, ENDLESS);
    session.runs(&stem, "begun");
    let tool = session.state()["tool_pid"].as_u64().expect("a pid");
    runner.signal("TERM");
    assert_eq!(session.result(&stem).end(), "cancelled stop_requested");
    assert_eq!(runner.ends(), Some(0));
    let tool = u32::try_from(tool).expect("a pid");
    assert!(!crate::drill::is_alive(tool), "the tool is left");
}

#[test]
fn two_runners_never_work_in_one_directory() {
    let session = Session::new();
    let _runner = session.tcl();
    let second = session
        .command(&[], &["tclsh"])
        .output()
        .expect("it starts");
    assert_eq!(second.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&second.stderr);
    assert!(printed.contains("another Runner works in it"), "{printed}");
}

#[test]
fn a_runner_on_another_machine_is_known_by_its_signs_of_life() {
    let session = Session::new();
    session.lay();
    let state = |phase: &str| {
        let state = json!({
            "phase": phase, "session_id": "s", "runner_pid": 1, "tool_pid": 2,
            "current_cmd_id": null, "updated_at": "1",
        });
        session.put("state/state.json", &state.to_string());
    };
    let beat = |ago_ms: u128| {
        let beat = json!({ "timestamp": (now_ms() - ago_ms).to_string() });
        session.put("state/heartbeat.json", &beat.to_string());
    };
    let machine = "00000000-0000-0000-0000-000000000000";
    session.put("state/.lock", machine);
    state("busy");
    beat(1000);
    for _ in 0..2 {
        let output = session
            .command(&[], &["tclsh"])
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(1));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("a Runner on another machine"), "{printed}");
    }
    beat(600_000);
    let mut runner = session.tcl();
    assert_ne!(session.text("state/.lock"), machine);
    runner.signal("TERM");
    assert_eq!(runner.ends(), Some(0));
    // One that said that it ends is no hindrance.
    session.put("state/.lock", machine);
    state("stopping");
    beat(1000);
    let _runner = session.tcl();
    assert_eq!(session.run(1, "puts on").output, "on\n");
}

#[test]
fn a_master_that_has_no_files_is_carried_for() {
    let session = Session::new();
    let mut runner = session.tcl();
    // Somebody else's Runner; the carrier is told nothing of a tool.
    let mut carrier = Runner(
        session
            .command(&["--carry"], &[])
            .stdin(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it starts"),
    );
    let mut lines = BufReader::new(carrier.0.stdout.take().expect("stdout")).lines();
    let mut line = move || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    let hello = line();
    assert_eq!(
        (&hello["type"], &hello["protocol"], &hello["runs"]),
        (&json!("hello"), &json!(1), &json!(false))
    );
    assert_eq!(hello["session_id"], session.state()["session_id"]);
    let mut input = carrier.0.stdin.take().expect("stdin");
    let mut say = |value: &Value| writeln!(input, "{value}").expect("written");
    // What a Master has no business with is not written.
    for path in [
        "result/cmd_1_x.json",
        "queue/../x",
        "queue/x",
        "ctl/other.json",
        "/etc/x",
        "state/state.json",
    ] {
        say(&json!({ "type": "put", "path": path, "content": {} }));
    }
    let command = json!({
        "cmd_id": "c", "seq": 1, "kind": "tcl", "cancel_policy": "ctrl_c",
        "payload": "puts \u{00e4}; flush stdout; after 300; puts b",
    });
    say(&json!({ "type": "put", "path": "queue/cmd_1_c.json", "content": command }));
    let (mut refused, mut text) = (0, String::new());
    let result = loop {
        let reported = line();
        match reported["type"].as_str() {
            Some("refused") => refused += 1,
            Some("output") => text.push_str(reported["text"].as_str().expect("a text")),
            Some("result") => break reported,
            _ => {}
        }
    };
    assert_eq!(refused, 6);
    assert_eq!(result["command"], "cmd_1_c");
    assert_eq!(result["content"]["status"], "ok", "{result}");
    assert_eq!(text.lines().last(), Some("b"));
    // With the Master the carrier goes, and not the Runner.
    drop(input);
    assert_eq!(carrier.ends(), Some(0));
    assert_eq!(session.run(2, "puts on").output, "on\n");
    runner.signal("TERM");
    assert_eq!(runner.ends(), Some(0));
}
