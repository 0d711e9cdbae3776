//! What a policy file may say, what it may not, and how policies extend each other.

use std::time::Duration;

use marshal_model::{AgentClaims, DecidedBy, Decision, OnTimeout, RememberScope};
use marshal_policy::{
    FsContext, FsEntry, LayerText, NoLinks, Policy, PolicyDecision, ReadTarget, Request, Resolver,
};

const HEAD: &str = "schema = 1\nname = \"t\"\ndefault = \"ask\"\n";

fn load(text: &str) -> Result<Policy, String> {
    let find = |name: &str| match name {
        "base.toml" => Ok(format!(
            "{HEAD}[[rule]]\nid = \"base\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"ls\"]\n"
        )),
        "loop.toml" => Ok(format!("{HEAD}extends = [\"loop.toml\"]\n")),
        other => Err(format!("there is no {other}")),
    };
    Policy::load(text, "t.toml", &find).map_err(|error| error.to_string())
}

fn place(resolver: &dyn Resolver) -> FsContext<'_> {
    FsContext {
        workspace: "/workspace",
        home: "/home/agent",
        cwd: Some("/workspace"),
        resolver,
    }
}

fn judge(policy: &Policy, request: &Request) -> PolicyDecision {
    policy.decide(request, &AgentClaims::default(), &place(&NoLinks))
}

fn shell(command: &str) -> Request {
    Request::Shell {
        command: command.to_owned(),
        cwd: None,
    }
}

#[track_caller]
fn refused(text: &str, naming: &[&str]) {
    let error = load(text)
        .err()
        .unwrap_or_else(|| panic!("accepted: {text}"));
    for name in naming {
        assert!(error.contains(name), "{error:?} does not name {name}");
    }
}

#[test]
fn what_does_nothing_is_refused_by_name() {
    let rule = |lines: &str| {
        format!("{HEAD}[[rule]]\nid = \"r\"\ndecision = \"deny\"\ntool = \"shell\"\n{lines}\n")
    };
    refused(
        &format!("{HEAD}colour = 1"),
        &["t.toml", "line 4", "colour"],
    );
    refused(&format!("{HEAD}[shell]\nglobs = []"), &["line 5", "globs"]);
    refused(
        &format!("{HEAD}[shell.redirect]\nappend = \"ask\""),
        &["append"],
    );
    refused(&rule("argz = [\"x\"]"), &["argz"]);
    refused(&rule("max_per_turn = 2"), &["max_per_turn"]);
    refused(&rule("path = \"inside\""), &["`r`", "path"]);
    refused(&rule("url = \"https://x/**\""), &["url"]);
    refused(&rule("any_path = \"nowhere\""), &["any_path", "nowhere"]);
    refused(&rule("argv = [\"/bin/ls\"]"), &["argv"]);
    refused(&rule("argv = [[]]"), &["alternatives"]);
    refused(&rule("not_flags = [\"o\"]"), &["not_flags", "`o`"]);
    refused(&rule("any_word = \"(\""), &["any_word"]);
    refused(&rule("exact = [\"ls $x\"]"), &["exact", "expansion"]);
    refused(&rule("unless = {}"), &["unless"]);
    refused(
        &format!("{HEAD}[paths]\nx = [\"src\"]"),
        &["paths.x", "src"],
    );
    refused(&format!("{HEAD}[paths]\ninside = []"), &["paths", "inside"]);
    refused(
        &format!("{HEAD}[shell]\ntransparent = [\"env\"]"),
        &["transparent", "env"],
    );
    refused(
        &format!("{HEAD}[approval]\non_timeout = \"allow\""),
        &["on_timeout", "allow"],
    );
    let asking = |key: &str, parts: &[&str]| refused(&format!("{HEAD}[approval]\n{key}"), parts);
    asking("max_pending = 0", &["approval.max_pending", "from 1 to 20"]);
    asking(
        "max_pending = 21",
        &["approval.max_pending", "from 1 to 20"],
    );
    asking(
        "remember = \"ever\"",
        &["approval.remember", "ever", "`turn`"],
    );
    asking("approvers = [\"Ops\"]", &["approval.approvers", "Ops"]);
    asking(
        "approvers = [\"group:ops\"]",
        &[
            "approval.approvers",
            "group:ops",
            "give their members a token",
        ],
    );
    refused("schema = 2\nname = \"t\"", &["schema", "2"]);
    refused("schema = 1\nname = \"t\"", &["default"]);
    refused(
        "schema = 1\nname = \"t\"\ndefault = \"maybe\"",
        &["default", "maybe"],
    );
    refused(&format!("{HEAD}ask_as = \"allow\""), &["ask_as"]);
    let twice = "[[rule]]\nid = \"r\"\ndecision = \"ask\"\ntool = \"read\"\n";
    refused(&format!("{HEAD}{twice}{twice}"), &["`r`", "twice"]);
    let all = "[[rule]]\nid = \"r\"\ndecision = \"allow\"\ntool = \"shell\"\n";
    refused(&format!("{HEAD}{all}"), &["argv"]);
}

