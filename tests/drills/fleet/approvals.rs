//! What the policy wants a person to decide: it waits, is shown, and is answered once.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::drill::{Drill, Ran, Running, eventually, metric};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Every protocol that the script agent speaks.
pub(crate) const DIALECTS: [&str; 2] = ["scaiflux", "acp"];

/// What no rule of `cautious` allows.
pub(crate) const UNDECIDED_PROMPT: &str = "run touch made.txt";

pub(crate) fn pool(dialect: &str, more: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "{dialect}"]
dialect   = "{dialect}"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}
"#
    )
}

pub(crate) fn daemon(drill: &Drill) -> Running {
    let daemon = drill.start(&["up"]);
    assert_eq!(drill.get("/healthz").0, 200);
    daemon
}

/// A client that hands prompts to the daemon.
pub(crate) fn client(drill: &Drill, prompts: &[&str]) -> Child {
    let mut args = vec!["run", "--results", "r.jsonl"];
    args.extend(prompts);
    let mut command = drill.command(&args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a client")
}

pub(crate) fn list_approvals(drill: &Drill, more: &[&str]) -> Vec<Value> {
    let mut args = vec!["--json", "approvals", "ls"];
    args.extend(more);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The approvals that wait, once there are so many.
pub(crate) fn waiting(drill: &Drill, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually(LONG, "asks wait", || {
        found = list_approvals(drill, &[]);
        found.len() == count
    });
    found
}

pub(crate) fn id(ask: &Value) -> String {
    ask["approval"].as_str().expect("an id").to_owned()
}

pub(crate) fn answer(drill: &Drill, how: &str, ask: &Value, more: &[&str]) -> Ran {
    let id = id(ask);
    let mut args = vec!["approvals", how, id.as_str()];
    args.extend(more);
    drill.run(&args)
}

pub(crate) fn good(ran: &Ran) {
    assert_eq!(ran.code, Some(0), "{}", ran.all());
}

pub(crate) fn result(drill: &Drill, mut client: Child) -> Value {
    client.wait().expect("ends");
    drill.results("r.jsonl").remove(0)
}

pub(crate) fn state(drill: &Drill, ask: &Value) -> String {
    let query = "SELECT state FROM approvals WHERE id = ?1";
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
        let client = client(&drill, &[UNDECIDED_PROMPT]);
        let ask = waiting(&drill, 1).remove(0);
        assert_eq!(ask["state"], "pending", "{ask}");
        assert_eq!(
            state(&drill, &ask),
            "pending",
            "it is stored before it is shown"
        );
        assert_eq!(ask["summary"], "touch made.txt", "{ask}");
        let page = drill.get("/metrics").1;
        let pending = r#"marshal_approvals_pending{pool="demo"}"#;
        assert_eq!(metric(&page, pending), Some(1.0));
        let shown = drill.run(&["approvals", "show", &id(&ask)]);
        good(&shown);
        for part in ["touch made.txt", "digest", "made.txt\"", "input"] {
            assert!(shown.stdout.contains(part), "{part}: {}", shown.all());
        }
        // Something else is answered than what waits.
        let wrong = answer(&drill, "approve", &ask, &["--digest", &"0".repeat(64)]);
        assert_eq!(wrong.code, Some(1), "{}", wrong.all());
        assert!(wrong.stderr.contains("another digest"), "{}", wrong.all());
        assert_eq!(state(&drill, &ask), "pending");
        good(&answer(&drill, "approve", &ask, &["--reason", "fine"]));
        let result = result(&drill, client);
        assert_eq!(result["outcome"], "done", "{result}");
        assert_eq!(result["changes"][0]["path"], "made.txt", "{result}");
        assert_eq!(result["requests"]["allowed"], 1, "{result}");
        assert_eq!(state(&drill, &ask), "approved");
        for late in ["approve", "reject"] {
            let late = answer(&drill, late, &ask, &[]);
            assert_eq!(late.code, Some(1), "{}", late.all());
            assert!(
                late.stderr.contains("has ended (approved)"),
                "{}",
                late.all()
            );
        }
        let none = drill.run(&["approvals", "approve", "no-such-ask"]);
        assert_eq!(none.code, Some(2), "{}", none.all());
        assert!(waiting(&drill, 0).is_empty());
        let over = list_approvals(&drill, &["--ended"]);
        assert_eq!(over[0]["answer"]["approver"], "uid 0", "{over:?}");
        let by: String = drill
            .database()
            .query_row(
                "SELECT decided_by || ' ' || reason FROM permission_requests",
                [],
                |row| row.get(0),
            )
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
        let client = client(&drill, &[UNDECIDED_PROMPT]);
        let ask = waiting(&drill, 1).remove(0);
        good(&answer(
            &drill,
            "reject",
            &ask,
            &["--reason", "use the notes instead"],
        ));
        let result = result(&drill, client);
        assert_eq!(result["outcome"], "denied", "{result}");
        assert_eq!(result["changes"], serde_json::json!([]), "{result}");
        assert_eq!(state(&drill, &ask), "rejected");
        if dialect == "scaiflux" {
            let text = result["answer"].as_str().expect("an answer");
            assert!(text.contains("use the notes instead"), "{result}");
        }
    }
}

#[test]
fn a_run_asks_only_where_it_is_told_to() {
    let drill = Drill::new(&pool("acp", ""));
    let ran = drill.run(&["run", "--results", "r.jsonl", UNDECIDED_PROMPT]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let mut running = drill.start(&[
        "run",
        "--approvals",
        "--results",
        "r.jsonl",
        UNDECIDED_PROMPT,
    ]);
    eventually(LONG, "the socket is there", || {
        drill.run(&["--json", "approvals", "ls"]).code == Some(0)
    });
    let ask = waiting(&drill, 1).remove(0);
    // It is on record a moment before it is told.
    eventually(LONG, "it is told", || {
        let log = drill.log("stderr.log");
        log.contains(&id(&ask)) && log.contains("approvals show")
    });
    good(&answer(&drill, "approve", &ask, &[]));
    assert_eq!(running.wait(LONG), Some(0));
    assert_eq!(drill.results("r.jsonl")[0]["outcome"], "done");
    let nobody = drill.run(&["approvals", "ls"]);
    assert_eq!(nobody.code, Some(4), "{}", nobody.all());
}

#[test]
fn nobody_answers_in_time() {
    for (dialect, then, outcome) in [
        ("scaiflux", "deny", "denied"),
        ("acp", "deny_turn", "denied"),
    ] {
        let more = format!("approval = {{ timeout = \"1s\", on_timeout = \"{then}\" }}");
        let drill = Drill::new(&pool(dialect, &more));
        let _daemon = daemon(&drill);
        // The end of the turn comes behind the denial.
        let prompt = format!("{UNDECIDED_PROMPT}\nsleep 4s\nsay went on");
        let result = result(&drill, client(&drill, &[&prompt]));
        assert_eq!(result["outcome"], outcome, "{result}");
        // Looked at when it is over: a look may take longer than it waits.
        let ask = list_approvals(&drill, &["--ended"]).remove(0);
        let text = result["answer"].as_str().unwrap_or_default();
        assert_eq!(text.contains("went on"), then == "deny", "{result}");
        assert_eq!(state(&drill, &ask), "expired");
        let late = answer(&drill, "approve", &ask, &[]);
        assert_eq!(late.code, Some(1), "{}", late.all());
        assert!(
            late.stderr.contains("has ended (expired)"),
            "{}",
            late.all()
        );
        assert_eq!(result["changes"], serde_json::json!([]), "{result}");
        let tree = copy(&drill, &ask);
        assert!(fs::exists(tree.join("README.md")).expect("looked"));
        assert!(!fs::exists(tree.join("made.txt")).expect("looked"));
    }
}

/// A copy of the pool's only session, as root sees it.
fn copy(drill: &Drill, ask: &Value) -> std::path::PathBuf {
    let session = ask["session"].as_str().expect("a session");
    let copies = drill.state().join("copies");
    let entries = fs::read_dir(&copies).expect("copies");
    let names = entries.map(|entry| entry.expect("an entry").path());
    let mut of_session =
        names.filter(|path| path.is_dir() && path.to_string_lossy().contains(session));
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
        let shown = drill.run(&["approvals", "show", &id(&ask)]);
        let path = "src/new.rs leads to /workspace/src/new.rs, inside of the workspace";
        assert!(shown.stdout.contains(path), "{}", shown.all());
        let copy = copy(&drill, &ask);
        fs::rename(copy.join("src"), copy.join("before")).expect("renamed");
        std::os::unix::fs::symlink(target, copy.join("src")).expect("a link");
        let refused = answer(&drill, "approve", &ask, &[]);
        assert_eq!(refused.code, Some(1), "{}", refused.all());
        assert!(refused.stderr.contains(said), "{}", refused.all());
        assert_eq!(state(&drill, &ask), "rejected");
        assert_eq!(result(&drill, working)["outcome"], "denied");
        let found: String = drill
            .database()
            .query_row(
                "SELECT decision || ' ' || decided_by FROM permission_requests",
                [],
                |row| row.get(0),
            )
            .expect("a record");
        assert_eq!(found, format!("deny {by}"));
    }
}

#[test]
fn a_bare_name_that_becomes_a_link_is_another_place() {
    let drill = Drill::new(&pool("acp", ""));
    fs::write(drill.workspace().join("note"), "").expect("note");
    let _daemon = daemon(&drill);
    let working = client(&drill, &["run sh made.sh note"]);
    let ask = waiting(&drill, 1).remove(0);
    let copy = copy(&drill, &ask);
    fs::remove_file(copy.join("note")).expect("removed");
    std::os::unix::fs::symlink("/etc/hostname", copy.join("note")).expect("a link");
    let refused = answer(&drill, "approve", &ask, &[]);
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    assert!(
        refused.stderr.contains("changed while it waited"),
        "{}",
        refused.all()
    );
    assert_eq!(result(&drill, working)["outcome"], "denied");

    // Remembered for the session, and the first one makes the link.
    let drill = Drill::new(&pool("acp", ""));
    fs::write(drill.workspace().join("note"), "").expect("note");
    let swap = "rm note\nln -s /etc/hostname note\n";
    fs::write(drill.workspace().join("swap.sh"), swap).expect("swap.sh");
    let _daemon = daemon(&drill);
    let working = client(&drill, &["run sh swap.sh note\nrun sh swap.sh note"]);
    let first = waiting(&drill, 1).remove(0);
    let remembered = ["--remember", "session"];
    good(&answer(&drill, "approve", &first, &remembered));
    let again = || {
        let listed = list_approvals(&drill, &[]);
        listed.into_iter().find(|item| id(item) != id(&first))
    };
    eventually(LONG, "it is asked again", || again().is_some());
    let second = again().expect("it waits");
    good(&answer(&drill, "reject", &second, &[]));
    result(&drill, working);
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
        let query = "SELECT count(*) FROM permission_requests WHERE rules = '[\"max_pending\"]' AND decision = 'deny'";
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
    let requests = waiting(&drill, 4);
    let denied = "SELECT count(*) FROM permission_requests WHERE rules = '[\"max_pending\"]'";
    eventually(LONG, "the fifth is denied", || {
        drill
            .database()
            .query_row(denied, [], |row| row.get::<_, i64>(0))
            == Ok(1)
    });
    let first = requests
        .iter()
        .find(|item| item["summary"] == "touch a1")
        .expect("the first");
    let mut times = Value::Null;
    eventually(LONG, "the same is the same row", || {
        let found = list_approvals(&drill, &[]);
        let found = found.iter().find(|item| id(item) == id(first));
        times = found.map_or(Value::Null, |item| item["times"].clone());
        times == 2
    });
    good(&answer(&drill, "approve", first, &[]));
    let allowed = "SELECT count(*) FROM permission_requests WHERE decided_by = 'human' AND decision = 'allow'";
    eventually(LONG, "both are answered", || {
        drill
            .database()
            .query_row(allowed, [], |row| row.get::<_, i64>(0))
            == Ok(2)
    });
    // Both records lead to whoever answered.
    let exported = drill.run(&["audit", "export"]);
    let lines = exported.stdout.lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let of_people: Vec<Value> = lines.filter(|line| line["by"] == "human").collect();
    assert_eq!(of_people.len(), 2, "{}", exported.all());
    for line in of_people {
        assert_eq!(line["approver"], "uid 0", "{line}");
    }
    good(&drill.run(&["audit", "verify"]));
    drop(working);
}

#[test]
fn an_agent_that_goes_a_turn_that_is_cancelled_and_a_supervisor_that_ends_deny() {
    let reported = "max = \"100ms\", on_crash = \"report\"";
    let drill = Drill::new(&pool("scaiflux", "").replace("max = \"100ms\"", reported));
    let mut daemon = daemon(&drill);
    let working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    for pid in drill.agents() {
        let _ = std::process::Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status();
    }
    assert_eq!(result(&drill, working)["outcome"], "lost");
    assert_eq!(state(&drill, &ask), "cancelled");
    let late = answer(&drill, "approve", &ask, &[]);
    assert!(
        late.stderr.contains("has ended (cancelled)"),
        "{}",
        late.all()
    );

    let mut working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(LONG), Some(0));
    working.wait().expect("ends");
    assert_eq!(state(&drill, &ask), "cancelled");
    let open =
        "SELECT count(*) FROM permission_requests WHERE decision IS NULL OR decision = 'allow'";
    let open = drill
        .database()
        .query_row(open, [], |row| row.get::<_, i64>(0));
    assert_eq!(open, Ok(0));
}

