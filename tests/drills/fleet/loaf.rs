//! Agents that speak loaf's RPC, in a sandbox: they cannot ask, so they are held and judged afterwards.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, drill_of, names, text};
use crate::drill::{Drill, Ran};

fn pool(flags: &str, keys: &str) -> String {
    format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "loaf", "--ledger", "ledger.txt"{flags}]
dialect   = "loaf"
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

#[test]
fn a_run_is_worked_in_a_sandbox_and_what_was_not_requested_is_judged_afterwards() {
    // A shutdown alone ends no such agent: a ladder that waited for that would take a minute.
    let drill = Drill::new(&pool(
        "",
        r#"stop = { goodbye = "60s", eof = "60s", int = "60s", term = "60s" }"#,
    ));
    let (ran, results) = run(
        &drill,
        &["read README.md\nwrite notes.txt hi\nrun curl https://example.com\nsay done"],
    );
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    assert!(ran.took < Duration::from_secs(50), "{}", ran.all());
    let answer = results[0]["answer"].as_str().expect("an answer");
    assert!(answer.contains("done\n"), "{answer}");
    assert!(ledger(&results[0]).contains("\"shutdown\""));
    assert_eq!(
        count(&drill, "events WHERE kind = 'permission_requested'"),
        0
    );
    assert_eq!(count(&drill, "events WHERE kind = 'tool_start'"), 3);
    assert_eq!(count(&drill, "events WHERE kind = 'tool_result'"), 3);
    let denied =
        "events WHERE kind = 'tool_call_unrequested' AND body LIKE '%\"decision\":\"deny\"%'";
    assert_eq!(count(&drill, denied), 1, "{}", ran.all());
    assert_eq!(
        count(
            &drill,
            "events WHERE kind IN ('bad_line', 'unknown', 'agent_error')"
        ),
        0
    );
    drill.assert_dense();
}

