//! What became true while a delegate thought about a request counts for it: a policy that came into
//! force, what budgets counted.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::drill::{Drill, eventually};
use crate::fleet::approvals::{LONG, answer, client, daemon, good, result, waiting};
use crate::fleet::reload::{counts, own, put};
use crate::provider::{Got, Provider, whole};

/// A server that allows as soon as it may.
fn delayed_server(may: &Arc<AtomicBool>) -> Provider {
    let may = Arc::clone(may);
    Provider::start(move |_, _: &Got, to: &mut dyn Write| {
        eventually(LONG, "it may", || may.load(Ordering::SeqCst));
        let body = json!({"result": {"decision": "allow"}}).to_string();
        let _ = to.write_all(whole("200 OK", "", &body).as_bytes());
    })
}

/// A server that allows after this long.
fn slow(wait: Duration) -> Provider {
    Provider::start(move |_, _: &Got, to: &mut dyn Write| {
        std::thread::sleep(wait);
        let body = json!({"result": {"decision": "allow"}}).to_string();
        let _ = to.write_all(whole("200 OK", "", &body).as_bytes());
    })
}

fn drill(server: &Provider, policy: &str) -> Drill {
    let address = server.address;
    let drill = Drill::new(&format!(
        r#"
[policy.own]
file = "own.toml"

[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "own"
delegate  = "own"
workspace = {{ path = "project", mode = "copy" }}

[delegate.own]
url     = "http://{address}/v1/data/marshal/decision"
timeout = "60s"
"#
    ));
    put(&drill, "own.toml", policy);
    drill
}

/// Decision, by whom, and the rules of every request, in order.
fn rows(drill: &Drill) -> Vec<(String, String, String)> {
    let database = drill.database();
    let query = "SELECT decision, decided_by, rules FROM permission_requests WHERE link IS NOT NULL ORDER BY link";
    let mut statement = database.prepare(query).expect("approvals");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

#[test]
fn a_policy_that_denies_meanwhile_denies_and_one_that_asks_asks() {
    for (decision, is_allowed) in [("deny", false), ("ask", true), ("allow", true)] {
        let may = Arc::new(AtomicBool::new(false));
        let server = delayed_server(&may);
        let drill = drill(&server, &own("deny", "allow", ""));
        let _daemon = daemon(&drill);
        let working = client(&drill, &["run echo one"]);
        eventually(LONG, "the delegate thinks", || !server.got().is_empty());
        put(&drill, "own.toml", &own("ask", decision, ""));
        good(&drill.run(&["policy", "reload"]));
        assert!(rows(&drill).is_empty(), "it is not decided yet");
        may.store(true, Ordering::SeqCst);
        if decision == "ask" {
            let ask = waiting(&drill, 1).remove(0);
            assert_eq!(ask["rules"], json!(["say-ask"]), "{ask}");
            good(&answer(&drill, "approve", &ask, &[]));
        }
        let ended = result(&drill, working);
        let expect = if is_allowed { (1, 0) } else { (0, 1) };
        assert_eq!(counts(&ended), expect, "{decision}: {ended}");
        let (_, by, rules) = rows(&drill).remove(0);
        assert_eq!(rules, format!("[\"say-{decision}\"]"));
        assert_eq!(by, if decision == "ask" { "human" } else { "policy" });
        let proof = drill.run(&["audit", "verify"]);
        assert_eq!(proof.code, Some(0), "{}", proof.all());
    }
}

#[test]
fn a_rule_that_allows_only_so_often_counts_a_request_once() {
    let server = slow(Duration::from_millis(50));
    let text = own("deny", "allow", "") + "max_per_turn = 1\n";
    let drill = drill(&server, &text);
    let ran = drill.run(&["run", "--results", "r.jsonl", "run echo one\nrun echo two"]);
    let ended = drill.results("r.jsonl").remove(0);
    assert_eq!(ended["requests"]["allowed"], 1, "{}", ran.all());
}

#[test]
fn a_budget_of_allowed_requests_holds_for_those_that_wait_at_the_delegate_together() {
    let server = slow(Duration::from_secs(1));
    let budget = "\n[budget]\nallows_per_turn = 1\nthen = \"THEN\"\n";
    let policy = own("deny", "allow", "").replace("argv = [\"echo\"]", "argv = [\"true\"]");
    for (then, by) in [("deny", "budget"), ("ask", "timeout")] {
        let drill = drill(&server, &(policy.clone() + &budget.replace("THEN", then)));
        let ran = drill.run(&["run", "--results", "r.jsonl", "pending 4"]);
        let ended = drill.results("r.jsonl").remove(0);
        assert_eq!(counts(&ended), (1, 3), "{}", ran.all());
        let rows = rows(&drill);
        let of = |word: &str| rows.iter().filter(|row| row.1 == word).count();
        assert_eq!((of("policy"), of(by)), (1, 3), "{rows:?}");
        let capped = rows.iter().filter(|row| row.0 == "deny");
        assert!(
            capped
                .clone()
                .all(|row| row.2 == "[\"budget.allows_per_turn\"]"),
            "{rows:?}"
        );
        let _ = fs::remove_file(drill.path("r.jsonl"));
    }
}