/// A step of a script: pauses until there is this file.
const PAUSE: &str = "unasked until test -e go; do sleep 0.1; done";

/// Ends the pause of the session of an approval.
fn go(drill: &Drill, ask: &Value) {
    fs::write(copy(drill, ask).join("go"), "").expect("go");
}

/// A request of its own for a permission, whatever its script does besides.
fn raw_ask(command: &str) -> String {
    format!(
        r#"raw {{"jsonrpc":"2.0","id":900,"method":"session/request_permission","params":{{"sessionId":"{{session}}","toolCall":{{"toolCallId":"x","kind":"execute","rawInput":{{"command":"{command}"}}}},"options":[{{"optionId":"y","name":"y","kind":"allow_once"}},{{"optionId":"n","name":"n","kind":"reject_once"}}]}}}}"#
    )
}

#[test]
fn a_request_id_that_was_answered_is_not_judged_again() {
    let drill = Drill::new(&pool("acp", ""));
    let _daemon = daemon(&drill);
    // Of the later two a rule would allow one, and a person has allowed the other already.
    let script = [
        &raw_ask("touch a"),
        PAUSE,
        // The answer is on record a moment before the agent has it.
        "sleep 1s",
        &raw_ask("ls"),
        &raw_ask("touch a"),
        "say on",
    ];
    let working = client(&drill, &[&script.join("\n")]);
    let first = waiting(&drill, 1).remove(0);
    good(&answer(&drill, "approve", &first, &["--remember", "turn"]));
    go(&drill, &first);
    let done = result(&drill, working);
    assert_eq!(done["outcome"], "done", "{done}");
    assert_eq!(done["requests"]["allowed"], 1, "{done}");
    let count = |query: &str| -> i64 {
        let row = drill.database().query_row(query, [], |row| row.get(0));
        row.expect("a count")
    };
    assert_eq!(count("SELECT count(*) FROM permission_requests"), 1);
    let refused = "SELECT count(*) FROM events WHERE body LIKE '%duplicate_id%'";
    assert_eq!(count(refused), 2);
}

