//! Control bytes, terminal escapes and bidi characters from a child appear in no output.

use std::fmt::Write as _;

use crate::drill::{Drill, acts_on_a_terminal};

/// Title, clipboard (OSC 52), link (OSC 8), cursor, C1, bidi, zero-width, line separators.
const NASTY: &str = "\u{1b}]0;title\u{7}\u{1b}]52;c;AAAA\u{7}\u{1b}]8;;http://x\u{1b}\\l\u{1b}[2J\u{9b}31m\u{202e}\u{200b}\u{2028}\u{2066}\u{feff}\u{e0041}";

/// An agent that says nasty things in every field that its protocol has.
fn agent() -> String {
    format!(
        r#"
import json, sys
N = {NASTY:?}
def say(**m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
sys.stderr.write(N + "\n"); sys.stderr.flush()
say(type="ready", protocol=1, version=N, session_id=N, model=N, mode=N, tools=[N], context_window=1, max_tokens=1, gadgets=[N])
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] == "prompt":
        say(type="turn_started", turn_id=N)
        say(type="text_delta", turn_id=N, delta=N)
        say(type="tool_start", turn_id=N, tool_id=N, name=N, input={{N: N}})
        say(type="permission_request", request_id=N, tool=N, active_mode=N, required_mode=N, details={{"tool_input": {{N: N}}, "reason": N}})
    elif m["type"] == "permission_response":
        open(N.replace("/", "_")[:40], "w").write("x")
        say(type="tool_result", turn_id=N, tool_id=N, output=N, is_error=True, duration_s=0.1)
        say(type="state_changed", model=N, mode=N)
        say(type="slash_result", command=N, text=N, data={{N: N}}, clear_session=False, exit=False)
        say(type=N, x=N)
        sys.stdout.write(N + "\n"); sys.stdout.flush()
        say(type="error", code=N, message=N, origin=N, turn_id=N)
    elif m["type"] == "shutdown":
        sys.exit(3)
"#
    )
    .replace("\\u{", "\\U{")
}

fn drill() -> Drill {
    let drill = Drill::new(
        r#"
[pool.demo]
size      = 1
command   = ["python3", "agent.py"]
dialect   = "scaiflux"
launcher  = "unshare"
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
stop      = { goodbye = "2s", eof = "1s", int = "1s", term = "1s" }
"#,
    );
    // Python's own escapes: fixed width, eight digits.
    let mut text = String::new();
    let agent = agent();
    let mut rest = agent.as_str();
    while let Some(at) = rest.find("\\U{") {
        text.push_str(&rest[..at]);
        let (digits, after) = rest[at + 3..].split_once('}').expect("closed");
        let _ = write!(text, "\\U{digits:0>8}");
        rest = after;
    }
    text.push_str(rest);
    std::fs::write(drill.workspace().join("agent.py"), text).expect("agent.py");
    drill
}

fn assert_clean(what: &str, text: &str) {
    for (number, line) in text.lines().enumerate() {
        if let Some(c) = line.chars().find(|c| acts_on_a_terminal(*c)) {
            panic!("{what}, line {}: {:?} in {line:?}", number + 1, c);
        }
    }
}

#[test]
fn table_progress_and_logs_are_clean() {
    let drill = drill();
    let nasty_prompt = format!("read {NASTY}");
    for args in [
        vec!["run", "--results", "results.jsonl", nasty_prompt.as_str()],
        vec!["-v", "run", nasty_prompt.as_str()],
    ] {
        let ran = drill.run(&args);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert!(
            ran.stdout.contains("failed") || ran.stdout.contains("denied"),
            "{}",
            ran.all()
        );
        assert_clean("stdout", &ran.stdout);
        assert_clean("stderr", &ran.stderr);
    }
}

#[test]
fn json_on_a_terminal_is_clean() {
    let drill = drill();
    // `script` gives the program a terminal.
    let line = format!(
        "'{}' --config '{}' --json run hello",
        env!("CARGO_BIN_EXE_marshal"),
        drill.config().display()
    );
    let output = std::process::Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .current_dir(drill.path("."))
        .env("TERM", "dumb")
        .output()
        .expect("script");
    let text = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
    let events: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
    assert!(events.len() > 5, "{text}");
    for line in events {
        assert!(!line.chars().any(acts_on_a_terminal), "{line:?}");
        serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    }
}

#[test]
fn followed_logs_are_clean() {
    let drill = drill();
    // Of a daemon: the last child's words stay after its end.
    let running = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    // What it asks for waits for a person, who sees it.
    let mut client = drill.command(&["run", "hello"]);
    let mut client = client.spawn().expect("a client");
    let ask = crate::fleet::approvals::waiting(&drill, 1).remove(0);
    let id = crate::fleet::approvals::id(&ask);
    for args in [
        &["approvals", "ls"][..],
        &["approvals", "show", &id],
        &["ls"],
    ] {
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert_clean("asks", &ran.stdout);
        assert_clean("asks", &ran.stderr);
    }
    let ran = crate::fleet::approvals::answer(&drill, "reject", &ask, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_clean("asks", &ran.all());
    client.wait().expect("ends");
    let mut seen = String::new();
    for _ in 0..200 {
        let ran = drill.run(&["logs", "demo/0"]);
        assert_clean("logs", &ran.stdout);
        seen = ran.stdout;
        if seen.contains("title") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(running);
    assert!(
        seen.contains("title"),
        "the line is there, escaped: {seen:?}"
    );
}
