//! Clients that other people wrote, from PyPI and npm, with `marshal acp` as their agent.
//!
//! `tests/run` installs them below `target/tools`: the Python SDK's client, which carries out the
//! steps that `tests/drills/agents/editor.py` is given, and acpx with the Node that it wants.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drill::{Drill, eventually, processes};
use crate::fleet::editors;

/// A program below `target/tools`.
fn tool(program: &str) -> PathBuf {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/tools")
        .join(program);
    assert!(
        tool.exists(),
        "{} is not installed: run tests/run editors",
        tool.display()
    );
    tool
}

/// The command line of this drill's agent.
fn agent(drill: &Drill) -> [String; 6] {
    let config = drill.config().display().to_string();
    [
        env!("CARGO_BIN_EXE_marshal").to_owned(),
        "--config".to_owned(),
        config,
        "acp".to_owned(),
        "--pool".to_owned(),
        "demo".to_owned(),
    ]
}

/// Carries out steps with the Python SDK's client, and gives what came of each.
fn sdk(drill: &Drill, steps: &Value) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drills/agents/editor.py");
    let ran = Command::new(tool("agents/py/bin/python"))
        .arg(script)
        .arg(drill.workspace())
        .arg(steps.to_string())
        .args(agent(drill))
        .current_dir(drill.path(""))
        .env("HOME", drill.path(""))
        .output()
        .expect("python starts");
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let all = format!("{printed}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{all}");
    let received: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert_eq!(
        received.len(),
        steps.as_array().expect("steps").len(),
        "{all}"
    );
    received
}

fn message_contains(received: &Value, part: &str) -> bool {
    received["said"]
        .as_str()
        .is_some_and(|reported| reported.contains(part))
}

#[test]
fn the_client_of_the_python_sdk_prompts_is_asked_cancels_and_loads() {
    for dialect in editors::DIALECTS {
        let drill = editors::drill(dialect);
        let received = sdk(
            &drill,
            &json!([
                ["new"],
                [
                    "prompt",
                    "say hello\nwrite a.txt one\nplan read; write\nthink hard"
                ],
                ["answer", "reject_once"],
                ["prompt", "write no.txt two"],
                ["cancel", "say begun\nsleep 60s"],
                ["answer", "never"],
                ["cancel", "write no.txt three"],
                ["prompt", "say after"],
            ]),
        );
        assert_eq!(received[0]["version"], 1);
        let session = received[0]["session"].as_str().expect("a session");
        assert_eq!(received[1]["stop"], "end_turn", "{received:?}");
        assert!(message_contains(&received[1], "hello"), "{received:?}");
        assert_eq!(received[1]["asked"].as_array().map(Vec::len), Some(1));
        let kinds = received[1]["kinds"].to_string();
        assert!(kinds.contains("tool_call_update"), "{kinds}");
        assert_eq!(received[3]["stop"], "end_turn");
        assert_eq!(received[3]["asked"].as_array().map(Vec::len), Some(1));
        assert_eq!(received[4]["stop"], "cancelled", "{received:?}");
        assert_eq!(received[6]["stop"], "cancelled", "{received:?}");
        assert!(message_contains(&received[7], "after"), "{received:?}");
        let copy = drill.state().join("copies").join(session);
        let written = std::fs::read_to_string(copy.join("a.txt"));
        assert_eq!(written.expect("allowed"), "one\n");
        assert!(!copy.join("no.txt").exists());
        let verdicts =
            "SELECT decision || ' ' || decided_by FROM permission_requests ORDER BY requested_seq";
        let verdicts = editors::text(&drill, verdicts);
        assert_eq!(verdicts, ["allow human", "deny human", "deny gone"]);

        // The process has ended; another one loads the session.
        editors::nothing_runs(&drill);
        let before = editors::text(&drill, "SELECT kind FROM events").len();
        let received = sdk(
            &drill,
            &json!([["list"], ["load", session], ["prompt", "recall"], ["close"]]),
        );
        assert_eq!(received[0]["sessions"][0], session, "{received:?}");
        assert!(received[1]["error"].is_null(), "{received:?}");
        let user = received[1]["user"].as_str().expect("what the user said");
        assert!(
            user.starts_with("say hello") && user.ends_with("say after"),
            "{user}"
        );
        assert_eq!(received[2]["stop"], "end_turn");
        assert!(
            message_contains(&received[2], "say after"),
            "{dialect}: {received:?}"
        );
        let prompts = "SELECT kind FROM events WHERE kind = 'prompt_accepted'";
        assert_eq!(editors::text(&drill, prompts).len(), 6, "{dialect}");
        assert!(editors::text(&drill, "SELECT kind FROM events").len() > before);
        assert_eq!(drill.assert_dense(), 1);
    }
}

