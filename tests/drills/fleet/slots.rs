//! Sessions that outlive their task, their child and their supervisor: `session = "slot"`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, Running, eventually};

/// Every protocol that the script agent speaks; ScaiFlux loads a session by an argument.
const DIALECTS: [&str; 2] = ["scaiflux", "acp"];

fn pool(dialect: &str, size: usize, restart: &str) -> String {
    let resume = match dialect {
        "scaiflux" => r#"resume_args = ["--resume", "{session}"]"#,
        _ => "",
    };
    format!(
        r#"
[pool.demo]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "{dialect}"]
dialect   = "{dialect}"
{resume}
session   = "slot"
attempts  = 2
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms", {restart} }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
    )
}

const LONG: Duration = Duration::from_secs(60);

const RESUME: &str = r#"on_crash = "resume""#;

/// Runs prompts one after another in one slot, and gives their results.
fn run(drill: &Drill, prompts: &[&str]) -> (Ran, Vec<Value>) {
    let mut args = vec!["run", "--results", "results.jsonl"];
    args.extend(prompts);
    let ran = drill.run(&args);
    let mut results = drill.results("results.jsonl");
    results.sort_by_key(|result| result["task"].as_str().map(str::to_owned));
    assert_eq!(results.len(), prompts.len(), "{}", ran.all());
    (ran, results)
}

/// A daemon whose doors are open.
fn daemon(drill: &Drill) -> Running {
    let daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    daemon
}

fn answer(result: &Value) -> &str {
    result["answer"].as_str().expect("an answer")
}

fn outcomes(results: &[Value]) -> Vec<&str> {
    results
        .iter()
        .map(|result| result["outcome"].as_str().expect("an outcome"))
        .collect()
}

fn sessions(results: &[Value]) -> BTreeSet<&str> {
    results
        .iter()
        .filter_map(|result| result["session"].as_str())
        .collect()
}

/// How many times something stands in the journal.
fn count(drill: &Drill, what: &str) -> i64 {
    drill
        .database()
        .query_row(&format!("SELECT count(*) FROM {what}"), [], |row| {
            row.get(0)
        })
        .expect(what)
}

/// Whether the first row begins with that; no table and no row say nothing.
fn database_says(drill: &Drill, query: &str, wanted: &str) -> bool {
    let found = drill
        .database()
        .query_row(query, [], |row| row.get::<_, String>(0));
    found.is_ok_and(|found| found == wanted)
}

#[test]
fn a_slot_gives_its_one_session_task_after_task_in_one_child() {
    for dialect in DIALECTS {
        let drill = Drill::new(&pool(dialect, 1, RESUME));
        let prompts = ["write a.txt one", "say two", "read a.txt", "recall"];
        let (ran, results) = run(&drill, &prompts);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert_eq!(sessions(&results).len(), 1, "{}", ran.all());
        let reported = answer(&results[3]);
        for earlier in &prompts[..3] {
            assert!(
                reported.contains(earlier),
                "{earlier} is not in {reported:?}"
            );
        }
        assert_eq!(results[0]["changes"][0]["path"], "a.txt", "{}", results[0]);
        assert_eq!(
            results[1]["changes"],
            serde_json::json!([]),
            "{}",
            results[1]
        );
        assert_eq!(count(&drill, "events WHERE kind = 'child_started'"), 1);
        assert_eq!(drill.assert_dense(), 1);
        assert_eq!(count(&drill, "sessions WHERE ended_at_us IS NULL"), 0);
        assert!(drill.agents().is_empty());
        let homes = std::fs::read_dir(drill.state().join("homes")).expect("homes");
        assert_eq!(homes.count(), 0, "a session that is over leaves no home");
    }
}

