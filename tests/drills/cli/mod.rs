//! The command line as a person meets it: the real program, its words, exit codes and files.
//!
//! Pools run without a sandbox, so that all of it works as any user; sandboxes have their own tests.

mod agents;
mod audit;
mod history;
mod login;
mod manual;
mod orders;
mod policy_tools;
mod projects;
mod run_results;
mod script_model;
mod session_diff;
mod step_by_step;
mod stopping;
mod tasks;
mod tutorial;

mod configuration;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::drill::{Drill, Ran, Running, eventually};
use serde_json::Value;

const POOL: &str = r#"
[pool.demo]
size = 2
agent = "script"
launcher = "none"
network = "host"
guard = "policy"
workspace = { path = "project", mode = "copy" }
env = { set = { DRILL = "MARK" } }
"#;

fn exits(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{}", ran.all());
    for part in parts {
        assert!(ran.stderr.contains(part), "{part:?} in {}", ran.all());
    }
}

/// A daemon that is ready.
fn up(drill: &Drill) -> Running {
    let running = drill.start(&["up"]);
    eventually(Duration::from_secs(60), "the daemon is ready", || {
        drill.log("stderr.log").contains("listening on http://") && {
            drill.state().join("http.sock").exists() && drill.get("/readyz").0 == 200
        }
    });
    running
}

fn is_up(running: &mut Running) {
    assert!(
        running.child.try_wait().expect("wait").is_none(),
        "it ended"
    );
}

