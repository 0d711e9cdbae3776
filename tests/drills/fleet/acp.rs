//! ACP with everything that a pool may want of its agent: logins, modes, files, sessions that come
//! back.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, eventually};

const LONG: Duration = Duration::from_secs(60);

/// A pool of script agents that differ in some ways.
fn pool(quirks: &[&str], keys: &str) -> String {
    let quirks: Vec<_> = quirks
        .iter()
        .map(|quirk| format!(", \"--quirk\", {quirk:?}"))
        .collect();
    let quirks = quirks.concat();
    format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp", "--ledger", "ledger.txt"{quirks}]
dialect   = "acp"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{keys}
"#
    )
}

const SLOT: &str = r#"
session = "slot"
restart = { base = "20ms", max = "100ms", on_crash = "resume" }
"#;

fn run(drill: &Drill, prompts: &[&str]) -> (Ran, Vec<Value>) {
    let mut args = vec!["run", "--results", "results.jsonl"];
    args.extend(prompts);
    let ran = drill.run(&args);
    let mut results = drill.results("results.jsonl");
    results.sort_by_key(|result| result["id"].as_str().map(str::to_owned));
    assert_eq!(results.len(), prompts.len(), "{}", ran.all());
    (ran, results)
}

fn count(drill: &Drill, what: &str) -> i64 {
    drill
        .database()
        .query_row(&format!("SELECT count(*) FROM {what}"), [], |row| {
            row.get(0)
        })
        .expect(what)
}

/// What the agent wrote down of what it was told.
fn ledger(result: &Value) -> String {
    let copy = result["workspace"].as_str().expect("a copy");
    fs::read_to_string(format!("{copy}/ledger.txt")).expect("the ledger")
}

/// One prompt: it is done, or the slot parks and says why.
#[track_caller]
fn check(quirks: &[&str], keys: &str, expect: Result<&[&str], &[&str]>) {
    let drill = Drill::new(&pool(quirks, keys));
    let (ran, results) = run(&drill, &["say hi"]);
    match expect {
        Ok(received) => {
            assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
            let ledger = ledger(&results[0]);
            for part in received {
                assert!(ledger.contains(part), "{part} is not in {ledger}");
            }
        }
        Err(says) => {
            assert_eq!(results[0]["outcome"], "failed", "{}", ran.all());
            assert_eq!(
                results[0]["attempts"],
                0,
                "no prompt was sent: {}",
                ran.all()
            );
            let detail = results[0]["detail"].as_str().expect("a detail");
            for part in says {
                assert!(detail.contains(part), "{part} is not in {detail}");
            }
            assert!(ran.stderr.contains("parked"), "{}", ran.all());
            assert_eq!(count(&drill, "events WHERE kind = 'child_started'"), 1);
        }
    }
}

#[test]
fn a_login_is_made_where_the_pool_names_one_and_else_the_slot_parks_with_what_there_is() {
    check(&["login"], "auth = \"key\"", Ok(&["\"login\""]));
    check(
        &["login"],
        "",
        Err(&[
            "wants a login",
            "key (Key), setup (Set up, in a terminal)",
            "set auth",
        ]),
    );
    check(&["login"], "auth = \"setup\"", Err(&["needs a terminal"]));
    check(
        &["login"],
        "auth = \"none\"",
        Err(&["offers no login none"]),
    );
}

#[test]
fn mode_model_and_options_are_set_and_what_is_not_offered_parks_the_slot() {
    check(
        &["modes"],
        "mode = \"plan\"\nmodel = \"b\"\noptions = { fast = true }",
        Ok(&["\"mode\":\"plan\"", "\"model\":\"b\"", "\"fast\":true"]),
    );
    check(
        &["modes"],
        "mode = \"code\"",
        Err(&["no mode code", "ask, plan, yolo"]),
    );
    check(&["modes"], "model = \"c\"", Err(&["no model c", "a, b"]));
    check(
        &["modes"],
        "options = { slow = true }",
        Err(&["no option slow", "model, fast"]),
    );
}

#[test]
fn a_mode_that_skips_questions_must_be_meant() {
    check(
        &["yolo"],
        "",
        Err(&["skips permission requests", "mode_skips_requests"]),
    );
    check(&["yolo"], "mode = \"ask\"", Ok(&["\"mode\":\"ask\""]));
    check(&["yolo"], "mode_skips_requests = true", Ok(&["say hi"]));
}

