//! Pools of tools at terminals, in a sandbox: the Master is the supervisor.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::drill::{Drill, NOBODY, count, eventually};
use crate::skillpilot::session::Runner;

const LONG: Duration = Duration::from_secs(60);

pub(crate) fn pool(more: &str) -> String {
    format!(
        r#"
[pool.eda]
command   = ["tclsh"]
launcher  = "pty"
dialect   = "skillpilot"
policy    = "developer"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ budget = 100, base = "20ms", max = "200ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}"#
    )
}

pub(crate) fn tasks(drill: &Drill, file: &str, prompts: &[String]) {
    let lines = prompts.iter().enumerate().map(|(number, prompt)| {
        let line = json!({ "id": format!("{file}-{number}"), "prompt": prompt });
        format!("{line}\n")
    });
    fs::write(drill.path(file), lines.collect::<Vec<_>>().concat()).expect("tasks");
}

fn run(drill: &Drill, prompts: &[&str]) -> Vec<Value> {
    let prompts: Vec<_> = prompts.iter().map(|prompt| (*prompt).to_owned()).collect();
    tasks(drill, "tasks.jsonl", &prompts);
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.all());
    drill.results("results.jsonl")
}

pub(crate) fn answer(result: &Value) -> &str {
    result["answer"]
        .as_str()
        .unwrap_or_else(|| panic!("no answer: {result}"))
}

/// A directory for a Runner's files, nobody's own.
pub(crate) fn plane(drill: &Drill) -> std::path::PathBuf {
    let dir = drill.path("plane");
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("its mode");
    chown(&dir, Some(NOBODY), Some(NOBODY)).expect("given away");
    dir
}

#[test]
fn a_prompt_is_worked_by_a_tool_at_a_terminal_in_a_sandbox() {
    let drill = Drill::new(&pool(""));
    let prompt = "puts [expr {6 * 7}]\nputs [exec id -u]\nputs [exec tty]\nputs [file exists /root]\n\
                  set f [open made.txt w]; puts $f made; close $f\n";
    let results = run(&drill, &[prompt]);
    assert_eq!(results[0]["outcome"], "done", "{}", results[0]);
    let text: Vec<_> = answer(&results[0]).lines().collect();
    assert!(text.contains(&"42") && text.contains(&"1000"), "{text:?}");
    assert!(
        text.iter().any(|line| line.starts_with("/dev/pts/")),
        "{text:?}"
    );
    assert_eq!(text.last(), Some(&"0"), "{text:?}");
    assert!(drill.agents().is_empty(), "a tool is left");
}

/// The pool in the page that begins so.
fn documented(begin: &str) -> String {
    let page = include_str!("../../../docs/skillpilot.md");
    let at = page.find(begin).expect("it is documented");
    let (example, _) = page[at..].split_once("```").expect("its end");
    example.replace("path = \".\"", "path = \"project\"")
}

#[test]
fn the_documented_tool_of_ones_own_works() {
    let js =
        documented("[pool.js]").replace("[pool.js.runner]", "session = \"slot\"\n[pool.js.runner]");
    let drill = Drill::new(&js);
    let results = run(
        &drill,
        &[
            "let kept = 6\nfor (const i of [1, 2])\n  console.log(i)\nkept * 7",
            "console.log(kept)\nif (",
            "const fs = require('fs')",
            "console.log(`<${kept}>`, typeof fs.readFileSync)",
        ],
    );
    let answers: Vec<_> = results.iter().map(answer).collect();
    assert_eq!(answers[0], "1\n2\n42\n", "{results:?}");
    assert!(answers[1].contains("SyntaxError"), "{results:?}");
    // What cannot be parsed is not begun, and leaves nothing behind.
    assert!(!answers[1].starts_with('6'), "{results:?}");
    assert_eq!(answers[2..], ["", "<6> function\n"], "{results:?}");
    let runs_in_tcl = documented("[pool.eda]");
    let results = run(&Drill::new(&runs_in_tcl), &["puts [expr {6 * 7}]"]);
    assert_eq!(answer(&results[0]), "42\n", "{results:?}");
}

