//! `policy lint`: what it finds in policies, and what it leaves alone.

use marshal_policy::lint::{Finding, Level, lint};
use marshal_policy::{Policy, builtin_text, policy_names};

fn codes(rules: &str) -> Vec<(&'static str, Option<String>)> {
    let text = format!(
        "schema = 1\nname = \"t\"\ndefault = \"ask\"\nextends = [\"builtin:guard\"]\n{rules}"
    );
    let none = |_: &str| Err("none".to_owned());
    let policy = Policy::load(&text, "t", &none).expect("a policy");
    let guard = builtin_text("guard").expect("the guard");
    let found = lint(&[guard, &text], &policy);
    let found = found
        .into_iter()
        .filter(|f| f.code != "no-examples" && f.code != "no-guard");
    found.map(|f| (f.code, f.rule)).collect()
}

fn rule(id: &str, decision: &str, more: &str) -> String {
    format!("[[rule]]\nid = \"{id}\"\ndecision = \"{decision}\"\n{more}\n")
}

fn of(code: &'static str, id: &str) -> (&'static str, Option<String>) {
    (code, Some(id.to_owned()))
}

#[test]
fn a_rule_that_a_deny_makes_useless_is_found_and_one_that_it_narrows_is_not() {
    let deny = rule(
        "no",
        "deny",
        "tool = \"shell\"\nargv = [[\"rm\", \"mv\"]]\nreason = \"r\"",
    );
    let paths = "paths = \"inside\"";
    let allow = |argv: &str| {
        rule(
            "yes",
            "allow",
            &format!("tool = \"shell\"\nargv = {argv}\n{paths}"),
        )
    };
    let with = |argv: &str| codes(&format!("{deny}{}", allow(argv)));
    assert_eq!(with("[\"rm\"]"), [of("shadowed", "yes")]);
    assert_eq!(with("[[\"ls\", \"mv\"]]"), [of("shadowed", "yes")]);
    assert_eq!(with("[\"rm\", \"x\"]"), [of("shadowed", "yes")]);
    assert_eq!(with("[\"ls\"]"), []);
    let exact = rule(
        "yes",
        "allow",
        "tool = \"shell\"\nexact = [\"rm a\", \"ls\"]",
    );
    assert_eq!(codes(&format!("{deny}{exact}")), [of("shadowed", "yes")]);
    for narrow in [
        "any_flags = [\"-f\"]",
        "any_path = \"outside\"",
        "min_operands = 2",
    ] {
        let deny = rule(
            "no",
            "deny",
            &format!("tool = \"shell\"\nargv = [\"rm\"]\nreason = \"r\"\n{narrow}"),
        );
        assert_eq!(
            codes(&format!("{deny}{}", allow("[\"rm\"]"))),
            [],
            "{narrow}"
        );
    }
    let deny = rule("no", "deny", "tool = \"write\"\nreason = \"r\"");
    let allow = rule(
        "yes",
        "allow",
        "tool = [\"read\", \"write\"]\npath = \"inside\"",
    );
    assert_eq!(codes(&format!("{deny}{allow}")), [of("shadowed", "yes")]);
    let deny = rule(
        "no",
        "deny",
        "tool = \"write\"\npath = \"outside\"\nreason = \"r\"",
    );
    assert_eq!(codes(&format!("{deny}{allow}")), []);
}

#[test]
fn a_beginning_that_lets_anything_run_is_found() {
    let allow = |argv: &str, more: &str| {
        codes(&rule(
            "a",
            "allow",
            &format!("tool = \"shell\"\nargv = {argv}\n{more}"),
        ))
    };
    for argv in [
        "[\"python3\"]",
        "[\"python3.12\"]",
        "[\"npx\"]",
        "[\"xargs\"]",
        "[\"git\"]",
        "[\"env\"]",
        "[\"cargo\", \"run\"]",
        "[\"npm\", [\"test\", \"exec\"]]",
        "[\"cargo\"]",
        "[[\"true\", \"sh\"]]",
    ] {
        assert_eq!(allow(argv, ""), [of("interpreter", "a")], "{argv}");
    }
    for argv in [
        "[\"git\", \"status\"]",
        "[\"cargo\", [\"build\", \"test\"]]",
        "[\"echo\"]",
    ] {
        assert_eq!(allow(argv, ""), [], "{argv}");
    }
    assert_eq!(
        allow(
            "[\"python3\"]",
            "max_operands = 0\nonly_flags = [\"--version\"]"
        ),
        []
    );
    let exact = rule("a", "allow", "tool = \"shell\"\nexact = [\"python3 x.py\"]");
    assert_eq!(codes(&exact), []);
    assert_eq!(allow("[\"cat\"]", ""), [of("any-path", "a")]);
    assert_eq!(allow("[\"cat\"]", "paths = \"inside\""), []);
}