#[test]
fn files_of_a_task_are_named_or_held_in_its_prompt() {
    let tasks = [
        r#"{"id":"held","prompt":"say a","files":["src"],"embed":["more.txt"]}"#,
        r#"{"id":"missing","prompt":"say a","embed":["none.txt"]}"#,
        r#"{"id":"outside","prompt":"say a","files":["link"]}"#,
    ];
    for (quirks, held) in [(&["embedded"][..], true), (&[][..], false)] {
        let drill = Drill::new(&pool(quirks, ""));
        fs::write(drill.workspace().join("more.txt"), "say from the file\n").expect("more.txt");
        std::os::unix::fs::symlink("/etc/passwd", drill.workspace().join("link")).expect("link");
        fs::write(drill.path("tasks.jsonl"), tasks.join("\n")).expect("tasks");
        let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
        let mut results = drill.results("results.jsonl");
        results.sort_by_key(|result| result["id"].as_str().map(str::to_owned));
        let [first, missing, outside] = &results[..] else {
            panic!("{}", ran.all());
        };
        assert_eq!(first["outcome"], "done", "{}", ran.all());
        let answer = first["answer"].as_str().expect("an answer");
        assert_eq!(answer.contains("from the file"), held, "{answer}");
        for (bad, name) in [(missing, "none.txt"), (outside, "link")] {
            assert_eq!(bad["outcome"], "failed", "{}", ran.all());
            let detail = bad["detail"].as_str().expect("a detail");
            assert!(detail.contains(name), "{detail}");
        }
    }
}

#[test]
fn a_session_comes_back_without_its_past_twice_however_late_it_is_told() {
    for quirks in [&[][..], &["late-replay"][..]] {
        let drill = Drill::new(&pool(quirks, SLOT));
        let prompts = ["say once upon a time", "crash", "recall"];
        let (ran, results) = run(&drill, &prompts);
        let answer = results[2]["answer"].as_str().expect("an answer");
        assert!(answer.contains("once upon"), "{}", ran.all());
        assert_eq!(
            results[0]["session"],
            results[2]["session"],
            "{}",
            ran.all()
        );
        assert_eq!(count(&drill, "events WHERE kind = 'session_resumed'"), 1);
        let expected = "events WHERE kind = 'text' AND body LIKE '%upon%'";
        // One word, for text comes in pieces: as it was said, and as it was recalled.
        assert_eq!(count(&drill, expected), 2, "{}", ran.all());
        assert_eq!(
            count(&drill, "events WHERE kind IN ('user_text', 'bad_line')"),
            0
        );
        drill.assert_dense();
    }
}

