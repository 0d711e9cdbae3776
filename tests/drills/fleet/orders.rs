//! Orders from outside, and what a pool's keys promise: checks, timeouts, unasked calls,
//! workspaces, restarts by hand.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drill::{Drill, NOBODY, Running, count, eventually, metric};
use crate::programs::install;

const LONG: Duration = Duration::from_secs(60);
/// For what must be gone by then, and would be there for minutes by itself.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

fn pool(more: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "cautious"
stop      = {{ goodbye = "300ms", eof = "300ms", int = "300ms", term = "300ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}
"#
    )
}

const COPY: &str = "workspace = { path = \"project\", mode = \"copy\" }";

fn outcomes(drill: &Drill, args: &[&str]) -> (Vec<Value>, Option<i32>, String) {
    let mut line = vec!["run", "--results", "results.jsonl"];
    line.extend(args);
    let ran = drill.run(&line);
    (drill.results("results.jsonl"), ran.code, ran.all())
}

#[test]
fn a_restart_by_hand_ends_a_backoff() {
    let more = format!(
        "{COPY}\nrestart = {{ base = \"20m\", max = \"20m\", budget = 9, on_crash = \"report\" }}"
    );
    let drill = Drill::new(&pool(&more));
    let mut running = drill.start(&["run", "--results", "results.jsonl", "crash", "say hello"]);
    eventually(LONG, "the slot backs off", || {
        drill.log("stderr.log").contains("backing off")
    });
    let ran = drill.run(&["restart", "demo/0"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(running.wait(LONG), Some(1));
    let results = drill.results("results.jsonl");
    let of =
        |id: &str| results.iter().find(|r| r["id"] == id).expect("a result")["outcome"].clone();
    assert_eq!((of("task-1"), of("task-2")), ("lost".into(), "done".into()));
}

#[test]
fn a_check_decides_whether_a_task_is_done() {
    let more = format!("{COPY}\ncheck = [\"test\", \"-e\", \"made.txt\"]\nattempts = 2");
    let drill = Drill::new(&pool(&more));
    let (results, code, all) = outcomes(&drill, &["write made.txt x", "say nothing made"]);
    assert_eq!(code, Some(1), "{all}");
    assert_eq!(results[0]["outcome"], "done", "{all}");
    assert_eq!(results[0]["attempts"], 1, "{all}");
    assert_eq!(results[1]["outcome"], "failed", "{all}");
    assert_eq!(
        results[1]["attempts"], 2,
        "a failed check is tried again: {all}"
    );
    let detail = results[1]["detail"].as_str().expect("a detail");
    assert!(detail.contains("check"), "{detail}");
}

#[test]
fn a_running_check_can_be_cancelled() {
    let more = format!("{COPY}\ncheck = [\"sleep\", \"600\"]");
    let drill = Drill::new(&pool(&more));
    let _daemon = drill.start(&["up"]);
    eventually(LONG, "the daemon is ready", || {
        drill.log("stderr.log").contains("listening on http://") && drill.get("/readyz").0 == 200
    });
    let client = drill
        .command(&["run", "--results", "results.jsonl", "say hello"])
        .spawn();
    let mut client = Running {
        child: client.expect("marshal starts"),
    };
    eventually(LONG, "the check runs", || {
        drill.agents().iter().any(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sleep")
        })
    });
    client.signal("TERM");
    assert_eq!(client.wait(CLEANUP_TIMEOUT), Some(1));
    assert_eq!(drill.results("results.jsonl")[0]["outcome"], "cancelled");
    eventually(CLEANUP_TIMEOUT, "nothing is left", || {
        drill.agents().is_empty()
    });
}

#[test]
fn signals_in_the_middle_of_starts_leave_nothing_and_lose_no_report() {
    let drill = Drill::new(&pool(COPY).replace("size      = 1", "size      = 16"));
    for round in 0..count(5) as u64 {
        let pause = [0, 20, 60, 120, 250][(round % 5) as usize] + round / 5;
        let mut args = vec!["run", "--results", "results.jsonl"];
        args.extend(["sleep 600s"; 16]);
        let mut running = drill.start(&args);
        eventually(LONG, "the run begins", || {
            drill.log("stderr.log").contains("assigned to")
        });
        std::thread::sleep(Duration::from_millis(pause));
        running.signal("INT");
        eventually(LONG, "it stops", || {
            drill.log("stderr.log").contains("no further task begins")
        });
        running.signal("INT");
        assert_eq!(running.wait(LONG), Some(130), "after {pause} ms");
        let results = drill.results("results.jsonl");
        let left: i64 = drill
            .database()
            .query_row(
                "SELECT count(*) FROM tasks WHERE state = 'queued' AND run = (SELECT max(run) FROM runs)",
                [],
                |row| row.get(0),
            )
            .expect("a count");
        assert_eq!(
            i64::try_from(results.len()).expect("few") + left,
            16,
            "after {pause} ms"
        );
        for result in &results {
            assert_eq!(result["outcome"], "lost", "{result}");
        }
        eventually(CLEANUP_TIMEOUT, "nothing is left", || {
            drill.agents().is_empty()
        });
        drill.assert_dense();
    }
}

#[test]
fn a_silent_turn_times_out_and_a_talking_one_does_not() {
    let more = format!("{COPY}\ntimeouts = {{ silence = \"5s\", cancel = \"500ms\" }}");
    let drill = Drill::new(&pool(&more));
    // Longer than that, and never silent for as long.
    let talking = ["say alive\nsleep 1s"; 6].join("\n");
    let (results, _, all) = outcomes(&drill, &["hang", "run sleep 3", &talking]);
    assert_eq!(results[0]["outcome"], "timed_out", "{all}");
    assert_eq!(results[2]["outcome"], "done", "{all}");
    eventually(CLEANUP_TIMEOUT, "nothing is left", || {
        drill.agents().is_empty()
    });
}

#[test]
fn what_is_no_protocol_ends_the_child_and_only_that() {
    let more = format!(
        "{COPY}\nrestart = {{ base = \"20ms\", max = \"50ms\", budget = 100, on_crash = \"report\" }}"
    );
    let drill = Drill::new(&pool(&more));
    let (results, _, all) = outcomes(
        &drill,
        &[
            "huge-line 9M",
            "garbage",
            "exit 7",
            "slow\nsay slowly",
            "ignore-cancel\nsay fine",
        ],
    );
    let words: Vec<_> = results
        .iter()
        .map(|r| r["outcome"].as_str().unwrap_or("?"))
        .collect();
    assert_eq!(words, ["lost", "done", "lost", "done", "done"], "{all}");
    let detail = results[0]["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("8388608") || detail.contains("long"),
        "{detail}"
    );
    let classes: Vec<String> = {
        let database = drill.database();
        let mut statement = database
            .prepare("SELECT json_extract(body, '$.class') FROM events WHERE kind = 'child_exited' ORDER BY at_us")
            .expect("events");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    };
    assert_eq!(
        classes,
        ["protocol_fault", "stopped", "exited", "stopped", "stopped"],
        "{all}"
    );
}

#[test]
fn a_call_that_ran_without_a_request_is_judged_afterwards() {
    let script = "unasked curl https://example.com";
    let drill = Drill::new(&pool(COPY));
    let (results, _, all) = outcomes(&drill, &[script]);
    assert_eq!(results[0]["outcome"], "done", "reported only: {all}");
    assert_eq!(results[0]["unasked_denied"], 1, "{all}");
    let drill = Drill::new(&pool(&format!("{COPY}\non_unasked_deny = \"stop\"")));
    let (results, _, all) = outcomes(&drill, &[&format!("{script}\nsleep 60s")]);
    assert_eq!(results[0]["outcome"], "failed", "{all}");
    let verdicts: i64 = drill
        .database()
        .query_row(
            "SELECT count(*) FROM events WHERE kind = 'tool_call_unrequested'",
            [],
            |row| row.get(0),
        )
        .expect("events");
    assert_eq!(verdicts, 1);
}

#[test]
fn a_denied_call_that_nobody_asked_for_interrupts_its_turn_and_a_doubtful_one_is_counted() {
    let more = format!("{COPY}\nsession = \"slot\"\non_unasked_deny = \"interrupt\"");
    let drill = Drill::new(&pool(&more));
    let _daemon = drill.start(&["up"]);
    eventually(LONG, "ready", || drill.get("/readyz").0 == 200);
    // A person would have to allow the first; that it ran ends nothing.
    let prompts = [
        "unasked touch made.txt\nsay on",
        "unasked curl https://example.com\nsleep 60s",
        "unasked ls\nsay on",
    ];
    let began = Instant::now();
    let (results, code, all) = outcomes(&drill, &prompts);
    let took = began.elapsed();
    assert_eq!(code, Some(1), "{all}");
    assert!(took < Duration::from_secs(55), "{took:?}");
    let of = |key: &str| -> Vec<Value> { results.iter().map(|of| of[key].clone()).collect() };
    assert_eq!(of("outcome"), ["done", "failed", "done"], "{all}");
    assert_eq!(of("unasked_denied"), [0, 1, 0], "{all}");
    let detail = results[1]["detail"].as_str().expect("a detail");
    assert!(detail.contains("ran without a request"), "{detail}");
    let children: i64 = drill
        .database()
        .query_row(
            "SELECT count(*) FROM events WHERE kind = 'child_started'",
            [],
            |row| row.get(0),
        )
        .expect("events");
    assert_eq!(children, 1, "only its turn ended: {all}");
    let page = drill.get("/metrics").1;
    for verdict in ["allow", "ask", "deny"] {
        let name =
            format!("marshal_tool_calls_unasked_total{{pool=\"demo\",verdict=\"{verdict}\"}}");
        assert_eq!(metric(&page, &name), Some(1.0), "{verdict}: {page}");
    }
}

#[test]
fn a_read_only_workspace_cannot_be_written_and_a_writable_one_keeps_its_owner() {
    let drill = Drill::new(&pool("workspace = { path = \"project\", mode = \"ro\" }"));
    let (results, _, all) = outcomes(&drill, &["write new.txt x"]);
    assert!(!drill.workspace().join("new.txt").exists(), "{all}");
    assert_eq!(
        results[0]["changes"].as_array().map(Vec::len),
        Some(0),
        "{all}"
    );

    let drill = Drill::new(&pool("workspace = { path = \"project\", mode = \"rw\" }"));
    let checked = drill.run(&["config", "check"]);
    assert_eq!(
        checked.code,
        Some(2),
        "it is found before: {}",
        checked.all()
    );
    let (_, code, all) = outcomes(&drill, &["say hello"]);
    assert_eq!(code, Some(1), "a tree of root is refused: {all}");
    assert!(all.contains("copy"), "with a hint: {all}");

    let owner = format!("{NOBODY}:{NOBODY}");
    let chown = Command::new("chown")
        .args(["-R", &owner])
        .arg(drill.workspace())
        .status();
    assert!(chown.expect("chown").success());
    let (results, code, all) = outcomes(&drill, &["write new.txt x"]);
    assert_eq!(code, Some(0), "{all}");
    let made = fs::metadata(drill.workspace().join("new.txt")).expect("written");
    assert_eq!((made.uid(), made.gid()), (NOBODY, NOBODY));
    assert_eq!(results[0]["changes"][0]["path"], "new.txt", "{all}");
}

#[test]
fn every_verdict_is_in_the_audit_chain() {
    let drill = Drill::new(&pool(COPY));
    let (_, _, all) = outcomes(
        &drill,
        &["read README.md\nrun curl https://example.com\nwrite a.txt b\nrun sudo ls\nlist ."],
    );
    let proved = drill.run(&["--json", "audit", "verify"]);
    let proof: Value = serde_json::from_str(&proved.stdout).expect("a proof");
    assert_eq!(
        (&proof["ok"], &proof["records"]),
        (&json!(true), &json!(5)),
        "{all}"
    );
    let rules: Vec<(String, String)> = {
        let database = drill.database();
        let mut statement = database
            .prepare("SELECT decision, rules FROM permission_requests ORDER BY link")
            .expect("approvals");
        let rows = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    };
    let words: Vec<_> = rules
        .iter()
        .map(|(decision, _)| decision.as_str())
        .collect();
    assert_eq!(
        words,
        ["allow", "deny", "allow", "deny", "allow"],
        "{rules:?}"
    );
    assert!(rules[1].1.contains("net"), "{rules:?}");
    drop(
        drill
            .database()
            .execute_batch("UPDATE permission_requests SET decision = 'allow' WHERE link = 2"),
    );
    let proved = drill.run(&["audit", "verify"]);
    assert_eq!(
        proved.code,
        Some(1),
        "a changed verdict is found: {}",
        proved.all()
    );
}

/// Whether a process has a handler for SIGINT.
fn heeds_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (2 - 1) != 0)
}

