//! Agents that speak another version: refused, parked, and never prompted.

use std::fs;

use crate::drill::Drill;

fn pools(dialect: &str, claim: &str) -> String {
    format!(
        r#"
[pool.odd]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "{dialect}", "--protocol", {claim:?}, "--ledger", "ledger.txt"]
dialect   = "{dialect}"
launcher  = "unshare"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}

[pool.good]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "{dialect}", "--ledger", "ledger.txt"]
dialect   = "{dialect}"
launcher  = "unshare"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
"#
    )
}

fn check(dialect: &str, claim: &str, shown: &str) {
    let drill = Drill::new(&pools(dialect, claim));
    let tasks = [("odd", "o1"), ("odd", "o2"), ("good", "g1"), ("good", "g2")];
    let lines: Vec<_> = tasks
        .iter()
        .map(|(pool, id)| {
            serde_json::json!({"id": id, "prompt": "read README.md", "pool": pool}).to_string()
        })
        .collect();
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
    for good in ["g1", "g2"] {
        assert_eq!(of(good)["outcome"], "done", "{}", ran.all());
    }
    let (first, second) = (of("o1"), of("o2"));
    assert_eq!(first["outcome"], "failed", "{}", ran.all());
    assert_eq!(second["outcome"], "skipped", "{}", ran.all());
    let detail = first["detail"].as_str().expect("a detail");
    assert!(detail.contains(shown), "their version: {detail}");
    let ours = match dialect {
        "claude" => "version 2 of Claude Code",
        "codex" => "version 0.166 or a later",
        _ => "version 1",
    };
    assert!(detail.contains(ours), "our version: {detail}");
    assert_eq!(first["attempts"], 0, "no prompt was sent");

    // The child's own account: nothing reached it. (The copies are kept; the good ones show that
    // the ledger would have said so.)
    let ledger = |result: &serde_json::Value| {
        let copy = result["workspace"].as_str().expect("a copy");
        fs::read_to_string(format!("{copy}/ledger.txt")).unwrap_or_default()
    };
    assert!(ledger(&of("g1")).contains("read README.md"));
    let refused = ledger(&first);
    assert!(
        refused.contains("\"start\""),
        "the refused child wrote its ledger: {refused}"
    );
    assert!(
        !refused.contains("\"prompt\""),
        "the refused child got no prompt: {refused}"
    );
    let starts: i64 = drill
        .database()
        .query_row(
            "SELECT count(*) FROM events JOIN sessions ON events.session = sessions.session
             WHERE kind = 'child_started' AND sessions.pool = 'odd'",
            [],
            |row| row.get(0),
        )
        .expect("events");
    assert_eq!(starts, 1, "a refused version is not retried");
}

#[test]
fn version_zero_is_refused() {
    check("scaiflux", "0", "0");
}

#[test]
fn version_two_is_refused() {
    check("scaiflux", "2", "2");
}

#[test]
fn version_999_is_refused() {
    check("scaiflux", "999", "999");
}

#[test]
fn a_text_is_refused() {
    check("scaiflux", "one", "one");
}

#[test]
fn no_version_is_refused() {
    check("scaiflux", "none", "none");
}

#[test]
fn other_numbers_are_refused_in_acp() {
    for claim in ["0", "2", "999", "1.5"] {
        check("acp", claim, claim);
    }
}

#[test]
fn a_text_is_refused_in_acp_even_if_it_is_our_number() {
    check("acp", "\"1\"", "1");
}

#[test]
fn no_version_and_an_error_are_refused_in_acp() {
    check("acp", "none", "none");
    check("acp", "error", "error");
}

#[test]
fn an_agent_that_speaks_the_second_version_of_acp_is_refused_in_its_own_shapes() {
    check("acp", "v2", "2");
}

#[test]
fn another_major_version_of_loaf_is_refused() {
    for (claim, shown) in [
        ("2", "2.0.0"),
        ("0.9.0", "0.9.0"),
        ("none", "none"),
        ("error", "0.0.0"),
    ] {
        check("loaf", claim, shown);
    }
}

#[test]
fn another_major_version_of_claude_code_is_refused() {
    for (claim, shown) in [
        ("1", "1.0.0"),
        ("20.1.0", "20.1.0"),
        ("none", "none"),
        ("error", "not spoken here"),
    ] {
        check("claude", claim, shown);
    }
}

#[test]
fn an_older_and_a_far_newer_version_of_codex_are_refused() {
    for (claim, shown) in [
        ("0.165.9", "0.165.9"),
        ("1", "1.0.0"),
        ("none", "none"),
        ("error", "not spoken here"),
    ] {
        check("codex", claim, shown);
    }
}
