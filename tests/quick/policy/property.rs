//! What holds for every policy: rules have no order and no names, and what is added takes nothing
//! away.

use marshal_model::{DecidedBy, Decision};
use marshal_policy::cases::Case;
use marshal_policy::{LayerText, Policy, PolicyDecision, builtin_text};

use crate::policy::corpus::{files, judge, policies, read, text};
use crate::policy::tree::Tree;

const LABELS: [&str; 8] = ["P1", "P2", "P3", "P4", "ci", "developer", "mcp", "reviewer"];

/// How many random policies are made; `MARSHAL_TEST_LONG=1` makes ten times as many.
fn rounds() -> usize {
    if std::env::var("MARSHAL_TEST_LONG").is_ok_and(|long| long == "1") {
        400
    } else {
        40
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(mixed).expect("31 bits") % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

fn none(name: &str) -> Result<String, String> {
    Err(format!("no {name}"))
}

fn load(text: &str) -> Policy {
    Policy::load(text, "made", &none).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// What stands before the rules, and the rules without their examples.
fn split(text: &str) -> (String, Vec<String>) {
    let mut parts = text.split("[[rule]]");
    let head = parts.next().expect("a beginning").to_owned();
    let rules = parts.map(|rule| {
        let lines = rule.lines();
        let stored = lines.filter(|l| !l.starts_with("match") && !l.starts_with("not_match"));
        stored.fold(String::new(), |text, line| text + line + "\n")
    });
    (head, rules.collect())
}

fn named(rule: &str, name: &str) -> String {
    let lines = rule.lines().map(|line| {
        if line.starts_with("id ") || line.starts_with("id=") {
            format!("id = \"{name}\"\n")
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

fn decided(rule: &str, decision: Decision) -> String {
    let lines = rule.lines().map(|line| {
        if line.starts_with("decision") {
            format!("decision = \"{}\"\n", decision.as_str())
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

fn all_cases() -> Vec<Case> {
    files("cases").iter().flat_map(|file| read(file)).collect()
}

/// A few cases, other ones each time.
fn some<'c>(cases: &'c [Case], random: &mut Random) -> Vec<&'c Case> {
    (0..150)
        .map(|_| &cases[random.below(cases.len())])
        .collect()
}

#[test]
fn neither_names_nor_order_of_rules_and_files_matter() {
    let tree = Tree::new();
    let cases = all_cases();
    let mut random = Random(0x006f_7264_6572 | 1);
    let policies = policies();
    for round in 0..rounds() {
        let label = LABELS[round % LABELS.len()];
        let (head, mut rules) = split(&text(label));
        random.shuffle(&mut rules);
        let renamed: Vec<String> = rules
            .iter()
            .enumerate()
            .map(|(at, rule)| named(rule, &format!("r-{round}-{at}")))
            .collect();
        let whole = format!("{head}[[rule]]{}", renamed.join("[[rule]]"));
        // Some of the rules in files that are extended, in any order; sets of paths come along.
        let cut = random.below(renamed.len() + 1);
        let (away, here) = renamed.split_at(cut);
        let (first, second) = away.split_at(random.below(away.len() + 1));
        let mut names = ["a.toml", "b.toml"];
        random.shuffle(&mut names);
        let extends = format!("\nextends = [\"{}\", \"{}\", ", names[0], names[1]);
        let split_head = if head.contains("\nextends = [") {
            head.replacen("\nextends = [", &extends, 1)
        } else {
            head.replacen("schema = 1", &format!("schema = 1{extends}]"), 1)
        };
        let sets = head
            .split_once("[paths]")
            .map(|(_, sets)| format!("[paths]{}", sets.split("\n[").next().unwrap_or_default()));
        let file = |rules: &[String]| {
            let sets = sets.clone().unwrap_or_default();
            let mut text = format!("schema = 1\nname = \"part\"\n{sets}\n");
            for rule in rules {
                text = format!("{text}[[rule]]{rule}");
            }
            text
        };
        let find = |name: &str| match name {
            "a.toml" => Ok(file(first)),
            "b.toml" => Ok(file(second)),
            other => none(other),
        };
        let mut own = split_head;
        for rule in here {
            own = format!("{own}[[rule]]{rule}");
        }
        let parts = Policy::load(&own, "parts", &find).unwrap_or_else(|e| panic!("{e}\n{own}"));
        let shuffled = load(&whole);
        for case in some(&cases, &mut random) {
            let before = judge(&policies[label], &tree, case).decision;
            for (policy, text) in [(&shuffled, &whole), (&parts, &own)] {
                let after = judge(policy, &tree, case).decision;
                assert_eq!(before, after, "{label} {}\n{text}", case.id);
            }
        }
    }
}

/// Whether rules, and neither the default nor what stands for unknown tools, said so.
fn by_rules(judged: &PolicyDecision) -> bool {
    judged.decided_by != DecidedBy::Default && judged.rules != ["unknown_tool"]
}

#[test]
fn an_added_rule_of_lesser_severity_never_lowers_a_verdict() {
    let tree = Tree::new();
    let cases = all_cases();
    let mut random = Random(0x6164_6465_6421 | 1);
    let policies = policies();
    let pool: Vec<String> = LABELS
        .iter()
        .flat_map(|label| split(&text(label)).1)
        .collect();
    let (mut made, mut tried) = (0, 0);
    while made < rounds() && tried < rounds() * 20 {
        tried += 1;
        let label = LABELS[random.below(LABELS.len())];
        let decision = Decision::ALL[random.below(Decision::ALL.len())];
        let rule = named(&pool[random.below(pool.len())], "added");
        let own = text(label);
        let text = format!("{own}\n[[rule]]{}", decided(&rule, decision));
        // Not every condition is one for every decision, and sets have names.
        let Ok(more) = Policy::load(&text, "more", &none) else {
            continue;
        };
        made += 1;
        for case in some(&cases, &mut random) {
            let before = judge(&policies[label], &tree, case);
            let after = judge(&more, &tree, case);
            let lesser = decision != Decision::Allow || by_rules(&before);
            assert!(
                !lesser || after.decision >= before.decision,
                "{label} {}: {} became {} by {text}",
                case.id,
                before.decision,
                after.decision
            );
        }
    }
    assert!(made >= rounds() / 2, "only {made} policies were made");
}

#[test]
fn no_layer_takes_away_what_another_denies() {
    let tree = Tree::new();
    let cases = all_cases();
    let policies = policies();
    let mut random = Random(0x6c61_7965_7273 | 1);
    let texts: Vec<String> = LABELS.iter().map(|label| text(label)).collect();
    for (site_label, site) in LABELS.iter().zip(&texts) {
        for (label, text) in LABELS.iter().zip(&texts).filter(|(l, _)| *l != site_label) {
            let (head, rules) = split(text);
            let renamed: Vec<String> = rules
                .iter()
                .enumerate()
                .map(|(at, rule)| named(rule, &format!("upper-{at}")))
                .collect();
            let upper = format!("{head}[[rule]]{}", renamed.join("[[rule]]"));
            let layer = |name, text| LayerText {
                name,
                text,
                load_extended: &none,
            };
            let both = Policy::load_layers(&[layer("site", site), layer("pool", &upper)]);
            let both = both.unwrap_or_else(|error| panic!("{site_label} and {label}: {error}"));
            for case in some(&cases, &mut random) {
                let got = judge(&both, &tree, case);
                for below in [&policies[*site_label], &policies[*label]] {
                    let alone = judge(below, &tree, case);
                    let denied = alone.decision == Decision::Deny && by_rules(&alone);
                    assert!(
                        !denied || got.decision == Decision::Deny,
                        "{site_label} and {label}: {} was denied by {:?}",
                        case.id,
                        alone.rules
                    );
                }
            }
        }
    }
}

/// A layer's own sets of paths widen no exception of another's.
#[test]
fn a_set_that_a_later_layer_widens_excepts_nothing_from_an_earlier_rule() {
    let site = "schema = 1\nname = \"site\"\ndefault = \"ask\"\n\
        [paths]\nscratch = [\"/tmp/agent/**\"]\nout = [\"@/target/**\"]\n[shell]\nenv_allow = [\"CI\", \"TZ\"]\n\
        [[rule]]\nid = \"no-rm\"\ndecision = \"deny\"\ntool = \"shell\"\nargv = [\"rm\"]\nunless = { paths = \"scratch\" }\n\
        [[rule]]\nid = \"no-delete\"\ndecision = \"deny\"\ntool = \"delete\"\nunless = { paths = \"scratch\" }\n\
        [[rule]]\nid = \"write\"\ndecision = \"allow\"\ntool = \"write\"\npath = \"out\"\n";
    let pool = "schema = 1\nname = \"pool\"\ndefault = \"allow\"\nunknown_tool = \"allow\"\n\
        [paths]\nscratch = [\"@/**\", \"/**\"]\nout = [\"@/**\"]\nsecrets = [\"**/*.key\"]\n[shell]\nenv_allow = [\"CI\", \"LD_PRELOAD\"]\n\
        [[rule]]\nid = \"echo\"\ndecision = \"allow\"\ntool = \"shell\"\nargv = [\"echo\"]\n";
    let layer = |name, text| LayerText {
        name,
        text,
        load_extended: &none,
    };
    let both = Policy::load_layers(&[layer("site", site), layer("pool", pool)]).expect("layers");
    assert_eq!(both.name(), "pool");
    let tree = Tree::new();
    let decide = |json: &str| {
        let line = format!(r#"{{"id": "x", "policy": "p", "expect": "ask", {json}}}"#);
        judge(&both, &tree, &Case::parse(&line).expect("a case")).decision
    };
    let shell = |command: &str| {
        decide(&format!(
            r#""tool": "shell", "input": {{"command": "{command}"}}"#
        ))
    };
    assert_eq!(shell("rm x"), Decision::Deny);
    assert_eq!(shell("rm /tmp/agent/x"), Decision::Ask);
    assert_eq!(
        decide(r#""tool": "d", "class": "delete", "input": {"path": "x"}"#),
        Decision::Deny
    );
    assert_eq!(
        decide(r#""tool": "write", "input": {"path": "target/x"}"#),
        Decision::Allow
    );
    assert_eq!(
        decide(r#""tool": "write", "input": {"path": "src/x"}"#),
        Decision::Ask
    );
    assert_eq!(
        decide(r#""tool": "write", "input": {"path": "target/x.key"}"#),
        Decision::Allow
    );
    assert_eq!(shell("CI=1 echo x"), Decision::Allow);
    assert_eq!(shell("LD_PRELOAD=x echo x"), Decision::Ask);
    assert_eq!(shell("TZ=x echo x"), Decision::Ask);
    // The site's policy is a whole one, so that what it does not say is as usual.
    assert_eq!(decide(r#""tool": "what", "input": {}"#), Decision::Ask);
}

#[test]
fn layers_may_share_what_comes_with_the_program() {
    let layer = |name, text| LayerText {
        name,
        text,
        load_extended: &none,
    };
    let site = "schema = 1\nname = \"site\"\nextends = [\"builtin:developer\"]\n";
    let developer = builtin_text("developer").expect("the policy");
    let both = Policy::load_layers(&[layer("site", site), layer("builtin:developer", developer)]);
    let both = both.expect("each file is read once");
    let alone = Policy::builtin("developer").expect("the policy");
    assert_eq!(both.rule_count(), alone.rule_count());
    assert_eq!(both.name(), "developer");
    assert!(both.has_guard());
    let error = Policy::load_layers(&[
        layer("a", site),
        layer(
            "b",
            "schema = 1\nname = \"b\"\n\
        [[rule]]\nid = \"rm-rf\"\ndecision = \"ask\"\ntool = \"read\"\n",
        ),
    ]);
    let error = error.expect_err("a name that is taken").to_string();
    assert!(
        error.contains("`b`") && error.contains("rm-rf") && error.contains("twice"),
        "{error}"
    );
}
