//! Forty tasks over four slots, and every fifth crashes its agent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually, metric};

fn pool(restart: &str, attempts: u32) -> String {
    format!(
        r#"
[pool.demo]
size      = 4
command   = ["marshal", "script-agent", "--dialect", "scaiflux"]
launcher  = "unshare"
policy    = "cautious"
attempts  = {attempts}
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ budget = 100, base = "20ms", max = "200ms", on_crash = "{restart}" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
    )
}

/// Forty tasks; every fifth notes that it was there, then crashes its agent.
fn tasks(drill: &Drill) {
    let mut text = String::new();
    for number in 1..=40 {
        let prompt = if number % 5 == 0 {
            "write was-here.txt once\ncrash".to_owned()
        } else {
            format!("write out-{number}.txt {number}\nread out-{number}.txt")
        };
        let line = serde_json::json!({"id": format!("t{number}"), "prompt": prompt});
        let _ = writeln!(text, "{line}");
    }
    fs::write(drill.path("tasks.jsonl"), text).expect("tasks.jsonl");
}

fn by_outcome(results: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for result in results {
        let outcome = result["outcome"].as_str().expect("an outcome").to_owned();
        *counts.entry(outcome).or_default() += 1;
    }
    counts
}

fn run(restart: &str, attempts: u32) -> (Drill, Ran) {
    let drill = Drill::new(&pool(restart, attempts));
    tasks(&drill);
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    (drill, ran)
}

#[test]
fn with_report_the_crashed_are_lost_and_all_others_done() {
    let (drill, ran) = run("report", 1);
    let results = drill.results("results.jsonl");
    let counts = by_outcome(&results);
    assert_eq!(counts.get("done"), Some(&32), "{}", ran.all());
    assert_eq!(counts.get("lost"), Some(&8), "{}", ran.all());
    for result in results.iter().filter(|result| result["outcome"] == "lost") {
        assert_eq!(result["attempts"], 1, "{result}");
        assert_eq!(
            result["restarts"], 1,
            "the crash delayed its slot: {result}"
        );
    }
    assert!(
        ran.stdout.contains("restarts"),
        "the table shows them: {}",
        ran.all()
    );
    // A session a task, and none has a gap.
    assert_eq!(drill.assert_dense(), 40);
}

#[test]
fn with_retry_the_crashed_are_sent_again_in_a_fresh_copy() {
    let (drill, ran) = run("retry", 1);
    let results = drill.results("results.jsonl");
    assert_eq!(by_outcome(&results).get("done"), Some(&32), "{}", ran.all());
    let lost: Vec<_> = results
        .iter()
        .filter(|result| result["outcome"] == "lost")
        .collect();
    assert_eq!(lost.len(), 8, "{}", ran.all());
    for result in &lost {
        assert_eq!(result["attempts"], 2, "{result}");
    }
    // 32 once, 8 twice; each attempt is a session of its own.
    assert_eq!(drill.assert_dense(), 48);
    let database = drill.database();
    let copies: i64 = database
        .query_row(
            "SELECT count(*) FROM sessions WHERE attempt = 2",
            [],
            |row| row.get(0),
        )
        .expect("sessions");
    assert_eq!(copies, 8);
    let first_words: i64 = database
        .query_row(
            "SELECT count(*) FROM events WHERE kind = 'prompt_accepted'",
            [],
            |row| row.get(0),
        )
        .expect("events");
    assert_eq!(first_words, 48);
}

#[test]
fn restarts_and_backoff_show_in_metrics() {
    let drill = Drill::new(&pool("report", 1));
    let script = "crash";
    let mut running = drill.start(&["run", script, script, script, "sleep 10m"]);
    let mut page = String::new();
    eventually(Duration::from_secs(60), "three restarts", || {
        page = drill.get("/metrics").1;
        metric(
            &page,
            r#"marshal_child_restarts_total{pool="demo",cause="crash"}"#,
        ) == Some(3.0)
    });
    assert_eq!(
        metric(
            &page,
            r#"marshal_child_exits_total{pool="demo",reason="signalled"}"#
        ),
        Some(3.0),
        "{page}"
    );
    assert_eq!(
        metric(
            &page,
            r#"marshal_child_restart_delay_seconds_count{pool="demo"}"#
        ),
        Some(3.0)
    );
    assert_eq!(
        metric(&page, r#"marshal_turns_total{pool="demo",outcome="lost"}"#),
        Some(3.0)
    );
    running.end(Duration::from_secs(60));
}

#[test]
fn a_spent_budget_parks_the_slot_and_the_run_still_ends() {
    let pool = pool("report", 1)
        .replace("budget = 100", "budget = 2")
        .replace("size      = 4", "size      = 1");
    let drill = Drill::new(&pool);
    let script = "crash";
    let ran = drill.run(&[
        "run",
        "--results",
        "results.jsonl",
        script,
        script,
        script,
        script,
        script,
    ]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let counts = by_outcome(&drill.results("results.jsonl"));
    assert_eq!(counts.get("lost"), Some(&3), "{}", ran.all());
    assert_eq!(counts.get("skipped"), Some(&2), "{}", ran.all());
    assert!(ran.stderr.contains("parked"), "{}", ran.all());
}

/// The second attempt must not find what the first wrote.
#[test]
fn a_second_attempt_starts_from_the_original() {
    let drill = Drill::new(&pool("retry", 1));
    let script = "list .\nwrite was-here.txt x\ncrash";
    let ran = drill.run(&["run", "--results", "results.jsonl", script]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(
        drill.results("results.jsonl")[0]["attempts"],
        2,
        "{}",
        ran.all()
    );
    let database = drill.database();
    let listed = |more: &str| -> i64 {
        let query = format!(
            "SELECT count(*) FROM events WHERE kind = 'tool_result' AND body LIKE '%README.md%'{more}"
        );
        database
            .query_row(&query, [], |row| row.get(0))
            .expect("events")
    };
    assert_eq!(listed(""), 2, "both attempts listed their copy");
    assert_eq!(
        listed(" AND body LIKE '%was-here%'"),
        0,
        "and neither saw the other's file"
    );
}
