//! What the policy wants a person to decide: it waits, is shown, and is answered once.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, Running, eventually, metric};
use crate::full_disk;

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
        for part in ["touch made.txt", "digest", "made.txt\"", "input"] {
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

/// One session for task after task, which is loaded again.
fn slot_pool(dialect: &str) -> String {
    let resume = match dialect {
        "scaiflux" => "resume_args = [\"--resume\", \"{session}\"]\n",
        _ => "",
    };
    let text = pool(dialect, &format!("session = \"slot\"\n{resume}"));
    text.replace("max = \"100ms\"", "max = \"100ms\", on_crash = \"resume\"")
}

fn killed(mut daemon: Running, mut client: Child) {
    daemon.child.kill().expect("kill -9");
    let _ = daemon.child.wait();
    client.wait().expect("ends");
}

#[test]
fn after_a_kill_the_answer_is_kept_and_used_once_by_the_resumed_agent() {
    for dialect in DIALECTS {
        let drill = Drill::new(&slot_pool(dialect));
        let first = daemon(&drill);
        let lost = client(&drill, &[ASKED]);
        let ask = waiting(&drill, 1).remove(0);
        killed(first, lost);
        let _second = daemon(&drill);
        let left = waiting(&drill, 1).remove(0);
        assert_eq!(left["state"], "orphaned", "{left}");
        assert_eq!(id(&left), id(&ask));
        let by = "SELECT decided_by FROM asks";
        let by: String = drill
            .database()
            .query_row(by, [], |row| row.get(0))
            .expect("one");
        assert_eq!(
            by, "gone",
            "the request that nobody answered is denied on record"
        );
        let kept = answer(&drill, "allow", &ask, &[]);
        good(&kept);
        assert!(
            kept.stderr.contains("kept for the agent's return"),
            "{}",
            kept.all()
        );
        let again = answer(&drill, "deny", &ask, &[]);
        assert_eq!(again.code, Some(1), "{}", again.all());
        assert!(again.stderr.contains("it has an answer"), "{}", again.all());
        // Another request of the same session is none of it.
        let other = client(&drill, &["run touch other.txt"]);
        let found = waiting(&drill, 2);
        let found = found
            .iter()
            .find(|of| id(of) != id(&ask))
            .expect("the other");
        good(&answer(&drill, "deny", found, &[]));
        assert_eq!(result(&drill, other)["outcome"], "denied");
        let back = result(&drill, client(&drill, &[ASKED]));
        assert_eq!(back["outcome"], "done", "{back}");
        assert_eq!(back["changes"][0]["path"], "made.txt", "{back}");
        assert_eq!(state(&drill, &ask), "allowed");
        // Once.
        let anew = client(&drill, &[ASKED]);
        let next = waiting(&drill, 1).remove(0);
        assert_ne!(id(&next), id(&ask));
        good(&answer(&drill, "deny", &next, &[]));
        assert_eq!(result(&drill, anew)["outcome"], "denied");
        drill.assert_dense();
    }
}

#[test]
fn after_a_kill_a_resumed_agent_waits_for_the_same_ask_and_others_are_over() {
    let drill = Drill::new(&slot_pool("acp"));
    let first = daemon(&drill);
    let lost = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let second = daemon(&drill);
    let back = client(&drill, &[ASKED]);
    let mut again = waiting(&drill, 1).remove(0);
    eventually(LONG, "the agent waits for it again", || {
        again = waiting(&drill, 1).remove(0);
        again["state"] == "pending"
    });
    assert_eq!((id(&again), &again["times"]), (id(&ask), &Value::from(2)));
    assert_eq!(again["deadline_us"], ask["deadline_us"], "its time goes on");
    good(&answer(&drill, "allow", &ask, &[]));
    assert_eq!(result(&drill, back)["outcome"], "done");
    drop(second);

    // A session that ends with its task is not resumed.
    let drill = Drill::new(&pool("acp", ""));
    let first = daemon(&drill);
    let lost = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let _second = daemon(&drill);
    assert!(listed(&drill, &[]).is_empty());
    assert_eq!(state(&drill, &ask), "expired");
    let late = answer(&drill, "allow", &ask, &[]);
    assert_eq!(late.code, Some(1), "{}", late.all());
}

#[test]
fn a_released_session_waits_without_its_child_and_lets_others_work() {
    for dialect in DIALECTS {
        let release = "ask = { when_waiting = \"release\" }\n";
        let drill = Drill::new(&(slot_pool(dialect) + release));
        let mut daemon = daemon(&drill);
        let working = client(&drill, &[ASKED]);
        let ask = waiting(&drill, 1).remove(0);
        eventually(LONG, "its child is gone", || {
            state(&drill, &ask) == "orphaned" && drill.agents().is_empty()
        });
        // Another task does not wait for it.
        let between = drill.run(&["run", "say hello"]);
        good(&between);
        assert_eq!(state(&drill, &ask), "orphaned");
        good(&answer(&drill, "allow", &ask, &[]));
        let back = result(&drill, working);
        assert_eq!(back["outcome"], "done", "{back}");
        assert_eq!(back["attempts"], 1, "{back}");
        assert_eq!(back["requests"]["denied"], 0, "{back}");
        assert_eq!(back["changes"][0]["path"], "made.txt", "{back}");
        assert_eq!(state(&drill, &ask), "allowed");

        // A cancelled run does not wait, and neither does the end.
        let mut working = client(&drill, &["run touch other.txt"]);
        let ask = waiting(&drill, 1).remove(0);
        eventually(LONG, "its child is gone", || {
            state(&drill, &ask) == "orphaned"
        });
        daemon.signal("TERM");
        assert_eq!(daemon.wait(LONG), Some(0));
        working.wait().expect("ends");
        drill.assert_dense();
    }
    let release = "ask = { when_waiting = \"release\", timeout = \"3s\" }\n";
    let drill = Drill::new(&(slot_pool("acp") + release));
    let _daemon = daemon(&drill);
    let denied = result(&drill, client(&drill, &[ASKED]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
    let detail = denied["detail"].as_str().expect("a detail");
    assert!(detail.contains("nobody answered ask"), "{denied}");
}

#[test]
fn an_orphan_expires_by_itself() {
    let text = slot_pool("acp") + "ask = { timeout = \"6s\" }\n";
    let drill = Drill::new(&text);
    let first = daemon(&drill);
    let lost = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    killed(first, lost);
    let _second = daemon(&drill);
    assert_eq!(state(&drill, &ask), "orphaned");
    eventually(LONG, "it expires", || state(&drill, &ask) == "expired");
    assert!(listed(&drill, &[]).is_empty());
    let back = client(&drill, &[ASKED]);
    assert_ne!(id(&waiting(&drill, 1)[0]), id(&ask), "it is asked anew");
    drop(back);
}

#[test]
fn an_answer_is_remembered_as_long_as_it_says_and_as_the_pool_lets_it() {
    let drill = Drill::new(&slot_pool("scaiflux"));
    let _daemon = daemon(&drill);
    let twice = format!("{ASKED}\n{ASKED}");
    let working = client(&drill, &[&twice]);
    let ask = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "allow", &ask, &["--remember", "turn"]));
    let done = result(&drill, working);
    assert_eq!(done["requests"]["allowed"], 2, "{done}");
    // The next turn asks again.
    let working = client(&drill, &[&twice]);
    let ask = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "allow", &ask, &["--remember", "session"]));
    let done = result(&drill, working);
    assert_eq!(done["requests"]["allowed"], 2, "{done}");
    let done = result(&drill, client(&drill, &[&twice]));
    assert_eq!(done["requests"]["allowed"], 2, "{done}");
    let page = drill.get("/metrics").1;
    let cached = r#"marshal_permission_requests_total{pool="demo",tool_class="shell",decision="allow",decided_by="cache"}"#;
    assert_eq!(metric(&page, cached), Some(4.0), "{page}");

    let text = pool("acp", "ask = { remember = \"never\" }");
    let drill = Drill::new(&text);
    let _daemon = daemon(&drill);
    let working = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    let refused = answer(&drill, "allow", &ask, &["--remember", "turn"]);
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    assert!(refused.stderr.contains("ask.remember"), "{}", refused.all());
    assert_eq!(state(&drill, &ask), "pending");
    good(&answer(&drill, "allow", &ask, &[]));
    assert_eq!(result(&drill, working)["outcome"], "done");
}

