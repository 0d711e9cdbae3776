//! What the tests of agents that speak protocols of their own share: Claude Code's and Codex'.

use std::fs;

use serde_json::{Value, json};

use crate::chat_client::{Daemon, drill_of, names, text};
use crate::drill::{Drill, Ran, eventually};
use crate::fleet::approvals::{
    LONG, answer, client, daemon, good, list_approvals, result, waiting,
};

/// One pool of script agents that speak it; `flags` are further words of its command.
pub(crate) fn pool(dialect: &str, flags: &str, keys: &str) -> String {
    format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "{dialect}", "--ledger", "ledger.txt"{flags}]
dialect   = "{dialect}"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{keys}
"#
    )
}

/// A slot whose session is taken up again after a crash.
pub(crate) const SLOT: &str = r#"
session = "slot"
restart = { base = "20ms", max = "100ms", on_crash = "resume" }
"#;

/// Runs prompts, one after the other; their results in that order.
pub(crate) fn run(drill: &Drill, prompts: &[&str]) -> (Ran, Vec<Value>) {
    let mut args = vec!["run", "--results", "results.jsonl"];
    args.extend(prompts);
    let ran = drill.run(&args);
    let mut results = drill.results("results.jsonl");
    results.sort_by_key(|result| result["id"].as_str().map(str::to_owned));
    assert_eq!(results.len(), prompts.len(), "{}", ran.all());
    (ran, results)
}

/// How many rows of the journal.
pub(crate) fn count(drill: &Drill, what: &str) -> i64 {
    let query = format!("SELECT count(*) FROM {what}");
    let row = drill.database().query_row(&query, [], |row| row.get(0));
    row.expect(what)
}

/// The bodies of the events of one kind, in their order.
pub(crate) fn events(drill: &Drill, kind: &str) -> Vec<Value> {
    let database = drill.database();
    let mut statement = database
        .prepare("SELECT body FROM events WHERE kind = ?1 ORDER BY at_us, session, seq")
        .expect("events");
    let rows = statement.query_map([kind], |row| row.get::<_, String>(0));
    let rows = rows.expect("rows").map(|row| row.expect("a row"));
    rows.map(|body| serde_json::from_str(&body).expect("JSON"))
        .collect()
}

/// What the agent wrote down of what it was told.
pub(crate) fn ledger(result: &Value) -> String {
    let copy = result["workspace"].as_str().expect("a copy");
    fs::read_to_string(format!("{copy}/ledger.txt")).expect("the ledger")
}

/// Nothing was said on either side that the other one does not know.
pub(crate) fn assert_understood(drill: &Drill, results: &[Value]) {
    let odd = "events WHERE kind IN ('bad_line', 'unknown', 'agent_error')";
    assert_eq!(count(drill, odd), 0);
    for result in results {
        let ledger = ledger(result);
        assert!(!ledger.contains("\"malformed\""), "{ledger}");
    }
}

/// A file of a task's workspace.
pub(crate) fn is_there(result: &Value, name: &str) -> bool {
    let copy = result["workspace"].as_str().expect("a copy");
    fs::exists(format!("{copy}/{name}")).expect("the copy can be read")
}

/// A turn that takes too long is interrupted; `how` is the agent's word for its end.
pub(crate) fn is_interrupted(dialect: &str, how: &str) {
    let keys = r#"timeouts = { turn = "1s", cancel = "60s" }"#;
    let drill = Drill::new(&pool(dialect, "", keys));
    let (ran, results) = run(&drill, &["say first\nsleep 1h"]);
    assert_eq!(results[0]["outcome"], "timed_out", "{}", ran.all());
    let received = ledger(&results[0]);
    assert!(received.contains("\"interrupt\""), "{received}");
    let ends = events(&drill, "turn_ended");
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["stop_reason"], how, "{ends:?}");
    assert_understood(&drill, &results);
}

/// Its session comes back after a crash in the middle of a turn, with what was said before.
pub(crate) fn comes_back(dialect: &str, how: &str) {
    let drill = Drill::new(&pool(dialect, "", SLOT));
    let prompts = ["say once upon a time", "say x\ncrash", "recall"];
    let (ran, results) = run(&drill, &prompts);
    assert_eq!(results[1]["outcome"], "lost", "{}", ran.all());
    let answer = results[2]["answer"].as_str().expect("an answer");
    assert!(answer.contains("once upon"), "{}", ran.all());
    assert!(answer.contains("say x"), "{}", ran.all());
    assert_eq!(results[0]["session"], results[2]["session"]);
    let resumed = events(&drill, "session_resumed");
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert_eq!(resumed[0]["how"], how);
    assert_understood(&drill, &results);
    drill.assert_dense();
}