#[test]
fn what_is_missing_is_found() {
    let deny = rule("d", "deny", "tool = \"shell\"\nargv = [\"curl\"]");
    assert_eq!(codes(&deny), [of("no-reason", "d")]);
    assert_eq!(codes(&format!("{deny}reason = \"r\"")), []);
    let fetch = rule("f", "allow", "tool = \"fetch\"");
    assert_eq!(codes(&fetch), [of("any-host", "f")]);
    assert_eq!(codes(&format!("{fetch}url = \"https://docs.rs/**\"")), []);
    let env = "[shell]\nenv_allow = [\"CI\", \"LD_PRELOAD\", \"PATH\"]\n";
    assert_eq!(codes(env), [("env-loads", None), ("env-loads", None)]);
    let text = "schema = 1\nname = \"t\"\ndefault = \"allow\"\nunknown_tool = \"allow\"\n";
    let policy = Policy::load(text, "t", &|_| Err(String::new())).expect("a policy");
    let found: Vec<_> = lint(&[text], &policy).into_iter().map(|f| f.code).collect();
    assert_eq!(found, ["no-guard", "default-allow", "unknown-allowed"]);
}

#[test]
fn the_policies_that_come_with_the_program_have_no_warning_but_known_ones() {
    for name in policy_names() {
        let policy = Policy::builtin(name).expect("a policy");
        let text = builtin_text(name).expect("its text");
        let guard = builtin_text("guard").expect("the guard");
        let found = lint(&[guard, text], &policy);
        // Only cargo reads it, which needs a sandbox without gaps.
        let is_known = |f: &&Finding| f.code == "env-loads" && f.text.contains("RUST");
        let bad = found.iter().filter(|f| f.level == Level::Warning);
        let bad = bad.filter(|f| !(name == "developer" && is_known(f)));
        let bad: Vec<_> = bad.collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
        let mute: Vec<_> = found.iter().filter(|f| f.code == "no-reason").collect();
        assert!(mute.is_empty(), "{name}: {mute:?}");
    }
}

#[test]
fn a_setting_that_an_extended_policy_overrides_is_found() {
    let found = |settings: &str| {
        let text =
            format!("schema = 1\nname = \"t\"\nextends = [\"builtin:developer\"]\n{settings}\n");
        let none = |_: &str| Err("none".to_owned());
        let policy = Policy::load(&text, "t", &none).expect("a policy");
        let texts = ["guard", "developer"].map(|name| builtin_text(name).expect("a policy"));
        let found = lint(&[texts[0], texts[1], &text], &policy);
        let found = found
            .into_iter()
            .filter(|finding| finding.code == "no-effect");
        found.map(|finding| finding.text).collect::<Vec<_>>()
    };
    for (settings, key) in [
        (
            "[shell]\nredirect = { write_outside = \"allow\" }",
            "shell.redirect.write_outside",
        ),
        (
            "[shell]\nredirect = { read = \"allow\" }",
            "shell.redirect.read",
        ),
        ("[limits]\nmax_commands = 100", "limits.max_commands"),
    ] {
        let texts = found(settings);
        let [text] = &texts[..] else {
            panic!("{settings}: {texts:?}");
        };
        let says = text.contains(&format!("`{key} = ")) && text.contains("has no effect");
        assert!(says, "{settings}: {text}");
    }
    for settings in [
        "default = \"allow\"",
        "default = \"deny\"",
        "[shell]\nredirect = { write_inside = \"ask\" }",
        "[limits]\nmax_commands = 10",
        "",
    ] {
        assert_eq!(found(settings), [""; 0], "{settings}");
    }
}
