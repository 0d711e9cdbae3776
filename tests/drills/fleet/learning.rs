//! The tools for policies on a real log: rules learned from what people allowed, and a replay that
//! sees links as they were then.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::drill::{Drill, Ran};
use crate::fleet::approvals::{answer, client, daemon, good, pool, result, waiting};

fn lines(ran: &Ran) -> Vec<Value> {
    good(ran);
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn rules_are_learned_from_what_people_allowed() {
    let drill = Drill::new(&pool("acp", ""));
    let _daemon = daemon(&drill);
    for (prompt, how) in [
        ("run touch a.txt", "approve"),
        ("run touch b.txt", "approve"),
        ("run mkdir c", "reject"),
    ] {
        let working = client(&drill, &[prompt]);
        let ask = waiting(&drill, 1).remove(0);
        good(&answer(&drill, how, &ask, &[]));
        result(&drill, working);
    }
    let learned = lines(&drill.run(&["--json", "policy", "learn", "-p", "cautious"]));
    assert_eq!(
        learned[0]["width"], "exact",
        "the narrowest first: {learned:?}"
    );
    assert!(
        learned.iter().all(|rule| rule["about"] == "touch"),
        "{learned:?}"
    );
    let both = learned.iter().find(|rule| rule["answered"] == 2);
    let both = both.unwrap_or_else(|| panic!("{learned:?}"));
    // It does what it says: in a policy of its own it allows, and nothing that was denied.
    let rule = both["rule"].as_str().expect("a rule");
    let text = format!("schema = 1\nname = \"more\"\nextends = [\"cautious.toml\"]\n\n{rule}");
    fs::write(drill.path("more.toml"), text).expect("a policy");
    let page = lines(&drill.run(&["--json", "policy", "replay", "--with", "more.toml"])).remove(0);
    let counts = json!([
        {"old": "ask", "new": "allow", "count": 2},
        {"old": "ask", "new": "ask", "count": 1},
    ]);
    assert_eq!(
        (&page["widened"], &page["counts"]),
        (&json!(2), &counts),
        "{page}"
    );
    for record in lines(&drill.run(&["audit", "export"])) {
        assert_eq!(record["approver"], "uid 0", "{record}");
        assert_eq!(record["protocol"], "acp", "{record}");
        assert!(record["agent"].is_string(), "{record}");
        assert!(
            record["waited_ms"].as_i64().is_some_and(|ms| ms > 0),
            "{record}"
        );
    }
}

#[test]
fn a_replay_sees_links_as_they_were_and_what_clients_did() {
    let drill = Drill::new(&pool("acp", "client_fs = \"read\""));
    symlink("/etc", drill.workspace().join("out")).expect("a link");
    symlink("src", drill.workspace().join("in")).expect("a link");
    let prompt = "run cat in/lib.rs\nrun cat out/hostname\nclient-read README.md\nread in/lib.rs";
    drill.run(&["run", "--results", "r.jsonl", prompt]);
    let records = lines(&drill.run(&["audit", "export"]));
    let decisions: Vec<_> = records
        .iter()
        .map(|item| item["decision"].as_str())
        .collect();
    assert_eq!(
        decisions,
        [Some("allow"), Some("deny"), Some("allow"), Some("allow")],
        "{records:?}"
    );
    let observations = &records[0]["facts"]["observations"]["at"];
    assert_eq!(observations["/workspace/in"], "src", "{}", records[0]);
    assert_eq!(observations["/workspace/src"], true, "{}", records[0]);
    // The copy, and its links with it, is another one by now.
    fs::remove_file(drill.workspace().join("out")).expect("removed");
    let replay = |with: &str| {
        let args = [
            "--json",
            "policy",
            "replay",
            "--with",
            with,
            "--fail-on",
            "changed",
        ];
        let ran = drill.run(&args);
        let page: Value = serde_json::from_str(&ran.stdout).expect("a page");
        assert_eq!(page["skipped"], json!({}), "{page}");
        assert_eq!(page["requests"], 4, "{page}");
        assert_eq!(ran.code, Some(i32::from(page["changed"] != 0)), "{page}");
        page
    };
    let same = replay("cautious");
    assert_eq!(
        (&same["changed"], &same["guessed"]),
        (&json!(0), &json!(0)),
        "{same}"
    );
    let strict = "schema = 1\nname = \"strict\"\nextends = [\"cautious.toml\"]\n\n[paths]\ntexts = [\"@/*.md\"]\n\n\
        [[rule]]\nid = \"outside\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"cat\"]\nany_path = \"outside\"\n\n\
        [[rule]]\nid = \"texts\"\ndecision = \"deny\"\ntool = \"read\"\npath = \"texts\"\n";
    fs::write(drill.path("strict.toml"), strict).expect("a policy");
    let page = replay("strict.toml");
    let changes = page["changes"].as_array().expect("changes").iter();
    let changes: Vec<_> = changes
        .map(|item| (item["old"].as_str(), item["new_rules"].clone()))
        .collect();
    let expect = [
        (Some("ask"), json!(["outside"])),
        (Some("allow"), json!(["texts"])),
    ];
    assert_eq!(changes, expect, "{page}");
}
