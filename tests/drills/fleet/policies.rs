//! What judges beside a pool's own policy: a shadow, a layer of a task, the occasion; and a policy
//! that is only tried.

use std::fs;

use crate::drill::{Drill, eventually, metric};
use crate::fleet::approvals::{LONG, client, daemon, good, result, waiting};
use crate::fleet::reload::{counts, digest, drill, own, put, run_prompt, status};

/// How the records of all decided asks name their policy.
fn policies(drill: &Drill) -> Vec<(String, String)> {
    let database = drill.database();
    let mut rows = database
        .prepare(
            "SELECT policy, decision FROM permission_requests WHERE link IS NOT NULL ORDER BY link",
        )
        .expect("approvals");
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("rows")
        .collect::<Result<_, _>>()
        .expect("rows")
}

#[test]
fn a_shadow_is_counted_and_decides_nothing() {
    let more = "shadow_policy = \"strict\"\n\n[policy.strict]\nfile = \"strict.toml\"\n";
    let drill = drill(more, &own("deny", "allow", ""));
    let strict = own("deny", "deny", "").replace("name = \"own\"", "name = \"strict\"");
    fs::write(drill.path("strict.toml"), &strict).expect("written");
    let _daemon = daemon(&drill);
    assert_eq!(
        run_prompt(&drill, "run echo one\nrun echo two\nrun ls"),
        (2, 1)
    );
    let shadow = status(&drill)["pools"][0]["shadow"].clone();
    assert_eq!(shadow["policy"], "strict");
    assert_eq!(shadow["judged"], 3, "{shadow}");
    let difference = &shadow["differences"][0];
    assert_eq!(difference["from"], "allow", "{shadow}");
    assert_eq!(difference["to"], "deny", "{shadow}");
    assert_eq!(difference["count"], 2, "{shadow}");
    assert_eq!(shadow["differences"].as_array().map(Vec::len), Some(1));
    let page = drill.get("/metrics").1;
    let differs = r#"marshal_policy_shadow_differences_total{pool="demo",from="allow",to="deny"}"#;
    assert_eq!(metric(&page, differs), Some(2.0));
    let judged = r#"marshal_policy_shadow_evaluations_total{pool="demo"}"#;
    assert_eq!(metric(&page, judged), Some(3.0));
    let log = drill.log("stderr.log");
    let reported = log.matches("would have decided otherwise").count();
    assert_eq!(reported, 1, "once in a while: {log}");
    // The record is of the policy that decided.
    assert!(policies(&drill).iter().all(|(policy, _)| policy == "own"));
    // It is read again like the others, and a faulty one is refused like them.
    let before = digest(&drill);
    put(&drill, "strict.toml", "schema = 1\n");
    let ran = drill.run(&["policy", "reload"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    put(
        &drill,
        "strict.toml",
        &strict.replace("\"deny\"", "\"ask\""),
    );
    good(&drill.run(&["policy", "reload"]));
    assert_eq!(digest(&drill), before);
    assert_eq!(status(&drill)["pools"][0]["shadow"]["judged"], 0);
}

const NIGHT: &str = "schema = 1\nname = \"night\"\n[[rule]]\nid = \"quiet\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"echo\"]\nreason = \"It is night.\"\n";

fn layered(drill: &Drill) {
    let config = fs::read_to_string(drill.config()).expect("read");
    let layer = "[policy.night]\nfile = \"night.toml\"\nlayer = true\n";
    fs::write(drill.config(), format!("{config}\n{layer}")).expect("written");
    fs::write(drill.path("night.toml"), NIGHT).expect("written");
}

#[test]
fn a_task_may_bring_a_layer_that_only_narrows() {
    let drill = drill("", &own("deny", "allow", ""));
    layered(&drill);
    // One that allows, or brings a list of what may be allowed, is none.
    for (word, text) in [
        (
            "can only ask or deny",
            NIGHT.replace("\"deny\"", "\"allow\""),
        ),
        (
            "shell.env_allow",
            NIGHT.replace("[[rule]]", "[shell]\nenv_allow = [\"X\"]\n[[rule]]"),
        ),
        (
            "can only ask or deny",
            NIGHT.replace("name =", "extends = [\"builtin:ci\"]\nname ="),
        ),
    ] {
        fs::write(drill.path("night.toml"), text).expect("written");
        let ran = drill.run(&["up"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.stderr.contains(word), "{}", ran.all());
    }
    fs::write(drill.path("night.toml"), NIGHT).expect("written");
    let _daemon = daemon(&drill);
    assert_eq!(status(&drill)["pools"][0]["layers"][0], "night");
    let tasks = [
        r#"{"prompt": "run echo one"}"#,
        r#"{"prompt": "run echo two", "policy_layer": "night"}"#,
    ];
    fs::write(drill.path("t.jsonl"), tasks.join("\n")).expect("written");
    let ran = drill.run(&["run", "--results", "r.jsonl", "t.jsonl"]);
    let mut results = drill.results("r.jsonl");
    results.sort_by_key(|item| item["id"].as_str().expect("an id").to_owned());
    assert_eq!(counts(&results[0]), (1, 0), "{}", ran.all());
    assert_eq!(counts(&results[1]), (0, 1), "{}", ran.all());
    let all = ["--policy-layer", "night"];
    let ran = drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        all[0],
        all[1],
        "run echo three",
    ]);
    assert_eq!(
        counts(&drill.results("r.jsonl")[0]),
        (0, 1),
        "{}",
        ran.all()
    );
    let pair = |policy: &str, decision: &str| (policy.to_owned(), decision.to_owned());
    let mut found = policies(&drill);
    found.sort();
    assert_eq!(
        found,
        [
            pair("own", "allow"),
            pair("own+night", "deny"),
            pair("own+night", "deny")
        ]
    );
    for name in ["own", "dawn"] {
        let ran = drill.run(&["run", "--policy-layer", name, "run echo x"]);
        assert_eq!(ran.code, Some(2), "{}", ran.all());
        assert!(ran.stderr.contains("the layers are night"), "{}", ran.all());
    }
    // It is read again with the others.
    put(&drill, "night.toml", &NIGHT.replace("\"echo\"", "\"ls\""));
    good(&drill.run(&["policy", "reload"]));
    drill.run(&[
        "run",
        "--results",
        "r.jsonl",
        all[0],
        all[1],
        "run echo four",
    ]);
    assert_eq!(counts(&drill.results("r.jsonl")[0]), (1, 0));
}

#[test]
fn a_rule_allows_so_often_in_a_turn_and_in_the_next_one_again() {
    let rule = own("deny", "allow", "") + "max_per_turn = 2\n";
    let drill = drill("session = \"slot\"\n", &rule);
    let _daemon = daemon(&drill);
    for _ in 0..2 {
        assert_eq!(
            run_prompt(&drill, "run echo 1\nrun echo 2\nrun echo 3"),
            (2, 1)
        );
    }
    // Two in one command are two.
    assert_eq!(
        run_prompt(&drill, "run echo 1\nrun echo 2 && echo 3\nrun echo 4"),
        (2, 1)
    );
    assert_eq!(run_prompt(&drill, "run echo 1 && echo 2 && echo 3"), (0, 1));
}

#[test]
fn rules_look_at_pool_agent_mode_and_time() {
    let allows = |condition: &str| {
        let rule = format!("{}{condition}\n", own("deny", "allow", ""));
        let drill = drill("mode = \"plan\"\n", &rule);
        let config = fs::read_to_string(drill.config()).expect("read");
        let config = config.replace("\"acp\"]", "\"acp\", \"--quirk\", \"modes\"]");
        fs::write(drill.config(), config).expect("written");
        let ran = drill.run(&["run", "--results", "r.jsonl", "run echo x"]);
        let results = drill.results("r.jsonl");
        let first = results.first().unwrap_or_else(|| panic!("{}", ran.all()));
        counts(first).0 == 1
    };
    for (condition, expect) in [
        ("pools = \"demo\"", true),
        ("pools = [\"other\", \"more\"]", false),
        ("modes = \"plan\"", true),
        ("modes = \"build\"", false),
        ("agents = \"codex\"", false),
        ("hours = \"00:00-24:00\"", true),
        (
            "hours = \"00:00-24:00\"\nzone = \"+02:00\"\nmodes = \"build\"",
            false,
        ),
    ] {
        assert_eq!(allows(condition), expect, "{condition}");
    }
}

#[test]
fn a_policy_that_is_only_tried_asks_whatever_it_would_do() {
    let drill = drill("", &own("deny", "allow", "enforce = false"));
    let _daemon = daemon(&drill);
    let shown = drill.run(&["policy", "status"]);
    assert!(shown.stdout.contains("not enforced"), "{}", shown.all());
    for prompt in ["run echo x", "run ls"] {
        let working = client(&drill, &[prompt]);
        let ask = waiting(&drill, 1).remove(0);
        assert!(ask.to_string().contains("dry run"), "{ask}");
        good(&crate::fleet::approvals::answer(
            &drill,
            "reject",
            &ask,
            &[],
        ));
        assert_eq!(counts(&result(&drill, working)), (0, 1));
    }
    // What the guard denies it denies all the same.
    assert_eq!(run_prompt(&drill, "run cat .env"), (0, 1));
    eventually(LONG, "it is logged", || {
        let log = drill.log("stderr.log");
        log.contains("would have decided") && log.contains("\"would\":\"allow\"")
    });
}
