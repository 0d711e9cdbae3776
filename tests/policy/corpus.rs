//! Labelled requests: what must be allowed, asked and denied, and by which rules.
//!
//! Set `MARSHAL_POLICY_CASES` and `MARSHAL_POLICY_FILE` to judge another corpus by another
//! policy file; its misses are printed.

use std::path::Path;

use marshal::model::{Claimed, Decision};
use marshal::policy::{Judgement, Policy, Request, Target};
use serde_json::Value;

use crate::tree::Tree;

/// One labelled request.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) request: Request,
    pub(crate) expect: Decision,
    pub(crate) also: Vec<Decision>,
    /// The rules that must decide, in this order; `None`: any.
    pub(crate) rules: Option<Vec<String>>,
    pub(crate) policy: String,
}

fn decision(value: &Value) -> Decision {
    value
        .as_str()
        .and_then(Decision::from_word)
        .expect("a decision")
}

fn request(tool: &str, input: &Value) -> Request {
    let malformed = |why: &str| Request::Malformed {
        why: why.to_owned(),
    };
    let field = |key: &str| {
        let text = input.get(key).and_then(Value::as_str);
        text.filter(|t| !t.trim().is_empty()).map(str::to_owned)
    };
    match tool {
        "shell" => field("command").map(|command| Request::Shell {
            command,
            cwd: field("cwd"),
        }),
        "read" => field("path").map(|p| Request::Read {
            targets: vec![Target::Path(p)],
        }),
        "write" => field("path").map(|path| Request::Write { paths: vec![path] }),
        "fetch" => field("url").map(|url| Request::Fetch { url }),
        other => {
            return Request::Unknown { tool: other.into() };
        }
    }
    .unwrap_or_else(|| malformed("a required key is missing"))
}

pub(crate) fn read(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).expect("the corpus");
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let case: Value = serde_json::from_str(line).expect("a case");
            let words = |key: &str| case.get(key).and_then(Value::as_array).cloned();
            Case {
                id: case["id"].as_str().expect("an id").to_owned(),
                request: request(case["tool"].as_str().expect("a tool"), &case["input"]),
                expect: decision(&case["expect"]),
                also: words("also_ok")
                    .unwrap_or_default()
                    .iter()
                    .map(decision)
                    .collect(),
                rules: words("rules").map(|list| {
                    list.iter()
                        .map(|r| r.as_str().expect("a rule").to_owned())
                        .collect()
                }),
                policy: case
                    .get("policy")
                    .and_then(Value::as_str)
                    .unwrap_or("developer")
                    .to_owned(),
            }
        })
        .collect()
}

/// The cases of this repository.
pub(crate) fn own() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policy/cases");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("the cases")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files.iter().flat_map(|file| read(file)).collect()
}

pub(crate) fn judge(policy: &Policy, tree: &Tree, case: &Case) -> Judgement {
    policy.decide(&case.request, &Claimed::default(), &tree.place())
}

/// What is wrong with a judgement, if anything is.
pub(crate) fn miss(case: &Case, got: &Judgement) -> Option<String> {
    let fits = got.decision == case.expect || case.also.contains(&got.decision);
    let named = case.rules.as_ref().is_none_or(|rules| *rules == got.rules);
    (!fits || !named).then(|| {
        format!(
            "{} expected {} {:?}, got {} {:?}: {:?}\n    {}",
            case.id, case.expect, case.rules, got.decision, got.rules, case.request, got.reason
        )
    })
}

#[test]
fn every_labelled_request_gets_its_decision_from_its_rules() {
    let tree = Tree::new();
    let policy = Policy::builtin("developer").expect("the policy");
    let cases = own();
    assert!(cases.len() > 250, "only {} cases", cases.len());
    let misses: Vec<_> = cases
        .iter()
        .filter_map(|case| miss(case, &judge(&policy, &tree, case)))
        .collect();
    assert!(
        misses.is_empty(),
        "{} misses:\n{}",
        misses.len(),
        misses.join("\n")
    );
}

#[test]
fn a_corpus_named_by_the_environment_has_no_false_allow() {
    let (Ok(cases), Ok(label)) = (
        std::env::var("MARSHAL_POLICY_CASES"),
        std::env::var("MARSHAL_POLICY_LABEL"),
    ) else {
        println!("no MARSHAL_POLICY_CASES and MARSHAL_POLICY_LABEL: nothing to judge");
        return;
    };
    let policy = match std::env::var("MARSHAL_POLICY_FILE") {
        Ok(file) => {
            let text = std::fs::read_to_string(&file).expect("the policy");
            Policy::load(&text, &file, &|name| Err(format!("no {name}"))).expect("a policy")
        }
        Err(_) => Policy::builtin("developer").expect("the policy"),
    };
    let tree = Tree::new();
    let cases: Vec<_> = read(Path::new(&cases))
        .into_iter()
        .filter(|c| c.policy == label)
        .collect();
    let (mut false_allow, mut false_block, mut allows, mut denies, mut caught) = (0, 0, 0, 0, 0);
    for case in &cases {
        let got = judge(&policy, &tree, case);
        let fits = got.decision == case.expect || case.also.contains(&got.decision);
        allows += usize::from(case.expect == Decision::Allow);
        false_allow += usize::from(!fits && got.decision == Decision::Allow);
        false_block += usize::from(!fits && case.expect == Decision::Allow);
        if case.expect == Decision::Deny {
            denies += 1;
            caught += usize::from(fits);
        }
        if let Some(miss) = miss(case, &got) {
            println!("{miss}");
        }
    }
    println!(
        "{} cases: {false_allow} false allows, {false_block} of {allows} false blocks, {caught} of {denies} denies",
        cases.len()
    );
    assert_eq!(false_allow, 0);
}
