//! Failures that are made to happen, and the denial that each ends in: the table "what fails closed" of
//! docs/policy.md names these tests. After every failure the same session goes on.

use std::fs;

use crate::drill::{Drill, eventually, metric};
use crate::fleet::approvals::{DIALECTS, LONG, client, daemon, pool, result};

/// What a request came to: its decision, who decided, by which rules.
pub(crate) type Verdict = (String, String, String);

pub(crate) fn verdicts(drill: &Drill) -> Vec<Verdict> {
    let database = drill.database();
    let query = "SELECT decision, decided_by, rules FROM permission_requests WHERE decision IS NOT NULL ORDER BY requested_at_us, requested_seq";
    let mut statement = database.prepare(query).expect("approvals");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

fn verdict(decision: &str, by: &str, rule: &str) -> Verdict {
    (decision.to_owned(), by.to_owned(), format!("[\"{rule}\"]"))
}

/// The children that worked: one, if the session lived on.
fn children(drill: &Drill) -> i64 {
    let query = "SELECT count(*) FROM events WHERE kind = 'child_started'";
    let found = drill.database().query_row(query, [], |row| row.get(0));
    found.expect("a count")
}

/// A policy with rules that fail as soon as they are looked at. Only test builds know them.
const FAULTS: &str = r#"
schema  = 1
name    = "faults"
extends = ["builtin:guard"]
default = "deny"
limits  = { eval_ms = 10 }

[[rule]]
id       = "reads"
decision = "allow"
tool     = "read"
path     = "inside"

[[rule]]
id       = "breaks"
decision = "deny"
tool     = "shell"
argv     = ["break"]
fault    = "panic"

[[rule]]
id       = "crawls"
decision = "allow"
tool     = "shell"
argv     = ["crawl"]
fault    = "slow"
"#;

#[test]
fn an_engine_that_breaks_or_crawls_denies_and_the_session_lives_on() {
    for dialect in DIALECTS {
        let text = pool(dialect, "").replace("\"cautious\"", "\"faults\"");
        let drill = Drill::new(&format!(
            "{text}\n[policy.faults]\nfile = \"faults.toml\"\n"
        ));
        fs::write(drill.path("faults.toml"), FAULTS).expect("a policy");
        // What the work is bounded by beforehand: more scripts in scripts than 10 ms are for.
        let tangled = format!("true {}", "; bash -c 'env env env env x'".repeat(2000));
        let prompt = [
            "run break glass",
            "read README.md",
            "run crawl along",
            "read README.md",
            &format!("run {tangled}"),
            "read README.md",
        ];
        let mut daemon = daemon(&drill);
        let done = result(&drill, client(&drill, &[&prompt.join("\n")]));
        assert_eq!(done["outcome"], "done", "{done}");
        let allowed = verdict("allow", "policy", "reads");
        let mut found = verdicts(&drill);
        let tangled = found.remove(4);
        assert_eq!(tangled.0, "deny", "{tangled:?}");
        assert!(tangled.2.contains("limits.eval_ms"), "{tangled:?}");
        assert_eq!(
            found,
            [
                verdict("deny", "error", "engine_error"),
                allowed.clone(),
                verdict("deny", "error", "limits.eval_ms"),
                allowed.clone(),
                allowed,
            ],
            "{dialect}"
        );
        assert_eq!(children(&drill), 1, "{dialect}: the same child went on");
        let page = drill.get("/metrics").1;
        let failed = "marshal_policy_evaluation_errors_total{reason=\"engine\"}";
        assert!(metric(&page, failed) >= Some(2.0), "{page}");
        daemon.signal("TERM");
        assert_eq!(daemon.wait(LONG), Some(0));
        let proved = drill.run(&["audit", "verify"]);
        assert_eq!(proved.code, Some(0), "{}", proved.all());
    }
}

/// An agent that asks what its prompt says: a tool and its input a line, as they stand there.
pub(crate) const ASKER: &str = r#"
import json, sys
def say(line): sys.stdout.write(line + "\n"); sys.stdout.flush()
say('{"type":"ready","protocol":1,"version":"1","session_id":"s","model":"m","mode":"prompt","tools":[],"context_window":1,"max_tokens":1,"gadgets":[]}')
for line in sys.stdin:
    heard = json.loads(line)
    if heard["type"] == "prompt":
        say('{"type":"turn_started","turn_id":"t-1"}')
        for number, ask in enumerate(heard["text"].split("\n")):
            tool, rest = ask.split(" ", 1)
            say('{"type":"permission_request","request_id":"r-%d","tool":"%s","active_mode":"prompt","required_mode":"prompt","details":{"tool_input":%s}}' % (number, tool, rest))
            sys.stdin.readline()
        say('{"type":"turn_complete","turn_id":"t-1","stop_reason":"end_turn","iterations":1,"input_tokens":1,"output_tokens":1,"mutations":[]}')
    elif heard["type"] == "shutdown":
        break
"#;

/// The same as a line for the script agent, which speaks ACP.
fn ask(id: usize, tool: &str, input: &str) -> String {
    format!(
        r#"raw {{"jsonrpc":"2.0","id":9{id},"method":"session/request_permission","params":{{"sessionId":"{{session}}","toolCall":{{"toolCallId":"c{id}","kind":"{tool}","rawInput":{input}}},"options":[{{"optionId":"y","name":"y","kind":"allow_once"}},{{"optionId":"n","name":"n","kind":"reject_once"}}]}}}}"#
    )
}

/// Has an agent ask exactly this, and gives the verdicts; the last request is one that is allowed.
fn verdicts_for(dialect: &str, policy: &str, requests: &[(&str, &str)]) -> Vec<Verdict> {
    let text = pool(dialect, "").replace("\"cautious\"", &format!("\"{policy}\""));
    let own = r#"["marshal", "script-agent", "--dialect", "scaiflux"]"#;
    let drill = Drill::new(&text.replace(own, r#"["python3", "asker.py"]"#));
    fs::write(drill.workspace().join("asker.py"), ASKER).expect("an agent");
    let prompt = if dialect == "acp" {
        let requests = requests.iter().enumerate();
        let mut lines: Vec<String> = requests
            .map(|(n, (tool, input))| ask(n, tool, input))
            .collect();
        lines.push("read README.md".to_owned());
        // One after the other: the agent does not wait for answers.
        lines.join("\nsleep 300ms\n")
    } else {
        let requests = requests
            .iter()
            .map(|(tool, input)| format!("{tool} {input}"));
        let last = r#"read_file {"path":"README.md"}"#.to_owned();
        requests.chain([last]).collect::<Vec<_>>().join("\n")
    };
    let ran = drill.run(&["run", "--results", "r.jsonl", &prompt]);
    let done = drill.results("r.jsonl").remove(0);
    assert_eq!(done["outcome"], "done", "{}", ran.all());
    assert_eq!(children(&drill), 1, "{dialect}: the same child went on");
    let mut found = verdicts(&drill);
    assert_eq!(found.len(), requests.len() + 1, "{found:?}");
    assert_eq!(found.pop().expect("the last").0, "allow", "{dialect}");
    found
}

#[test]
fn what_is_malformed_is_denied_in_both_protocols() {
    for dialect in DIALECTS {
        let tool = match dialect {
            "acp" => "execute",
            _ => "bash",
        };
        // In ACP a command may stand where no table looks: such a call is an unknown tool.
        let unclear = match dialect {
            "acp" => verdict("deny", "timeout", "unknown_tool"),
            _ => verdict("deny", "error", "malformed"),
        };
        let malformed = verdict("deny", "error", "malformed");
        let rows = [
            (r#"{"command":"ls","command":"rm -rf x"}"#, &malformed),
            (r#"{"command":"ls\u0000rm"}"#, &malformed),
            (r#"{"command":"   "}"#, &malformed),
            (r#"{"command":7}"#, &malformed),
            (r#"{"command":null}"#, &malformed),
            (r#"{"description":"lists"}"#, &malformed),
            (r#"{"script":"ls"}"#, &unclear),
            (r#"{"command":{"command":"ls"}}"#, &malformed),
            ("{}", &malformed),
            ("null", &unclear),
            (r#""ls""#, &malformed),
        ];
        let requests = rows.map(|(input, _)| (tool, input));
        let found = verdicts_for(dialect, "developer", &requests);
        for ((input, expect), found) in rows.iter().zip(&found) {
            assert_eq!(found, *expect, "{dialect} {input}");
        }
    }
}

#[test]
fn what_is_too_large_is_denied_as_that_in_both_protocols() {
    let long = format!("run touch {}", "x".repeat(70 << 10));
    for (dialect, flag) in [("scaiflux", ""), ("acp", ""), ("acp", "\"--bare-asks\"")] {
        let text = pool(dialect, "").replace(
            &format!("\"{dialect}\"]"),
            &format!("\"{dialect}\", {flag}]"),
        );
        let drill = Drill::new(&text.replace(", ]", "]"));
        let ran = drill.run(&[
            "run",
            "--results",
            "r.jsonl",
            &format!("{long}\nread README.md"),
        ]);
        let done = drill.results("r.jsonl").remove(0);
        assert_eq!(done["outcome"], "done", "{}", ran.all());
        let found = verdicts(&drill);
        assert_eq!(
            found[0],
            verdict("deny", "error", "too_large"),
            "{dialect} {flag}"
        );
        assert_eq!((found.len(), &*found[1].0), (2, "allow"), "{found:?}");
    }
}

#[test]
fn a_tool_that_no_table_knows_is_what_each_policy_says() {
    for dialect in DIALECTS {
        for (policy, by) in [
            ("developer", "timeout"),
            ("ci", "policy"),
            ("reviewer", "timeout"),
        ] {
            let requests = [("summon", r#"{"command":"ls"}"#)];
            let found = verdicts_for(dialect, policy, &requests);
            assert_eq!(
                found,
                [verdict("deny", by, "unknown_tool")],
                "{dialect} {policy}"
            );
        }
    }
}

#[test]
fn without_its_workspace_nothing_is_allowed() {
    // Until its workspace is being removed, and a moment more.
    let pause = "unasked while test -e README.md; do sleep 0.1; done\nsleep 2s";
    for dialect in DIALECTS {
        let drill = Drill::new(&pool(dialect, ""));
        let _daemon = daemon(&drill);
        let working = client(
            &drill,
            &[&format!("read README.md\n{pause}\nread README.md\nrun ls")],
        );
        eventually(LONG, "the first is allowed", || verdicts(&drill).len() == 1);
        // Its copy, and no directory of the same name in its place.
        let copies = fs::read_dir(drill.state().join("copies")).expect("copies");
        for copy in copies {
            let copy = copy.expect("a copy").path();
            if copy.join("README.md").exists() {
                let aside = drill.path("aside");
                fs::rename(&copy, &aside).expect("moved");
                fs::create_dir(&copy).expect("another one");
                fs::remove_dir_all(&aside).expect("removed");
            }
        }
        result(&drill, working);
        let found = verdicts(&drill);
        let denied = verdict("deny", "error", "no_workspace");
        assert_eq!(found[0].0, "allow", "{found:?}");
        assert_eq!(found[1..], [denied.clone(), denied], "{dialect}");
    }
}

/// The builds that are not for tests have no rule that fails and nothing else that is for tests only.
#[test]
fn no_other_build_knows_rules_that_fail() {
    let features = |package: &str, edges: &str| {
        let ran = std::process::Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--depth", "0"])
            .args(["--package", "agent-marshal", "--invert", package])
            .args(["--format", "{f}", "--edges", edges])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    };
    for (package, feature) in [
        ("marshal-policy", "test-rules"),
        ("marshal-sandbox", "test-fixtures"),
        ("marshal-engine", "test-fixtures"),
    ] {
        assert_eq!(features(package, "normal,build"), "", "{package}");
        assert!(features(package, "normal,build,dev").contains(feature));
    }
}
