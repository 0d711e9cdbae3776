//! Commands that are ended before their time, at tools that read ahead, heed no interrupt in time, or start
//! what does not end with them: nothing of a command goes on behind its result.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::drill::is_alive;
use crate::skillpilot::session::{ENDLESS, Runner, Session, current};

const PYTHON: &[&str] = &["/usr/bin/python3", "-I", "-S", "-i", "-q"];
/// Tools that take their input line by line, by pieces, or read far ahead.
const TOOLS: [(&str, &[&str]); 5] = [
    ("tcl", &["tclsh"]),
    ("python", PYTHON),
    ("sh", &["dash", "-i"]),
    ("sh", &["bash", "--noediting", "--norc", "-i"]),
    ("sh", &["bash", "--norc", "-i"]),
];

fn tools(session: &Session) -> usize {
    let events = session.events();
    events.iter().filter(|it| *it == "tool_started").count()
}

/// A payload that would write a file behind a long wait, and one that says something.
fn long_and_short(kind: &str, file: &Path) -> (String, &'static str) {
    let file = file.display();
    match kind {
        "tcl" => (
            format!("puts begun; flush stdout\nafter 600000\nclose [open {file} w]\nputs later"),
            "puts on",
        ),
        "python" => (
            format!(
                "import time\nprint('begun', flush=True)\ntime.sleep(600)\nopen('{file}', 'w').close()\nprint('later')\n"
            ),
            "print('on')",
        ),
        _ => (
            format!("echo begun\nsleep 600\n: >{file}\necho later"),
            "echo on",
        ),
    }
}

#[test]
fn an_interrupt_ends_every_line_of_a_payload() {
    for (kind, tool) in TOOLS {
        let session = Session::new();
        let _runner = session.start(&["--kind", kind], tool);
        let file = session.beside("later");
        let (long, short) = long_and_short(kind, &file);
        let kind = json!({ "kind": kind });
        let stem = session.submit_with(1, &long, &kind);
        session.runs(&stem, "begun");
        session.cancel(&current());
        let done = session.result(&stem);
        assert_eq!(done.end(), "cancelled ctrl_c", "{tool:?}");
        assert!(!done.output.contains("later"), "{tool:?}: {done:?}");
        let next = session.result(&session.submit_with(2, short, &kind));
        assert_eq!(next.end(), "ok marker_seen", "{tool:?}");
        assert!(next.output.trim_end().ends_with("on"), "{tool:?}: {next:?}");
        assert!(!file.exists(), "{tool:?}: a later line was run");
    }
}

#[test]
fn a_timeout_ends_every_line_of_a_payload() {
    let session = Session::new();
    let _runner = session.start(&["--kind", "python"], PYTHON);
    let file = session.beside("later");
    let (long, short) = long_and_short("python", &file);
    let timed = json!({ "kind": "python", "timeout_s": 2 });
    let stem = session.submit_with(1, &long, &timed);
    assert_eq!(session.result(&stem).end(), "timeout timeout");
    let next = session.submit_with(2, short, &json!({ "kind": "python" }));
    assert_eq!(session.result(&next).output, "on\n");
    assert!(!file.exists(), "a later line was run");
}

#[test]
fn a_payload_is_whatever_the_tool_can_work() {
    let cases: [(&str, &[&str], &str, &str); 3] = [
        (
            "python",
            PYTHON,
            "for i in range(2):\n    print(i)\n\ndef f(x):\n    return x * 7\nkept = 6\nf(kept)\nif kept:\n    print('\u{e4} \"q\" \\\\ {hex}')",
            "0\n1\n42\n\u{e4} \"q\" \\ {hex}\n",
        ),
        (
            "sh",
            &["dash", "-i"],
            "for i in a b; do\n  echo $i\ndone\nkept=6\nprintf '%s\\n' \"$((kept * 7))\" '\u{e4} \"q\" \\ 100%' # it's\n",
            "a\nb\n42\n\u{e4} \"q\" \\ 100%\n",
        ),
        (
            "tcl",
            &["tclsh"],
            "foreach i {a b} {\n  puts $i\n}\nset kept 6\nputs [expr {$kept * 7}]\nputs \"\u{e4} \\\"q\\\" \\\\ \\$\"\n",
            "a\nb\n42\n\u{e4} \"q\" \\ $\n",
        ),
    ];
    for (kind, tool, payload, wanted) in cases {
        let session = Session::new();
        let _runner = session.start(&["--kind", kind], tool);
        let kind = json!({ "kind": kind });
        let done = session.result(&session.submit_with(1, payload, &kind));
        assert_eq!(done.end(), "ok marker_seen", "{tool:?}");
        assert_eq!(done.output, wanted, "{tool:?}");
        // What cannot be worked as a whole keeps the tool from nothing. (An error that resets dash takes its
        // input with it.)
        let broken = match kind["kind"].as_str() {
            Some("python") => "kept = 7\nif",
            Some("tcl") => "set kept 7\nif {",
            _ => continue,
        };
        let done = session.result(&session.submit_with(2, broken, &kind));
        assert_eq!(done.end(), "error marker_seen", "{tool:?}: {done:?}");
    }
}

