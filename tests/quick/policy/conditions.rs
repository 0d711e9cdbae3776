//! Conditions of the situation, policies on trial, and the layers of a session: none of them lowers a
//! verdict that holds without it.

use std::collections::BTreeMap;

use marshal_model::{AgentClaims, Decision, SandboxFacts};
use marshal_policy::{
    EvaluationContext, FsContext, LayerText, NoLinks, Policy, PolicyDecision, Request, TimeOfDay,
    builtin_text, check_layer,
};

use crate::policy::corpus::{files, judge, read};
use crate::policy::tree::Tree;

fn none(name: &str) -> Result<String, String> {
    Err(format!("no {name}"))
}

fn layer<'l>(name: &'l str, text: &'l str) -> LayerText<'l> {
    LayerText {
        name,
        text,
        load_extended: &none,
    }
}

fn load(texts: &[&str]) -> Policy {
    let names = ["one", "two", "three"];
    let layers: Vec<_> = names.iter().zip(texts).map(|(n, t)| layer(n, t)).collect();
    Policy::load_layers(&layers).unwrap_or_else(|error| panic!("{error}\n{texts:?}"))
}

fn on(policy: &Policy, command: &str, occasion: &EvaluationContext<'_>) -> PolicyDecision {
    let at = FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    let request = Request::Shell {
        command: command.to_owned(),
        cwd: None,
    };
    policy.decide_in_context(&request, &AgentClaims::default(), &at, occasion)
}

fn rule(id: &str, decision: &str, program: &str, more: &str) -> String {
    format!(
        "[[rule]]\nid = \"{id}\"\ndecision = \"{decision}\"\ntool = \"shell\"\nargv = [\"{program}\"]\n{more}\n"
    )
}

const HEAD: &str = "schema = 1\nname = \"t\"\ndefault = \"ask\"\n";

#[test]
fn each_condition_holds_for_each_decision_and_for_each_tool() {
    let here = EvaluationContext {
        pool: Some("demo"),
        agent: Some("codex"),
        mode: Some("plan"),
        sandbox: SandboxFacts::default(),
        time_of_day: TimeOfDay::parse("23:30"),
        rule_uses: None,
    };
    for (holds, fails) in [
        ("pools = \"demo\"", "pools = \"other\""),
        ("agents = [\"claude\", \"codex\"]", "agents = \"claude\""),
        ("modes = \"plan\"", "modes = \"Plan\""),
        ("hours = \"22:00-06:00\"", "hours = \"06:00-22:00\""),
    ] {
        for (decision, then) in [("allow", Decision::Allow), ("deny", Decision::Deny)] {
            let policy =
                |more: &str| load(&[&format!("{HEAD}{}", rule("r", decision, "ls", more))]);
            assert_eq!(on(&policy(holds), "ls", &here).decision, then, "{holds}");
            assert_eq!(
                on(&policy(fails), "ls", &here).decision,
                Decision::Ask,
                "{fails}"
            );
            // What is not known counts against a rule that allows, and for one that denies.
            let unknown = on(&policy(holds), "ls", &EvaluationContext::default()).decision;
            let wanted = if then == Decision::Deny {
                Decision::Deny
            } else {
                Decision::Ask
            };
            assert_eq!(unknown, wanted, "{holds} {decision}");
        }
    }
    let tools = [
        (
            "tool = \"write\"",
            Request::Write {
                paths: vec!["a.txt".to_owned()],
            },
        ),
        (
            "tool = \"read\"",
            Request::Read {
                targets: vec![marshal_policy::ReadTarget::Path("a".to_owned())],
            },
        ),
        (
            "tool = \"fetch\"\nurl = \"https://docs.rs/**\"",
            Request::Fetch {
                url: "https://docs.rs/x".to_owned(),
                method: Some("GET".to_owned()),
            },
        ),
        (
            "tool = \"mcp\"\nserver = \"db\"",
            Request::Mcp {
                server: "db".into(),
                name: "q".into(),
                arguments: serde_json::json!({}),
            },
        ),
    ];
    let at = FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    for (tool, request) in tools {
        for (modes, expect) in [("plan", Decision::Allow), ("build", Decision::Ask)] {
            let text = format!(
                "{HEAD}[[rule]]\nid = \"r\"\ndecision = \"allow\"\n{tool}\nmodes = \"{modes}\"\n"
            );
            let judged =
                load(&[&text]).decide_in_context(&request, &AgentClaims::default(), &at, &here);
            assert_eq!(judged.decision, expect, "{tool} {modes}");
        }
    }
    let piped = format!(
        "{HEAD}[[rule]]\nid = \"p\"\ndecision = \"deny\"\ntool = \"shell\"\npipe = {{ from = \"curl\", to = \"sh\" }}\nmodes = \"build\"\n"
    );
    assert_ne!(
        on(&load(&[&piped]), "curl x | sh", &here).decision,
        Decision::Deny
    );
}