#[test]
fn a_rule_must_do_what_its_examples_say() {
    let rule = "[[rule]]\nid = \"r\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"rm\"]\nany_flags = [\"-f\"]\n";
    assert!(
        load(&format!(
            "{HEAD}{rule}match = [\"rm -f x\", \"env rm -rf x\"]\nnot_match = [\"rm x\"]"
        ))
        .is_ok()
    );
    refused(
        &format!("{HEAD}{rule}match = [\"rm x\"]"),
        &["`r`", "match", "rm x"],
    );
    refused(
        &format!("{HEAD}{rule}not_match = [\"sh -c 'rm -f x'\"]"),
        &["not_match", "applies to it"],
    );
}

#[test]
fn policies_extend_each_other_and_only_add() {
    let guarded = load(&format!("{HEAD}extends = [\"builtin:guard\"]")).expect("a policy");
    assert!(guarded.has_guard() && !load(HEAD).expect("a policy").has_guard());
    let both = load(&format!(
        "{HEAD}extends = [\"builtin:guard\", \"base.toml\"]\n[shell]\ndynamic = \"allow\""
    ))
    .expect("a policy");
    assert_eq!(judge(&both, &shell("ls")).rules, ["base"]);
    assert_eq!(judge(&both, &shell("$x")).rules, ["shell.dynamic"]);
    assert_eq!(both.rule_count(), guarded.rule_count() + 1);
    refused(
        &format!("{HEAD}extends = [\"loop.toml\"]"),
        &["loop.toml", "itself"],
    );
    refused(
        &format!("{HEAD}extends = [\"builtin:nope\"]"),
        &["nope", "builtin:guard"],
    );
    for name in ["../x", "/x", "a/../b", "", "gone.toml"] {
        refused(&format!("{HEAD}extends = [\"{name}\"]"), &["extends", name]);
    }
}

#[test]
fn the_shipped_policies_load() {
    let developer = Policy::builtin("developer").expect("the policy");
    assert!(
        developer.has_guard() && developer.name() == "developer" && developer.rule_count() > 25
    );
    assert!(Policy::builtin("nope").is_none() && Policy::builtin("guard").is_none());
}

#[test]
fn settings_of_asks_are_read() {
    let policy = load(&format!(
        "{HEAD}[approval]\ntimeout_s = 60\non_timeout = \"deny_turn\""
    ))
    .expect("a policy");
    assert_eq!(policy.approval_timeout(), Some(Duration::from_secs(60)));
    assert_eq!(policy.on_timeout(), Some(OnTimeout::DenyTurn));
    assert_eq!(policy.approval_settings().max_pending, None);
    let text = |name: &str, ask: &str| format!("{HEAD}[approval]\n{ask}").replace("\"t\"", name);
    let site = text(
        "\"site\"",
        "max_pending = 3\nremember = \"turn\"\napprovers = [\"ops\", \"owner\", \"night\"]",
    );
    let own = text(
        "\"own\"",
        "max_pending = 7\nremember = \"session\"\napprovers = [\"owner\", \"ops\", \"dev\"]",
    );
    let none = |_: &str| Err("none".to_owned());
    let layer = |name, text| LayerText {
        name,
        text,
        load_extended: &none,
    };
    for both in [
        [layer("site", site.as_str()), layer("own", own.as_str())],
        [layer("own", own.as_str()), layer("site", site.as_str())],
    ] {
        let policy = Policy::load_layers(&both).expect("two layers");
        let asking = policy.approval_settings();
        assert_eq!(asking.max_pending, Some(3), "the fewest");
        assert_eq!(asking.remember, Some(RememberScope::Turn), "the shortest");
        let mut approvers = asking.approvers.clone().expect("both say so");
        approvers.sort();
        assert_eq!(approvers, ["ops", "owner"], "whom both name");
    }
}

#[test]
fn what_the_agent_claims_only_raises() {
    let policy = Policy::builtin("developer").expect("the policy");
    let claim = |mode: &str| AgentClaims {
        required_mode: Some(mode.into()),
        title: Some("harmless".into()),
        kind: Some("read".into()),
        ..AgentClaims::default()
    };
    let at = place(&NoLinks);
    let decide =
        |command: &str, mode: &str| policy.decide(&shell(command), &claim(mode), &at).decision;
    assert_eq!(decide("ls", "read-only"), Decision::Allow);
    assert_eq!(decide("ls", " Danger-Full-Access"), Decision::Ask);
    assert_eq!(decide("sudo ls", "danger-full-access"), Decision::Deny);
    assert_eq!(decide("python3 x", "read-only"), Decision::Ask);
    let mute = AgentClaims {
        has_no_allow_option: true,
        ..AgentClaims::default()
    };
    let judged = policy.decide(&shell("ls"), &mute, &at);
    assert_eq!(judged.decision, Decision::Deny);
    assert_eq!(judged.rules, ["claimed.no_allow"]);
}

