//! Real tools: what they print, how they end, in which order they work.

use std::fs;

use serde_json::json;

use crate::skillpilot::session::{ENDLESS, Session, current};

#[test]
fn a_command_becomes_output_and_a_result() {
    let session = Session::new();
    let mut runner = session.tcl();
    let stem = session.submit(1, "puts {Hello World}\nputs -nonewline {no newline}\n");
    let done = session.result(&stem);
    assert_eq!(done.end(), "ok marker_seen");
    assert_eq!(done.output, "Hello World\nno newline");
    let result = &done.result;
    assert_eq!(result["stats"]["bytes"], 22);
    assert_eq!(result["stats"]["lines"], 2);
    assert_eq!(result["output_path"], format!("output/{stem}.out"));
    let time = |key: &str| -> i64 { result[key].as_str().expect("a text").parse().expect("ms") };
    assert!(time("end_ts") >= time("start_ts"), "{result}");
    assert!(session.text("log/session.out").contains("Hello World"));
    assert!(session.text("log/last_n_lines.txt").contains("Hello World"));
    session.is_empty("inflight");
    // What was set stays set: it is one tool.
    assert_eq!(session.run(2, "set kept 1").end(), "ok marker_seen");
    assert_eq!(session.run(3, "puts <$kept>").output, "<1>\n");
    session.put("ctl/stop.json", r#"{"mode":"graceful","ts":"1"}"#);
    assert_eq!(runner.ends(), Some(0));
    assert_eq!(session.state()["phase"], "stopping");
    let events = session.events();
    for event in [
        "tool_started",
        "command_started",
        "command_ended",
        "stop",
        "tool_ended",
        "runner_ended",
    ] {
        assert!(events.iter().any(|it| it == event), "{event} in {events:?}");
    }
}

#[test]
fn output_far_larger_than_a_piece_comes_whole() {
    let session = Session::new();
    let _runner = session.tcl();
    // Lines whose lengths never fit the pieces that are read.
    let done = session.run(
        1,
        "for {set i 0} {$i < 20000} {incr i} { puts [string repeat x 61]$i }",
    );
    assert_eq!(done.end(), "ok marker_seen");
    let lines: Vec<_> = done.output.lines().collect();
    assert_eq!(lines.len(), 20_000);
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line.trim_start_matches('x'), number.to_string());
    }
}

#[test]
fn a_tool_that_prints_what_it_knows_of_the_marker_is_not_done() {
    let session = Session::new();
    let _runner = session.tcl();
    let id = "the-token";
    let payload = format!("puts {{__SP_DONE__ {id}}}; flush stdout; after 700; puts after");
    let stem = session.submit_with(1, &payload, &json!({ "cmd_id": id }));
    let done = session.result(&stem);
    assert_eq!(done.end(), "ok marker_seen");
    assert_eq!(done.output, format!("__SP_DONE__ {id}\nafter\n"));
}

#[test]
fn a_tool_that_echoes_its_input_is_not_done_by_that() {
    let session = Session::new();
    session.lay();
    // It prints every line that it is given before it works it.
    let echoing = "while {[gets stdin line] >= 0} { puts \"> $line\"; flush stdout; after 100; catch {eval $line} }";
    let script = session.path("../echo.tcl");
    std::fs::write(&script, echoing).expect("a script");
    let _runner = session.start(
        &["--init", "set x 1"],
        &["tclsh", &script.to_string_lossy()],
    );
    let done = session.run(1, "after 300; puts worked");
    assert_eq!(done.end(), "ok marker_seen");
    assert!(
        done.output.lines().any(|line| line.trim() == "worked"),
        "{done:?}"
    );
}

#[test]
fn a_payload_that_has_its_own_marker_ends_with_it() {
    let session = Session::new();
    let _runner = session.tcl();
    let payload = "puts {not __SP_END__ mine}\nputs {__SP_END__ mine}\n";
    let marker = json!({ "prefix": "__SP_END__", "token": "mine", "mode": "payload_contains" });
    let done = session.result(&session.submit_with(1, payload, &json!({ "marker": marker })));
    assert_eq!(done.end(), "ok marker_seen");
    assert_eq!(done.output, "not __SP_END__ mine\n");
}

#[test]
fn a_command_over_its_time_is_ended_and_the_next_one_runs() {
    let session = Session::new();
    let _runner = session.tcl();
    let stem = session.submit_with(1, ENDLESS, &json!({ "timeout_s": 1 }));
    assert_eq!(session.result(&stem).end(), "timeout timeout");
    assert_eq!(session.run(2, "puts on").output, "on\n");
}