/// A copy of the pool's only session, as root sees it.
fn copy(drill: &Drill, ask: &Value) -> std::path::PathBuf {
    let session = ask["session"].as_str().expect("a session");
    let copies = drill.state().join("copies");
    let entries = fs::read_dir(&copies).expect("copies");
    let names = entries.map(|entry| entry.expect("an entry").path());
    let mut of_session = names.filter(|path| path.to_string_lossy().contains(session));
    of_session
        .next()
        .unwrap_or_else(|| panic!("no copy of {session} in {}", copies.display()))
}

#[test]
fn no_answer_overrules_a_rule_or_holds_for_another_place() {
    for (target, said, by) in [
        ("/etc", "no answer overrules a rule", "policy"),
        ("docs", "changed while it waited", "error"),
    ] {
        let drill = Drill::new(&pool("acp", ""));
        fs::create_dir(drill.workspace().join("docs")).expect("docs");
        fs::write(drill.workspace().join("docs/a"), "").expect("a");
        let _daemon = daemon(&drill);
        let working = client(&drill, &["run touch src/new.rs"]);
        let ask = waiting(&drill, 1).remove(0);
        let shown = drill.run(&["asks", "show", &id(&ask)]);
        let path = "src/new.rs leads to /workspace/src/new.rs, inside of the workspace";
        assert!(shown.stdout.contains(path), "{}", shown.all());
        let copy = copy(&drill, &ask);
        fs::rename(copy.join("src"), copy.join("before")).expect("renamed");
        std::os::unix::fs::symlink(target, copy.join("src")).expect("a link");
        let refused = answer(&drill, "allow", &ask, &[]);
        assert_eq!(refused.code, Some(1), "{}", refused.all());
        assert!(refused.stderr.contains(said), "{}", refused.all());
        assert_eq!(state(&drill, &ask), "denied");
        assert_eq!(result(&drill, working)["outcome"], "denied");
        let found: String = drill
            .database()
            .query_row(
                "SELECT decision || ' ' || decided_by FROM asks",
                [],
                |row| row.get(0),
            )
            .expect("a record");
        assert_eq!(found, format!("deny {by}"));
    }
}