/// An agent that forgot its session gets a new one.
pub(crate) fn begins_anew(dialect: &str, reported: &str) {
    let drill = Drill::new(&pool(dialect, ", \"--forget\"", SLOT));
    let (ran, results) = run(&drill, &["say one", "crash", "say three"]);
    assert_eq!(results[2]["outcome"], "done", "{}", ran.all());
    assert_ne!(results[0]["session"], results[2]["session"]);
    let fresh = events(&drill, "session_fresh");
    assert_eq!(fresh.len(), 1, "{fresh:?}");
    assert!(fresh[0].to_string().contains(reported), "{fresh:?}");
}

/// A request that the agent withdraws runs nothing, nobody is asked about it any more, and the turn
/// goes on.
pub(crate) fn withdraws(dialect: &str) {
    let drill = Drill::new(&pool(dialect, "", ""));
    let _daemon = daemon(&drill);
    let client = client(&drill, &["withdraw touch never.txt\nsay went on"]);
    let result = result(&drill, client);
    let answer = result["answer"].as_str().expect("an answer");
    assert!(answer.contains("went on"), "{result}");
    assert!(!is_there(&result, "never.txt"));
    assert_eq!(
        count(&drill, "events WHERE kind = 'permission_requested'"),
        1
    );
    eventually(LONG, "nobody is asked", || {
        list_approvals(&drill, &[]).is_empty()
    });
    assert_understood(&drill, &[result]);
    drill.assert_dense();
}

/// What waits for a person is answered by one.
pub(crate) fn waits_for_a_person(dialect: &str) {
    let drill = Drill::new(&pool(dialect, "", ""));
    let _daemon = daemon(&drill);
    for (how, more, made) in [
        ("approve", &[][..], true),
        ("reject", &["--reason", "not today"][..], false),
    ] {
        let client = client(&drill, &["run touch made.txt\nsay went on"]);
        let ask = waiting(&drill, 1).remove(0);
        good(&answer(&drill, how, &ask, more));
        let result = result(&drill, client);
        assert_eq!(is_there(&result, "made.txt"), made, "{how}: {result}");
        let text = result["answer"].as_str().expect("an answer");
        assert!(text.contains("went on"), "{how}: {text}");
        assert_understood(&drill, &[result]);
    }
}

/// A chat is answered, stopped, and goes on after a crash.
pub(crate) fn chats(dialect: &str) {
    let drill = drill_of(dialect, 1, "", "", "10m");
    let daemon = Daemon::start(&drill);
    let chat = daemon.create("say one\nwrite notes.txt hi");
    let mut stream = daemon.follow(&chat, None);
    let events = stream.any_turn();
    assert!(text(&events).contains("one"), "{events:#?}");
    assert_eq!(names(&events).last(), Some(&"done"), "{events:#?}");
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

/// Runs scripts that misbehave; of each its outcome, and what is told of it somewhere.
pub(crate) fn misbehaves(dialect: &str, cases: &[(&str, &str, &str)]) {
    let drill = Drill::new(&pool(
        dialect,
        "",
        r#"
size     = 4
restart  = { budget = 1000, base = "1ms", max = "5ms" }
timeouts = { silence = "10s", cancel = "1s" }
stop     = { goodbye = "200ms", eof = "200ms", int = "200ms", term = "200ms" }
"#,
    ));
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
        let result = results.iter().find(|result| result["id"] == id);
        let result = result.unwrap_or_else(|| panic!("{prompt} is missing: {}", ran.all()));
        assert_eq!(result["outcome"], *outcome, "{prompt}: {result}");
        let session = result["session"].as_str().expect("a session");
        let query = "SELECT count(*) FROM events WHERE session = ?1 AND instr(body, ?2) > 0";
        let database = drill.database();
        let events = database.query_row(query, [session, says], |row| row.get::<_, i64>(0));
        let is_said = events.expect("events") > 0 || result.to_string().contains(says);
        assert!(is_said, "{prompt}: {says} is not in {result}");
    }
    drill.assert_dense();
}
