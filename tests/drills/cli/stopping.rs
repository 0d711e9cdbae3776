//! What ends a run before its tasks have ended, and how it goes on.

use std::time::Duration;

use serde_json::Value;

use super::{exits, up};
use crate::drill::{Drill, eventually};

const LONG: Duration = Duration::from_secs(60);

/// One slot, so that tasks follow each other.
const POOL: &str = r#"
[pool.demo]
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
workspace = { path = "project", mode = "copy" }
env = { set = { DRILL = "MARK" } }
restart = { on_crash = "retry", base = "10ms", max = "50ms" }
"#;

/// The run that the last line of a stopped `run` names.
fn left_run(text: &str) -> String {
    let line = text.lines().find(|line| line.contains("to go on: "));
    let line = line.unwrap_or_else(|| panic!("nothing is left: {text}"));
    let run = line.rsplit(' ').next().expect("a word");
    run.to_owned()
}

fn outcomes(drill: &Drill, file: &str) -> Vec<(String, String, u64)> {
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    let mut all: Vec<_> = drill
        .results(file)
        .iter()
        .map(|line| {
            let attempts = line["attempts"].as_u64().expect("a number");
            (word(&line["id"]), word(&line["outcome"]), attempts)
        })
        .collect();
    all.sort();
    all
}

fn owned(all: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
    let owned = |(id, outcome, attempts): &(&str, &str, u64)| {
        ((*id).to_owned(), (*outcome).to_owned(), *attempts)
    };
    all.iter().map(owned).collect()
}

#[test]
fn after_the_first_signal_running_tasks_end_and_the_rest_is_continued() {
    let drill = Drill::new(POOL);
    let mut running = drill.start(&["run", "--results", "r.jsonl", "sleep 3s", "say b", "say c"]);
    eventually(LONG, "a turn runs", || {
        let accepted = "SELECT count(*) FROM events WHERE kind = 'prompt_accepted'";
        let is_there = drill.state().join("journal.db").exists();
        is_there
            && drill
                .database()
                .query_row(accepted, [], |row| row.get::<_, i64>(0))
                .is_ok_and(|turns| turns == 1)
    });
    running.signal("INT");
    assert_eq!(running.wait(LONG), Some(1));
    assert_eq!(outcomes(&drill, "r.jsonl"), owned(&[("task-1", "done", 1)]));
    let log = drill.log("stderr.log");
    assert!(
        log.contains("2 tasks are left; to go on: marshal run --continue"),
        "{log}"
    );
    let run = left_run(&log);
    let ran = drill.run(&["run", "--results", "r.jsonl", "--continue", &run]);
    exits(&ran, 0, &[]);
    let all = [
        ("task-1", "done", 1),
        ("task-2", "done", 1),
        ("task-3", "done", 1),
    ];
    assert_eq!(outcomes(&drill, "r.jsonl"), owned(&all));
    exits(&drill.run(&["run", "--continue", &run]), 2, &["has ended"]);
    drill.assert_dense();
}

#[test]
fn after_the_second_signal_the_killed_task_is_sent_again() {
    let drill = Drill::new(POOL);
    let mut running = drill.start(&["run", "sleep 6s", "say b"]);
    eventually(LONG, "a turn runs", || {
        drill.log("stderr.log").contains("task-1: assigned") && !drill.agents().is_empty()
    });
    std::thread::sleep(Duration::from_secs(1));
    running.signal("INT");
    eventually(LONG, "it stops", || {
        drill.log("stderr.log").contains("no further task begins")
    });
    running.signal("INT");
    assert_eq!(running.wait(LONG), Some(130));
    eventually(LONG, "nothing is left behind", || drill.agents().is_empty());
    let run = left_run(&drill.log("stderr.log"));
    let ran = drill.run(&["run", "--results", "r.jsonl", "--continue", &run]);
    exits(&ran, 0, &[]);
    let all = [("task-1", "done", 2), ("task-2", "done", 1)];
    assert_eq!(outcomes(&drill, "r.jsonl"), owned(&all));
    drill.assert_dense();
}

