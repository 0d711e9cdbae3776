//! Every rule and every setting of the shipped policies matters: without it, or with another word in
//! it, some labelled request gets another verdict.

use std::fmt::Write as _;

use marshal::policy::cases::Case;
use marshal::policy::{Policy, builtin_text};

use crate::corpus::{judge, miss, own};
use crate::tree::Tree;

/// A policy as one text whose parts can be changed: what stands before its rules, and the rules.
/// Those of `developer` are the guard's, too; of the others what they extend stays as it is.
struct Pieces {
    name: &'static str,
    head: String,
    rules: Vec<String>,
}

const NAMES: [&str; 3] = ["ci", "developer", "reviewer"];

impl Pieces {
    fn of(name: &'static str) -> Self {
        let text = builtin_text(name).expect("the policy");
        let (head, rules) = text.split_once("[[rule]]").expect("rules");
        let guard = builtin_text("guard").expect("the guard");
        let (_, guard_rules) = guard.split_once("[[rule]]").expect("rules");
        let guards = guard_rules
            .split("[[rule]]")
            .filter(|_| name == "developer");
        // The rules' own examples would refuse a mutant before the corpus sees it.
        let rules = guards.chain(rules.split("[[rule]]")).map(without_examples);
        Self {
            name,
            head: head.to_owned(),
            rules: rules.collect(),
        }
    }

    /// The policy of these rules, with what guard sets beside its rules.
    fn policy(&self) -> Option<Policy> {
        let mut text = self.head.clone();
        for rule in &self.rules {
            write!(text, "[[rule]]{rule}").expect("a string");
        }
        let guard = builtin_text("guard").expect("the guard");
        let (settings, _) = guard.split_once("[[rule]]").expect("rules");
        if self.name == "developer" {
            text = text.replace("builtin:guard", "settings.toml");
        }
        Policy::load(&text, "mutant", &|_| Ok(settings.to_owned())).ok()
    }

    /// Whether no case sees a difference. What cannot be loaded is seen.
    fn survives(&self, tree: &Tree, cases: &[Case]) -> bool {
        self.policy().is_some_and(|policy| {
            cases
                .iter()
                .all(|case| miss(case, &judge(&policy, tree, case)).is_none())
        })
    }
}

fn without_examples(rule: &str) -> String {
    rule.lines()
        .filter(|line| !line.starts_with("match") && !line.starts_with("not_match"))
        .fold(String::new(), |text, line| text + line + "\n")
}

fn id(rule: &str) -> &str {
    let line = rule.lines().find(|line| line.starts_with("id"));
    line.expect("an id")
}