/// A tool in Python that a test writes; its lines are Python.
fn own_tool(session: &Session, options: &[&str], code: &str) -> Runner {
    session.lay();
    let script = session.beside("tool.py");
    fs::write(&script, code).expect("a script");
    let script = script.to_string_lossy();
    let marker = r#"print("{head}" "{tail}", flush=True)"#;
    let mut all = vec!["--kind", "lines", "--marker", marker];
    all.extend(options);
    session.start(&all, &["/usr/bin/python3", "-I", "-S", "-u", &script])
}

/// A tool that works line by line, reads ahead, and survives an interrupt.
const LINES: &str = r"
import sys, time
while True:
    try:
        line = sys.stdin.readline()
        if not line:
            break
        exec(line)
    except KeyboardInterrupt:
        pass
";

#[test]
fn the_marker_of_an_interrupted_command_does_not_say_that_the_tool_listens() {
    // When it is interrupted it prints the marker that is next at once, and dies of the interrupt afterwards.
    let session = Session::new();
    let _runner = own_tool(
        &session,
        &[],
        r#"
import signal, sys, time
def struck(*_):
    exec(pending)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(600)
signal.signal(signal.SIGINT, struck)
for line in iter(sys.stdin.readline, ""):
    if line == "hang\n":
        pending = sys.stdin.readline()
        print("begun", flush=True)
        time.sleep(600)
    else:
        exec(line)
"#,
    );
    let lines = json!({ "kind": "lines" });
    let stem = session.submit_with(1, "hang", &lines);
    let next = session.submit_with(2, "time.sleep(0.5); print('on')", &lines);
    session.runs(&stem, "begun");
    session.cancel(&current());
    let done = session.result(&stem);
    assert_eq!(done.end(), "cancelled ctrl_c");
    assert_eq!(done.output, "begun\n", "its marker is none of its output");
    let next = session.result(&next);
    assert_eq!(
        (next.end(), &*next.output),
        ("ok marker_seen".to_owned(), "on\n")
    );
    assert_eq!(tools(&session), 2);
}

#[test]
fn an_interrupt_reaches_a_tool_that_has_not_read_what_was_typed() {
    let session = Session::new();
    let _runner = own_tool(
        &session,
        &[],
        r#"
import os, time
def line():
    read = b""
    while not read.endswith(b"\n"):
        read += os.read(0, 1)
        if read == b"stuck":
            try:
                print("begun", flush=True)
                time.sleep(600)
            except KeyboardInterrupt:
                return b""
    return read
while True:
    exec(line().decode())
"#,
    );
    let lines = json!({ "kind": "lines" });
    for (seq, unread) in [(1, 3000), (3, 6000), (5, 100_000)] {
        let payload = format!("stuck{}", "x".repeat(unread));
        let stem = session.submit_with(seq, &payload, &lines);
        session.runs(&stem, "begun");
        session.cancel(&current());
        assert_eq!(session.result(&stem).end(), "cancelled ctrl_c");
        let next = session.submit_with(seq + 1, "print('on')", &lines);
        assert_eq!(session.result(&next).output, "on\n", "{unread}");
    }
    assert_eq!(tools(&session), 1, "it survived its interrupts");
}

#[test]
fn a_tool_that_gets_a_payload_line_by_line_is_ended_instead() {
    let session = Session::new();
    let _runner = own_tool(&session, &[], LINES);
    let lines = json!({ "kind": "lines" });
    let file = session.beside("later");
    let payload = format!(
        "print('begun', flush=True); time.sleep(600)\nopen('{}', 'w')\n",
        file.display()
    );
    let stem = session.submit_with(1, &payload, &lines);
    session.runs(&stem, "begun");
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled tool_exit");
    let next = session.submit_with(2, "print('on')", &lines);
    assert_eq!(session.result(&next).output, "on\n");
    assert_eq!(tools(&session), 2);
    assert!(!file.exists(), "a later line was run");
    // One line is interrupted.
    let stem = session.submit_with(3, "print('begun', flush=True); time.sleep(600)\n", &lines);
    session.runs(&stem, "begun");
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled ctrl_c");
}