#[test]
fn a_child_crashed_in_its_turn_goes_on_with_its_session_and_the_next_task_knows_what_came_before() {
    for dialect in DIALECTS {
        let drill = Drill::new(&pool(dialect, 1, RESUME));
        let prompts = ["say one", "write b.txt two\ncrash", "recall", "read b.txt"];
        let (ran, results) = run(&drill, &prompts);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert_eq!(
            outcomes(&results),
            ["done", "lost", "done", "done"],
            "{}",
            ran.all()
        );
        assert_eq!(
            sessions(&results).len(),
            1,
            "the same session: {}",
            ran.all()
        );
        assert_eq!(
            results[1]["attempts"],
            1,
            "it is not sent again: {}",
            ran.all()
        );
        let reported = answer(&results[2]);
        assert!(reported.contains("say one"), "{reported:?}");
        assert!(
            reported.contains("crash"),
            "what was lost came before, too: {reported:?}"
        );
        assert_eq!(count(&drill, "events WHERE kind = 'child_started'"), 2);
        // What was replayed of the past is no new event.
        assert_eq!(count(&drill, "events WHERE kind = 'turn_ended'"), 4);
        assert_eq!(drill.assert_dense(), 1);
    }
}

#[test]
fn without_resume_a_crash_ends_the_session_and_the_next_task_begins_a_new_one() {
    let drill = Drill::new(&pool("scaiflux", 1, r#"on_crash = "report""#));
    let (ran, results) = run(&drill, &["say one", "crash", "recall"]);
    assert_eq!(
        outcomes(&results),
        ["done", "lost", "done"],
        "{}",
        ran.all()
    );
    assert_eq!(results[0]["session"], results[1]["session"]);
    assert_ne!(results[1]["session"], results[2]["session"]);
    assert!(!answer(&results[2]).contains("say one"), "{}", ran.all());
    assert_eq!(count(&drill, "sessions WHERE ended_at_us IS NULL"), 0);
}

#[test]
fn a_temporary_child_is_not_started_again_for_its_session() {
    let restart = format!(r#"{RESUME}, kind = "temporary""#);
    let drill = Drill::new(&pool("scaiflux", 1, &restart));
    let (ran, results) = run(&drill, &["say one", "crash", "recall"]);
    assert_eq!(
        outcomes(&results),
        ["done", "lost", "done"],
        "{}",
        ran.all()
    );
    assert_ne!(results[1]["session"], results[2]["session"]);
}

#[test]
fn with_retry_the_prompt_is_sent_again_in_a_fresh_session_and_copy() {
    let drill = Drill::new(&pool("scaiflux", 1, r#"on_crash = "retry""#));
    let (ran, results) = run(&drill, &["write one.txt 1", "list .\ncrash", "list ."]);
    assert_eq!(
        outcomes(&results),
        ["done", "lost", "done"],
        "{}",
        ran.all()
    );
    assert_eq!(results[1]["attempts"], 3, "{}", ran.all());
    assert_eq!(count(&drill, "sessions"), 4, "{}", ran.all());
    let listed = "events WHERE kind = 'tool_result' AND body LIKE '%README.md%'";
    assert_eq!(count(&drill, listed), 4);
    let with_file = format!("{listed} AND body LIKE '%one.txt%'");
    assert_eq!(
        count(&drill, &with_file),
        1,
        "only the first session had it"
    );
}

#[test]
fn an_agent_that_cannot_load_its_session_gets_a_new_one_and_no_task_is_lost_by_it() {
    let pool = pool("scaiflux", 1, RESUME).replace("{session}\"]", "{session}-unknown\"]");
    let drill = Drill::new(&pool);
    let (ran, results) = run(&drill, &["say one", "crash", "say three"]);
    assert_eq!(
        outcomes(&results),
        ["done", "lost", "done"],
        "{}",
        ran.all()
    );
    assert_ne!(
        results[1]["session"],
        results[2]["session"],
        "{}",
        ran.all()
    );
    assert!(ran.stderr.contains("cannot be loaded"), "{}", ran.all());
    assert_eq!(results[2]["attempts"], 1, "{}", ran.all());
}

#[test]
fn a_permanent_child_is_back_before_a_task_needs_it() {
    let restart = format!(r#"{RESUME}, kind = "permanent""#);
    let drill = Drill::new(&pool("scaiflux", 1, &restart));
    let _daemon = daemon(&drill);
    let ran = drill.run(&["run", "say one", "crash"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    eventually(LONG, "a child without a task", || {
        count(&drill, "events WHERE kind = 'ready'") == 2 && !drill.agents().is_empty()
    });
}

#[test]
fn a_slot_restarted_by_hand_between_tasks_goes_on_with_its_session() {
    let drill = Drill::new(&pool("scaiflux", 1, RESUME));
    let mut daemon = self::daemon(&drill);
    assert_eq!(drill.run(&["run", "say one"]).code, Some(0));
    let before = drill.agents();
    assert!(!before.is_empty(), "the child waits for the next task");
    let restarted = drill.run(&["restart", "demo/0"]);
    assert_eq!(restarted.code, Some(0), "{}", restarted.all());
    let left: Vec<u32> = drill.agents().intersection(&before).copied().collect();
    let shown = left.iter().map(|pid| {
        let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        format!(
            "{:?} {:?} {:?}",
            read("cmdline"),
            read("stat"),
            read("wchan")
        )
    });
    let shown: Vec<String> = shown.collect();
    assert!(left.is_empty(), "of the old child there is still {shown:?}");
    let (ran, results) = run(&drill, &["recall"]);
    assert!(answer(&results[0]).contains("say one"), "{}", ran.all());
    daemon.signal("TERM");
    daemon.wait(LONG);
    assert!(drill.agents().is_empty());
}

#[test]
fn a_session_outlives_its_supervisor_stopped_or_killed() {
    for signal in ["TERM", "KILL"] {
        let drill = Drill::new(&pool("scaiflux", 2, RESUME));
        let mut daemon = self::daemon(&drill);
        let (ran, before) = run(&drill, &["write kept.txt yes\nsleep 300ms", "sleep 300ms"]);
        assert_eq!(outcomes(&before), ["done", "done"], "{}", ran.all());
        assert_eq!(
            sessions(&before).len(),
            2,
            "a session a slot: {}",
            ran.all()
        );
        daemon.signal(signal);
        daemon.wait(LONG);
        eventually(Duration::from_secs(20), "no agent is left", || {
            drill.agents().is_empty()
        });
        assert_eq!(count(&drill, "sessions WHERE ended_at_us IS NULL"), 2);

        let _daemon = self::daemon(&drill);
        let prompt = "recall\nlist .\nsleep 300ms";
        let (ran, after) = run(&drill, &[prompt, prompt]);
        assert_eq!(outcomes(&after), ["done", "done"], "{}", ran.all());
        assert_eq!(sessions(&after), sessions(&before), "{}", ran.all());
        let knows = |result: &Value| answer(result).contains("write kept.txt");
        assert!(after.iter().any(knows), "{}", ran.all());
        assert_eq!(drill.assert_dense(), 2);
        assert_eq!(count(&drill, "sessions"), 2);
    }
}

/// A killed run's session that the continued run did not need is over, and so is its home.
#[test]
fn a_session_that_nobody_goes_on_with_leaves_no_home() {
    let drill = Drill::new(&pool("scaiflux", 1, RESUME));
    let mut running = drill.start(&["run", "say first", "sleep 600s"]);
    eventually(LONG, "the second task begins", || {
        drill.state().join("journal.db").exists()
            && database_says(&drill, "SELECT state FROM tasks WHERE place = 1", "running")
    });
    running.child.kill().expect("kill -9");
    running.wait(LONG);
    let homes = || std::fs::read_dir(drill.state().join("homes")).map_or(0, Iterator::count);
    assert_eq!(homes(), 1);
    let ran = drill.run(&["run", "--continue"]);
    assert!(ran.stdout.contains("lost"), "{}", ran.all());
    assert_eq!(count(&drill, "sessions WHERE ended_at_us IS NULL"), 0);
    assert_eq!(homes(), 0, "{}", ran.all());
}

#[test]
fn a_task_with_a_workspace_of_its_own_is_refused_where_the_session_has_one() {
    let drill = Drill::new(&pool("scaiflux", 1, RESUME));
    let line = r#"{"prompt": "say x", "workspace": "project/src"}"#;
    std::fs::write(drill.path("tasks.jsonl"), line).expect("tasks.jsonl");
    let ran = drill.run(&["run", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("session = \"slot\""), "{}", ran.all());
}
