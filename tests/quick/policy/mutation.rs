//! Every rule and every setting of the shipped policies matters: without it, or with another word in
//! it, some labelled request gets another verdict.

use std::fmt::Write as _;

use marshal_policy::cases::Case;
use marshal_policy::{Policy, builtin_text};

use crate::policy::corpus::{judge, miss, own};
use crate::policy::tree::Tree;

/// The policies that every policy extends: before their rules, and the rules.
const EXTENDED: [&str; 2] = ["secrets", "guard"];

/// What an extended policy has before its rules, and its rules.
fn parts(name: &str) -> (&'static str, &'static str) {
    let text = builtin_text(name).expect("the policy");
    text.split_once("[[rule]]").expect("rules")
}

/// The settings of the guard with those of the secrets, without rules.
fn settings() -> [String; 2] {
    let [secrets, guard] = EXTENDED.map(|name| parts(name).0.to_owned());
    [secrets, guard.replace("builtin:secrets", "secrets.toml")]
}

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
        let guards = EXTENDED
            .iter()
            .flat_map(|name| parts(name).1.split("[[rule]]"));
        let guards = guards.filter(|_| name == "developer");
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
        let [secrets, guard] = settings();
        if self.name == "developer" {
            text = text.replace("builtin:guard", "settings.toml");
        }
        let find = |name: &str| {
            let is_secrets = name == "secrets.toml";
            Ok(if is_secrets {
                secrets.clone()
            } else {
                guard.clone()
            })
        };
        Policy::load(&text, "mutant", &find).ok()
    }

    /// Whether no case sees a difference. What cannot be loaded is seen.
    fn survives(&self, tree: &Tree, cases: &[Case]) -> bool {
        self.policy()
            .is_some_and(|policy| agrees(&policy, tree, cases, ""))
    }
}