/// A command as acpx wants it, in one line: a path may have blanks.
fn words_of(command: &[String]) -> String {
    let quoted = command.iter().map(|word| format!("'{word}'"));
    quoted.collect::<Vec<_>>().join(" ")
}

/// acpx, which keeps what it knows of sessions in the drill's directory.
fn acpx(drill: &Drill, flags: &[&str], words: &[&str]) -> Command {
    let bin = tool("editors/node_modules/.bin");
    let mut command = Command::new(bin.join("node"));
    command
        .arg(bin.join("acpx"))
        .arg("--cwd")
        .arg(drill.workspace())
        .args(["--agent", &words_of(&agent(drill)), "--ttl", "2"])
        .args(flags)
        .args(words)
        .current_dir(drill.path(""))
        .env("HOME", drill.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn all(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{out}\n{err}", output.status)
}

/// Runs it to its end, whose output must hold `part`.
fn ran(drill: &Drill, flags: &[&str], words: &[&str], part: &str) {
    ran_to(drill, flags, words, part, 0);
}

fn ran_to(drill: &Drill, flags: &[&str], words: &[&str], part: &str, code: i32) {
    let output = acpx(drill, flags, words).output().expect("acpx starts");
    let all = all(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {all}");
    assert!(all.contains(part), "{words:?}: {all}");
}

/// acpx keeps its agent for a while in the background; that is over.
fn is_quiet(drill: &Drill) {
    let home = format!("HOME={}", drill.path("").display());
    eventually(Duration::from_secs(60), "acpx lets its agent go", || {
        processes(|environ| environ.split('\0').any(|set| set == home)).is_empty()
    });
    editors::nothing_runs(drill);
}

fn ends(mut child: Child, most: Duration) -> Output {
    let end = Instant::now() + most;
    while child.try_wait().expect("wait").is_none() {
        assert!(Instant::now() < end, "acpx does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("output")
}

#[test]
fn acpx_prompts_is_asked_cancels_and_takes_its_session_up_again() {
    let drill = editors::drill("acp");
    let allow = ["--approve-all", "--format", "quiet"];
    ran(
        &drill,
        &allow,
        &["exec", "say hello\nwrite a.txt one"],
        "hello",
    );
    let deny = ["--deny-all", "--format", "json"];
    let ended = "\"stopReason\":\"end_turn\"";
    // Its own code for a turn in which everything was denied.
    ran_to(&drill, &deny, &["exec", "write no.txt two"], ended, 5);
    let verdicts = "SELECT decision || ' ' || decided_by FROM permission_requests";
    assert_eq!(
        editors::text(&drill, verdicts),
        ["allow human", "deny human"]
    );

    ran(&drill, &allow, &["sessions", "new"], "");
    ran(&drill, &allow, &["prompt", "say one"], "one");
    is_quiet(&drill);
    ran(&drill, &allow, &["prompt", "recall"], "say one");
    is_quiet(&drill);
    let turn = acpx(
        &drill,
        &["--approve-all"],
        &["prompt", "say begun\nsleep 300s"],
    )
    .spawn();
    let turn = turn.expect("acpx starts");
    let begun = "SELECT kind FROM events WHERE kind = 'text' AND body LIKE '%begun%'";
    eventually(Duration::from_secs(60), "the turn runs", || {
        !editors::text(&drill, begun).is_empty()
    });
    ran(&drill, &[], &["cancel"], "cancel requested");
    let ended = all(&ends(turn, Duration::from_secs(60)));
    assert!(ended.contains("cancelled"), "{ended}");
    is_quiet(&drill);
    drill.assert_dense();
}