#[test]
fn a_full_queue_denies_and_identical_asks_are_one_row() {
    let text = pool("scaiflux", "").replace("size      = 1", "size      = 21");
    let text = text.replace(
        "policy ",
        "launcher = \"none\"\nnetwork = \"host\"\npolicy ",
    );
    let drill = Drill::new(&text);
    let _daemon = daemon(&drill);
    let prompts: Vec<String> = (0..21).map(|n| format!("run touch made-{n}")).collect();
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let working = client(&drill, &prompts);
    waiting(&drill, 20);
    eventually(LONG, "one was denied", || {
        let query =
            "SELECT count(*) FROM asks WHERE rules = '[\"max_pending\"]' AND decision = 'deny'";
        drill
            .database()
            .query_row(query, [], |row| row.get::<_, i64>(0))
            == Ok(1)
    });
    drop(working);

    let drill = Drill::new(&pool("acp", ""));
    let _daemon = daemon(&drill);
    let ask = |id: &str, command: &str| {
        format!(
            r#"raw {{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"sessionId":"{{session}}","toolCall":{{"toolCallId":"c{id}","kind":"execute","rawInput":{{"command":"{command}"}}}},"options":[{{"optionId":"y","name":"y","kind":"allow_once"}},{{"optionId":"n","name":"n","kind":"reject_once"}}]}}}}"#
        )
    };
    let mut script: Vec<String> = (1..=4)
        .map(|n| ask(&format!("90{n}"), &format!("touch a{n}")))
        .collect();
    script.push(ask("911", "touch a1"));
    script.push(ask("912", "touch a5"));
    script.push("hang".to_owned());
    let working = client(&drill, &[&script.join("\n")]);
    let asks = waiting(&drill, 4);
    let denied = "SELECT count(*) FROM asks WHERE rules = '[\"max_pending\"]'";
    eventually(LONG, "the fifth is denied", || {
        drill
            .database()
            .query_row(denied, [], |row| row.get::<_, i64>(0))
            == Ok(1)
    });
    let first = asks
        .iter()
        .find(|of| of["summary"] == "touch a1")
        .expect("the first");
    let mut times = Value::Null;
    eventually(LONG, "the same is the same row", || {
        let found = listed(&drill, &[]);
        let found = found.iter().find(|of| id(of) == id(first));
        times = found.map_or(Value::Null, |of| of["times"].clone());
        times == 2
    });
    good(&answer(&drill, "allow", first, &[]));
    let allowed = "SELECT count(*) FROM asks WHERE decided_by = 'human' AND decision = 'allow'";
    eventually(LONG, "both are answered", || {
        drill
            .database()
            .query_row(allowed, [], |row| row.get::<_, i64>(0))
            == Ok(2)
    });
    drop(working);
}

