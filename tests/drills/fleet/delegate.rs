//! A decider of the site's own: a real server or program, asked by a real supervisor.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drill::{Drill, eventually, metric, processes};
use crate::fleet::approvals::{
    DIALECTS, LONG, UNDECIDED_PROMPT, answer, client, daemon, good, result, waiting,
};
use crate::provider::{Got, Provider, whole};

/// What a server says.
fn say(to: &mut dyn Write, decision: &str, reason: &str) {
    let body = json!({"result": {"decision": decision, "reason": reason}, "decision_id": "1"});
    let _ = to.write_all(whole("200 OK", "", &body.to_string()).as_bytes());
}

/// A server in the manner of OPA: `decide` gets the document.
fn opa(
    decide: impl Fn(&Value) -> (&'static str, &'static str) + Send + Sync + 'static,
) -> Provider {
    Provider::start(move |_, got: &Got, to: &mut dyn Write| {
        let body: Value = serde_json::from_str(&got.body).expect("JSON");
        let (decision, reason) = decide(&body["input"]);
        say(to, decision, reason);
    })
}

fn pools(dialect: &str, size: usize, more: &str, delegate: &str) -> String {
    format!(
        r#"
[pool.demo]
size      = {size}
command   = ["marshal", "script-agent", "--dialect", "{dialect}"]
dialect   = "{dialect}"
policy    = "cautious"
delegate  = "own"
workspace = {{ path = "project", mode = "copy" }}
restart   = {{ base = "20ms", max = "100ms" }}
env       = {{ set = {{ DRILL = "MARK" }} }}
{more}

[delegate.own]
{delegate}
"#
    )
}

fn by_url(server: &Provider, more: &str) -> String {
    let address = server.address;
    format!("url = \"http://{address}/v1/data/marshal/decision\"\n{more}")
}

/// A drill whose delegate is a script, written into its directory.
fn by_script(script: &str, more: &str) -> Drill {
    let drill = Drill::new(&pools(
        "acp",
        1,
        "",
        "command = [\"/bin/sh\", \"SCRIPT\"]\nMORE",
    ));
    let file = drill.path("decide.sh");
    fs::write(
        &file,
        script.replace("DIR", &drill.path("").to_string_lossy()),
    )
    .expect("a script");
    let text = fs::read_to_string(drill.config()).expect("supervisor.toml");
    let text = text
        .replace("SCRIPT", &file.to_string_lossy())
        .replace("MORE", more);
    fs::write(drill.config(), text).expect("supervisor.toml");
    drill
}

/// A decided request on record.
struct Row {
    decision: String,
    by: String,
    rules: String,
    reason: String,
    facts: Value,
    input: String,
}

