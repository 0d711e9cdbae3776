//! Agents that break the protocol in every way that we could think of, beside agents that do not:
//! each has its defined end, and none holds another slot up.

use std::fs;

use serde_json::{Value, json};

use crate::drill::Drill;

const POOL: &str = r#"
[pool.demo]
size      = 6
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "cautious"
client_fs = "read"
workspace = { path = "project", mode = "copy" }
restart   = { budget = 1000, base = "1ms", max = "5ms", on_crash = "report" }
timeouts  = { silence = "10s", cancel = "500ms" }
stop      = { goodbye = "200ms", eof = "200ms", int = "200ms", term = "200ms" }
env       = { set = { DRILL = "MARK" } }
"#;

/// A permission request as one line of a script.
fn ask(id: &str) -> String {
    format!(
        r#"raw {{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"sessionId":"{{session}}","toolCall":{{"toolCallId":"x","kind":"execute","rawInput":{{"command":"ls"}}}},"options":[{{"optionId":"y","name":"y","kind":"allow_once"}},{{"optionId":"n","name":"n","kind":"reject_once"}}]}}}}"#
    )
}

fn update(session: &str, fields: &str) -> String {
    format!(
        r#"raw {{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{{fields}}}}}}}"#
    )
}

/// What each does, how its task ends, and what is said of it: in the result, or as an event.
fn corpus() -> Vec<(&'static str, String, &'static str, &'static str)> {
    let text = r#""sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}"#;
    let call = r#""sessionUpdate":"tool_call","toolCallId":"c","kind":"execute","status":"completed","rawInput":{"command":"rm -rf /"}"#;
    let end = r#"raw {"jsonrpc":"2.0","id":{reply},"result":{"stopReason":"end_turn"}}"#;
    vec![
        ("no-messages", "garbage 20\nsay on".to_owned(), "done", "bad_utf8"),
        ("bad-ids", [&ask("true"), &ask("[]"), &ask("1.5"), "say on"].join("\n"), "done", "bad_shape"),
        ("same-id-twice", [&ask("900"), &ask("900"), "say on"].join("\n"), "done", "duplicate_id"),
        (
            "replies-to-nothing",
            "raw {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\nraw {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700}}\nraw {\"jsonrpc\":\"2.0\",\"error\":{}}\nsay on".to_owned(),
            "done",
            "unknown_id",
        ),
        ("other-session", [&update("other", text), "say on"].join("\n"), "done", "agent_message_chunk"),
        ("call-of-other-session", [&update("other", call), "say on"].join("\n"), "done", "\"decision\":\"deny\""),
        (
            "unknown-request",
            "raw {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"terminal/create\",\"params\":{}}\nraw {\"jsonrpc\":\"2.0\",\"method\":\"later/notice\"}\nsay on".to_owned(),
            "done",
            "later/notice",
        ),
        ("unknown-update", [&update("{session}", "\"sessionUpdate\":\"later\",\"x\":1"), "say on"].join("\n"), "done", "\"later\""),
        ("batch", "raw [{\"jsonrpc\":\"2.0\",\"method\":\"session/update\"}]\nsay on".to_owned(), "done", "not_object"),
        ("end-before-updates", format!("{end}\nsay late\nsleep 50ms"), "done", "end_turn"),
        ("endless-line", "endless-line".to_owned(), "lost", "a line of more than"),
        ("half-a-line", "half {\"jsonrpc\":\"2.0\",\"method\":\"sess\nsleep 60s".to_owned(), "lost", "closed its stdout"),
        ("half-a-line-and-end", "half {\"jsonrpc\"\nexit 0".to_owned(), "lost", "ended by itself"),
        ("stdout-closed", "mute\nsleep 60s".to_owned(), "lost", "closed its stdout"),
        ("noise-without-end", "garbage 1000".to_owned(), "lost", "were not messages"),
        ("ten-thousand-permission-requests", "pending 10000".to_owned(), "lost", "does not read its stdin"),
        (
            "ten-thousand-unknown-requests",
            "storm 10000 {\"jsonrpc\":\"2.0\",\"id\":\"u{n}\",\"method\":\"later/ask\",\"params\":{}}\nsay on".to_owned(),
            "lost",
            "does not read its stdin",
        ),
        (
            "ten-thousand-client-requests",
            "storm 10000 {\"jsonrpc\":\"2.0\",\"id\":\"f{n}\",\"method\":\"fs/read_text_file\",\"params\":{\"sessionId\":\"{session}\",\"path\":\"/workspace/README.md\"}}\nsay on".to_owned(),
            "lost",
            "does not read its stdin",
        ),
        ("ends-twice", format!("{end}\n{end}\nsleep 50ms"), "done", "unknown_id"),
        ("silence", "hang".to_owned(), "timed_out", "timeouts.silence"),
        (
            "mode-without-questions",
            [&update("{session}", "\"sessionUpdate\":\"current_mode_update\",\"currentModeId\":\"yolo\""), "sleep 60s"].join("\n"),
            "lost",
            "skips permission requests",
        ),
    ]
}