#[test]
fn an_agent_that_goes_a_turn_that_is_cancelled_and_a_supervisor_that_ends_deny() {
    let drill = Drill::new(&pool("scaiflux", ""));
    let mut daemon = daemon(&drill);
    let working = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    for pid in drill.agents() {
        let _ = std::process::Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status();
    }
    assert_eq!(result(&drill, working)["outcome"], "lost");
    assert_eq!(state(&drill, &ask), "cancelled");
    let late = answer(&drill, "allow", &ask, &[]);
    assert!(
        late.stderr.contains("is over (cancelled)"),
        "{}",
        late.all()
    );

    let mut working = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
    working.wait().expect("ends");
    assert_eq!(state(&drill, &ask), "cancelled");
    let open = "SELECT count(*) FROM asks WHERE decision IS NULL OR decision = 'allow'";
    let open = drill
        .database()
        .query_row(open, [], |row| row.get::<_, i64>(0));
    assert_eq!(open, Ok(0));
}

#[test]
fn the_same_request_id_twice_is_denied_and_so_is_too_large_an_input() {
    let drill = Drill::new(&pool("acp", ""));
    let _daemon = daemon(&drill);
    let ask = |command: &str| {
        format!(
            r#"raw {{"jsonrpc":"2.0","id":900,"method":"session/request_permission","params":{{"sessionId":"{{session}}","toolCall":{{"toolCallId":"x","kind":"execute","rawInput":{{"command":"{command}"}}}},"options":[{{"optionId":"y","name":"y","kind":"allow_once"}},{{"optionId":"n","name":"n","kind":"reject_once"}}]}}}}"#
        )
    };
    let script = [&ask("touch a"), "sleep 3s", &ask("touch b"), "say on"].join("\n");
    let working = client(&drill, &[&script]);
    let first = waiting(&drill, 1).remove(0);
    assert_eq!(result(&drill, working)["requests"]["allowed"], 0);
    assert_eq!(
        state(&drill, &first),
        "cancelled",
        "an answer could be for either"
    );
    assert!(listed(&drill, &[]).is_empty());
    let drill = Drill::new(&pool("scaiflux", ""));
    let _daemon = self::daemon(&drill);
    let large = format!("run touch {}", "x".repeat(70 << 10));
    let denied = result(&drill, client(&drill, &[&large]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
    assert_eq!(denied["denied_by"][0], "too_large", "{denied}");
    assert!(listed(&drill, &[]).is_empty());
}

#[test]
fn a_full_disk_allows_nothing() {
    let drill = Drill::with_supervisor(full_disk::POOLS, "journal.min_free = \"12M\"");
    let running = full_disk::up(&drill);
    let mut working = full_disk::client(&drill, &running, &["run", "--results", "r.jsonl", ASKED])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a client");
    let listed = || {
        let ran = full_disk::client(&drill, &running, &["--json", "asks", "ls"]).output();
        String::from_utf8_lossy(&ran.expect("a client").stdout).into_owned()
    };
    eventually(LONG, "it waits", || listed().contains("pending"));
    let ask: Value = serde_json::from_str(listed().trim()).expect("one");
    let more = full_disk::inside(&drill, &running).join("more");
    fs::write(&more, vec![0; 24 << 20]).expect("there is room for this");
    eventually(LONG, "it takes nothing", || drill.get("/readyz").0 == 503);
    let allow = || {
        let id = id(&ask);
        let ran = full_disk::client(&drill, &running, &["asks", "allow", &id]).output();
        let ran = ran.expect("a client");
        (
            ran.status.code(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        )
    };
    let (code, said) = allow();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("nothing can be allowed"), "{said}");
    assert!(
        working.try_wait().expect("wait").is_none(),
        "it still waits"
    );
    fs::remove_file(more).expect("space");
    eventually(LONG, "it recovers", || drill.get("/readyz").0 == 200);
    let (code, said) = allow();
    assert_eq!(code, Some(0), "{said}");
    working.wait().expect("ends");
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "done");
}

/// One request by plain HTTP; gives status and body.
fn http(drill: &Drill, head: &str, host: Option<&str>, body: &str) -> (u16, String) {
    let address = drill.address();
    let mut stream = std::net::TcpStream::connect(&address).expect("it listens");
    let host = host.unwrap_or(&address);
    let length = body.len();
    write!(stream, "{head}\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

#[test]
fn over_http_only_a_token_sees_and_answers() {
    let drill = Drill::new(&pool("acp", "ask = { approvers = [\"ops\"] }"));
    let ops = drill.state().join("approvers");
    let _daemon = daemon(&drill);
    fs::create_dir(&ops).expect("approvers");
    fs::write(ops.join("ops"), format!("{}\n", "o".repeat(40))).expect("a token");
    fs::set_permissions(ops.join("ops"), fs::Permissions::from_mode(0o644)).expect("mode");
    let file = drill.state().join("http.token");
    assert_eq!(
        fs::metadata(&file).expect("a token").permissions().mode() & 0o777,
        0o600
    );
    let owner = fs::read_to_string(&file).expect("a token");
    let owner = format!("\r\nAuthorization: Bearer {}", owner.trim());
    let ops_token = format!("\r\nAuthorization: Bearer {}", "o".repeat(40));
    let working = client(&drill, &[ASKED]);
    let ask = waiting(&drill, 1).remove(0);
    let page = format!("/asks/{}", id(&ask));
    let get =
        |path: &str, with: &str| http(&drill, &format!("GET {path} HTTP/1.1{with}"), None, "");
    let post = |with: &str, host: Option<&str>, body: &str| {
        http(&drill, &format!("POST {page} HTTP/1.1{with}"), host, body)
    };
    let allow = format!(r#"{{"digest":{},"decision":"allow"}}"#, ask["digest"]);
    let long = "\r\nAuthorization: Bearer ".to_owned() + &"0".repeat(64);
    for with in ["", "\r\nAuthorization: Basic eDp5", &long, &ops_token] {
        for path in ["/asks", &page] {
            assert_eq!(get(path, with).0, 401, "{with}");
        }
        assert_eq!(post(with, None, &allow).0, 401, "{with}");
    }
    let evil = Some("evil.example");
    assert_eq!(post(&owner, evil, &allow).0, 421, "a rebound name");
    assert_eq!(get("/asks", &owner).0, 200);
    assert_eq!(get("/asks?x=1", &owner).0, 400);
    assert_eq!(get("/asks/none", &owner).0, 404);
    let (code, body) = get(&page, &owner);
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(code, 200);
    assert_eq!(body["more"]["parts"][0]["words"][0], "touch", "{body}");
    assert_eq!(post(&owner, None, "{}").0, 400);
    assert_eq!(
        post(&owner, None, r#"{"digest":"00","decision":"allow"}"#).0,
        409
    );
    // The owner may look, and the pool wants somebody else's answer.
    assert_eq!(post(&owner, None, &allow).0, 403);
    let denied = answer(&drill, "allow", &ask, &[]);
    assert_eq!(denied.code, Some(5), "{}", denied.all());
    assert!(
        denied.stderr.contains("ask.approvers has ops"),
        "{}",
        denied.all()
    );
    assert_eq!(state(&drill, &ask), "pending");
    fs::set_permissions(ops.join("ops"), fs::Permissions::from_mode(0o600)).expect("mode");
    let (code, body) = post(&ops_token, None, &allow);
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("\"state\":\"allowed\""), "{body}");
    assert_eq!(post(&ops_token, None, &allow).0, 409);
    assert_eq!(result(&drill, working)["outcome"], "done");
    let over = listed(&drill, &["--over"]);
    assert_eq!(over[0]["answer"]["approver"], "token ops", "{over:?}");
}

#[test]
fn with_nobody_to_answer_nobody_is_asked() {
    let drill = Drill::new(&pool("scaiflux", "ask = { approvers = [] }"));
    let _daemon = daemon(&drill);
    let denied = result(&drill, client(&drill, &[ASKED]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
    assert!(listed(&drill, &["--over"]).is_empty());
}
