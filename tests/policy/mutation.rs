//! Every rule of the shipped policies matters: without it, or with its decision swapped, some
//! labelled request gets another verdict.

use std::fmt::Write as _;

use marshal::policy::{Policy, builtin_text};

use crate::corpus::{Case, judge, miss, own};
use crate::tree::Tree;

/// Both policies as one text, guard's tables and rules last, so that any of them can be changed.
fn pieces() -> (String, Vec<String>) {
    let developer = builtin_text("developer").expect("the policy");
    let guard = builtin_text("guard").expect("the guard");
    let (head, rules) = developer.split_once("[[rule]]").expect("rules");
    let (_, guard_rules) = guard.split_once("[[rule]]").expect("rules");
    let rules: Vec<_> = guard_rules
        .split("[[rule]]")
        .chain(rules.split("[[rule]]"))
        .map(str::to_owned)
        .collect();
    // The rules' own examples would refuse a mutant before the corpus sees it.
    let rules = rules.iter().map(|rule| without_examples(rule)).collect();
    (head.to_owned(), rules)
}

fn without_examples(rule: &str) -> String {
    rule.lines()
        .filter(|line| !line.starts_with("match") && !line.starts_with("not_match"))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// The policy of these rules, with what guard sets beside its rules.
fn policy(head: &str, rules: &[String]) -> Policy {
    let mut text = head.to_owned();
    for rule in rules {
        write!(text, "[[rule]]{rule}").expect("a string");
    }
    let guard = builtin_text("guard").expect("the guard");
    let (settings, _) = guard.split_once("[[rule]]").expect("rules");
    let text = text.replace("builtin:guard", "settings.toml");
    Policy::load(&text, "mutant", &|_| Ok(settings.to_owned())).expect("a policy")
}

fn survives(policy: &Policy, tree: &Tree, cases: &[Case]) -> bool {
    cases
        .iter()
        .all(|case| miss(case, &judge(policy, tree, case)).is_none())
}

#[test]
fn a_dropped_or_swapped_rule_fails_the_corpus() {
    let tree = Tree::new();
    let cases = own();
    let (head, rules) = pieces();
    assert!(rules.len() > 25, "only {} rules", rules.len());
    assert!(
        survives(&policy(&head, &rules), &tree, &cases),
        "the unchanged rules fail"
    );
    let mut survivors = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let id = rule
            .lines()
            .find(|line| line.starts_with("id"))
            .expect("an id");
        let mut dropped = rules.clone();
        dropped.remove(place);
        if survives(&policy(&head, &dropped), &tree, &cases) {
            survivors.push(format!("without {id}"));
        }
        let mut swapped = rules.clone();
        swapped[place] = if rule.contains("decision = \"deny\"") {
            rule.replace("decision = \"deny\"", "decision = \"ask\"")
        } else {
            rule.replace("decision = \"allow\"", "decision = \"deny\"")
        };
        if survives(&policy(&head, &swapped), &tree, &cases) {
            survivors.push(format!("swapped {id}"));
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// Conditions matter as well: each line of a rule beside its id, decision and tool.
#[test]
fn a_dropped_condition_fails_the_corpus() {
    let tree = Tree::new();
    let cases = own();
    let (head, rules) = pieces();
    let mut survivors = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let conditions = rule.lines().filter(|line| {
            [
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
            ]
            .iter()
            .any(|key| line.starts_with(key))
        });
        for condition in conditions {
            let mut changed = rules.clone();
            changed[place] = rule.replace(condition, "");
            // What is not inside is denied by another rule, so this one makes no difference.
            let covered = rule.contains("\"write-inside\"");
            if !covered && survives(&policy(&head, &changed), &tree, &cases) {
                let id = rule
                    .lines()
                    .find(|line| line.starts_with("id"))
                    .expect("an id");
                survivors.push(format!("{id} without {condition}"));
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}