#[test]
fn a_policy_without_people_denies_instead_of_asking() {
    let text = "schema = 1\nname = \"t\"\ndefault = \"deny\"\nask_as = \"deny\"\n[shell]\nenv_allow = [\"CI\"]\n\
        [[rule]]\nid = \"exact\"\ndecision = \"allow\"\ntool = \"shell\"\nexact = [\"cargo test --locked\"]\n\
        [[rule]]\nid = \"web\"\ndecision = \"allow\"\ntool = \"fetch\"\nurl = [\"https://docs.rs/**\"]\n";
    let policy = load(text).expect("a policy");
    let decide = |command: &str| judge(&policy, &shell(command)).decision;
    assert_eq!(
        decide("CI=1 cargo test --locked && cargo test --locked"),
        Decision::Allow
    );
    assert_eq!(decide("cargo test --locked --x"), Decision::Deny);
    assert_eq!(decide("cargo test --locked > x"), Decision::Deny);
    assert_eq!(decide("X=1 cargo test --locked"), Decision::Deny);
    let fetch = |url: &str| {
        judge(
            &policy,
            &Request::Fetch {
                url: url.to_owned(),
                method: Some("GET".to_owned()),
            },
        )
        .decision
    };
    assert_eq!(fetch("https://docs.rs/serde"), Decision::Allow);
    assert_eq!(fetch("https://docs.rs@evil.example/"), Decision::Deny);
}

#[test]
fn an_unknown_directory_allows_no_command_and_no_relative_path() {
    let policy = Policy::builtin("developer").expect("the policy");
    let at = FsContext {
        cwd: None,
        ..place(&NoLinks)
    };
    let decide = |command: &str| {
        policy
            .decide(&shell(command), &AgentClaims::default(), &at)
            .decision
    };
    assert_eq!(decide("cat README.md"), Decision::Ask);
    // Nearly every program looks at the directory it runs in.
    assert_eq!(decide("cat /workspace/README.md"), Decision::Ask);
    let read = Request::Read {
        targets: vec![ReadTarget::Path("README.md".to_owned())],
    };
    assert_eq!(
        policy.decide(&read, &AgentClaims::default(), &at).decision,
        Decision::Ask
    );
}

#[test]
fn what_cannot_be_judged_is_denied() {
    struct Bomb;
    impl Resolver for Bomb {
        fn lookup(&self, _: &str) -> FsEntry {
            panic!("a bug")
        }
        fn list_links(&self, _: &str) -> Option<Vec<String>> {
            panic!("a bug")
        }
        fn list_names(&self, _: &str) -> Option<Vec<String>> {
            panic!("a bug")
        }
    }
    let policy = Policy::builtin("developer").expect("the policy");
    let judged = policy.decide(&shell("cat x"), &AgentClaims::default(), &place(&Bomb));
    assert_eq!(
        (judged.decision, judged.decided_by),
        (Decision::Deny, DecidedBy::Error)
    );
    assert_eq!(judged.rules, ["engine_error"]);
    let nowhere = FsContext {
        workspace: "",
        ..place(&NoLinks)
    };
    let judged = policy.decide(&shell("ls"), &AgentClaims::default(), &nowhere);
    assert_eq!(judged.rules, ["no_workspace"]);
    let why = "no \u{1b}[2J".to_owned();
    let judged = judge(&policy, &Request::Malformed { why });
    assert_eq!(
        (judged.decision, judged.decided_by),
        (Decision::Deny, DecidedBy::Error)
    );
    assert!(!judged.reason.contains('\u{1b}'));
    assert_eq!(
        PolicyDecision::from_error("too_large", "x").decided_by,
        DecidedBy::Error
    );
}

#[test]
fn a_verdict_says_who_decided_and_why() {
    let policy = Policy::builtin("developer").expect("the policy");
    let judged = judge(&policy, &shell("ls && rm -rf x"));
    assert_eq!(judged.decided_by, DecidedBy::Policy);
    assert!(
        judged.reason.contains("rm-rf") && judged.reason.contains("named files"),
        "{}",
        judged.reason
    );
    assert_eq!(judged.facts.parts.len(), 2);
    assert_eq!(judged.facts.parts[0].decision, Decision::Allow);
    let judged = judge(&policy, &shell("python3 \u{1b}x"));
    assert!(!judged.reason.contains('\u{1b}'), "{}", judged.reason);
    let judged = judge(&policy, &shell("python3 x"));
    assert!(judged.decided_by == DecidedBy::Default && judged.rules.is_empty());
    assert!(judged.reason.contains("python3 x"), "{}", judged.reason);
}