#[test]
fn a_dropped_or_swapped_rule_fails_the_corpus() {
    let tree = Tree::new();
    let mut survivors = Vec::new();
    for name in NAMES {
        let cases = own(name);
        let whole = Pieces::of(name);
        assert!(whole.survives(&tree, &cases), "the unchanged {name} fails");
        for (place, rule) in whole.rules.iter().enumerate() {
            let mut dropped = Pieces::of(name);
            dropped.rules.remove(place);
            if dropped.survives(&tree, &cases) {
                survivors.push(format!("{name} without {}", id(rule)));
            }
            let mut swapped = Pieces::of(name);
            swapped.rules[place] = if rule.contains("decision = \"deny\"") {
                rule.replace("decision = \"deny\"", "decision = \"ask\"")
            } else {
                rule.replace("decision = \"allow\"", "decision = \"deny\"")
            };
            if swapped.survives(&tree, &cases) {
                survivors.push(format!("{name} swapped {}", id(rule)));
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// Conditions matter as well: each line of a rule beside its id, decision and tool.
#[test]
fn a_dropped_condition_fails_the_corpus() {
    const KEYS: [&str; 10] = [
        "any_",
        "not_",
        "all_",
        "only_",
        "paths",
        "path ",
        "max_",
        "min_",
        "operands_",
        "globals",
    ];
    let tree = Tree::new();
    let mut survivors = Vec::new();
    for name in NAMES {
        let cases = own(name);
        for (place, rule) in Pieces::of(name).rules.iter().enumerate() {
            // What is not inside is denied by another rule, so this one makes no difference.
            let covered = rule.contains("\"write-inside\"");
            let is_condition = |line: &&str| KEYS.iter().any(|key| line.starts_with(key));
            for condition in rule.lines().filter(is_condition).filter(|_| !covered) {
                let mut changed = Pieces::of(name);
                changed.rules[place] = rule.replace(condition, "");
                if changed.survives(&tree, &cases) {
                    survivors.push(format!("{name} {} without {condition}", id(rule)));
                }
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// Each text in a list of a rule: a program, a subcommand, a flag, a whole command.
#[test]
fn a_dropped_word_of_the_new_policies_fails_the_corpus() {
    let tree = Tree::new();
    let mut survivors = Vec::new();
    for name in ["ci", "reviewer"] {
        let cases = own(name);
        for (place, rule) in Pieces::of(name).rules.iter().enumerate() {
            // `tool` is not among them: what a rule is for is seen by its own requests.
            let body = rule.find("\ndecision").expect("a decision");
            let words: Vec<_> = rule.match_indices('"').map(|(at, _)| at).collect();
            for pair in words.chunks_exact(2).filter(|pair| pair[0] > body) {
                let word = &rule[pair[0]..=pair[1]];
                let in_list = rule[..pair[0]].trim_end().ends_with(['[', ','])
                    && rule[pair[1] + 1..].trim_start().starts_with([']', ',']);
                let last = rule[..pair[0]].rfind('\n').map_or(0, |at| at + 1);
                if !in_list || rule[last..].starts_with("argv = [\"") && word.len() < 6 {
                    continue;
                }
                let mut changed = Pieces::of(name);
                changed.rules[place] =
                    format!("{}\"--\u{1}\"{}", &rule[..pair[0]], &rule[pair[1] + 1..]);
                if changed.rules[place].contains('\u{1}') {
                    changed.rules[place] = changed.rules[place].replace('\u{1}', "never");
                }
                if changed.survives(&tree, &cases) {
                    survivors.push(format!("{name} {} without {word}", id(rule)));
                }
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// The settings before the rules, one word changed at a time.
#[test]
fn a_changed_setting_fails_the_corpus() {
    let tree = Tree::new();
    let mut survivors = Vec::new();
    for name in NAMES {
        let cases = own(name);
        let head = Pieces::of(name).head;
        for line in head.lines().filter(|line| line.contains(" = ")) {
            for changed in changes(line) {
                let mut pieces = Pieces::of(name);
                pieces.head = head.replacen(line, &changed, 1);
                if pieces.survives(&tree, &cases) {
                    survivors.push(format!("{name}: {line} as {changed}"));
                }
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// Other forms of a setting that must be noticed.
fn changes(line: &str) -> Vec<String> {
    let key = line.split([' ', '=']).next().unwrap_or_default();
    match key {
        "default" | "unknown_tool" | "ask_as" => ["allow", "ask", "deny"]
            .iter()
            .filter(|word| !line.contains(&format!("\"{word}\"")))
            .filter(|word| key != "ask_as" || **word != "allow")
            .map(|word| format!("{key} = \"{word}\""))
            // With every ask denied, asking and denying are one.
            .filter(|changed| !(line.contains("\"deny\"") && changed.contains("\"ask\"")))
            .collect(),
        "env_allow" | "glob_programs" | "trusted_dirs" | "transparent" if line.contains('"') => {
            let words = line.split('"').skip(1).step_by(2);
            words
                .map(|word| line.replacen(&format!("\"{word}\""), "\"never\"", 1))
                .map(|line| line.replace("transparent   = [\"never\"", "transparent   = [\"nice\""))
                .collect()
        }
        "redirect" => line
            .split('"')
            .skip(1)
            .step_by(2)
            .enumerate()
            .map(|(at, _)| with_word(line, at))
            .collect(),
        _ => Vec::new(),
    }
}

/// The line with the word at a place made weaker or stronger, whichever it is not.
fn with_word(line: &str, place: usize) -> String {
    let mut parts: Vec<&str> = line.split('"').collect();
    let at = place * 2 + 1;
    parts[at] = match parts[at] {
        "allow" => "ask",
        _ => "allow",
    };
    parts.join("\"")
}
