//! The report page: costs, retries, pending approvals and denials agree with what happened.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::drill::{Drill, Ran, eventually};
use crate::fleet::approvals::{self, UNDECIDED_PROMPT, answer, client, good, id, waiting};
use crate::fleet::routes;
use crate::provider::{Provider, message};

const LONG: Duration = Duration::from_secs(60);

/// The page, for programs and for people.
fn report(drill: &Drill, more: &[&str]) -> (Value, String) {
    let args = |first: &[&'static str]| [first, &["report"]].concat();
    let run = |first: &[&'static str]| -> Ran {
        let args: Vec<&str> = args(first)
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        let ran = drill.run(&args);
        good(&ran);
        ran
    };
    let page = serde_json::from_str(&run(&["--json"]).stdout).expect("one document");
    (page, run(&[]).stdout)
}

fn about(found: &Value, wanted: f64) -> bool {
    found
        .as_f64()
        .is_some_and(|found| (found - wanted).abs() < 1e-12)
}

#[test]
fn what_routes_counted_is_in_it_by_pool_and_in_all() {
    let provider = Provider::start(message);
    // One answer is 23 tokens, at a dollar for a million.
    let keys = "[price.\"m*\"]\ninput = 1\noutput = 1";
    let drill = routes::drill(&provider, keys);
    good(&drill.run(&["run", "a", "b"]));
    let (page, text) = report(&drill, &[]);
    for spent in [&page["spent"]["total"], &page["spent"]["pools"]["demo"]] {
        assert_eq!(spent["counted_tokens"], 46, "{page}");
        assert!(about(&spent["counted_cost_usd"], 46e-6), "{page}");
        assert_eq!(spent["tokens"], 46, "{page}");
        assert!(about(&spent["cost_usd"], 46e-6), "{page}");
    }
    let words = "COST       $0.000046, 46 tokens, counted by routes\nTOKENS";
    assert!(text.contains(words), "one pool is all of it: {text}");
    let (later, text) = report(&drill, &["--since", "2100-01-01T00:00:00Z"]);
    assert_eq!(later["spent"]["pools"], json!({}));
    assert_eq!(later["spent"]["total"]["tokens"], 0);
    assert!(text.contains("recorded only with a route"), "{text}");
}

#[test]
fn what_routes_counted_is_in_it_without_a_budget_and_a_price() {
    let provider = Provider::start(message);
    let drill = routes::drill(&provider, "");
    good(&drill.run(&["run", "a", "b"]));
    let (page, _) = report(&drill, &[]);
    assert_eq!(
        page["spent"]["pools"]["demo"]["counted_tokens"], 46,
        "{page}"
    );
}

#[test]
fn what_an_agent_reported_is_told_apart_from_what_was_counted() {
    let drill = Drill::new(&approvals::pool(
        "scaiflux",
        "budget = { day_tokens = 100000 }",
    ));
    good(&drill.run(&["run", "say one two three four five six seven eight"]));
    let (page, text) = report(&drill, &[]);
    let spent = &page["spent"]["pools"]["demo"];
    let tokens = spent["tokens"].as_u64().expect("a number");
    assert!(tokens > 0, "{page}");
    assert_eq!(spent["counted_tokens"], 0, "{page}");
    let words = format!("{tokens} tokens; counted by routes: $0.00, 0 tokens");
    assert!(text.contains(&words), "{text}");
}

#[test]
fn what_waits_and_what_was_denied_is_in_it_with_a_rule_that_works() {
    let drill = Drill::new(&approvals::pool("acp", ""));
    let _daemon = approvals::daemon(&drill);
    let mut working = client(&drill, &[UNDECIDED_PROMPT]);
    let ask = waiting(&drill, 1).remove(0);
    let (page, text) = report(&drill, &[]);
    assert_eq!(page["waiting"][0]["approval"], ask["approval"], "{page}");
    assert_eq!(page["waiting"][0]["state"], "pending");
    assert_eq!((&page["open"], &page["outcomes"]), (&json!(1), &json!({})));
    assert!(
        text.contains(&format!("approval {} of", id(&ask))),
        "{text}"
    );
    assert!(text.contains("1 running or waiting"), "{text}");

    good(&answer(&drill, "reject", &ask, &[]));
    assert!(!working.wait().expect("ends").success());
    let (page, text) = report(&drill, &[]);
    assert_eq!(page["waiting"], json!([]), "{page}");
    assert!(text.contains("nothing waits for a person"), "{text}");
    assert_eq!(page["outcomes"], json!({"denied": 1}));
    let denied = &page["denied"][0];
    assert_eq!(
        (&denied["count"], &denied["by"]),
        (&json!(1), &json!("human"))
    );
    assert_eq!(
        page["verdicts"],
        json!([{"decision": "deny", "by": "human", "count": 1}])
    );
    let rule = denied["would_allow"].as_str().expect("a rule");
    let first = rule.lines().next().expect("a line");
    assert!(text.contains(first) && text.contains("touch"), "{text}");
    // The rule does what is said of it.
    let policy = |rule: &str| {
        let text = format!("schema = 1\nname = \"p\"\nextends = [\"cautious.toml\"]\n{rule}\n");
        fs::write(drill.path("p.toml"), text).expect("a policy");
        let check = ["policy", "check", "--file", "p.toml", "touch made.txt"];
        drill.run(&check).code
    };
    assert_eq!((policy(""), policy(rule)), (Some(1), Some(0)), "{rule}");
}

#[test]
fn retries_crashes_and_trees_are_in_it() {
    let restart =
        "restart = { budget = 100, base = \"20ms\", max = \"100ms\", on_crash = \"retry\" }";
    let pool = approvals::pool("scaiflux", "");
    let plain = "restart   = { base = \"20ms\", max = \"100ms\" }";
    assert!(pool.contains(plain));
    let drill = Drill::new(&pool.replace(plain, restart));
    let ran = drill.run(&["run", "write a.txt x\ncrash", "write b.txt y"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let (page, text) = report(&drill, &[]);
    assert_eq!(page["outcomes"], json!({"done": 1, "lost": 1}), "{page}");
    assert_eq!(
        (&page["attempts"], &page["retried"]),
        (&json!(3), &json!(1))
    );
    assert!(
        text.contains("3 attempts, 1 tasks more than once"),
        "{text}"
    );
    let crashes = page["crashes"].as_array().expect("a list");
    let count: u64 = crashes
        .iter()
        .filter_map(|item| item["count"].as_u64())
        .sum();
    assert_eq!(count, 2, "{page}");
    let class = crashes[0]["class"].as_str().expect("a class");
    assert!(text.contains(&format!("demo {class}")), "{text}");
    let trees: Vec<&str> = page["tasks"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|task| task["outcome"] == "done")
        .filter_map(|task| task["tree"].as_str())
        .collect();
    assert_eq!(trees.len(), 1, "{page}");
    assert!(fs::exists(format!("{}/b.txt", trees[0])).expect("looked"));
    assert!(text.contains("next    marshal diff "), "{text}");
}

#[test]
fn a_parked_slot_is_in_it_with_the_command_that_helps() {
    let drill = Drill::new(&approvals::pool(
        "scaiflux",
        "budget = { pool_tokens = 1, then = \"park\" }",
    ));
    drill.run(&["run", "say one two three", "say hi"]);
    let mut found = (Value::Null, String::new());
    eventually(LONG, "the slot is parked", || {
        found = report(&drill, &[]);
        found.0["parked"][0]["slot"] == "demo/0"
    });
    let (page, text) = found;
    let reason = page["parked"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("pool_tokens"), "{page}");
    assert!(text.contains("`marshal restart demo/0`"), "{text}");
}