#[test]
fn the_same_request_id_twice_is_denied_and_so_is_too_large_an_input() {
    let drill = Drill::new(&pool("acp", ""));
    let _daemon = daemon(&drill);
    let ask = raw_ask;
    let script = [&ask("touch a"), PAUSE, &ask("touch b"), "say on"].join("\n");
    let working = client(&drill, &[&script]);
    let first = waiting(&drill, 1).remove(0);
    go(&drill, &first);
    assert_eq!(result(&drill, working)["requests"]["allowed"], 0);
    assert_eq!(
        state(&drill, &first),
        "cancelled",
        "an answer could be for either"
    );
    assert!(list_approvals(&drill, &[]).is_empty());
    let drill = Drill::new(&pool("scaiflux", ""));
    let _daemon = self::daemon(&drill);
    let large = format!("run touch {}", "x".repeat(70 << 10));
    let denied = result(&drill, client(&drill, &[&large]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
    assert_eq!(denied["denied_by"][0], "too_large", "{denied}");
    assert!(list_approvals(&drill, &[]).is_empty());
}

#[test]
fn with_nobody_to_answer_nobody_is_asked() {
    let drill = Drill::new(&pool("scaiflux", "approval = { approvers = [] }"));
    let _daemon = daemon(&drill);
    let denied = result(&drill, client(&drill, &[UNDECIDED_PROMPT]));
    assert_eq!(denied["outcome"], "denied", "{denied}");
    assert!(list_approvals(&drill, &["--ended"]).is_empty());
}
