//! A run that outlives its supervisor: `run --continue`, and `up`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually};

const LONG: Duration = Duration::from_secs(60);

fn pool(attempts: u32, restart: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = 4
command   = ["marshal", "script-agent", "--dialect", "scaiflux", "--ledger", "ledger.jsonl"]
policy    = "cautious"
attempts  = {attempts}
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ budget = 100, base = "20ms", max = "100ms", {restart} }}
env       = {{ set = {{ DRILL = "MARK" }} }}
"#
    )
}

/// So many tasks; each writes a file and works a moment.
fn tasks(drill: &Drill, count: usize) {
    let mut text = String::new();
    for number in 1..=count {
        let prompt = format!("write out-{number}.txt {number}\nsleep 150ms\nsay done");
        let line = serde_json::json!({"id": format!("t{number}"), "prompt": prompt});
        let _ = writeln!(text, "{line}");
    }
    fs::write(drill.path("tasks.jsonl"), text).expect("tasks.jsonl");
}

fn number(drill: &Drill, query: &str) -> i64 {
    let database = drill.database();
    let found = database.query_row(query, [], |row| row.get(0));
    found.unwrap_or_else(|error| panic!("{query}: {error}"))
}

fn count_ended_tasks(drill: &Drill) -> i64 {
    if !drill.state().join("journal.db").exists() {
        return 0;
    }
    let database = drill.database();
    let query = "SELECT count(*) FROM tasks WHERE state = 'ended'";
    database.query_row(query, [], |row| row.get(0)).unwrap_or(0)
}

fn in_flight(drill: &Drill) -> BTreeSet<String> {
    let database = drill.database();
    let mut statement = database
        .prepare("SELECT id FROM tasks WHERE state = 'running'")
        .expect("tasks");
    let rows = statement.query_map([], |row| row.get(0)).expect("rows");
    rows.collect::<Result<_, _>>().expect("rows")
}

/// Whether a turn runs now.
fn turn_runs(drill: &Drill) -> bool {
    let query = "SELECT count(*) FROM tasks WHERE state = 'running' AND NOT EXISTS \
                 (SELECT 1 FROM events WHERE events.session = tasks.session \
                  AND kind = 'turn_ended')";
    number(drill, query) > 0
}

/// Kills a supervisor once so many tasks have ended, and gives what was in flight.
fn killed_at(drill: &Drill, args: &[&str], tasks: i64) -> BTreeSet<String> {
    let mut running = drill.start(args);
    // Looked at while it stands still: the turn that is seen is one that the kill ends.
    eventually(LONG, "enough tasks have ended, and some run", || {
        if count_ended_tasks(drill) < tasks {
            return false;
        }
        running.signal("STOP");
        let is_in_a_turn = turn_runs(drill);
        if !is_in_a_turn {
            running.signal("CONT");
        }
        is_in_a_turn
    });
    running.child.kill().expect("kill -9");
    let _ = running.child.wait();
    eventually(LONG, "no agent is left", || drill.agents().is_empty());
    in_flight(drill)
}

fn by_id(results: &[Value]) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for result in results {
        let id = result["id"].as_str().expect("an id").to_owned();
        assert!(found.insert(id, result.clone()).is_none(), "{result} twice");
    }
    found
}

/// Prompts that a task's child received, by its own account, in the copy of its last attempt.
fn received(result: &Value) -> usize {
    let copy = result["workspace"].as_str().expect("a copy");
    let ledger = fs::read_to_string(format!("{copy}/ledger.jsonl")).unwrap_or_default();
    ledger.matches("\"kind\":\"prompt\"").count()
}

fn refused(drill: &Drill, args: &[&str], expect: &str) {
    let ran = drill.run(args);
    assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.all());
    assert!(ran.stderr.contains(expect), "{args:?}: {}", ran.all());
}

fn table_has_all(ran: &Ran, count: usize) {
    for number in 1..=count {
        let row = format!("\nt{number} ");
        assert!(ran.stdout.contains(&row), "{row:?}: {}", ran.all());
    }
}