/// Good turns, which are sessions of their own, that ended while this session's child lived with its
/// prompt.
const BESIDE: &str = "
WITH bad AS (SELECT
    min(CASE WHEN kind = 'prompt_accepted' THEN at_us END) AS began,
    max(CASE WHEN kind = 'child_exited' THEN at_us END) AS ended
    FROM events WHERE session = ?1)
SELECT count(*) FROM events AS good, bad
    WHERE good.kind = 'turn_ended' AND good.body LIKE '%completed%' AND good.session <> ?1
    AND good.at_us > bad.began AND good.at_us < bad.ended
    AND good.session IN (SELECT session FROM events
        WHERE kind = 'prompt_accepted' AND body LIKE '%write n.txt%')";

#[test]
fn whatever_an_agent_does_has_a_defined_end_and_no_neighbour_waits_for_it() {
    let drill = Drill::new(POOL);
    let corpus = corpus();
    let mut lines: Vec<Value> = Vec::new();
    for (at, (id, prompt, ..)) in corpus.iter().enumerate() {
        // Both are long enough that others end meanwhile, also where a start takes its time.
        let prompt = format!("sleep 3s\n{prompt}").replace("\nsay on", "\nsleep 500ms\nsay on");
        lines.push(json!({"id": id, "prompt": prompt}));
        for good in ["good", "fine"] {
            lines.push(json!({"id": format!("{good}-{at}"), "prompt": "write n.txt x\nsay fine"}));
        }
    }
    let lines: Vec<_> = lines.iter().map(Value::to_string).collect();
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let ran = drill.run(&["run", "--results", "results.jsonl", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let results = drill.results("results.jsonl");
    let of = |id: &str| {
        let found = results.iter().find(|result| result["id"] == id);
        found
            .unwrap_or_else(|| panic!("{id} is missing: {}", ran.all()))
            .clone()
    };
    let database = drill.database();
    let mut wrong = Vec::new();
    for (at, (id, _, outcome, says)) in corpus.iter().enumerate() {
        for good in ["good", "fine"] {
            let good = of(&format!("{good}-{at}"));
            if good["outcome"] != "done" || good["attempts"] != 1 {
                wrong.push(format!("beside {id}: {good}"));
            }
        }
        let bad = of(id);
        let beside: i64 = database
            .query_row(
                BESIDE,
                [bad["session"].as_str().expect("a session")],
                |row| row.get(0),
            )
            .expect("events");
        if beside == 0 {
            wrong.push(format!(
                "{id}: no other slot of its pool finished a task meanwhile"
            ));
        }
        let text: i64 = database
            .query_row(
                "SELECT count(*) FROM events WHERE session = ?1 AND body LIKE '%' || ?2 || '%'",
                [bad["session"].as_str().expect("a session"), says],
                |row| row.get(0),
            )
            .expect("events");
        let in_result = bad["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains(says));
        if bad["outcome"] != *outcome || (text == 0 && !in_result) {
            wrong.push(format!("{id}: not {outcome} with {says}, but {bad}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), ran.all());
    drill.assert_dense();
    assert!(drill.agents().is_empty());
    // No answer of ours ever said "always", and none went out twice for one request.
    let twice: i64 = database
        .query_row(
            "SELECT count(*) FROM (SELECT json_extract(body, '$.request') AS ask FROM events WHERE kind = 'permission_decided' GROUP BY ask HAVING count(*) > 1)",
            [],
            |row| row.get(0),
        )
        .expect("verdicts");
    assert_eq!(twice, 0);
}
