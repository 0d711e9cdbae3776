//! `marshal tasks`: what the daemon has to do, seen and cancelled by hand.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::{POOL, exits, up};
use crate::drill::{Drill, eventually};

const LONG: Duration = Duration::from_secs(60);

/// What a command prints.
fn prints(drill: &Drill, args: &[&str], parts: &[&str]) -> String {
    let ran = drill.run(args);
    exits(&ran, 0, &[]);
    for part in parts {
        assert!(ran.stdout.contains(part), "{part:?} in {}", ran.all());
    }
    ran.stdout
}

#[test]
fn tasks_are_listed_shown_and_cancelled_by_their_short_ids() {
    let drill = Drill::new(&POOL.replace("size = 2", "size = 1"));
    let _daemon = up(&drill);
    exits(
        &drill.run(&["tasks", "ls"]),
        0,
        &["there are no such tasks"],
    );
    std::fs::write(
        drill.path("t.jsonl"),
        "{\"id\": \"one\", \"prompt\": \"say one\"}\n{\"id\": \"two\", \"prompt\": \"hang\"}\n\
         {\"id\": \"three\", \"prompt\": \"say \\u001b[2J three\"}\n",
    )
    .expect("tasks");
    let mut run = drill.command(&["run", "--results", "r.jsonl", "t.jsonl"]);
    let mut run = run
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let tasks = |more: &[&str]| -> Vec<Value> {
        let mut args = vec!["--json", "tasks", "ls"];
        args.extend(more);
        let ran = drill.run(&args);
        exits(&ran, 0, &[]);
        let lines = ran.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    };
    eventually(LONG, "the second one runs", || {
        let running = tasks(&["--state", "running"]);
        running.len() == 1 && running[0]["task"] == "two"
    });
    assert_eq!(tasks(&["--pool", "demo"]).len(), 3);
    assert_eq!(tasks(&["--limit", "1"])[0]["task"], "three", "newest first");

    let parts = ["two  running  demo  hang", "one  done  demo  say one"];
    let listed = prints(&drill, &["tasks", "ls"], &parts);
    assert!(!listed.contains('\u{1b}'), "{listed}");
    let line = listed.lines().find(|line| line.contains(":two "));
    let short = line.and_then(|line| line.split(' ').next()).expect("an id");
    assert_eq!(short.len(), "456789ab:two".len(), "{short}");
    let (short_run, _) = short.split_once(':').expect("two parts");
    assert_eq!(tasks(&["--run", short_run]).len(), 3);
    let parts = ["state       running", "prompt      hang"];
    prints(&drill, &["tasks", "show", short], &parts);
    let parts = ["outcome     done", "prompt      say one"];
    prints(&drill, &["tasks", "show", "one"], &parts);

    // A wrong id cancels nothing.
    exits(
        &drill.run(&["tasks", "cancel", short, "four"]),
        2,
        &["there is no task four"],
    );
    assert_eq!(tasks(&["--state", "running"]).len(), 1);
    exits(
        &drill.run(&["tasks", "cancel", short, "three"]),
        0,
        &[":two: cancelling"],
    );
    assert_eq!(run.wait().expect("it ends").code(), Some(1));
    let outcome = |task: &str| {
        let found = tasks(&[]);
        let found = found.iter().find(|found| found["task"] == task);
        found.expect("a task")["outcome"].clone()
    };
    assert_eq!(outcome("two"), "cancelled");
    assert_eq!(outcome("three"), "skipped", "it had not begun");
    assert_eq!(outcome("one"), "done");
    exits(&drill.run(&["tasks", "show", "x:y"]), 2, &["error: "]);
}