/// Whether all cases get their labels. Those that say the word are the first to be asked.
fn agrees(policy: &Policy, tree: &Tree, cases: &[Case], word: &str) -> bool {
    let says = |case: &&Case| case.input.to_string().contains(word);
    let (near, far): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(says);
    let mut all = near.into_iter().chain(far);
    all.all(|case| miss(case, &judge(policy, tree, case)).is_none())
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
            } else if rule.contains("decision = \"ask\"") {
                rule.replace("decision = \"ask\"", "decision = \"deny\"")
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
            let covered = ["write-inside", "make-files", "copy-files", "mode"]
                .iter()
                .any(|id| rule.contains(&format!("id = \"{id}\"")));
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
fn a_dropped_word_of_a_rule_fails_the_corpus() {
    let tree = Tree::new();
    let mut survivors = Vec::new();
    for name in NAMES {
        let cases = own(name);
        for (place, rule) in Pieces::of(name).rules.iter().enumerate() {
            for (word, without) in without_words(rule) {
                let mutants = without.into_iter().map(|text| {
                    let mut changed = Pieces::of(name);
                    changed.rules[place] = text;
                    changed.policy()
                });
                // What stands for the word is a flag, a program or a pattern, whichever may be there.
                let Some(mutant) = mutants.flatten().next() else {
                    panic!("{name} {} cannot be read without {word}", id(rule));
                };
                if agrees(&mutant, &tree, &cases, &word) {
                    survivors.push(format!("{name} {} without {word}", id(rule)));
                }
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?}");
}

/// Each word in the lists of a rule, and the rule's texts with another in its place.
fn without_words(rule: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let quotes: Vec<_> = rule.match_indices('"').map(|(at, _)| at).collect();
    let body = rule.find("\ndecision").expect("a decision");
    for pair in quotes.chunks_exact(2).filter(|pair| pair[0] > body) {
        let (before, word) = (&rule[..pair[0]], &rule[pair[0] + 1..pair[1]]);
        let after = &rule[pair[1] + 1..];
        let line = &before[before.rfind('\n').map_or(0, |at| at + 1)..];
        let in_list =
            before.trim_end().ends_with(['[', ',']) && after.trim_start().starts_with([']', ',']);
        let with = |other: &str| format!("{before}\"{other}\"{after}");
        if line.starts_with("any_word") {
            let (begin, rest) = word.split_once('(').expect("alternatives");
            let (inner, end) = rest.split_once(')').expect("alternatives");
            for one in inner.split('|') {
                let others = inner.split('|').map(|a| if a == one { "never" } else { a });
                let others: Vec<_> = others.collect();
                let text = with(&format!("{begin}({}){end}", others.join("|")));
                found.push((one.trim_end_matches("0?").to_owned(), vec![text]));
            }
        } else if line.starts_with("tool") {
            // `write` stands for these as well, but for what a rule that allows deletes and moves.
            let implied = rule.contains("\"write\"")
                && (word == "edit" || ["delete", "move"].contains(&word) && !allows(rule));
            if in_list && !implied {
                let others = ["delete", "move", "read"].into_iter();
                let rest = after.lines().next().unwrap_or_default();
                let others =
                    others.filter(|of| *of != word && !line.contains(of) && !rest.contains(of));
                found.push((word.to_owned(), others.map(with).collect()));
            }
        } else if in_list && !(line.contains("_flags") && is_beginning(word, line, after)) {
            found.push((word.to_owned(), vec![with("--never"), with("never")]));
        }
    }
    found
}

/// Whether a longer flag of the same line begins with it: a beginning of a flag counts for the flag.
fn is_beginning(word: &str, before: &str, after: &str) -> bool {
    let rest = after.lines().next().unwrap_or_default();
    let mut flags = before.split('"').chain(rest.split('"'));
    word.starts_with("--") && flags.any(|flag| flag.len() > word.len() && flag.starts_with(word))
}

fn allows(rule: &str) -> bool {
    rule.contains("decision = \"allow\"")
}

/// What guard sets beside its rules holds under each policy: the paths, and its settings.
#[test]
fn a_changed_setting_of_the_guard_fails_the_corpus_of_each_policy() {
    let tree = Tree::new();
    let whole = EXTENDED.map(|name| builtin_text(name).expect("the policy"));
    let mut mutants = Vec::new();
    for (at, name) in EXTENDED.iter().enumerate() {
        let head = parts(name).0;
        for line in head.lines().map(str::trim) {
            let paths = line.split('"').skip(1).step_by(2);
            for path in paths.filter(|path| path.starts_with(['@', '~', '/', '*', '!'])) {
                let other = head.replacen(&format!("\"{path}\""), "\"@/never\"", 1);
                mutants.push((at, path.to_owned(), other));
            }
            for changed in changes(line) {
                mutants.push((at, changed.clone(), head.replacen(line, &changed, 1)));
            }
        }
    }
    assert!(mutants.len() > 100, "{}", mutants.len());
    let mut survivors = Vec::new();
    for name in NAMES {
        let cases = own(name);
        let text = builtin_text(name).expect("the policy");
        let text = without_examples(&text.replace("builtin:guard", "guard.toml"));
        // Where nobody is asked and no rule allows is denied, what asks decides nothing.
        let is_alike =
            |what: &str| text.contains("ask_as = \"deny\"") && what == "dynamic = \"allow\"";
        for (at, what, other) in mutants.iter().filter(|(_, what, _)| !is_alike(what)) {
            let mut texts = whole.map(str::to_owned);
            texts[*at] = texts[*at].replacen(parts(EXTENDED[*at]).0, other, 1);
            let [secrets, guard] = texts.map(|text| without_examples(&text));
            let guard = guard.replace("builtin:secrets", "secrets.toml");
            let find = |name: &str| {
                let is_secrets = name == "secrets.toml";
                Ok(if is_secrets {
                    secrets.clone()
                } else {
                    guard.clone()
                })
            };
            let policy = Policy::load(&text, "mutant", &find);
            let policy = policy.unwrap_or_else(|error| panic!("{what}: {error}"));
            let near = what.rsplit('/').find(|part| !part.contains('*'));
            if agrees(&policy, &tree, &cases, near.unwrap_or_default()) {
                survivors.push(format!("{name}: {} with {what}", EXTENDED[*at]));
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
            // With every permission request denied, asking and denying are one.
            .filter(|changed| !(line.contains("\"deny\"") && changed.contains("\"ask\"")))
            .collect(),
        "env_allow" | "glob_programs" | "trusted_dirs" | "transparent" if line.contains('"') => {
            let words = line.split('"').skip(1).step_by(2);
            words
                .map(|word| line.replacen(&format!("\"{word}\""), "\"never\"", 1))
                .map(|line| line.replace("transparent   = [\"never\"", "transparent   = [\"nice\""))
                .collect()
        }
        "dynamic" => ["allow", "deny"]
            .map(|word| format!("{key} = \"{word}\""))
            .to_vec(),
        "max_bytes" | "max_commands" => {
            let value = line.split(['=', '#']).nth(1).unwrap_or_default().trim();
            let value: usize = value.parse().expect("a number");
            [value - 1, value + 1]
                .map(|other| line.replacen(&value.to_string(), &other.to_string(), 1))
                .to_vec()
        }
        "out" => {
            let paths = line.split('"').skip(1).step_by(2);
            paths
                .map(|path| line.replacen(&format!("\"{path}\""), "\"@/never\"", 1))
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
