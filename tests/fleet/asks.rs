//! What the policy wants a person to decide: it waits, is shown, and is answered once.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, Running, eventually, metric};

const LONG: Duration = Duration::from_secs(60);

/// Every protocol that the script agent speaks.
const DIALECTS: [&str; 2] = ["scaiflux", "acp"];

/// What no rule of `developer` allows.
const ASKED: &str = "run touch made.txt";

fn pool(dialect: &str, more: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "{dialect}"]
dialect   = "{dialect}"
policy    = "developer"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}
"#
    )
}

fn daemon(drill: &Drill) -> Running {
    let daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    daemon
}

/// A client that hands prompts to the daemon.
fn client(drill: &Drill, prompts: &[&str]) -> Child {
    let mut args = vec!["run", "--results", "r.jsonl"];
    args.extend(prompts);
    let mut command = drill.command(&args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a client")
}

fn listed(drill: &Drill, more: &[&str]) -> Vec<Value> {
    let mut args = vec!["--json", "asks", "ls"];
    args.extend(more);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The asks that wait, once there are so many.
fn waiting(drill: &Drill, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually(LONG, "asks wait", || {
        found = listed(drill, &[]);
        found.len() == count
    });
    found
}

fn id(ask: &Value) -> String {
    ask["ask"].as_str().expect("an id").to_owned()
}

fn answer(drill: &Drill, how: &str, ask: &Value, more: &[&str]) -> Ran {
    let id = id(ask);
    let mut args = vec!["asks", how, id.as_str()];
    args.extend(more);
    drill.run(&args)
}

fn good(ran: &Ran) {
    assert_eq!(ran.code, Some(0), "{}", ran.all());
}

fn result(drill: &Drill, mut client: Child) -> Value {
    client.wait().expect("ends");
    drill.results("r.jsonl").remove(0)
}

fn state(drill: &Drill, ask: &Value) -> String {
    let query = "SELECT state FROM questions WHERE id = ?1";
    let found = drill
        .database()
        .query_row(query, [id(ask)], |row| row.get(0));
    found.expect("a question")
}

#[test]
fn a_person_allows_what_waits_and_the_answer_counts_once() {
    for dialect in DIALECTS {
        let drill = Drill::new(&pool(dialect, ""));
        let _daemon = daemon(&drill);
        let client = client(&drill, &[ASKED]);
        let ask = waiting(&drill, 1).remove(0);
        assert_eq!(ask["state"], "pending", "{ask}");
        assert_eq!(
            state(&drill, &ask),
            "pending",
            "it is stored before it is shown"
        );
        assert_eq!(ask["summary"], "touch made.txt", "{ask}");
        let page = drill.get("/metrics").1;
        let pending = r#"marshal_permission_pending{pool="demo"}"#;
        assert_eq!(metric(&page, pending), Some(1.0));
        let shown = drill.run(&["asks", "show", &id(&ask)]);
        good(&shown);
        for part in [
            "touch made.txt",
            "no rule allows it",
            "digest",
            "made.txt\"",
        ] {
            assert!(shown.stdout.contains(part), "{part}: {}", shown.all());
        }
        // Something else is answered than what waits.
        let wrong = answer(&drill, "allow", &ask, &["--digest", &"0".repeat(64)]);
        assert_eq!(wrong.code, Some(1), "{}", wrong.all());
        assert!(wrong.stderr.contains("another digest"), "{}", wrong.all());
        assert_eq!(state(&drill, &ask), "pending");
        good(&answer(&drill, "allow", &ask, &["--reason", "fine"]));
        let result = result(&drill, client);
        assert_eq!(result["outcome"], "done", "{result}");
        assert_eq!(result["changes"][0]["path"], "made.txt", "{result}");
        assert_eq!(result["requests"]["allowed"], 1, "{result}");
        assert_eq!(state(&drill, &ask), "allowed");
        for late in ["allow", "deny"] {
            let late = answer(&drill, late, &ask, &[]);
            assert_eq!(late.code, Some(1), "{}", late.all());
            assert!(late.stderr.contains("is over (allowed)"), "{}", late.all());
        }
        let none = drill.run(&["asks", "allow", "no-such-ask"]);
        assert_eq!(none.code, Some(2), "{}", none.all());
        assert!(waiting(&drill, 0).is_empty());
        let over = listed(&drill, &["--over"]);
        assert_eq!(over[0]["answer"]["approver"], "uid 0", "{over:?}");
        let by: String = drill
            .database()
            .query_row("SELECT decided_by || ' ' || reason FROM asks", [], |row| {
                row.get(0)
            })
            .expect("a record");
        assert_eq!(by, "human a person (uid 0) allowed this: fine");
        let page = drill.get("/metrics").1;
        assert_eq!(metric(&page, pending), Some(0.0));
        let counted = r#"marshal_permission_requests_total{pool="demo",tool_class="shell",decision="allow",decided_by="human"}"#;
        assert_eq!(metric(&page, counted), Some(1.0), "{page}");
    }
}

#[test]
fn a_denial_and_its_reason_reach_the_agent() {
    for dialect in DIALECTS {
        let drill = Drill::new(&pool(dialect, ""));
        let _daemon = daemon(&drill);
        let client = client(&drill, &[ASKED]);
        let ask = waiting(&drill, 1).remove(0);
        good(&answer(
            &drill,
            "deny",
            &ask,
            &["--reason", "use the notes instead"],
        ));
        let result = result(&drill, client);
        assert_eq!(result["outcome"], "denied", "{result}");
        assert_eq!(result["changes"], serde_json::json!([]), "{result}");
        assert_eq!(state(&drill, &ask), "denied");
        if dialect == "scaiflux" {
            let said = result["answer"].as_str().expect("an answer");
            assert!(said.contains("use the notes instead"), "{result}");
        }
    }
}

#[test]
fn a_run_asks_only_where_it_is_told_to() {
    let drill = Drill::new(&pool("acp", ""));
    let ran = drill.run(&["run", "--results", "r.jsonl", ASKED]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let mut running = drill.start(&["run", "--ask", "--results", "r.jsonl", ASKED]);
    eventually(LONG, "the control socket is there", || {
        drill.run(&["--json", "asks", "ls"]).code == Some(0)
    });
    let ask = waiting(&drill, 1).remove(0);
    let log = drill.log("stderr.log");
    assert!(
        log.contains(&id(&ask)) && log.contains("asks show"),
        "{log}"
    );
    good(&answer(&drill, "allow", &ask, &[]));
    assert_eq!(running.wait(LONG), Some(0));
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "done");
    let nobody = drill.run(&["asks", "ls"]);
    assert_eq!(nobody.code, Some(4), "{}", nobody.all());
}

#[test]
fn nobody_answers_in_time() {
    for (dialect, then, outcome) in [
        ("scaiflux", "deny", "denied"),
        ("acp", "deny_turn", "denied"),
    ] {
        let more = format!("ask = {{ timeout = \"1s\", on_timeout = \"{then}\" }}");
        let drill = Drill::new(&pool(dialect, &more));
        let _daemon = daemon(&drill);
        let client = client(&drill, &[&format!("{ASKED}\nsay went on")]);
        let ask = waiting(&drill, 1).remove(0);
        let result = result(&drill, client);
        assert_eq!(result["outcome"], outcome, "{result}");
        let said = result["answer"].as_str().unwrap_or_default();
        assert_eq!(said.contains("went on"), then == "deny", "{result}");
        assert_eq!(state(&drill, &ask), "expired");
        let late = answer(&drill, "allow", &ask, &[]);
        assert_eq!(late.code, Some(1), "{}", late.all());
        assert!(late.stderr.contains("is over (expired)"), "{}", late.all());
        assert!(!fs::exists(drill.workspace().join("made.txt")).expect("looked"));
    }
}