#[test]
fn a_crash_is_retried_once_whatever_the_attempts_are() {
    let drill = Drill::new(POOL);
    let ran = drill.run(&["run", "--results", "r.jsonl", "crash", "say b"]);
    exits(&ran, 1, &[]);
    let all = [("task-1", "lost", 2), ("task-2", "done", 1)];
    assert_eq!(outcomes(&drill, "r.jsonl"), owned(&all));
}

const DENIED: [&str; 7] = ["run curl x"; 7];

#[test]
fn five_denied_tasks_in_a_row_pause_a_run_and_it_is_continued() {
    let drill = Drill::new(POOL);
    let mut args = vec!["run", "--results", "r.jsonl"];
    args.extend(DENIED);
    let ran = drill.run(&args);
    exits(
        &ran,
        1,
        &["is paused: its last tasks were denied, in pool demo by net"],
    );
    let denied: Vec<String> = (1..=5).map(|number| format!("task-{number}")).collect();
    let denied: Vec<_> = denied.iter().map(|id| (id.as_str(), "denied", 1)).collect();
    assert_eq!(outcomes(&drill, "r.jsonl"), owned(&denied));
    // Two more are no five in a row.
    let run = left_run(&ran.stderr);
    let ran = drill.run(&["run", "--results", "r.jsonl", "--continue", &run]);
    exits(&ran, 1, &[]);
    assert_eq!(drill.results("r.jsonl").len(), 7);
}

#[test]
fn a_daemon_goes_on_with_a_paused_run_when_the_policies_are_loaded_again() {
    let drill = Drill::new(POOL);
    let daemon = up(&drill);
    let mut command = drill.command(&["run", "--results", "r.jsonl"]);
    let log = std::fs::File::create(drill.path("client.log")).expect("a file");
    let mut client = command.args(DENIED).stderr(log).spawn().expect("starts");
    eventually(LONG, "the run is paused", || {
        drill
            .log("client.log")
            .contains("is paused: its last tasks were denied")
    });
    assert_eq!(drill.results("r.jsonl").len(), 5);
    daemon.signal("HUP");
    assert_eq!(client.wait().expect("ends").code(), Some(1));
    assert_eq!(drill.results("r.jsonl").len(), 7);
}

#[test]
fn a_run_may_be_denied_without_a_pause() {
    let drill = Drill::new(POOL);
    let text = std::fs::read_to_string(drill.config()).expect("toml");
    let never = text.replacen("[supervisor]", "[supervisor]\npause_after_denied = 0", 1);
    assert_ne!(text, never);
    std::fs::write(drill.config(), never).expect("written");
    let mut args = vec!["run", "--results", "r.jsonl"];
    args.extend(DENIED);
    exits(&drill.run(&args), 1, &[]);
    assert_eq!(drill.results("r.jsonl").len(), 7);
}

/// A program that stands for `systemd-inhibit`: it notes its arguments, and runs the command.
const INHIBIT: &str =
    "#!/bin/sh\necho \"$@\" > \"$INHIBITED\"\nfor last; do :; done\n$last\nrm \"$INHIBITED\"\n";

#[test]
fn a_run_keeps_the_host_awake_as_long_as_it_works() {
    use std::os::unix::fs::PermissionsExt;
    let drill = Drill::new(POOL);
    let bin = drill.path("bin");
    std::fs::create_dir(&bin).expect("made");
    let program = bin.join("systemd-inhibit");
    std::fs::write(&program, INHIBIT).expect("written");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("mode");
    let noted = drill.path("inhibited");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));
    let start = |prompt: &str| {
        let mut command = drill.command(&["run", "--quiet", prompt]);
        command.env("PATH", &path).env("INHIBITED", &noted);
        command.spawn().expect("marshal starts")
    };
    let mut running = start("sleep 3s");
    eventually(LONG, "the lock is held", || {
        std::fs::read_to_string(&noted).is_ok_and(|text| text.contains("--what=sleep:idle"))
    });
    assert_eq!(running.wait().expect("ends").code(), Some(0));
    assert!(!noted.exists(), "it is released");
    // It does not outlive a supervisor that is killed.
    let mut killed = start("sleep 600s");
    eventually(LONG, "the lock is held again", || noted.exists());
    killed.kill().expect("kill -9");
    let _ = killed.wait();
    eventually(LONG, "it is released again", || !noted.exists());
}