#[test]
fn ctrl_c_ends_a_command_and_a_tool_that_survives_it_goes_on() {
    let session = Session::new();
    let _runner = session.start(
        &["--kind", "python"],
        &["/usr/bin/python3", "-I", "-S", "-i", "-q"],
    );
    let python = json!({ "kind": "python" });
    let stored = session.submit_with(1, "kept = 7", &python);
    assert_eq!(session.result(&stored).end(), "ok marker_seen");
    let payload = "import time; print('begun', flush=True); time.sleep(600)";
    let stem = session.submit_with(2, payload, &python);
    session.runs(&stem, "begun");
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled ctrl_c");
    let next = session.submit_with(3, "print('kept', kept)", &python);
    assert_eq!(session.result(&next).output.trim(), "kept 7");
    let tools = session
        .events()
        .iter()
        .filter(|it| *it == "tool_started")
        .count();
    assert_eq!(tools, 1, "the tool survived");
    assert_eq!(session.names("ctl"), [""; 0]);
}

#[test]
fn the_other_cancel_policies_end_the_tool_or_the_session() {
    let session = Session::new();
    let mut runner = session.tcl();
    let stem = session.submit_with(1, ENDLESS, &json!({ "cancel_policy": "terminate_tool" }));
    session.runs(&stem, "begun");
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled tool_exit");
    assert_eq!(session.run(2, "puts again").output, "again\n");
    let stem = session.submit_with(3, ENDLESS, &json!({ "cancel_policy": "terminate_session" }));
    session.runs(&stem, "begun");
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled tool_exit");
    assert_eq!(runner.ends(), Some(0));
    assert_eq!(session.state()["phase"], "stopping");
}

#[test]
fn a_cancel_names_its_command_and_never_ends_another() {
    let session = Session::new();
    let _runner = session.tcl();
    let first = session.submit_with(1, ENDLESS, &json!({ "cmd_id": "first" }));
    let waits = session.submit_with(2, "puts waited", &json!({ "cmd_id": "waits" }));
    session.runs(&first, "begun");
    session.cancel(&json!({ "scope": "cmd_id", "cmd_id": "waits", "ts": "1" }));
    let done = session.result(&waits);
    assert_eq!(done.end(), "cancelled cancelled before it began");
    assert!(session.json(&format!("result/{first}.json")).is_none());
    // The other one runs as before, and so it is told.
    assert_eq!(session.state()["phase"], "busy");
    assert_eq!(session.state()["current_cmd_id"], "first");
    // What is over stays as it ended, though its file waits once more.
    let ended = session.text(&format!("result/{waits}.json"));
    session.submit_with(2, "puts waited", &json!({ "cmd_id": "waits" }));
    session.cancel(&json!({ "scope": "cmd_id", "cmd_id": "waits", "ts": "1" }));
    session.until("the cancel is taken", |session| {
        session.names("ctl").is_empty()
    });
    session.cancel(&json!({ "scope": "cmd_id", "cmd_id": "first", "ts": "1" }));
    assert_eq!(session.result(&first).end(), "cancelled ctrl_c");
    session.until("what is over is skipped", |session| {
        session.names("queue").is_empty()
    });
    assert_eq!(session.text(&format!("result/{waits}.json")), ended);
    // Where nothing runs, it is gone, and the next command is not ended by it.
    session.cancel(&current());
    session.until("the cancel is taken", |session| {
        session.names("ctl").is_empty()
    });
    assert_eq!(session.run(3, "puts on").end(), "ok marker_seen");
}

#[test]
fn a_tool_that_dies_is_told_and_the_next_command_gets_another() {
    let session = Session::new();
    let _runner = session.tcl();
    assert_eq!(session.run(1, "exit 0").end(), "error tool_exit");
    assert_eq!(
        session.run(2, "exit 3").end(),
        "error tool_died: exit status 3"
    );
    let done = session.run(3, "exec kill -KILL [pid]");
    assert_eq!(done.end(), "error tool_died: signal 9");
    assert_eq!(session.run(4, "puts again").output, "again\n");
}

#[test]
fn a_tool_that_cannot_be_had_is_an_error_at_the_start() {
    let session = Session::new();
    let output = session
        .command(&[], &["no-such-tool"])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("no-such-tool"), "{printed}");
    let output = session
        .command(&["--kind", "lisp"], &["x"])
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("--marker"), "{printed}");
    let marker = "print {head}{tail}";
    let output = session
        .command(&["--marker", marker], &["x"])
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("{head} and {tail}"), "{printed}");
}

