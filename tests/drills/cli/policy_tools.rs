//! `policy` and `report`: verdicts and their codes, labelled requests, the past judged again, rules
//! learned from it, and the page of the morning.

use std::fs;

use serde_json::{Value, json};

use crate::cli::{POOL, exits};
use crate::drill::{Drill, Ran, acts_on_a_terminal};

fn lines(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect()
}

#[test]
fn check_ends_with_its_verdict_and_with_3_for_everything_else() {
    let drill = Drill::new(POOL);
    for (args, code) in [
        (&["git status --short"][..], 0),
        (&["psql"], 1),
        (&["git status && rm -rf x"], 2),
        (&["cat link_out/passwd"], 1),
        (&["cat link_in/a.rs"], 0),
        (&["--link", "/workspace/x=/etc", "cat link_out/passwd"], 0),
        (&["--link", "/workspace/x=/etc", "cat x/passwd"], 1),
        (&["cat /workspace/src/a.rs"], 0),
        (&["cat /repo/proj/src/a.rs"], 1),
        (&["--workspace", "/repo/proj", "cat /repo/proj/src/a.rs"], 0),
        (&["--tool", "read", "src/a.rs"], 0),
        (&["--tool", "fetch", "https://a.example/"], 2),
        (&["--tool", "shell", "--input", "{\"command\": 3}"], 2),
        (&["--tool", "odd", "--input", "{}"], 1),
        (
            &[
                "--pool",
                "demo",
                "--tool",
                "bash",
                "--input",
                "{\"command\":\"ls\"}",
            ],
            0,
        ),
        (&[], 3),
        (&["--nonsense"], 3),
        (&["--tool", "odd", "text"], 3),
        (&["--input", "no json"], 3),
        (&["-p", "none", "ls"], 3),
        (&["-p", "guard", "ls"], 3),
        (&["--file", "none.toml", "ls"], 3),
        (&["--pool", "other", "ls"], 3),
        (&["--workspace", "../x", "ls"], 3),
    ] {
        let ran = drill.run(&[&["policy", "check"], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.all());
    }
    // The links of a pool's workspace are those of its directory on this host.
    std::os::unix::fs::symlink("/etc", drill.workspace().join("out")).expect("a link");
    let judged = |pool: &[&str]| {
        let command = "{\"command\":\"cat out/passwd\"}";
        let ran = drill.run(&[&["policy", "check"], pool, &["--input", command]].concat());
        ran.code
    };
    assert_eq!(judged(&["--pool", "demo", "--tool", "bash"]), Some(1));
    assert_eq!(judged(&["--tool", "shell"]), Some(0));
    let ran = drill.run(&["--json", "policy", "check", "git status; rm -rf x"]);
    let shown = &lines(&ran)[0];
    assert_eq!(shown["decision"], "deny");
    assert_eq!(shown["parts"][1]["argv"], json!(["rm", "-rf", "x"]));
    assert_eq!(shown["parts"][0]["rules"][0], "git-read");
    assert_eq!(shown["policy"]["sha256"].as_str().map(str::len), Some(64));
    let ran = drill.run(&["policy", "explain", "cat a | sudo x"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for part in [
        "part 1: allow",
        "part 2: deny",
        "rule guard-privilege of builtin:secrets",
        "| sudo",
    ] {
        assert!(ran.stdout.contains(part), "{part:?} in {}", ran.all());
    }
    let ran = drill.run(&["policy", "explain", "echo \u{1b}]0;t\u{7}"]);
    assert!(
        !ran.stdout.chars().any(acts_on_a_terminal),
        "{:?}",
        ran.stdout
    );
}

#[test]
fn every_kind_of_tool_can_be_tried_without_a_pool() {
    let drill = Drill::new(POOL);
    let mcp = "schema = 1\nname = \"m\"\ndefault = \"ask\"\n[[rule]]\nid = \"notes\"\ndecision = \"allow\"\n\
        tool = \"mcp\"\nserver = \"notes\"\nname = \"read_*\"\n";
    fs::write(drill.path("m.toml"), mcp).expect("a policy");
    for (args, code) in [
        (&["--tool", "edit", "src/a.rs"][..], 0),
        (&["--tool", "edit", "/etc/x"], 2),
        (&["--tool", "delete", "src/a.rs"], 0),
        (&["--tool", "delete", "--input", "{\"path\":\"/etc/x\"}"], 2),
        (&["--tool", "move", "src/a.rs -> src/b.rs"], 0),
        (&["--tool", "move", "src/a.rs -> /etc/b"], 2),
        (&["--tool", "move", "src/a.rs"], 3),
        (&["--tool", "move", "--input", "{\"from\":\"src/a.rs\"}"], 2),
        (
            &[
                "--file",
                "m.toml",
                "--tool",
                "mcp__notes__read_one",
                "--input",
                "{}",
            ],
            0,
        ),
        (
            &[
                "--file",
                "m.toml",
                "--tool",
                "mcp__notes__put",
                "--input",
                "{}",
            ],
            1,
        ),
    ] {
        let ran = drill.run(&[&["policy", "check"], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.all());
    }
}

/// What stands around a command decides as much as its words: it is shown, told and kept.
#[test]
fn variables_redirects_and_ends_of_paths_are_among_the_facts() {
    let drill = Drill::new(POOL);
    let links = [
        "--link",
        "/workspace/link_out=/etc",
        "--link",
        "/workspace/link_in=src",
    ];
    let explained = [
        &["policy", "explain"],
        &links[..],
        &["LD_PRELOAD=x cat a > link_out/passwd"],
    ];
    let ran = drill.run(&explained.concat());
    for part in [
        "environment: LD_PRELOAD=x",
        "redirect: > link_out/passwd",
        "link_out/passwd leads to /etc/passwd, outside",
    ] {
        assert!(ran.stdout.contains(part), "{part:?} in {}", ran.all());
    }
    let ran = drill.run(&["policy", "check", "LD_PRELOAD=x ls"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let advice = "allows `LD_PRELOAD=x ls`; the variable LD_PRELOAD may not be set";
    assert!(ran.stdout.contains(advice), "{}", ran.all());
    let ran = drill.run(&["--json", "policy", "check", "CI=1 cat link_in/a 2>&1"]);
    let shown = &lines(&ran)[0];
    let part = &shown["parts"][0];
    assert_eq!(part["env"], json!(["CI=1"]), "{shown}");
    assert_eq!(part["redirects"], json!([">& 1"]), "{shown}");
    let path = json!({"word": "link_in/a", "to": "/workspace/src/a", "inside": true});
    assert_eq!(shown["facts"]["paths"], json!([path]), "{shown}");

    let ran = drill.run(&["run", "run FOO=1 cat ./README.md > out/x"]);
    assert_eq!(ran.code, Some(1), "nobody is there: {}", ran.all());
    let stored = &lines(&drill.run(&["audit", "export"]))[0];
    let part = &stored["facts"]["parts"][0];
    assert_eq!(part["env"], json!(["FOO=1"]), "{stored}");
    assert_eq!(part["redirects"], json!(["> out/x"]), "{stored}");
    let paths = stored["facts"]["paths"].as_array().expect("paths");
    let ends = |path: &Value| path["to"].as_str().is_some_and(|to| to.ends_with("/out/x"));
    assert!(paths.iter().any(ends), "{stored}");
}

/// What is labelled in this repository is judged by the program as by its own tests.
#[test]
fn the_labelled_requests_of_this_repository_have_no_miss() {
    let drill = Drill::new(POOL);
    let beside = |path: &str| format!("{}/tests/quick/policy/{path}", env!("CARGO_MANIFEST_DIR"));
    let (policies, cases) = (beside("policies"), beside("cases"));
    let ran = drill.run(&["--json", "policy", "test", "--policies", &policies, &cases]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let shown = &lines(&ran)[0];
    assert!(shown["cases"].as_u64() > Some(3_000), "{}", shown["cases"]);
    assert_eq!(shown["misses"], json!([]));
}

#[test]
fn a_policy_is_shown_to_start_from() {
    let drill = Drill::new(&format!("{POOL}[policy.mine]\nfile = \"mine.toml\"\n"));
    fs::write(drill.path("mine.toml"), "schema = 1\n").expect("a policy");
    let builtin = |name: &str| {
        let file = format!(
            "{}/crates/policy/src/builtin/{name}.toml",
            env!("CARGO_MANIFEST_DIR")
        );
        fs::read_to_string(file).expect("built in")
    };
    for name in ["developer", "ci", "reviewer", "guard", "builtin:guard"] {
        let ran = drill.run(&["policy", "show", name]);
        let text = builtin(name.trim_start_matches("builtin:"));
        assert_eq!(
            (ran.code, ran.stdout.trim_end()),
            (Some(0), text.trim_end())
        );
    }
    let ran = drill.run(&["policy", "show", "developer"]);
    fs::write(drill.path("mine.toml"), &ran.stdout).expect("a policy");
    let ran = drill.run(&["--json", "policy", "show", "mine"]);
    assert_eq!(
        lines(&ran)[0]["text"],
        builtin("developer"),
        "{}",
        ran.all()
    );
    assert_eq!(
        drill.run(&["policy", "check", "-p", "mine", "ls"]).code,
        Some(0)
    );
    exits(
        &drill.run(&["policy", "show", "none"]),
        2,
        &["there is no policy \"none\""],
    );
}

#[test]
fn labelled_requests_are_counted_with_every_miss_and_every_rule_that_nothing_hit() {
    let drill = Drill::new(POOL);
    fs::create_dir(drill.path("p")).expect("a directory");
    let policy = "schema = 1\nname = \"small\"\ndefault = \"ask\"\n\
        [[rule]]\nid = \"ls\"\ndecision = \"allow\"\ntool = \"shell\"\nargv = [\"ls\"]\npaths = \"inside\"\n\
        [[rule]]\nid = \"rm\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"rm\"]\n\
        [[rule]]\nid = \"mv\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"mv\"]\n";
    fs::write(drill.path("p/S.toml"), policy).expect("a policy");
    let case = |id: &str, command: &str, expect: &str, also: &[&str]| {
        json!({"id": id, "tool": "shell", "input": {"command": command}, "policy": "S",
               "expect": expect, "also_ok": also, "why": "w", "source": "own", "cat": "x"})
        .to_string()
    };
    let good = [
        case("a", "ls src", "allow", &[]),
        case("b", "make", "deny", &["ask"]),
    ]
    .join("\n");
    fs::write(drill.path("good.jsonl"), good).expect("cases");
    let bad = [
        case("c", "ls", "deny", &[]),
        case("d", "make", "allow", &[]),
        case("e", "rm x", "ask", &[]),
    ];
    fs::write(drill.path("bad.jsonl"), bad.join("\n")).expect("cases");
    let test = ["--json", "policy", "test", "--policies", "p"];
    let ran = drill.run(&[&test[..], &["good.jsonl"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let shown = &lines(&ran)[0];
    assert_eq!((&shown["exact"], &shown["also_ok"]), (&json!(1), &json!(1)));
    assert_eq!(shown["policies"][0]["never_hit"], json!(["rm", "mv"]));
    let ran = drill.run(&[&test[..], &["good.jsonl", "bad.jsonl"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let shown = &lines(&ran)[0];
    for key in ["false_allow", "false_block", "confused"] {
        assert_eq!(shown[key], 1, "{key}: {shown}");
    }
    assert_eq!((&shown["cases"], &shown["exact"]), (&json!(5), &json!(1)));
    let misses = shown["misses"].as_array().expect("misses");
    let ids: Vec<_> = misses.iter().map(|miss| miss["id"].as_str()).collect();
    assert_eq!(ids, [Some("c"), Some("d"), Some("e")]);
    fs::write(drill.path("no.jsonl"), "{\"id\":\"x\"}\n").expect("cases");
    exits(
        &drill.run(&[&test[..], &["no.jsonl"]].concat()),
        2,
        &["no.jsonl:1: not a valid case"],
    );
    let out = case("x", "ls", "allow", &[]).replace("\"S\"", "\"../S\"");
    fs::write(drill.path("no.jsonl"), out).expect("cases");
    exits(
        &drill.run(&[&test[..], &["no.jsonl"]].concat()),
        2,
        &["not a plain file name"],
    );
}

/// A night of three requests that nobody was there to decide, and two that needed nobody.
fn unattended_run() -> Drill {
    let drill = Drill::new(POOL);
    let prompt = "read README.md\nwrite notes.txt hello\nrun curl https://example.com\nrun ninja all\nrun ninja test -j2\nrun cargo run";
    let ran = drill.run(&["run", prompt, "exit 3"]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    fs::write(
        drill.path("strict.toml"),
        "schema = 1\nname = \"strict\"\nextends = [\"builtin:developer\"]\n[[rule]]\nid = \"no-ninja\"\n\
         decision = \"deny\"\ntool = \"shell\"\nargv = [\"ninja\"]\n",
    )
    .expect("a policy");
    fs::write(
        drill.path("wide.toml"),
        "schema = 1\nname = \"wide\"\ndefault = \"allow\"\nunknown_tool = \"allow\"\n",
    )
    .expect("a policy");
    drill
}

#[test]
fn the_past_judged_again_shows_exactly_what_a_policy_changes() {
    let drill = unattended_run();
    let same = [
        "--json",
        "policy",
        "replay",
        "--with",
        "builtin:developer",
        "--fail-on",
        "changed",
    ];
    let ran = drill.run(&same);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert_eq!(
        (&lines(&ran)[0]["requests"], &lines(&ran)[0]["changed"]),
        (&json!(6), &json!(0))
    );
    let strict = ["--json", "policy", "replay", "--with", "strict.toml"];
    let ran = drill.run(&[&strict[..], &["--fail-on", "widened"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let shown = &lines(&ran)[0];
    let changes = shown["changes"].as_array().expect("changes");
    let seqs: Vec<_> = changes
        .iter()
        .map(|change| change["seq"].as_u64())
        .collect();
    assert_eq!(seqs, [Some(4), Some(5)], "{shown}");
    for change in changes {
        assert_eq!(
            (&change["old"], &change["new"]),
            (&json!("ask"), &json!("deny"))
        );
        assert_eq!(change["new_rules"], json!(["no-ninja"]));
    }
    assert_eq!(
        drill
            .run(&[&strict[..], &["--fail-on", "changed"]].concat())
            .code,
        Some(1)
    );
    // The same from an export, which needs no journal.
    let export = drill.run(&["audit", "export"]);
    fs::write(drill.path("a.jsonl"), &export.stdout).expect("written");
    let ran = drill.run(&[&strict[..], &["--log", "a.jsonl"]].concat());
    assert_eq!(lines(&ran)[0], *shown, "{}", ran.all());
    let wide = [
        "--json",
        "policy",
        "replay",
        "--with",
        "wide.toml",
        "--fail-on",
        "widened",
    ];
    // The agent says itself that its commands need everything: no policy allows them then.
    let ran = drill.run(&wide);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let silent = lines(&export).into_iter().map(|mut line| {
        line["claimed"] = json!({});
        line.to_string()
    });
    let silent: Vec<_> = silent.collect();
    fs::write(drill.path("silent.jsonl"), silent.join("\n")).expect("written");
    let ran = drill.run(&[&wide[..], &["--log", "silent.jsonl"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert_eq!(lines(&ran)[0]["widened"], 4, "{}", ran.all());
    // What cannot be judged again is told, and is no success.
    let ran = drill.run(&[&wide[..], &["--decision", "allow", "--extractor", "none"]].concat());
    exits(&ran, 2, &["no built-in extractor"]);
    let lost = export.stdout.replace("\"at\":", "\"was\":");
    fs::write(drill.path("lost.jsonl"), lost).expect("written");
    let ran = drill.run(
        &[
            &strict[..],
            &["--log", "lost.jsonl", "--fail-on", "widened"],
        ]
        .concat(),
    );
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.stdout.contains("was not recorded"), "{}", ran.all());
    fs::write(drill.path("bad.jsonl"), "{}\n").expect("written");
    exits(
        &drill.run(&[&strict[..], &["--log", "bad.jsonl"]].concat()),
        2,
        &["bad.jsonl:1"],
    );
}

#[test]
fn rules_are_learned_from_what_people_allowed_and_allow_nothing_that_was_denied() {
    let drill = unattended_run();
    let export = drill.run(&["audit", "export"]);
    // As if a person had been there: `ninja` twice allowed, `cargo run` refused.
    let log = |second: &str| {
        let lines = lines(&export).into_iter().map(|mut line| {
            let command = line["input"]["command"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            line["claimed"] = json!({});
            let shown = match command.as_str() {
                "ninja all" => "allow",
                "ninja test -j2" => second,
                "cargo run" => "deny",
                _ => return line.to_string(),
            };
            line["by"] = "human".into();
            line["decision"] = shown.into();
            line.to_string()
        });
        let text: Vec<String> = lines.collect();
        fs::write(drill.path("people.jsonl"), text.join("\n")).expect("written");
        let ran = drill.run(&["--json", "policy", "learn", "--log", "people.jsonl"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        self::lines(&ran)
    };
    let both = log("allow");
    let widths: Vec<_> = both
        .iter()
        .map(|rule| rule["width"].as_str().unwrap_or(""))
        .collect();
    assert!(
        widths.is_sorted_by_key(|w| ["exact", "near", "prefix"].iter().position(|k| k == w)),
        "{widths:?}"
    );
    assert_eq!(both[0]["answered"], 1, "{both:?}");
    let widest = both.last().expect("a rule");
    assert_eq!(
        (&widest["width"], &widest["answered"]),
        (&json!("prefix"), &json!(2))
    );
    assert!(
        widest["rule"]
            .as_str()
            .is_some_and(|rule| rule.contains("argv = [\"ninja\"]"))
    );
    // One of the two was refused: nothing is proposed that would allow it.
    let one = log("deny");
    assert!(!one.is_empty());
    for rule in &one {
        let policy = format!(
            "schema = 1\nname = \"l\"\nextends = [\"builtin:guard\"]\ndefault = \"ask\"\n{}",
            rule["rule"].as_str().expect("a rule")
        );
        fs::write(drill.path("l.toml"), policy).expect("written");
        let check = |text: &str| {
            drill
                .run(&["policy", "check", "--file", "l.toml", text])
                .code
        };
        assert_eq!(check("ninja all"), Some(0), "{rule}");
        assert_eq!(check("ninja test -j2"), Some(1), "{rule}");
    }
}

#[test]
fn what_was_denied_in_another_spelling_is_not_allowed_by_what_is_learned() {
    let drill = Drill::new(POOL);
    let prompt = "run ninja all\nrun nin\"j\"a all\nrun nin\\ja test\nrun ninja docs";
    drill.run(&["run", prompt]);
    let export = drill.run(&["audit", "export"]);
    let learned = |allowed: &[&str]| {
        let log = lines(&export).into_iter().map(|mut line| {
            let command = line["input"]["command"].as_str().unwrap_or_default();
            let reported = if allowed.contains(&command) {
                "allow"
            } else {
                "deny"
            };
            line["by"] = "human".into();
            line["decision"] = reported.into();
            line["claimed"] = json!({});
            line.to_string()
        });
        let log: Vec<String> = log.collect();
        assert_eq!(log.len(), 4, "{log:?}");
        fs::write(drill.path("people.jsonl"), log.join("\n")).expect("written");
        let ran = drill.run(&["--json", "policy", "learn", "--log", "people.jsonl"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        lines(&ran)
    };
    assert_eq!(learned(&["ninja all"]), Vec::<Value>::new());
    let rules = learned(&["ninja docs"]);
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert_eq!(rules[0]["width"], "exact", "{rules:?}");
    let all = learned(&["ninja all", "nin\"j\"a all", "nin\\ja test", "ninja docs"]);
    assert!(all.iter().any(|rule| rule["answered"] == 4), "{all:?}");
}

#[test]
fn the_report_has_what_a_person_asks_in_the_morning() {
    let drill = unattended_run();
    let ran = drill.run(&["report"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for part in [
        "2 ended: 1 done, 1 lost",
        "CRASHES",
        "denied by net",
        "nothing waits",
        "1 file changed",
    ] {
        assert!(ran.stdout.contains(part), "{part:?} in {}", ran.all());
    }
    let ran = drill.run(&["--json", "report", "--since", "1h"]);
    let shown = &lines(&ran)[0];
    assert_eq!(shown["outcomes"], json!({"done": 1, "lost": 1}));
    assert_eq!(shown["crashes"][0]["count"], 1, "{shown}");
    let denied = shown["denied"].as_array().expect("a list");
    let net = denied
        .iter()
        .find(|kind| kind["rules"][0] == "net")
        .expect("net");
    assert!(
        net["no_rule_because"]
            .as_str()
            .is_some_and(|why| why.contains("net denies it"))
    );
    let tree = shown["tasks"]
        .as_array()
        .expect("tasks")
        .iter()
        .find_map(|task| task["tree"].as_str());
    assert!(fs::exists(tree.expect("a tree")).expect("looked"));
    let none = drill.run(&["--json", "report", "--since", "2100-01-01T00:00:00Z"]);
    assert_eq!(lines(&none)[0]["outcomes"], json!({}));
    exits(
        &drill.run(&["report", "--since", "never"]),
        2,
        &["expected a duration"],
    );
}