#[test]
fn a_tool_of_ones_own_gets_a_payload_as_its_unit_says() {
    let session = Session::new();
    let unit = r#"exec(bytes.fromhex("{hex}").decode())"#;
    let _runner = own_tool(&session, &["--unit", unit], LINES);
    let lines = json!({ "kind": "lines" });
    let file = session.beside("later");
    let payload = format!(
        "for i in range(2):\n    print('begun', flush=True)\n    time.sleep(600)\nopen('{}', 'w')\n",
        file.display()
    );
    let stem = session.submit_with(1, &payload, &lines);
    session.runs(&stem, "begun");
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled ctrl_c");
    let next = session.submit_with(2, "print('on')", &lines);
    assert_eq!(session.result(&next).output, "on\n");
    assert_eq!(tools(&session), 1);
    assert!(!file.exists(), "a later line was run");
    let output = session.command(&["--unit", "eval"], &["x"]).output();
    let printed = output.expect("it starts").stderr;
    assert!(String::from_utf8_lossy(&printed).contains("{hex} or {octal}"));
}

/// A command that starts what is in a session of its own, heeds no hangup, and says its pid.
fn leave_one(session: &Session, seq: u64, then: &str) -> (String, u32) {
    let payload = format!(
        "puts [exec setsid sh -c {{trap '' HUP TERM INT; sleep 9999; :}} &]; flush stdout; {then}"
    );
    let stem = session.submit_with(seq, &payload, &json!({ "cancel_policy": "terminate_tool" }));
    session.runs(&stem, "\n");
    let output = session.text(&format!("output/{stem}.out"));
    (
        stem,
        output
            .lines()
            .next()
            .and_then(|line| line.parse().ok())
            .expect("a pid"),
    )
}

#[test]
fn what_a_tool_started_ends_with_it() {
    let session = Session::new();
    let mut runner = session.tcl();
    let (stem, left) = leave_one(&session, 1, ENDLESS);
    session.cancel(&current());
    assert_eq!(session.result(&stem).end(), "cancelled tool_exit");
    assert!(!is_alive(left), "it outlived a cancel");
    // One whose parent is gone is kept, too.
    let (stem, left) = leave_one(&session, 2, "puts done");
    assert_eq!(session.result(&stem).end(), "ok marker_seen");
    assert!(is_alive(left), "the command is over, and the tool goes on");
    assert_eq!(session.run(3, "exit 0").end(), "error tool_exit");
    assert!(!is_alive(left), "it outlived its tool");
    let (_, left) = leave_one(&session, 4, ENDLESS);
    runner.signal("TERM");
    assert_eq!(runner.ends(), Some(0));
    assert!(!is_alive(left), "it outlived the Runner");
}

#[test]
fn what_a_tool_left_to_the_runner_is_reaped() {
    let session = Session::new();
    let runner = session.tcl();
    // Each leaves a child to whoever takes it.
    let payload = "for {set i 0} {$i < 20} {incr i} { exec sh -c {(sleep 0.1 &)} }; puts on";
    assert_eq!(session.run(1, payload).end(), "ok marker_seen");
    let pid = runner.0.id();
    let children = || {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        list.unwrap_or_default().split_whitespace().count()
    };
    session.until("only the tool is left", |_| children() == 1);
}

#[test]
fn no_state_of_an_earlier_life_is_told() {
    let session = Session::new();
    session.lay();
    let stale = json!({
        "phase": "idle", "session_id": "s", "runner_pid": 1, "tool_pid": 2,
        "current_cmd_id": null, "updated_at": "1",
    });
    session.put("state/state.json", &stale.to_string());
    // A tool that never listens.
    let mut command: Command = session.command(&["--stdio"], &["sleep", "9999"]);
    let child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut runner = Runner(child.expect("it starts"));
    let lines = BufReader::new(runner.0.stdout.take().expect("piped")).lines();
    let mut message = lines
        .map_while(Result::ok)
        .map(|line| -> Value { serde_json::from_str(&line).expect("JSON") });
    let state = message
        .find(|message| message["type"] == "state")
        .expect("a state");
    assert_eq!(state["content"]["phase"], "starting", "{state}");
    assert_eq!(state["content"]["runner_pid"], runner.0.id(), "{state}");
    drop(runner.0.stdin.take());
    assert_eq!(runner.ends(), Some(0));
}

#[test]
fn an_id_may_look_like_a_temporary_file() {
    let session = Session::new();
    let _runner = session.tcl();
    let stem = session.submit_with(1, "puts on", &json!({ "cmd_id": "a.tmp" }));
    assert_eq!(session.result(&stem).output, "on\n");
}