fn rows(drill: &Drill) -> Vec<Row> {
    let database = drill.database();
    let query = "SELECT decision, decided_by, rules, reason, facts, input FROM permission_requests WHERE link IS NOT NULL ORDER BY link";
    let mut statement = database.prepare(query).expect("approvals");
    let rows = statement.query_map([], |row| {
        Ok(Row {
            decision: row.get(0)?,
            by: row.get(1)?,
            rules: row.get(2)?,
            reason: row.get(3)?,
            facts: serde_json::from_str(&row.get::<_, String>(4)?).expect("JSON"),
            input: row.get(5)?,
        })
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

fn one(drill: &Drill) -> Row {
    let mut rows = rows(drill);
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

#[test]
fn it_makes_an_allow_a_deny_and_never_a_deny_an_allow() {
    for dialect in DIALECTS {
        let server = opa(|input| {
            let is_readme = input["input"].to_string().contains("README");
            if is_readme {
                ("deny", "not the\nreadme \u{202e}")
            } else {
                ("allow", "")
            }
        });
        let drill = Drill::new(&pools(
            dialect,
            1,
            "",
            &by_url(&server, "token = \"file:token\""),
        ));
        fs::write(drill.path("token"), "a-token-of-the-site\n").expect("a token");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(drill.path("token"), mode).expect("chmod");
        let script =
            "read README.md\nread src/lib.rs\nrun cat /etc/shadow\nrun echo a-token-of-the-site";
        let ran = drill.run(&["run", "--results", "r.jsonl", script]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let rows = rows(&drill);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (row.decision.as_str(), row.by.as_str()))
            .collect();
        assert_eq!(
            seen[..3],
            [
                ("deny", "delegate"),
                ("allow", "policy"),
                ("deny", "policy")
            ]
        );
        let denied = &rows[0];
        assert_eq!(denied.rules, r#"["delegate.own"]"#);
        assert_eq!(
            denied.reason,
            "the delegate own denies this: not the\\nreadme \\u{202e}"
        );
        let message = json!({"name": "own", "answer": "deny", "policy": "allow"});
        assert_eq!(denied.facts["delegate"], message);
        assert_eq!(rows[1].facts["delegate"]["answer"], "allow");
        // What the policy denies it is not asked about, and with nobody to ask it is the same.
        assert_eq!(rows[2].facts["delegate"], Value::Null);
        assert!(
            rows[3].input.contains("‹secret:delegate.own›"),
            "{}",
            rows[3].input
        );
        assert_eq!(
            (rows[3].decision.as_str(), rows[3].by.as_str()),
            ("deny", "timeout")
        );
        let got = server.got();
        assert_eq!(got.len(), 2);
        let head = got[0].head.to_ascii_lowercase();
        assert!(
            head.starts_with("post /v1/data/marshal/decision http/1.1"),
            "{head}"
        );
        assert!(
            head.contains("authorization: bearer a-token-of-the-site"),
            "{head}"
        );
        let body: Value = serde_json::from_str(&got[0].body).expect("JSON");
        let input = &body["input"];
        assert_eq!(
            (&input["version"], &input["phase"]),
            (&json!(1), &json!("request"))
        );
        assert_eq!(
            (&input["pool"], &input["class"]),
            (&json!("demo"), &json!("read"))
        );
        assert_eq!(input["policy"]["name"], "cautious");
        assert_eq!(input["policy"]["decision"], "allow");
        assert!(
            input["facts"]["parts"][0]["words"][0]
                .to_string()
                .contains("README.md"),
            "{input}"
        );
        assert_eq!(input["session"].as_str().map(str::len), Some(36), "{input}");
        let proof = drill.run(&["audit", "verify"]);
        assert_eq!(proof.code, Some(0), "{}", proof.all());
    }
}

#[test]
fn a_person_is_asked_when_it_wants_one_and_is_not_when_it_denies() {
    let server = opa(|input| {
        let text = input["input"].to_string();
        match () {
            () if text.contains("README") => ("ask", "who reads this"),
            () if text.contains("touch") => ("deny", "nothing is touched"),
            () => ("allow", ""),
        }
    });
    let drill = Drill::new(&pools("acp", 1, "", &by_url(&server, "")));
    let mut running = daemon(&drill);
    let ended = client(&drill, &["read README.md"]);
    let ask = waiting(&drill, 1).remove(0);
    assert_eq!(ask["rules"], json!(["delegate.own"]), "{ask}");
    good(&answer(&drill, "approve", &ask, &[]));
    assert_eq!(result(&drill, ended)["outcome"], "done");
    let row = one(&drill);
    assert_eq!((row.decision.as_str(), row.by.as_str()), ("allow", "human"));
    assert_eq!(row.facts["delegate"]["policy"], "allow");
    // What the policy asks for and it denies, nobody is asked about.
    let ended = client(&drill, &[UNDECIDED_PROMPT]);
    assert_eq!(result(&drill, ended)["outcome"], "denied");
    let last = rows(&drill).pop().expect("a row");
    assert_eq!(
        (last.decision.as_str(), last.by.as_str()),
        ("deny", "delegate")
    );
    assert_eq!(last.facts["delegate"]["policy"], "ask");
    running.signal("TERM");
    assert_eq!(running.wait(LONG), Some(0));
    // Where there is nobody to ask, what it wants a person for is denied.
    let ran = drill.run(&["run", "--results", "r.jsonl", "read README.md"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let last = rows(&drill).pop().expect("a row");
    assert_eq!(
        (last.decision.as_str(), last.by.as_str()),
        ("deny", "timeout")
    );
    assert!(
        last.reason.contains("requires approval: who reads this"),
        "{}",
        last.reason
    );
}

#[test]
fn what_a_person_allows_it_may_still_deny() {
    // What it says, in the order in which it is asked: each request twice.
    const ANSWERS: [&str; 8] = [
        "allow", "allow", "ask", "ask", "allow", "deny", "allow", "nonsense",
    ];
    let request_count = AtomicUsize::new(0);
    let server = opa(move |_| {
        (
            ANSWERS[request_count.fetch_add(1, Ordering::SeqCst)],
            "by then",
        )
    });
    let drill = Drill::new(&pools("acp", 1, "", &by_url(&server, "")));
    let _daemon = daemon(&drill);
    for (number, (outcome, part)) in [
        ("done", ""),
        ("done", ""),
        ("denied", "the delegate own denies this: by then"),
        ("denied", "gave no decision (malformed)"),
    ]
    .into_iter()
    .enumerate()
    {
        let ended = client(&drill, &[&format!("run touch made-{number}.txt")]);
        let ask = waiting(&drill, 1).remove(0);
        let reported = answer(&drill, "approve", &ask, &["--remember", "session"]);
        assert_eq!(
            reported.code == Some(0),
            part.is_empty(),
            "{}",
            reported.all()
        );
        assert!(reported.stderr.contains(part), "{}", reported.all());
        assert_eq!(result(&drill, ended)["outcome"], outcome, "{number}");
        assert_eq!(server.got().len(), 2 * (number + 1));
    }
    let by: Vec<_> = rows(&drill).into_iter().map(|row| row.by).collect();
    assert_eq!(by, ["human", "human", "delegate", "delegate"]);
    // A refusal is not asked about.
    let again: Value = serde_json::from_str(&server.got()[1].body).expect("JSON");
    assert_eq!(again["input"]["policy"]["decision"], "ask", "{again}");
    let proof = drill.run(&["audit", "verify"]);
    assert_eq!(proof.code, Some(0), "{}", proof.all());
}

#[test]
fn no_answer_of_the_right_form_is_a_deny() {
    const MOST: usize = 64 << 10;
    /// The kinds, in the order in which the server fails.
    const KINDS: &[&str] = &[
        "status",
        "status",
        "status",
        "undefined",
        "malformed",
        "malformed",
        "malformed",
        "too_long",
        "unreachable",
        "unreachable",
        "timeout",
        "timeout",
    ];
    let server = Provider::start(|number, _: &Got, to: &mut dyn Write| {
        let ok = |body: &str| whole("200 OK", "", body);
        let long = format!(
            r#"{{"result":{{"decision":"allow","reason":"{}"}}}}"#,
            "x".repeat(MOST)
        );
        let allow = r#"{"result":{"decision":"allow"}}"#;
        let text = match number {
            0 => whole("500 Internal Server Error", "", allow),
            1 => whole("302 Found", "location: http://127.0.0.1:1/\r\n", allow),
            2 => whole("201 Created", "", allow),
            3 => ok("{}"),
            4 => ok("allow"),
            5 => ok(r#"{"result":true}"#),
            6 => ok(r#"{"result":{"decision":"ALLOW"}}"#),
            7 => ok(&long),
            8 => String::new(),
            9 => "HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n{\"result\"".to_owned(),
            10 => {
                std::thread::sleep(Duration::from_secs(15));
                ok(allow)
            }
            _ => {
                // Byte by byte, so that something always comes.
                let _ = to.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 31\r\n\r\n");
                for byte in allow.as_bytes() {
                    let _ = to.write_all(&[*byte]);
                    let _ = to.flush();
                    std::thread::sleep(Duration::from_millis(500));
                }
                return;
            }
        };
        let _ = to.write_all(text.as_bytes());
    });
    let drill = Drill::new(&pools("acp", 1, "", &by_url(&server, "timeout = \"6s\"")));
    let _daemon = daemon(&drill);
    let ended = client(&drill, &[&format!("ask {} README.md", KINDS.len())]);
    assert_eq!(result(&drill, ended)["outcome"], "denied");
    let rows = rows(&drill);
    assert_eq!(rows.len(), KINDS.len());
    for (row, kind) in rows.iter().zip(KINDS) {
        assert_eq!(
            (row.decision.as_str(), row.by.as_str()),
            ("deny", "delegate"),
            "{kind}"
        );
        assert_eq!(row.rules, r#"["delegate_error"]"#);
        assert_eq!(row.facts["delegate"]["answer"], *kind, "{}", row.reason);
        assert!(row.reason.contains(&format!("({kind})")), "{}", row.reason);
    }
    let page = drill.get("/metrics").1;
    for (kind, count) in [
        ("status", 3.0),
        ("malformed", 3.0),
        ("timeout", 2.0),
        ("spawn", 0.0),
    ] {
        let series = format!(r#"marshal_delegate_errors_total{{pool="demo",reason="{kind}"}}"#);
        // What has not happened has no series.
        assert_eq!(metric(&page, &series).or(Some(0.0)), Some(count), "{kind}");
    }
    let took = metric(&page, r#"marshal_delegate_seconds_count{pool="demo"}"#);
    assert_eq!(took, Some(12.0));
    let denied = r#"marshal_permission_requests_total{pool="demo",tool_class="read",decision="deny",decided_by="delegate"}"#;
    assert_eq!(metric(&page, denied), Some(12.0));
}

#[test]
fn a_program_decides_with_nothing_but_the_request() {
    let drill = by_script(
        "request=$(/bin/cat)\n\
         /usr/bin/env > DIR/env.txt\n\
         case $request in\n\
         '{\"input\":{\"version\":1,'*README*) echo '{\"result\":{\"decision\":\"deny\",\"reason\":\"no\"}}' ;;\n\
         *) echo '{\"result\":{\"decision\":\"allow\"}}' ;;\n\
         esac\n",
        "",
    );
    let ran = drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        "read README.md\nread src/lib.rs",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let rows = rows(&drill);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.decision.as_str(), row.by.as_str()))
        .collect();
    assert_eq!(seen, [("deny", "delegate"), ("allow", "policy")]);
    let env = fs::read_to_string(drill.path("env.txt")).expect("its environment");
    let names: Vec<&str> = env
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    // The last are the shell's own.
    let known = ["MARSHAL_MARKER", "PWD", "SHLVL", "OLDPWD", "_"];
    assert!(names.iter().all(|name| known.contains(name)), "{env}");
}

#[test]
fn a_program_that_fails_denies_and_nothing_of_it_is_left() {
    let mark = format!("left-by-{}", uuid::Uuid::new_v4().simple());
    let script = format!(
        "n=$(/bin/cat DIR/count 2>/dev/null || echo 0)\n\
         echo $((n + 1)) > DIR/count\n\
         allow='{{\"result\":{{\"decision\":\"allow\"}}}}'\n\
         case $n in\n\
         0) echo $allow; exit 3 ;;\n\
         1) echo $allow; kill -9 $$ ;;\n\
         2) /usr/bin/env -u X {mark}=1 /bin/sleep 3600 & echo $allow; /usr/bin/env {mark}=1 /bin/sleep 3600 ;;\n\
         3) exit 0 ;;\n\
         4) echo allow ;;\n\
         5) /usr/bin/yes '{{}}' | /usr/bin/head -c 100000 ;;\n\
         6) echo $$ > DIR/pid; echo $allow; exec /bin/sleep 3600 ;;\n\
         esac\n"
    );
    let drill = by_script(&script, "timeout = \"10s\"");
    let _daemon = daemon(&drill);
    let ended = client(&drill, &["ask 6 README.md"]);
    assert_eq!(result(&drill, ended)["outcome"], "denied");
    let text = |row: &Row| {
        row.facts["delegate"]["answer"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let kinds: Vec<_> = rows(&drill).iter().map(text).collect();
    assert_eq!(
        kinds,
        [
            "exit",
            "exit",
            "timeout",
            "malformed",
            "malformed",
            "too_long"
        ]
    );
    eventually(LONG, "nothing of it is left", || {
        processes(|environ| environ.contains(&mark)).is_empty()
    });
    // Somebody kills it in the middle of a call.
    let ended = client(&drill, &["ask 1 README.md"]);
    let mut pid = String::new();
    eventually(LONG, "it runs", || {
        pid = drill.log("pid").trim().to_owned();
        !pid.is_empty()
    });
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status();
    assert!(killed.expect("kill").success());
    assert_eq!(result(&drill, ended)["outcome"], "denied");
    let last = rows(&drill).pop().expect("a row");
    assert_eq!(text(&last), "exit");
    assert!(
        rows(&drill)
            .iter()
            .all(|row| row.decision == "deny" && row.by == "delegate")
    );
}

#[test]
fn many_are_asked_beside_each_other_and_not_more_than_may_be() {
    const AT_ONCE: usize = 8;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let server = opa(move |_| {
        let inside = now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(inside, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        now.fetch_sub(1, Ordering::SeqCst);
        ("allow", "")
    });
    let keys = by_url(&server, "timeout = \"30s\"\nat_once = 8");
    let drill = Drill::new(&pools("acp", 10, "", &keys));
    let began = Instant::now();
    let mut args = vec!["run", "--results", "r.jsonl"];
    args.extend(["ask 10 README.md"; 10]);
    let ran = drill.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let took = began.elapsed();
    let of_ten = rows(&drill);
    assert_eq!(of_ten.len(), 100);
    let allowed = |row: &&Row| row.decision == "allow" && row.by == "policy";
    assert_eq!(of_ten.iter().filter(allowed).count(), 100);
    assert_eq!(server.got().len(), 100);
    let most = most.load(Ordering::SeqCst);
    assert!((2..=AT_ONCE).contains(&most), "{most} at the same time");
    eprintln!("100 requests, {most} at once, in {took:?}");
    // Of one session beside each other: the agent waits only for the last of them.
    let ran = drill.run(&["run", "--results", "r.jsonl", "pending 25"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let all = rows(&drill);
    assert_eq!(all.len(), 125);
    let of_one = &all[100..];
    assert!(of_one.iter().any(|row| allowed(&row)));
    assert!(of_one.iter().all(|row| allowed(&row) || row.by == "gone"));
}

#[test]
fn a_supervisor_that_ends_meanwhile_denies_and_does_not_wait() {
    for (how, script, asked) in [("now", "pending 5", 5), ("KILL", "read README.md", 1)] {
        let server = Provider::start(|_, _: &Got, _: &mut dyn Write| {
            std::thread::sleep(Duration::from_secs(120));
        });
        let drill = Drill::new(&pools("acp", 1, "", &by_url(&server, "timeout = \"60s\"")));
        let mut running = daemon(&drill);
        let mut ended = client(&drill, &[script]);
        eventually(LONG, "it is asked", || server.got().len() == asked);
        let began = Instant::now();
        if how == "now" {
            let ran = drill.run(&["stop", "--now"]);
            assert_eq!(ran.code, Some(0), "{}", ran.all());
        } else {
            running.signal(how);
        }
        running.wait(LONG);
        ended.wait().expect("ends");
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
        let rows = rows(&drill);
        assert!(
            rows.iter()
                .all(|row| row.decision == "deny" && row.by == "gone")
        );
        if how == "now" {
            assert_eq!(rows.len(), 5);
        }
        let allowed = drill.database().query_row(
            "SELECT count(*) FROM events WHERE kind = 'tool_result' AND body LIKE '%A project%'",
            [],
            |row| row.get::<_, i64>(0),
        );
        assert_eq!(allowed.expect("a count"), 0, "nothing ran");
    }
}

#[test]
fn it_is_asked_about_the_kinds_that_it_is_for() {
    let server = opa(|_| ("deny", ""));
    let drill = Drill::new(&pools(
        "acp",
        1,
        "",
        &by_url(&server, "tools = [\"shell\"]"),
    ));
    let ran = drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        "read README.md\nrun git status",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let seen: Vec<_> = rows(&drill).iter().map(|row| row.by.clone()).collect();
    assert_eq!(seen, ["policy", "delegate"]);
    assert_eq!(server.got().len(), 1);
}
