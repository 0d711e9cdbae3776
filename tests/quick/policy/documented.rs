//! docs/policy.md names what the loader accepts and what the built-in policies contain.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The keys of the structs that the loader deserialises, as a file spells them.
fn accepted(source: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut renamed = None;
    for line in source.lines().map(str::trim) {
        if let Some((_, rest)) = line.split_once("rename = \"") {
            renamed = rest.split('"').next().map(str::to_owned);
            continue;
        }
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let Some((key, kind)) = line.split_once(": ") else {
            continue;
        };
        let is_field = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            && kind.ends_with(',')
            && !kind.contains("::");
        if is_field {
            keys.insert(renamed.take().unwrap_or_else(|| key.to_owned()));
        }
    }
    keys
}

/// The keys of the tables that begin with `head`.
fn documented(text: &str, head: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut inside = false;
    for line in text.lines() {
        inside = line.starts_with(head) || inside && line.starts_with('|');
        let first = line.split('|').nth(1).unwrap_or_default();
        let names = first.split('`').skip(1).step_by(2);
        if inside {
            keys.extend(names.map(str::to_owned));
        }
    }
    keys
}

#[test]
fn every_key_of_a_policy_is_documented_and_no_other() {
    let source = read("crates/policy/src/document.rs");
    let accepted = accepted(&source);
    assert!(accepted.len() > 45, "{accepted:?}");
    let text = read("docs/policy.md");
    let file = text.split("## Extractors").next().expect("a beginning");
    let documented = documented(file, "| Key |");
    assert_eq!(accepted, documented);
}

#[test]
fn every_key_of_an_extractor_is_documented_and_no_other() {
    let source = read("crates/policy/src/extract.rs");
    let begin = source.find("struct ToolText {").expect("the struct");
    let source = &source[begin..];
    let end = source.find("\n}").expect("its end");
    let accepted = accepted(&source[..end]);
    let documented = documented(&read("docs/policy.md"), "| Key | For |");
    assert_eq!(accepted, documented);
}

#[test]
fn every_built_in_rule_is_documented_and_no_other() {
    let mut rules = BTreeSet::new();
    for name in [
        "autonomous",
        "ci",
        "developer",
        "guard",
        "reviewer",
        "secrets",
    ] {
        let text = marshal_policy::builtin_text(name).expect("built in");
        let ids = text.lines().filter_map(|line| line.strip_prefix("id = \""));
        rules.extend(ids.map(|id| id.trim_end_matches('"').to_owned()));
    }
    assert!(rules.len() > 25, "{rules:?}");
    assert_eq!(rules, documented(&read("docs/policy.md"), "| Rule |"));
}