#[test]
fn any_tool_is_driven_by_its_template() {
    let session = Session::new();
    let _runner = session.start(&["--kind", "sh"], &["sh", "-i"]);
    let done = session.result(&session.submit_with(1, "echo $((6*7))", &json!({ "kind": "sh" })));
    assert_eq!(done.end(), "ok marker_seen");
    assert!(done.output.contains("42"), "{done:?}");
}

#[test]
fn a_payload_that_fails_in_its_tool_is_an_error() {
    for (kind, tool, bad, good, value) in [
        (
            "tcl",
            &["tclsh"][..],
            "puts before\nerror broken\nputs after",
            "set x 42",
            "42",
        ),
        (
            "python",
            &["python3", "-i", "-q"],
            "print('before')\n1 / 0\nprint('after')",
            "6 * 7",
            "42",
        ),
        (
            "sh",
            &["sh", "-i"],
            "echo before; cat /none/such",
            "echo 42",
            "42",
        ),
    ] {
        let session = Session::new();
        let _runner = session.start(&["--kind", kind], tool);
        let run = |seq, payload| {
            session.result(&session.submit_with(seq, payload, &json!({ "kind": kind })))
        };
        let done = run(1, good);
        assert_eq!(done.end(), "ok marker_seen", "{kind}: {done:?}");
        assert!(done.output.contains(value), "{kind}: {done:?}");
        let done = run(2, bad);
        assert_eq!(done.end(), "error marker_seen", "{kind}: {done:?}");
        assert!(done.output.contains("before"), "{kind}: {done:?}");
        assert!(!done.output.contains("after"), "{kind}: {done:?}");
        if kind == "tcl" {
            assert!(done.output.contains("broken"), "{done:?}");
            assert_eq!(run(4, "puts a; return; puts b").end(), "ok marker_seen");
        }
        // It is the same tool, and the next command is judged by itself.
        let done = run(3, good);
        assert_eq!(done.end(), "ok marker_seen", "{kind}: {done:?}");
    }
}

#[test]
fn a_sign_of_life_is_given_while_a_command_runs() {
    let session = Session::new();
    let _runner = session.tcl();
    let stem = session.submit(1, ENDLESS);
    session.runs(&stem, "begun");
    let beat = || session.json("state/heartbeat.json").expect("a beat")["timestamp"].clone();
    for _ in 0..3 {
        let before = beat();
        session.until("another sign of life", |session| {
            session
                .json("state/heartbeat.json")
                .is_some_and(|it| it["timestamp"] != before)
        });
    }
    assert_eq!(session.state()["phase"], "busy");
    assert!(stem.ends_with(session.state()["current_cmd_id"].as_str().expect("an id")));
}

#[test]
fn the_end_of_a_markers_line_may_come_late() {
    // It writes each line's end as a piece of its own, long after the line; once between two carriage returns.
    let session = Session::new();
    session.lay();
    let script = session.beside("tool.py");
    fs::write(
        &script,
        r#"
import os, sys, time
def late(text, end):
    os.write(1, text.encode())
    for piece in end:
        time.sleep(0.1)
        os.write(1, piece.encode())
for line in iter(sys.stdin.readline, ""):
    exec(line)
"#,
    )
    .expect("a script");
    let tool: [&str; 6] = [
        "/usr/bin/python3",
        "-I",
        "-S",
        "-u",
        "-B",
        &script.to_string_lossy(),
    ];
    for (marker, ends) in [
        (r#"late("{head}" "{tail}", ["\n"])"#, "its line's end"),
        (
            r#"late("{head}" "{tail}", ["\r", "\r\n"])"#,
            "as a printer wants it",
        ),
    ] {
        let session = Session::new();
        let kind = json!({ "kind": "late" });
        // They wait when the tool starts, so each is begun as soon as the one before it ended.
        session.lay();
        let reported = [
            "print('on')",
            "late('\\n', ['on', '\\n'])",
            "late('', ['on'])",
        ];
        let stems: Vec<String> = (1..)
            .zip(reported)
            .map(|(seq, payload)| session.submit_with(seq, payload, &kind))
            .collect();
        let _runner = session.start(&["--kind", "late", "--marker", marker], &tool);
        let output = |at: usize| session.result(&stems[at]).output;
        assert_eq!(output(0), "on\n", "{ends}");
        assert_eq!(output(1), "\non\n", "{ends}");
        assert_eq!(output(2), "on", "{ends}");
    }
}