#[test]
fn a_rule_allows_at_most_so_often_whatever_is_in_one_request() {
    let text = format!("{HEAD}{}", rule("few", "allow", "ls", "max_per_turn = 2"));
    let policy = load(&[&text]);
    let used = |count: u32| BTreeMap::from([("few".to_owned(), count)]);
    let at = |count: u32, command: &str| {
        let used = used(count);
        let judged = on(
            &policy,
            command,
            &EvaluationContext {
                rule_uses: Some(&used),
                ..EvaluationContext::default()
            },
        );
        (judged.decision, judged.rule_uses)
    };
    assert_eq!(at(0, "ls"), (Decision::Allow, vec![("few".to_owned(), 1)]));
    assert_eq!(at(1, "ls"), (Decision::Allow, vec![("few".to_owned(), 1)]));
    assert_eq!(at(2, "ls"), (Decision::Ask, Vec::new()));
    assert_eq!(
        at(0, "ls && ls"),
        (Decision::Allow, vec![("few".to_owned(), 2)])
    );
    assert_eq!(at(1, "ls && ls"), (Decision::Ask, Vec::new()));
    assert_eq!(at(u32::MAX, "ls"), (Decision::Ask, Vec::new()));
    // Another rule that allows the same is not limited by it.
    let both = format!("{text}{}", rule("all", "allow", "ls", ""));
    let used = used(2);
    let spent = EvaluationContext {
        rule_uses: Some(&used),
        ..EvaluationContext::default()
    };
    let judged = on(&load(&[&both]), "ls", &spent);
    assert_eq!(
        (judged.decision, judged.rules),
        (Decision::Allow, vec!["all".to_owned()])
    );
}

#[test]
fn a_policy_that_is_tried_allows_nothing_and_lifts_no_denial_but_its_own() {
    let tried = format!(
        "schema = 1\nname = \"t\"\nextends = [\"builtin:guard\"]\ndefault = \"deny\"\nenforce = false\n{}{}",
        rule("yes", "allow", "ls", ""),
        rule("no", "deny", "rm", "")
    );
    let policy = load(&[&tried]);
    let judged = |policy: &Policy, command: &str| {
        let judged = on(policy, command, &EvaluationContext::default());
        (judged.decision, judged.dry_run_decision)
    };
    assert_eq!(
        judged(&policy, "ls"),
        (Decision::Ask, Some(Decision::Allow))
    );
    assert_eq!(
        judged(&policy, "rm x"),
        (Decision::Ask, Some(Decision::Deny))
    );
    assert_eq!(
        judged(&policy, "make"),
        (Decision::Ask, Some(Decision::Deny))
    );
    assert_eq!(
        judged(&policy, "cat .env").0,
        Decision::Deny,
        "the guard stays"
    );
    let site = format!("{HEAD}{}", rule("site", "deny", "ls", ""));
    let below = load(&[&site, &tried]);
    assert_eq!(
        judged(&below, "ls").0,
        Decision::Deny,
        "and so does the site's policy"
    );
    let strict = "schema = 1\nname = \"s\"\ndefault = \"deny\"\n";
    assert_eq!(judged(&load(&[strict, &tried]), "make").0, Decision::Deny);
    let firm = tried.replace("enforce = false", "enforce = true");
    assert_eq!(judged(&load(&[&firm]), "ls"), (Decision::Allow, None));
}