#[test]
fn with_report_what_was_in_flight_is_lost_and_nothing_is_repeated() {
    let drill = Drill::new(&pool(1, r#"on_crash = "report""#));
    tasks(&drill, 20);
    let args = ["run", "--results", "first.jsonl", "tasks.jsonl"];
    let lost = killed_at(&drill, &args, 6);
    let before = fs::read_to_string(drill.path("first.jsonl")).expect("results");

    let ran = drill.run(&["run", "--continue", "--results", "whole.jsonl"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    table_has_all(&ran, 20);
    assert!(ran.stdout.contains(" of 20 done, "), "{}", ran.all());
    let whole = fs::read_to_string(drill.path("whole.jsonl")).expect("results");
    assert!(
        whole.starts_with(&before),
        "what had ended is told as it was:\n{before}\n---\n{whole}"
    );
    let results = by_id(&drill.results("whole.jsonl"));
    assert_eq!(results.len(), 20);
    for (id, result) in &results {
        // A turn that had ended when the supervisor was killed is over, too.
        let is_lost = result["outcome"] == "lost";
        assert!(is_lost || result["outcome"] == "done", "{result}");
        assert!(!is_lost || lost.contains(id), "{result}");
        assert_eq!(result["attempts"], 1, "{result}");
        assert!(received(result) <= 1, "{result}");
        assert!(is_lost || received(result) == 1, "{result}");
    }
    let accepted = "SELECT count(*) FROM events WHERE kind = 'prompt_accepted'";
    assert_eq!(number(&drill, accepted), 20, "each was sent once");
    drill.assert_dense();
    let code = "SELECT code FROM runs WHERE ended_at_us IS NOT NULL";
    assert_eq!(number(&drill, code), 1);
    refused(&drill, &["run", "--continue"], "every run in ");
}

#[test]
fn with_retry_what_was_in_flight_is_sent_again_and_every_task_is_done() {
    let drill = Drill::new(&pool(3, r#"on_crash = "retry""#));
    tasks(&drill, 20);
    let first = killed_at(&drill, &["run", "tasks.jsonl"], 4);
    // The continued run is killed too, and the one after that.
    let second = killed_at(&drill, &["run", "--continue"], 9);
    let third = killed_at(&drill, &["run", "--continue"], 13);
    let ran = drill.run(&["run", "--continue", "--results", "results.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    table_has_all(&ran, 20);
    let results = by_id(&drill.results("results.jsonl"));
    assert_eq!(results.len(), 20);
    for (id, result) in &results {
        assert_eq!(result["outcome"], "done", "{result}");
        let crashes = [&first, &second, &third];
        let crashes = crashes.iter().filter(|flight| flight.contains(id)).count();
        let attempts = result["attempts"].as_u64().expect("a number");
        assert!(
            attempts >= 1 && attempts <= 1 + crashes as u64,
            "{result} after {crashes} crashes"
        );
        assert_eq!(received(result), 1, "a fresh copy: {result}");
    }
    let again = "SELECT count(*) FROM tasks WHERE attempts > 1";
    assert!(number(&drill, again) > 0, "something was in flight");
    assert_eq!(number(&drill, "SELECT count(*) FROM runs"), 1);
    drill.assert_dense();
}

#[test]
fn a_daemon_takes_up_what_runs_left_and_its_clients_see_it_whole() {
    let drill = Drill::new(&pool(2, r#"on_crash = "retry""#));
    tasks(&drill, 12);
    killed_at(&drill, &["run", "tasks.jsonl"], 2);
    let mut daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    // Beside the daemon the run is watched, not worked.
    let ran = drill.run(&["run", "--continue", "--results", "results.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    table_has_all(&ran, 12);
    assert_eq!(by_id(&drill.results("results.jsonl")).len(), 12);
    // The daemon's own runs end, too, and are taken up by the next one.
    let ran = drill.run(&["run", "say one"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let open = "SELECT count(*) FROM runs WHERE ended_at_us IS NULL";
    assert_eq!(number(&drill, open), 0);
    let mut client = drill.command(&["run", "--quiet", "sleep 600s", "say two"]);
    let mut client = client.spawn().expect("a client");
    // Begun, so that it counts as an attempt.
    eventually(LONG, "the client's task runs", || {
        let query = "SELECT count(*) FROM tasks JOIN events ON events.session = tasks.session \
                     WHERE state = 'running' AND prompt LIKE 'sleep%' AND kind = 'prompt_accepted'";
        number(&drill, query) == 1
    });
    daemon.child.kill().expect("kill -9");
    let _ = daemon.child.wait();
    assert_eq!(client.wait().expect("ends").code(), Some(4));
    assert_eq!(number(&drill, open), 1);
    let mut daemon = drill.start(&["up"]);
    eventually(LONG, "the second attempt runs", || {
        let query = "SELECT count(*) FROM tasks WHERE state = 'running' AND attempts = 2";
        number(&drill, query) == 1
    });
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
    let log = drill.log("stderr.log");
    assert!(log.contains("resuming unfinished runs: 1"), "{log}");
}

#[test]
fn a_turn_that_had_ended_is_over_though_its_child_was_still_there() {
    let more = pool(2, r#"on_crash = "retry""#) + "stop = { goodbye = \"60s\" }\n";
    let drill = Drill::new(&more);
    let mut running = drill.start(&["run", "ignore-cancel\nwrite kept.txt x\nsay done"]);
    eventually(LONG, "the turn has ended", || {
        drill.state().join("journal.db").exists()
            && drill
                .database()
                .query_row(
                    "SELECT count(*) FROM events WHERE kind = 'turn_ended'",
                    [],
                    |row| row.get::<_, i64>(0),
                )
                .is_ok_and(|count| count == 1)
    });
    running.child.kill().expect("kill -9");
    let _ = running.child.wait();
    let ran = drill.run(&["run", "--continue", "--results", "results.jsonl"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let results = drill.results("results.jsonl");
    assert_eq!(results[0]["outcome"], "done", "{}", results[0]);
    assert_eq!(results[0]["attempts"], 1, "{}", results[0]);
    assert_eq!(results[0]["requests"]["allowed"], 1, "{}", results[0]);
    let copy = results[0]["workspace"].as_str().expect("its copy");
    assert!(fs::exists(format!("{copy}/kept.txt")).expect("looked"));
    assert_eq!(results[0]["changes_cut"], true, "nobody compared it");
}

#[test]
fn a_check_that_did_not_end_is_a_crash() {
    let check = "check = [\"sh\", \"-c\", \"test -e /workspace/again || sleep 600\"]\n";
    let drill = Drill::new(&(pool(1, r#"on_crash = "report""#) + check));
    let mut running = drill.start(&["run", "say done"]);
    eventually(LONG, "the check runs", || {
        drill.agents().iter().any(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sleep")
        })
    });
    running.child.kill().expect("kill -9");
    let _ = running.child.wait();
    let ran = drill.run(&["run", "--continue", "--results", "results.jsonl"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let result = &drill.results("results.jsonl")[0];
    assert_eq!(result["outcome"], "lost", "{result}");
    let detail = result["detail"].as_str().expect("a detail");
    assert!(detail.contains("before the check ended"), "{detail}");
}

#[test]
fn a_cancelled_run_is_over_and_a_new_one_names_what_is_unfinished() {
    let drill = Drill::new(&pool(1, r#"on_crash = "report""#));
    tasks(&drill, 12);
    // The first of them goes on until the run is ended, however late that is.
    let text = fs::read_to_string(drill.path("tasks.jsonl")).expect("tasks.jsonl");
    let text = text.replacen("sleep 150ms", "sleep 600s", 1);
    fs::write(drill.path("tasks.jsonl"), text).expect("tasks.jsonl");
    let mut running = drill.start(&["run", "tasks.jsonl"]);
    eventually(LONG, "the run works", || count_ended_tasks(&drill) >= 2);
    let _stopping = drill.cancel_turns();
    assert_eq!(running.wait(LONG), Some(1));
    refused(
        &drill,
        &["run", "--continue"],
        "there is nothing to continue",
    );

    killed_at(&drill, &["run", "tasks.jsonl"], 14);
    let ran = drill.run(&["run", "say hello"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let run = drill.database().query_row(
        "SELECT run FROM runs WHERE ended_at_us IS NULL",
        [],
        |row| row.get::<_, String>(0),
    );
    let run = run.expect("one is left alone");
    let short = &run[run.len() - 8..];
    let hint = format!(" is unfinished; to finish it: marshal run --continue {short}\n");
    assert!(ran.stderr.contains(&hint), "{}", ran.all());
    let ran = drill.run(&["run", "--continue", &run]);
    assert!(ran.stdout.contains(" of 12 done"), "{}", ran.all());
    let ran = drill.run(&["run", "say hello"]);
    assert!(!ran.stderr.contains("unfinished"), "{}", ran.all());
}

#[test]
fn wrong_use_is_named_and_changes_nothing() {
    let drill = Drill::new(&pool(1, r#"on_crash = "report""#));
    refused(&drill, &["run", "--continue"], "has no journal");
    assert!(!drill.state().join("journal.db").exists());
    assert_eq!(drill.run(&["run", "say one"]).code, Some(0));
    let run = drill
        .database()
        .query_row("SELECT run FROM runs", [], |row| row.get::<_, String>(0));
    let run = run.expect("a run");
    for (args, expect) in [
        (vec!["run", "--continue"], "there is nothing to continue"),
        (vec!["run", "--continue", "none"], "there is no run none"),
        (vec!["run", "--continue", &run], "has ended, with exit code"),
        (vec!["run", "--continue", &run, "say two"], "cannot be used"),
        (vec!["run", "say two", "--continue"], "cannot be used"),
        (vec!["run", "--continue", "--local"], "cannot be used"),
        (vec!["run", "--continue", "../x"], "invalid value"),
    ] {
        refused(&drill, &args, expect);
    }
    assert_eq!(number(&drill, "SELECT count(*) FROM runs"), 1);
    assert_eq!(number(&drill, "SELECT count(*) FROM epochs"), 1);
}

#[test]
fn a_task_whose_pool_is_gone_fails_and_says_so() {
    let two = pool(1, r#"on_crash = "report""#)
        + &pool(1, r#"on_crash = "report""#)
            .replace("[pool.demo]", "[pool.other]")
            .replace("size      = 4", "size      = 1");
    let drill = Drill::new(&two);
    let line = |id: &str, pool: &str, prompt: &str| {
        serde_json::json!({"id": id, "pool": pool, "prompt": prompt}).to_string()
    };
    let lines = [
        line("a", "other", "sleep 600s"),
        line("b", "other", "say b"),
        line("c", "demo", "sleep 600s"),
    ];
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let mut running = drill.start(&["run", "tasks.jsonl"]);
    eventually(LONG, "both pools work", || {
        count_ended_tasks(&drill) == 0 && drill.agents().len() >= 2 && in_flight(&drill).len() == 2
    });
    running.child.kill().expect("kill -9");
    let _ = running.child.wait();
    let text = fs::read_to_string(drill.config()).expect("configuration");
    let at = text.find("[pool.other]").expect("the second pool");
    fs::write(drill.config(), &text[..at]).expect("configuration");
    let ran = drill.run(&["run", "--continue", "--results", "results.jsonl"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let results = by_id(&drill.results("results.jsonl"));
    assert_eq!(results["a"]["outcome"], "lost");
    assert_eq!(results["b"]["outcome"], "failed");
    assert_eq!(results["c"]["outcome"], "lost");
    let detail = results["b"]["detail"].as_str().expect("a detail");
    assert!(detail.contains("there is no pool other"), "{detail}");
}

/// One slot whose agent claims another version, and a good one.
const ODD: &str = r#"
[pool.odd]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "scaiflux", "--protocol", "2"]
policy    = "cautious"
workspace = { path = "project", mode = "copy" }
"#;

#[test]
fn a_parked_slot_stays_parked_until_somebody_restarts_it() {
    let drill = Drill::new(ODD);
    let starts = "SELECT count(*) FROM events WHERE kind = 'child_started'";
    let parks = "SELECT count(*) FROM slot_parks";
    assert_eq!(drill.run(&["run", "say one"]).code, Some(1));
    assert_eq!((number(&drill, starts), number(&drill, parks)), (1, 1));
    for _ in 0..2 {
        let mut daemon = drill.start(&["up"]);
        let (status, page) = drill.get("/readyz");
        assert_eq!(status, 503, "{page}");
        assert!(page.contains("parked"), "{page}");
        let ran = drill.run(&["run", "--results", "results.jsonl", "say two"]);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        let result = &drill.results("results.jsonl")[0];
        assert_eq!(result["outcome"], "skipped", "{result}");
        daemon.signal("TERM");
        assert_eq!(daemon.wait(LONG), Some(0));
    }
    assert_eq!(number(&drill, starts), 1, "nothing was tried again");

    let mut daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/readyz").0, 503);
    assert_eq!(drill.run(&["restart", "odd/0"]).code, Some(0));
    assert_eq!(drill.get("/readyz").0, 200);
    eventually(LONG, "the park is forgotten", || number(&drill, parks) == 0);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
    assert_eq!(number(&drill, "SELECT count(*) FROM slot_failures"), 0);
}

#[test]
fn a_new_run_tries_a_parked_slot_once_more_and_the_budget_goes_on() {
    let drill = Drill::new(ODD);
    let starts = "SELECT count(*) FROM events WHERE kind = 'child_started'";
    for round in 1..=2 {
        let ran = drill.run(&["run", "say one", "say two"]);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert_eq!(number(&drill, starts), round, "one try a run");
    }
    // Crashes: the budget of two is spent, and each later run has one failure more.
    let crashing = pool(1, "budget = 2")
        .replace("budget = 100, ", "")
        .replace("size      = 4", "size      = 1");
    let drill = Drill::new(&crashing);
    for (round, tries) in [(1, 3), (2, 4), (3, 5)] {
        let ran = drill.run(&["run", "crash", "crash", "crash", "crash"]);
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert_eq!(number(&drill, starts), tries, "run {round}");
    }
    let ran = drill.run(&["run", "say fine", "say fine"]);
    assert_eq!(
        ran.code,
        Some(0),
        "what works is not held back: {}",
        ran.all()
    );
    assert_eq!(number(&drill, "SELECT count(*) FROM slot_parks"), 0);
}

#[test]
fn two_processes_never_share_a_state_directory_and_the_second_names_the_first() {
    let drill = Drill::new(&pool(1, r#"on_crash = "report""#));
    let mut first = drill.start(&["run", "sleep 600s"]);
    eventually(LONG, "the first works", || !drill.agents().is_empty());
    let named = format!("is in use by the process {}", first.pid());
    let beside = drill.run(&["run", "say one"]);
    assert_eq!(beside.code, Some(0), "{}", beside.all());
    assert!(beside.stderr.contains("beside it"), "{}", beside.all());
    for args in [&["up"][..], &["run", "--continue"]] {
        let ran = drill.run(args);
        assert_eq!(ran.code, Some(3), "{args:?}: {}", ran.all());
        assert!(ran.stderr.contains(&named), "{args:?}: {}", ran.all());
    }
    assert_eq!(number(&drill, "SELECT count(*) FROM epochs"), 1);
    assert_eq!(first.end(LONG), Some(130));
    // A lock dies with its holder, however that ends.
    let mut second = drill.start(&["run", "sleep 600s"]);
    eventually(LONG, "the second works", || !drill.agents().is_empty());
    second.child.kill().expect("kill -9");
    let _ = second.child.wait();
    assert_eq!(drill.run(&["run", "say three"]).code, Some(0));
}