#[test]
fn the_shipped_configuration_is_good_and_is_told_in_a_few_lines() {
    // A copy: where root tests somebody's clone, the file there is not root's, and is not believed.
    let dir = tempfile::tempdir().expect("a directory");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("supervisor.toml");
    fs::copy(shipped, dir.path().join("supervisor.toml")).expect("toml");
    let output = Command::new(env!("CARGO_BIN_EXE_marshal"))
        .args(["config", "check"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("marshal starts");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    for part in [
        "supervisor.toml",
        "pool demo",
        "4 slots",
        "unshare",
        "policy   developer",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_broken_configuration_is_shown_where_it_is_broken() {
    let drill = Drill::new(POOL);
    let text = fs::read_to_string(drill.config()).expect("toml");
    let broken = text.replace("size = 2", "sise = 2");
    fs::write(drill.config(), &broken).expect("written");
    let line = broken
        .lines()
        .position(|line| line == "sise = 2")
        .expect("there")
        + 1;
    let place = format!("supervisor.toml:{line}:1");
    for args in [&["config", "check"][..], &["run", "say hi"], &["up"]] {
        let ran = drill.run(args);
        exits(&ran, 2, &[&place, "sise = 2", "size"]);
        assert_eq!(ran.stdout, "", "{}", ran.all());
    }
    fs::remove_file(drill.config()).expect("removed");
    exits(
        &drill.run(&["config", "check"]),
        2,
        &["cannot read", "supervisor.toml"],
    );
    assert!(!drill.state().exists(), "nothing was begun");
}

#[test]
fn bad_usage_is_told_and_begins_nothing() {
    let drill = Drill::new(POOL);
    for args in [
        &[][..],
        &["fly"],
        &["run"],
        &["run", "--approvals"],
        &["logs"],
        &["logs", "demo"],
        &["restart", "demo/x"],
        &["config"],
        &["-q", "-v", "up"],
    ] {
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.all());
        assert!(!ran.stderr.is_empty(), "{args:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    fs::write(
        drill.path("t.jsonl"),
        "{\"prompt\":\"say hi\",\"pool\":\"none\"}\n",
    )
    .expect("file");
    exits(
        &drill.run(&["run", "t.jsonl"]),
        2,
        &["t.jsonl:1", "`pool`", "demo"],
    );
    fs::write(drill.path("t.jsonl"), "").expect("file");
    exits(&drill.run(&["run", "t.jsonl"]), 2, &["has no tasks"]);
    assert!(!drill.state().exists(), "nothing was begun");
}

#[test]
fn without_a_daemon_logs_and_restart_say_so() {
    let drill = Drill::new(POOL);
    for args in [&["logs", "demo/0"], &["restart", "demo/0"]] {
        exits(
            &drill.run(args),
            4,
            &["no supervisor answers", "marshal up"],
        );
    }
}

#[test]
fn a_run_shows_its_table_and_writes_its_results() {
    let drill = Drill::new(POOL);
    fs::write(drill.path("out.jsonl"), "old\n").expect("written");
    let ran = drill.run(&[
        "run",
        "--results",
        "out.jsonl",
        "say hi",
        "run curl x",
        "exit 3",
    ]);
    exits(&ran, 1, &["task-1: done", "task-2"]);
    for part in ["task-1", "task-3", "1 of 3 done", "denied by net"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.all());
    }
    let results = drill.results("out.jsonl");
    let mut words: Vec<(String, String)> = results
        .iter()
        .map(|line| {
            let word = |key: &str| line[key].as_str().expect("text").to_owned();
            (word("id"), word("outcome"))
        })
        .collect();
    words.sort();
    let word = |id: &str, outcome: &str| (id.to_owned(), outcome.to_owned());
    let expect = [
        word("task-1", "done"),
        word("task-2", "denied"),
        word("task-3", "lost"),
    ];
    assert_eq!(words, expect, "{}", ran.all());
    let ended: (i64, Option<i64>) = drill
        .database()
        .query_row("SELECT code, ended_at_us FROM runs", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("the run");
    assert!(
        ended.0 == 1 && ended.1.is_some(),
        "the run's end is kept: {ended:?}"
    );
    exits(&drill.run(&["run", "say hi"]), 0, &[]);
}

#[test]
fn json_is_all_that_a_program_reads() {
    let drill = Drill::new(POOL);
    let ran = drill.run(&["--json", "run", "say hi", "run curl x"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let kinds: Vec<String> = ran
        .stdout
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).expect(line);
            value["type"].as_str().expect("a type").to_owned()
        })
        .collect();
    let count = |kind: &str| kinds.iter().filter(|k| *k == kind).count();
    assert_eq!(
        (count("run"), count("ended"), count("complete")),
        (1, 2, 1),
        "{kinds:?}"
    );
    assert_eq!(kinds.first().map(String::as_str), Some("run"));
    assert_eq!(kinds.last().map(String::as_str), Some("complete"));
}

#[test]
fn the_daemon_serves_its_pages_and_ends_at_sigterm() {
    let drill = Drill::new(POOL);
    let mut running = up(&drill);
    assert_eq!(drill.get("/healthz").0, 200);
    assert_eq!(drill.get("/readyz").0, 200);
    let (status, page) = drill.get("/metrics");
    assert!(
        status == 200 && page.contains("\nmarshal_pool_slots{"),
        "{page}"
    );
    assert_eq!(drill.get("/nothing").0, 404);
    assert!(drill.state().join("http.sock").exists());
    exits(&drill.run(&["restart", "demo/0"]), 0, &[]);
    exits(&drill.run(&["restart", "demo/9"]), 2, &["demo/9"]);
    exits(&drill.run(&["logs", "demo/0"]), 0, &[]);
    is_up(&mut running);
    running.signal("TERM");
    assert_eq!(running.wait(Duration::from_secs(60)), Some(0));
    assert!(
        !drill.state().join("http.sock").exists(),
        "the socket is removed"
    );
    assert!(drill.agents().is_empty());
}

#[test]
fn a_taken_address_stops_a_daemon_and_not_a_run() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let taken = holder.local_addr().expect("address").to_string();
    let drill = Drill::new(POOL);
    let text = fs::read_to_string(drill.config()).expect("toml");
    fs::write(drill.config(), text.replace("127.0.0.1:0", &taken)).expect("written");
    exits(&drill.run(&["up"]), 3, &["error: ", &taken]);
    assert!(
        !drill.state().join("journal.db").exists(),
        "nothing was begun"
    );
    exits(&drill.run(&["run", "say hi"]), 0, &["note: ", &taken]);
}

#[test]
fn a_second_run_is_told_who_holds_the_state_and_may_work_beside_it() {
    let drill = Drill::new(POOL);
    let mut first = drill.start(&["run", "sleep 600s"]);
    eventually(Duration::from_secs(60), "an agent works", || {
        !drill.agents().is_empty()
    });
    let pid = first.pid().to_string();
    exits(&drill.run(&["run", "say hi"]), 0, &[&pid, "beside it"]);
    exits(&drill.run(&["up"]), 3, &[&pid]);
    exits(&drill.run(&["run", "--local", "say hi"]), 0, &[]);
    is_up(&mut first);
    first.signal("INT");
    eventually(Duration::from_secs(60), "it stops", || {
        drill.log("stderr.log").contains("no further task begins")
    });
    first.signal("INT");
    assert_eq!(first.wait(Duration::from_secs(60)), Some(130));
    let out = drill.log("stdout.log");
    assert!(out.contains("lost"), "{out}");
}

#[test]
fn beside_a_daemon_a_run_hands_its_tasks_over() {
    let drill = Drill::new(POOL);
    let mut daemon = up(&drill);
    let ran = drill.run(&["run", "--results", "out.jsonl", "say hi", "run curl x"]);
    exits(&ran, 1, &["task-1: done"]);
    assert!(ran.stdout.contains("1 of 2 done"), "{}", ran.all());
    assert!(ran.stdout.contains("denied by net"), "{}", ran.all());
    assert_eq!(drill.results("out.jsonl").len(), 2);
    let by: String = drill
        .database()
        .query_row("SELECT command FROM runs", [], |row| row.get(0))
        .expect("the daemon's run");
    assert_eq!(by, "up", "the daemon took them in");
    exits(&drill.run(&["run", "--local", "say hi"]), 0, &[]);
    is_up(&mut daemon);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(Duration::from_secs(60)), Some(0));
}

/// Whether a process has a handler for SIGINT.
fn heeds_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (2 - 1) != 0)
}

#[test]
fn a_journal_that_another_process_locks_does_not_hold_the_program() {
    let drill = Drill::new(POOL);
    exits(&drill.run(&["run", "say hi"]), 0, &[]);
    let mut running = up(&drill);
    let lock = drill.database();
    lock.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let mut client = drill
        .command(&["run", "say hi"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(|child| Running { child })
        .expect("marshal starts");
    eventually(Duration::from_secs(60), "it heeds signals", || {
        heeds_interrupts(client.pid())
    });
    std::thread::sleep(Duration::from_secs(1));
    is_up(&mut client);
    client.signal("INT");
    assert_eq!(client.wait(Duration::from_secs(20)), Some(1));
    lock.execute_batch("ROLLBACK").expect("unlocked");
    running.signal("TERM");
    assert_eq!(running.wait(Duration::from_secs(60)), Some(0));
}