#[test]
fn a_stopped_journal_is_no_reason_to_ignore_a_signal() {
    let drill = Drill::new(&pool(COPY));
    let (_, code, all) = outcomes(&drill, &["say hello"]);
    assert_eq!(code, Some(0), "{all}");
    let blocker = drill.database();
    blocker.execute_batch("BEGIN IMMEDIATE").expect("lock");
    let mut running = drill.start(&["run", "say hello"]);
    eventually(LONG, "it heeds signals", || heeds_interrupts(running.pid()));
    std::thread::sleep(Duration::from_millis(1500));
    running.signal("INT");
    std::thread::sleep(Duration::from_millis(500));
    running.signal("INT");
    let code = running.wait(Duration::from_secs(25));
    assert!(matches!(code, Some(1 | 3 | 130)), "{code:?}");
    drop(blocker);
}

/// A repository can name programs that git runs; listing its files must run none of them.
#[test]
fn a_hostile_repository_runs_nothing_before_the_agent() {
    for launcher in ["unshare", "none"] {
        let drill = Drill::new(&pool(COPY).replace("\"unshare\"", &format!("{launcher:?}")));
        let project = drill.workspace();
        let witness = drill.path("witness");
        let program = drill.path("program.sh");
        let text = format!(
            "#!/bin/sh\nid > {}\nid > /tmp/witness-$PPID\n",
            witness.display()
        );
        install(&program, text.as_bytes());
        let git = |args: &[&str]| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=x", "-c", "user.email=x@x"])
                .args(args);
            let output = git.current_dir(&project).output().expect("git");
            assert!(output.status.success(), "{args:?}: {output:?}");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        git(&["init", "-q"]);
        git(&["add", "-A"]);
        git(&["commit", "-q", "-m", "x"]);
        git(&[
            "sparse-checkout",
            "set",
            "--cone",
            "--sparse-index",
            "nothing",
        ]);
        let tree = git(&["rev-parse", "HEAD:src"]);
        fs::remove_file(project.join(format!(".git/objects/{}/{}", &tree[..2], &tree[2..])))
            .expect("an object");
        git(&["config", "extensions.partialClone", "origin"]);
        git(&["config", "core.repositoryformatversion", "1"]);
        git(&[
            "config",
            "remote.origin.url",
            &format!("ext::{}", program.display()),
        ]);
        git(&["config", "remote.origin.promisor", "true"]);
        git(&["config", "protocol.ext.allow", "always"]);
        git(&["config", "core.fsmonitor", &program.display().to_string()]);
        let (_, _, all) = outcomes(&drill, &["say hello"]);
        assert!(!witness.exists(), "{launcher}: {all}");
    }
}