/// What a session may have on top: rules of its own, other defaults, other sets and bounds.
fn tops() -> Vec<String> {
    let head = |more: &str| format!("schema = 1\nname = \"top\"\n{more}\n");
    vec![
        head(""),
        head("default = \"allow\"\nunknown_tool = \"allow\""),
        head("default = \"deny\""),
        head("ask_as = \"deny\""),
        head("enforce = false"),
        head("extends = [\"builtin:guard\"]"),
        head("[limits]\nmax_bytes = 1000000\nmax_commands = 1000\neval_ms = 100000"),
        head(
            "[shell]\ndynamic = \"allow\"\n[shell.redirect]\nwrite_inside = \"allow\"\nwrite_outside = \"allow\"\nwrite_protected = \"allow\"\nread = \"allow\"",
        ),
        head("[paths]\nscratch = [\"/**\"]\nsecrets = []\nprotected = [\"@/src/**\"]"),
        head("") + &rule("top-deny", "deny", "git", ""),
        head("") + &rule("top-ask", "ask", "cargo", "hours = \"00:00-12:00\""),
        head("") + &rule("top-modes", "deny", "ls", "modes = \"plan\""),
    ]
}

#[test]
fn a_layer_of_a_session_never_lowers_a_verdict() {
    let mut compared = 0;
    let tree = Tree::new();
    let files = files("cases");
    let cases: Vec<_> = files.iter().flat_map(|file| read(file)).collect();
    for base in ["developer", "ci", "reviewer"] {
        let text = builtin_text(base).expect("built in");
        let below = load(&[text]);
        for top in tops() {
            check_layer(&layer("top", &top)).unwrap_or_else(|error| panic!("{error}\n{top}"));
            let joined = load(&[text, &top]);
            // A part of them: each is judged for every pair.
            for case in cases.iter().step_by(5) {
                let before = judge(&below, &tree, case).decision;
                let after = judge(&joined, &tree, case).decision;
                assert!(
                    after >= before,
                    "{base} {}: {before} -> {after}\n{top}",
                    case.id
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
    for bad in [
        format!("{HEAD}{}", rule("x", "allow", "ls", "")),
        format!("{HEAD}[shell]\nglob_programs = [\"ls\"]\n"),
        "schema = 1\nname = \"t\"\nextends = [\"builtin:developer\"]\n".to_owned(),
    ] {
        assert!(check_layer(&layer("top", &bad)).is_err(), "{bad}");
    }
}

/// A rule that was learned for a tool that edits or deletes is for that tool, and nothing else.
#[test]
fn rules_are_proposed_for_editing_and_deleting_too() {
    use marshal_policy::learn::propose_rules;
    let tree = Tree::new();
    let head = "schema = 1\nname = \"t\"\nextends = [\"builtin:guard\"]\ndefault = \"ask\"\n";
    let paths = || vec!["src/a.rs".to_owned()];
    for request in [
        Request::Edit { paths: paths() },
        Request::Delete { paths: paths() },
    ] {
        let judged = load(&[head]).decide(&request, &AgentClaims::default(), &tree.place());
        assert_eq!(judged.decision, Decision::Ask);
        let found = propose_rules(&request, &judged, "/repo/proj");
        assert_eq!(found.len(), 2, "{request:?}");
        for proposal in found {
            let with = format!("{head}{}", proposal.to_toml("learned"));
            let decide = |request: &Request| {
                let policy = load(&[&with]);
                let judged = policy.decide(request, &AgentClaims::default(), &tree.place());
                judged.decision
            };
            assert_eq!(decide(&request), Decision::Allow, "{with}");
            let other = Request::Write { paths: paths() };
            assert_eq!(decide(&other), Decision::Ask, "{with}");
        }
    }
}

/// What `autonomous` allows rests on every fact; without one of them it allows nothing at all.
#[test]
fn autonomous_allows_only_in_a_sandbox_that_confines() {
    let policy = Policy::builtin("autonomous").expect("the policy");
    let all = SandboxFacts::CONFINED;
    let in_sandbox = |command: &str, sandbox| {
        let context = EvaluationContext {
            sandbox,
            ..EvaluationContext::default()
        };
        on(&policy, command, &context)
    };
    for command in [
        "npm test && git commit -am x",
        "for f in *; do sed -i \"s/$(date)/x/\" \"$f\"; done",
        "curl -s http://localhost:3000/ | python3 -c 'print(1)' > .github/workflows/x.yml",
        "if [",
        "l\u{456} -la",
    ] {
        assert_eq!(
            in_sandbox(command, all).decision,
            Decision::Allow,
            "{command}"
        );
        for weaker in [
            SandboxFacts {
                has_no_gaps: false,
                ..all
            },
            SandboxFacts {
                has_private_workspace: false,
                ..all
            },
            SandboxFacts {
                has_confined_network: false,
                ..all
            },
            SandboxFacts::default(),
        ] {
            let judged = in_sandbox(command, weaker);
            assert_eq!(judged.decision, Decision::Deny, "{command} {weaker:?}");
            assert_eq!(judged.rules, ["requires_sandbox"], "{command}");
            assert!(
                judged.reason.contains("is only for a sandbox with"),
                "{}",
                judged.reason
            );
        }
    }
    for (command, rule) in [
        ("cat .env.local", "guard-secret"),
        ("sudo ls", "guard-privilege"),
        ("x=1; git push origin HEAD", "publish-git"),
        ("sh -c 'npm publish'", "publish-package"),
        ("twine upload dist/*", "publish-upload"),
        ("gh pr create --fill", "publish-forge"),
        ("ls ~/.local/state/marshal", "supervisor"),
        ("echo x > server.key", "guard-secret"),
    ] {
        let judged = in_sandbox(command, all);
        assert_eq!(judged.decision, Decision::Deny, "{command}");
        assert!(
            judged.rules.iter().any(|id| id == rule),
            "{command}: {:?}",
            judged.rules
        );
    }
}

/// An agent that says that a command needs full access gets the sandbox's, and nothing else.
#[test]
fn a_claim_of_full_access_is_met_by_the_sandbox() {
    let policy = Policy::builtin("autonomous").expect("the policy");
    let claimed = AgentClaims {
        required_mode: Some("danger-full-access".into()),
        ..AgentClaims::default()
    };
    let at = FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver: &NoLinks,
    };
    let context = EvaluationContext {
        sandbox: SandboxFacts::CONFINED,
        ..EvaluationContext::default()
    };
    let decide = |request: &Request| policy.decide_in_context(request, &claimed, &at, &context);
    let command = "npm test && echo x > a".to_owned();
    let shell = decide(&Request::Shell { command, cwd: None });
    assert_eq!(shell.decision, Decision::Allow, "{}", shell.reason);
    let write = decide(&Request::Write {
        paths: vec!["a".to_owned()],
    });
    assert_eq!(write.decision, Decision::Ask);
    assert_eq!(write.rules, ["claimed.required_mode"]);
}

/// Rules of `developer` that run the repository's code ask where the sandbox has gaps.
#[test]
fn developer_runs_code_of_the_repository_only_in_a_sandbox_without_gaps() {
    let policy = Policy::builtin("developer").expect("the policy");
    for command in [
        "npm test",
        "cargo test",
        "make",
        "./gradlew test",
        "git commit -m x",
    ] {
        let decided = |has_no_gaps| {
            let sandbox = SandboxFacts {
                has_no_gaps,
                ..SandboxFacts::default()
            };
            let context = EvaluationContext {
                sandbox,
                ..EvaluationContext::default()
            };
            on(&policy, command, &context).decision
        };
        assert_eq!(decided(true), Decision::Allow, "{command}");
        assert_eq!(decided(false), Decision::Ask, "{command}");
    }
}

/// A policy of an operator can use the facts, and cannot misuse what relies on them.
#[test]
fn rules_that_rely_on_the_sandbox_are_checked_when_they_are_loaded() {
    let load = |text: &str| {
        let text = format!("schema = 1\nname = \"t\"\ndefault = \"ask\"\n{text}");
        Policy::load(&text, "t", &|_| Err(String::new()))
    };
    let rule = |decision: &str, rest: &str| {
        load(&format!(
            "[[rule]]\nid = \"a\"\ndecision = \"{decision}\"\ntool = \"shell\"\n{rest}"
        ))
    };
    let every = "sandbox = [\"no_gaps\", \"private_workspace\", \"confined_network\"]\n";
    assert!(rule("allow", &format!("any_command = true\n{every}")).is_ok());
    for (why, result) in [
        (
            "needs `sandbox` with every fact",
            rule("allow", "any_command = true"),
        ),
        (
            "needs `sandbox` with every fact",
            rule("allow", "any_command = true\nsandbox = \"no_gaps\""),
        ),
        (
            "without conditions on the command",
            rule(
                "allow",
                &format!("any_command = true\nargv = [\"ls\"]\n{every}"),
            ),
        ),
        (
            "only for rules that allow",
            rule("deny", &format!("argv = [\"ls\"]\n{every}")),
        ),
        (
            "is not a fact of a sandbox",
            rule("allow", "argv = [\"ls\"]\nsandbox = \"gaps\""),
        ),
        (
            "can only be `inside`",
            rule("allow", "program = \"outside\""),
        ),
        (
            "only for rules that allow",
            rule("deny", "argv = [\"sed\"]\nharmless_script = true"),
        ),
        ("requires_sandbox", load("requires_sandbox = [\"no_gap\"]")),
    ] {
        let error = result.expect_err(why);
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            text.push_str(&inner.to_string());
            source = inner.source();
        }
        assert!(text.contains(why), "{why}: {text}");
    }
}

/// Programs of the workspace by their paths, harmless scripts, and control flow, in a policy of an
/// operator.
#[test]
fn own_programs_harmless_scripts_and_control_flow_are_allowed_where_a_policy_says_so() {
    let text = "schema = 1\nname = \"t\"\nextends = [\"builtin:guard\"]\ndefault = \"ask\"\n[shell]\ncontrol_flow = true\n\
        [[rule]]\nid = \"look\"\ndecision = \"allow\"\ntool = \"shell\"\nargv = [[\"ls\", \"cat\", \"cd\"]]\npaths = \"inside\"\n\
        [[rule]]\nid = \"own\"\ndecision = \"allow\"\ntool = \"shell\"\nprogram = \"inside\"\npaths = \"inside\"\nsandbox = \"no_gaps\"\n\
        [[rule]]\nid = \"scripts\"\ndecision = \"allow\"\ntool = \"shell\"\nargv = [[\"sed\", \"awk\"]]\npaths = \"inside\"\nharmless_script = true\n";
    let policy = Policy::load(text, "t", &none).expect("a policy");
    let context = EvaluationContext {
        sandbox: SandboxFacts::CONFINED,
        ..EvaluationContext::default()
    };
    for command in [
        "./gradlew test",
        "scripts/run.sh a",
        "sed -i s/a/b/ src/a",
        "awk '{print $1}' src/a",
        "if [ -d src ]; then ls src; fi",
        "for f in a b; do cat \"$f\"; done",
        "(cat a; ls)",
    ] {
        let decided = on(&policy, command, &context).decision;
        let expected = if command.contains("[ ") {
            Decision::Ask
        } else {
            Decision::Allow
        };
        assert_eq!(decided, expected, "{command}");
    }
    for command in [
        "../x",
        "/tmp/x",
        ".git/hooks/pre-commit",
        "~/x",
        "./x /etc/passwd",
        "sed -n 1e src/a",
        "awk 'BEGIN{system(\"id\")}'",
        "for f in a b; do rm \"$f\"; done",
        "for f in a; do cat ../../\"$f\"; done",
        "(cd ..; ls)",
    ] {
        assert_ne!(
            on(&policy, command, &context).decision,
            Decision::Allow,
            "{command}"
        );
    }
    let open = EvaluationContext::default();
    assert_eq!(on(&policy, "./gradlew test", &open).decision, Decision::Ask);
}

/// An exception of one layer takes nothing away from what another denies.
#[test]
fn an_exception_concerns_only_the_patterns_of_its_own_layer() {
    let secrets = |patterns: &str| {
        format!(
            "schema = 1\nname = \"t\"\ndefault = \"allow\"\n[paths]\nsecrets = [{patterns}]\n\
             [[rule]]\nid = \"s\"\ndecision = \"deny\"\ntool = \"shell\"\nany_path = \"secrets\"\n"
        )
    };
    let open = secrets("\"**/.env.*\", \"!**/.env.example\"");
    let context = EvaluationContext::default();
    let alone = load(&[&open]);
    assert_eq!(
        on(&alone, "cat .env.example", &context).decision,
        Decision::Allow
    );
    assert_eq!(
        on(&alone, "cat .env.local", &context).decision,
        Decision::Deny
    );
    let closed = secrets("\"**/.env.*\"").replace("id = \"s\"", "id = \"other\"");
    for layers in [[&*open, &*closed], [&*closed, &*open]] {
        let both = load(&layers);
        assert_eq!(
            on(&both, "cat .env.example", &context).decision,
            Decision::Deny
        );
    }
}