#[test]
fn a_denied_call_that_was_not_asked_for_may_interrupt_the_turn() {
    let drill = Drill::new(&pool("", r#"on_unasked_deny = "interrupt""#));
    let (ran, results) = run(&drill, &["run curl https://example.com\nsleep 1h"]);
    assert_ne!(results[0]["outcome"], "done", "{}", ran.all());
    assert!(ledger(&results[0]).contains("\"interrupt\""));
}

#[test]
fn only_its_sandbox_can_be_counted_on_and_that_is_said() {
    let drill = Drill::new(&pool("", r#"guard = "policy""#));
    let ran = drill.run(&["run", "say hi"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(
        ran.stderr.contains("and loaf has no permission requests"),
        "{}",
        ran.all()
    );
    let drill = Drill::new(&pool("", ""));
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(
        ran.all().contains("loaf has no permission requests"),
        "{}",
        ran.all()
    );
}

#[test]
fn a_turn_that_takes_too_long_is_interrupted() {
    let drill = Drill::new(&pool("", r#"timeouts = { turn = "1s", cancel = "60s" }"#));
    let (ran, results) = run(&drill, &["say first\nsleep 1h"]);
    assert_eq!(results[0]["outcome"], "timed_out", "{}", ran.all());
    assert!(
        ledger(&results[0]).contains("\"interrupt\""),
        "{}",
        ran.all()
    );
    let ended = "events WHERE kind = 'turn_ended' AND body LIKE '%interrupted%'";
    assert_eq!(count(&drill, ended), 1, "{}", ran.all());
}

#[test]
fn a_session_comes_back_after_a_crash_in_the_middle_of_a_turn() {
    let drill = Drill::new(&pool("", SLOT));
    let (ran, results) = run(&drill, &["say once upon a time", "say x\ncrash", "recall"]);
    assert_eq!(results[1]["outcome"], "lost", "{}", ran.all());
    let answer = results[2]["answer"].as_str().expect("an answer");
    assert!(answer.contains("once upon"), "{}", ran.all());
    assert_eq!(results[0]["session"], results[2]["session"]);
    let resumed = "events WHERE kind = 'session_resumed' AND body LIKE '%session.get%'";
    assert_eq!(count(&drill, resumed), 1);
    drill.assert_dense();
}

#[test]
fn an_agent_that_forgot_a_session_gets_a_new_one() {
    let drill = Drill::new(&pool(", \"--forget\"", SLOT));
    let (ran, results) = run(&drill, &["say one", "crash", "say three"]);
    assert_eq!(results[2]["outcome"], "done", "{}", ran.all());
    assert_ne!(results[0]["session"], results[2]["session"]);
    let fresh = "events WHERE kind = 'session_fresh' AND body LIKE '%unknown session%'";
    assert_eq!(count(&drill, fresh), 1, "{}", ran.all());
}

#[test]
fn the_pools_model_is_selected_and_one_that_is_not_offered_parks_the_slot() {
    let drill = Drill::new(&pool("", "model = \"script-mini\""));
    let (ran, results) = run(&drill, &["say hi"]);
    assert_eq!(results[0]["outcome"], "done", "{}", ran.all());
    assert!(ledger(&results[0]).contains("\"model\":\"script-mini\""));
    let drill = Drill::new(&pool("", "model = \"huge\""));
    let (ran, results) = run(&drill, &["say hi"]);
    assert_eq!(results[0]["outcome"], "failed", "{}", ran.all());
    let detail = results[0]["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("no model huge") && detail.contains("script, script-mini"),
        "{detail}"
    );
    assert!(ran.stderr.contains("parked"), "{}", ran.all());
}

#[test]
fn a_login_parks_the_slot_with_where_it_is_made() {
    let drill = Drill::new(&pool("", ""));
    let flow = r#"raw {"jsonrpc":"2.0","method":"event","params":{"type":"auth.flow.device_code","payload":{"provider":"openai","verification_url":"https://login.example/device","user_code":"ABCD-1234"}}}"#;
    let (ran, results) = run(&drill, &[&format!("{flow}\nsleep 1h")]);
    assert!(ran.stderr.contains("parked"), "{}", ran.all());
    let expected = format!("{}\n{}", ran.all(), results[0]);
    for part in [
        "needs a login of openai",
        "https://login.example/device",
        "ABCD-1234",
    ] {
        assert!(expected.contains(part), "{expected}");
    }
}

#[test]
fn whatever_it_writes_has_a_defined_end() {
    let drill = Drill::new(&pool(
        "",
        r#"
size     = 4
restart  = { budget = 1000, base = "1ms", max = "5ms" }
timeouts = { silence = "10s", cancel = "1s" }
stop     = { goodbye = "200ms", eof = "200ms", int = "200ms", term = "200ms" }
"#,
    ));
    let chunk = r#"raw {"jsonrpc":"2.0","method":"event","params":{"type":"session.stream.chunk","payload":{"session_id":"other","turn_id":"t-9","chunk":{"answerText":"x"}}}}"#;
    let error = r#"raw {"jsonrpc":"2.0","method":"event","params":{"type":"session.error","payload":{"session_id":"{session}","turn_id":{reply},"message":"no luck today"}}}"#;
    let cases = [
        ("garbage 20\nsay on".to_owned(), "done", Some("bad_utf8")),
        (format!("{chunk}\nsay on"), "done", Some("out_of_state")),
        (
            format!("{error}\nsleep 50ms"),
            "failed",
            Some("no luck today"),
        ),
        (
            "raw {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"x\"}\nsay on".to_owned(),
            "done",
            // It gets an error, and goes on.
            None,
        ),
        (
            "endless-line".to_owned(),
            "lost",
            Some("a line of more than"),
        ),
        ("garbage 1000".to_owned(), "lost", Some("were not messages")),
        (
            "mute\nsleep 60s".to_owned(),
            "lost",
            Some("closed its stdout"),
        ),
        ("hang".to_owned(), "timed_out", Some("timeouts.silence")),
        // Nothing is odd about these two but what they ignore and leave behind.
        ("ignore-cancel\nsay on".to_owned(), "done", None),
        ("spawn-orphan\nsay on".to_owned(), "done", None),
    ];
    let lines: Vec<String> = cases
        .iter()
        .enumerate()
        .map(|(at, (prompt, ..))| json!({"id": format!("c{at}"), "prompt": prompt}).to_string())
        .collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    let results = drill.results("results.jsonl");
    for (at, (prompt, outcome, says)) in cases.iter().enumerate() {
        let id = format!("c{at}");
        let result = results.iter().find(|result| result["id"] == *id);
        let result = result.unwrap_or_else(|| panic!("{prompt} is missing: {}", ran.all()));
        assert_eq!(result["outcome"], *outcome, "{prompt}: {result}");
        if *outcome == "done" {
            let answer = result["answer"].as_str().unwrap_or_default();
            assert!(answer.contains("on\n"), "{prompt}: {result}");
        }
        let Some(says) = *says else { continue };
        let session = result["session"].as_str().expect("a session");
        let events: i64 = drill
            .database()
            .query_row(
                "SELECT count(*) FROM events WHERE session = ?1 AND body LIKE '%' || ?2 || '%'",
                [session, says],
                |row| row.get(0),
            )
            .expect("events");
        let is_said = events > 0 || result.to_string().contains(says);
        assert!(is_said, "{prompt}: {says} is not in {result}");
    }
    drill.assert_dense();
}

#[test]
fn a_chat_is_answered_stopped_and_goes_on_after_a_crash() {
    let drill = drill_of("loaf", 1, "", "", "10m");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nread README.md");
    let mut stream = daemon.follow(&chat, None);
    let events = stream.any_turn();
    assert_eq!(
        names(&events),
        ["chunk", "call", "observation", "chunk", "done"],
        "{events:#?}"
    );
    assert!(text(&events).contains("one"), "{events:#?}");
    let turn = daemon.say(&chat, "say two\nsleep 1h");
    stream.until("it speaks", |reported| {
        text(std::slice::from_ref(reported)).contains("two")
    });
    let stopped = daemon.post(&format!("{chat}/stop"), &json!({}));
    assert_eq!(stopped.status, 200, "{stopped:?}");
    let events = stream.turn(&turn);
    let last = events.last().expect("the end");
    assert_eq!(last.data["reason"], "user_cancelled", "{events:#?}");
    let turn = daemon.say(&chat, "say three\ncrash");
    stream.turn(&turn);
    let turn = daemon.say(&chat, "recall");
    let events = stream.turn(&turn);
    assert_eq!(events[0].name, "rehydrated", "{events:#?}");
    assert_eq!(events[0].data["by"], "resume", "{events:#?}");
    assert!(text(&events).contains("say three"), "{events:#?}");
    drill.assert_dense();
}