/// What an agent leaves in a directory that it may write does not choose a later task's sandbox.
#[test]
fn a_link_that_an_agent_left_is_not_followed() {
    let drill = Drill::new(&pool("workspace = { path = \"project\", mode = \"rw\" }"));
    let victim = drill.path("victim");
    fs::create_dir(&victim).expect("victim");
    fs::create_dir(drill.workspace().join("sub")).expect("sub");
    let owner = format!("{NOBODY}:{NOBODY}");
    let chown = Command::new("chown")
        .args(["-R", &owner])
        .arg(drill.workspace())
        .arg(&victim)
        .status();
    assert!(chown.expect("chown").success());
    // As an agent would: the directory becomes a link.
    fs::rename(
        drill.workspace().join("sub"),
        drill.workspace().join("sub2"),
    )
    .expect("moved");
    std::os::unix::fs::symlink(&victim, drill.workspace().join("sub")).expect("a link");
    let task = serde_json::json!({"prompt": "write planted x", "workspace": drill.workspace().join("sub")});
    fs::write(drill.path("tasks.jsonl"), task.to_string()).expect("tasks");
    let ran = drill.run(&["run", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("link"), "{}", ran.all());
    assert!(!victim.join("planted").exists());
}

#[test]
fn the_state_directory_is_no_workspace() {
    let drill = Drill::new(&pool(COPY));
    let (_, code, all) = outcomes(&drill, &["say hello"]);
    assert_eq!(code, Some(0), "{all}");
    for path in [drill.state(), drill.state().join("homes"), drill.path(".")] {
        let task = serde_json::json!({"prompt": "list .", "workspace": path});
        fs::write(drill.path("tasks.jsonl"), task.to_string()).expect("tasks");
        let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        let detail = drill.results("results.jsonl")[0]["detail"].to_string();
        assert!(detail.contains("state directory"), "{path:?}: {detail}");
    }
}