#[test]
fn a_session_that_cannot_come_back_is_followed_by_a_new_one_that_says_so() {
    let forgets =
        pool(&["lenient-load"], SLOT).replace("\"--ledger\"", "\"--forget\", \"--ledger\"");
    for (text, why) in [
        (
            pool(&["no-load"], SLOT),
            "neither session/load nor session/resume",
        ),
        (forgets, "is not in its list of sessions"),
    ] {
        let drill = Drill::new(&text);
        let (ran, results) = run(&drill, &["say one", "crash", "say three"]);
        assert_eq!(results[2]["outcome"], "done", "{}", ran.all());
        assert_ne!(
            results[0]["session"],
            results[2]["session"],
            "{}",
            ran.all()
        );
        let (session, body): (String, String) = drill
            .database()
            .query_row(
                "SELECT session, body FROM events WHERE kind = 'session_fresh'",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .expect("the event");
        assert_eq!(results[2]["session"], session.as_str());
        let before = results[0]["session"].as_str().expect("a session");
        assert!(body.contains(before) && body.contains(why), "{body}");
    }
}

/// The next task may be given out while the news of the child's end is still on its way.
#[test]
fn an_agent_that_ends_after_every_turn_does_not_stop_its_slot() {
    let keys = SLOT.replace("on_crash", "budget = 1000, on_crash");
    let drill = Drill::new(&pool(&["restless"], &keys));
    let script: Vec<_> = (0..40).map(|task| format!("say {task}")).collect();
    let script: Vec<_> = script.iter().map(String::as_str).collect();
    let (ran, results) = run(&drill, &script);
    assert_eq!(results.len(), script.len());
    // A prompt may be written to an agent that is about to end; nobody can know what it did.
    for result in &results {
        let outcome = result["outcome"].as_str();
        assert!(matches!(outcome, Some("done" | "lost")), "{}", ran.all());
    }
    let session = &results[0]["session"];
    assert!(results.iter().all(|result| result["session"] == *session));
}

#[test]
fn an_idle_child_is_stopped_and_its_session_comes_back_with_the_next_task() {
    let keys = format!("{SLOT}timeouts = {{ idle = \"300ms\" }}");
    let drill = Drill::new(&pool(&["close"], &keys));
    let _daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    let (ran, first) = run(&drill, &["say one"]);
    assert_eq!(first[0]["outcome"], "done", "{}", ran.all());
    eventually(LONG, "the idle child is gone", || drill.agents().is_empty());
    let unloaded = "events WHERE kind = 'child_exited' AND body LIKE '%idle_unload%'";
    eventually(LONG, "its end is journalled", || {
        count(&drill, unloaded) == 1
    });
    let (ran, second) = run(&drill, &["recall"]);
    assert_eq!(second[0]["outcome"], "done", "{}", ran.all());
    assert_eq!(first[0]["session"], second[0]["session"], "{}", ran.all());
    let answer = second[0]["answer"].as_str().expect("an answer");
    assert!(answer.contains("say one"), "{answer}");
    assert!(
        ledger(&second[0]).contains("\"close\""),
        "the goodbye closed the session"
    );
}

#[test]
fn an_agent_that_hangs_between_turns_is_found_by_its_silence() {
    let keys = format!(
        "{SLOT}timeouts = {{ keepalive = \"1s\" }}\nstop = {{ goodbye = \"100ms\", eof = \"100ms\", int = \"100ms\", term = \"100ms\" }}"
    );
    let drill = Drill::new(&pool(&[], &keys));
    let _daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    let (ran, results) = run(&drill, &["say one"]);
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    // It answers what it is asked, more often than it may leave out: nothing happens.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(count(&drill, "events WHERE kind = 'child_exited'"), 0);
    for pid in drill.agents() {
        let stopped = std::process::Command::new("kill")
            .args(["-s", "STOP", &pid.to_string()])
            .status();
        assert!(stopped.expect("kill").success());
    }
    let found = "events WHERE kind = 'child_exited' AND body LIKE '%timeouts.keepalive%'";
    eventually(LONG, "the silence is a fault", || count(&drill, found) == 1);
    let (ran, again) = run(&drill, &["recall"]);
    assert_eq!(again[0]["outcome"], "done", "{}", ran.all());
}

#[test]
fn a_denial_is_told_before_the_next_prompt() {
    let drill = Drill::new(&pool(&[], SLOT));
    let (ran, results) = run(&drill, &["run curl https://example.com", "say next"]);
    assert_eq!(results[1]["outcome"], "done", "{}", ran.all());
    let ledger = ledger(&results[1]);
    assert!(ledger.contains("# Before this prompt"), "{ledger}");
}

#[test]
fn a_denial_is_told_though_the_child_died_before_the_next_prompt() {
    // Crashed in the turn of the denial, and stopped because nobody needed it.
    for (quirks, keys, first) in [
        (&[][..], "", "run curl https://example.com\ncrash"),
        (
            &["close"][..],
            "timeouts = { idle = \"300ms\" }",
            "run curl https://example.com",
        ),
    ] {
        let drill = Drill::new(&pool(quirks, &format!("{SLOT}{keys}")));
        let _daemon = drill.start(&["up"]);
        assert_eq!(drill.get("/healthz").0, 200);
        let (_, before) = run(&drill, &[first]);
        eventually(LONG, "the child is gone", || {
            count(&drill, "events WHERE kind = 'child_exited'") == 1
        });
        let (ran, after) = run(&drill, &["say next"]);
        assert_eq!(after[0]["outcome"], "done", "{}", ran.all());
        assert_eq!(before[0]["session"], after[0]["session"], "{}", ran.all());
        let reported = ledger(&after[0]);
        assert_eq!(
            reported.matches("# Before this prompt").count(),
            1,
            "{reported}"
        );
        assert!(reported.contains("curl"), "{reported}");
        // Once is enough.
        let (ran, last) = run(&drill, &["say last"]);
        let reported = ledger(&last[0]);
        assert_eq!(
            reported.matches("# Before this prompt").count(),
            1,
            "{reported} {}",
            ran.all()
        );
    }
}