#[test]
fn one_tool_works_the_prompts_of_a_slot_and_ends_are_told_as_they_are() {
    let more = "session = \"slot\"\nrunner = { timeout = \"10s\" }\n";
    let drill = Drill::new(&pool(more));
    let results = run(
        &drill,
        &[
            "set kept 5; puts set",
            "puts <$kept>",
            "after 600000",
            "exit 3",
            "puts again",
        ],
    );
    let outcomes: Vec<_> = results
        .iter()
        .map(|it| it["outcome"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(outcomes[..2], ["done", "done"], "{results:?}");
    assert_eq!(answer(&results[1]).trim(), "<5>");
    assert_ne!(outcomes[2], "done", "{}", results[2]);
    assert_ne!(outcomes[3], "done", "{}", results[3]);
    assert!(
        results[3].to_string().contains("exit status 3"),
        "{}",
        results[3]
    );
    assert_eq!(outcomes[4], "done", "{}", results[4]);
    assert_eq!(answer(&results[4]).trim(), "again");
}

#[test]
fn a_turn_over_its_time_is_cancelled_by_a_file() {
    let drill = Drill::new("");
    let dir = plane(&drill);
    let more =
        format!("timeouts = {{ turn = \"5s\", cancel = \"30s\" }}\nrunner = {{ dir = {dir:?} }}\n");
    let text = fs::read_to_string(drill.config()).expect("a file")
        + &pool(&more).replace("MARK", &drill.mark);
    fs::write(drill.config(), text).expect("written");
    let results = run(&drill, &["puts begun; flush stdout; after 600000"]);
    assert_ne!(results[0]["outcome"], "done", "{}", results[0]);
    let audit = fs::read_to_string(dir.join("log/meta.log")).expect("an audit");
    let cancel = audit
        .lines()
        .find(|line| line.contains("\"event\":\"cancel\""));
    assert!(cancel.is_some(), "{audit}");
    let ended = audit
        .lines()
        .find(|line| line.contains("\"event\":\"command_ended\""));
    assert!(
        ended.is_some_and(|line| line.contains("\"exit_reason\":\"ctrl_c\"")),
        "{audit}"
    );
}

#[test]
fn many_slots_work_at_once() {
    let drill = Drill::new(&pool("size = 5\n"));
    let prompts: Vec<String> = (0..count(15))
        .map(|number| format!("puts answer-{number}"))
        .collect();
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let results = run(&drill, &prompts);
    assert_eq!(results.len(), prompts.len());
    for result in &results {
        assert_eq!(result["outcome"], "done", "{result}");
        assert!(answer(result).starts_with("answer-"), "{result}");
    }
    drill.assert_dense();
}

#[test]
fn after_a_kill_of_the_supervisor_a_command_is_not_run_twice() {
    let drill = Drill::new("");
    let dir = plane(&drill);
    let more = format!("runner = {{ dir = {dir:?} }}\n");
    let text = fs::read_to_string(drill.config()).expect("a file")
        + &pool(&more).replace("MARK", &drill.mark);
    fs::write(drill.config(), text).expect("written");
    let ran = dir.join("ran");
    let payload = "set f [open /run/marshal/session/ran a]; puts $f once; close $f; puts begun; flush stdout; after 600000";
    tasks(&drill, "first.jsonl", &[payload.to_owned()]);
    let mut supervisor = drill.start(&["run", "first.jsonl"]);
    eventually(LONG, "the command runs", || {
        fs::read_to_string(&ran).is_ok_and(|text| text == "once\n")
    });
    supervisor.signal("KILL");
    supervisor.wait(LONG);
    eventually(LONG, "its tool is gone", || drill.agents().is_empty());
    let inflight = || {
        fs::read_dir(dir.join("inflight"))
            .expect("a directory")
            .count()
    };
    assert_eq!(inflight(), 1, "it was under way");
    let continued = drill.run(&["run", "--continue", "--results", "whole.jsonl"]);
    let results = drill.results("whole.jsonl");
    assert_eq!(results[0]["outcome"], "lost", "{}", continued.all());
    // Whoever works there next ends it on record.
    let results = run(&drill, &["puts on"]);
    assert_eq!(answer(&results[0]).trim(), "on", "{}", results[0]);
    assert_eq!(inflight(), 0);
    let found: Vec<Value> = fs::read_dir(dir.join("result"))
        .expect("a directory")
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| {
            serde_json::from_slice(&fs::read(entry.path()).expect("a file")).expect("JSON")
        })
        .collect();
    let reasons: Vec<_> = found
        .iter()
        .filter_map(|it| it["exit_reason"].as_str())
        .collect();
    assert!(
        reasons.contains(&"tool_died: runner restarted"),
        "{found:?}"
    );
    assert_eq!(fs::read_to_string(&ran).expect("a file"), "once\n");
}

#[test]
fn somebody_elses_runner_is_driven_and_left_alone() {
    let drill = Drill::new("");
    let dir = plane(&drill);
    let mut theirs = Command::new("setpriv");
    theirs
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}")])
        .args(["--clear-groups", env!("CARGO_BIN_EXE_marshal"), "runner"])
        .args(["--heartbeat", "200", "--dir", "."])
        .args(["--", "tclsh"])
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut theirs = Runner(theirs.spawn().expect("it starts"));
    eventually(LONG, "their Runner is idle", || {
        let state = fs::read_to_string(dir.join("state/state.json"));
        state.is_ok_and(|text| text.contains("\"idle\""))
    });
    let more = format!(
        r#"
[pool.eda]
command   = ["marshal", "runner", "--carry", "--dir", "{{workspace}}"]
dialect   = "skillpilot"
policy    = "developer"
workspace = {{ path = {dir:?}, mode = "rw" }}
"#
    );
    let text = fs::read_to_string(drill.config()).expect("a file") + &more;
    fs::write(drill.config(), text).expect("written");
    for _ in 0..2 {
        let results = run(&drill, &["puts [pid]"]);
        assert_eq!(results[0]["outcome"], "done", "{}", results[0]);
        let state: Value =
            serde_json::from_slice(&fs::read(dir.join("state/state.json")).expect("a file"))
                .expect("JSON");
        assert_eq!(answer(&results[0]).trim(), state["tool_pid"].to_string());
    }
    assert!(theirs.0.try_wait().expect("wait").is_none(), "it goes on");
}

#[test]
fn what_cannot_ask_is_not_guarded_by_a_policy() {
    let refused = |keys: &str, why: &str| {
        let drill = Drill::new(&pool(keys));
        let ran = drill.run(&["config", "check"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.stderr.contains(why), "{}", ran.all());
    };
    refused(
        "guard = \"policy\"\n",
        "needs an agent that asks for everything",
    );
    refused(
        "permission_requests = \"all\"\n",
        "never asks: the protocol has no permission requests",
    );
    refused("size = 2\nrunner = { dir = \"plane\" }\n", "size must be 1");
    refused("runner = { kind = \"lisp\" }\n", "the table needs marker");
    refused(
        "runner = { marker = \"print {head}{tail}\" }\n",
        "{head} and {tail}",
    );
    refused("runner = { cancel = \"ctrlc\" }\n", "did you mean ctrl_c");
    let drill = Drill::new(&pool(
        "runner = { kind = \"lisp\", marker = '(princ \"{head}\") (princ \"{tail}\")' }\n",
    ));
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
}
