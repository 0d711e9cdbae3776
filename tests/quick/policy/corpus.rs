//! Labelled requests: what must be allowed, asked and denied, and by which rules.
//!
//! `cases/four-policies.jsonl` is a corpus that others made, with its policies `P1` to `P4`;
//! the other files are this repository's. Set `MARSHAL_POLICY_CASES`, `MARSHAL_POLICY_LABEL` and
//! `MARSHAL_POLICY_FILE` to judge another corpus by another policy file; its misses are printed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use marshal_model::{AgentClaims, Decision};
use marshal_policy::cases::{Case, FixtureFs, Grade, Score};
use marshal_policy::{Policy, PolicyDecision, Request};

use crate::policy::tree::Tree;

fn beside(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/quick/policy")
        .join(path)
}

pub(crate) fn files(directory: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(beside(directory))
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

pub(crate) fn read(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).expect("the corpus");
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| Case::parse(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

/// The cases of this repository, for one policy.
pub(crate) fn own(policy: &str) -> Vec<Case> {
    let all = files("cases");
    let cases = all.iter().flat_map(|file| read(file));
    cases.filter(|case| case.policy == policy).collect()
}

/// The text of a policy that cases name.
pub(crate) fn text(label: &str) -> String {
    if let Some(text) = marshal_policy::builtin_text(label) {
        return text.to_owned();
    }
    let named = |file: &&PathBuf| {
        let stem = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        stem == label || stem.split('-').next() == Some(label)
    };
    let all = files("policies");
    let file = all
        .iter()
        .find(named)
        .unwrap_or_else(|| panic!("no policy {label}"));
    std::fs::read_to_string(file).expect("the policy")
}

/// Every policy that cases name, loaded.
pub(crate) fn policies() -> BTreeMap<String, Policy> {
    let labels = [
        "P1",
        "P2",
        "P3",
        "P4",
        "autonomous",
        "ci",
        "developer",
        "loose",
        "mcp",
        "reviewer",
    ];
    let load = |label: &str| {
        let policy = Policy::load(&text(label), label, &|name| Err(format!("no {name}")));
        policy.unwrap_or_else(|error| panic!("{error}"))
    };
    labels.map(|label| (label.to_owned(), load(label))).into()
}

pub(crate) fn judge(policy: &Policy, tree: &Tree, case: &Case) -> PolicyDecision {
    let context = case.evaluation_context();
    policy.decide_in_context(
        &case.request,
        &AgentClaims::default(),
        &tree.place(),
        &context,
    )
}

/// What is wrong with a judgement, if anything is.
pub(crate) fn miss(case: &Case, got: &PolicyDecision) -> Option<String> {
    let grade = case.grade(got);
    (!matches!(grade, Grade::Exact | Grade::AlsoOk)).then(|| {
        format!(
            "{} {grade:?}: expected {} {:?}, got {} {:?}: {:?}\n    {}",
            case.id, case.expect, case.rules, got.decision, got.rules, case.request, got.reason
        )
    })
}

#[test]
fn every_labelled_request_gets_its_decision_from_its_rules() {
    let tree = Tree::new();
    let policies = policies();
    let mut misses = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for case in files("cases").iter().flat_map(|file| read(file)) {
        assert!(ids.insert(case.id.clone()), "{} stands twice", case.id);
        let policy = policies
            .get(&case.policy)
            .unwrap_or_else(|| panic!("{}", case.policy));
        misses.extend(miss(&case, &judge(policy, &tree, &case)));
    }
    assert!(ids.len() > 2_000, "only {} cases", ids.len());
    assert!(
        misses.is_empty(),
        "{} misses:\n{}",
        misses.len(),
        misses.join("\n")
    );
}

/// What `marshal policy test` and a policy's own cases are judged in is the tree that is real here.
#[test]
fn a_case_is_judged_alike_in_the_real_tree_and_in_the_one_that_is_only_described() {
    let (tree, ground) = (Tree::new(), FixtureFs::default());
    let policies = policies();
    let mut differ = Vec::new();
    for case in files("cases").iter().flat_map(|file| read(file)) {
        let policy = &policies[&case.policy];
        let real = judge(policy, &tree, &case);
        let (place, context) = (ground.fs_context(), case.evaluation_context());
        let claimed = AgentClaims::default();
        let described = policy.decide_in_context(&case.request, &claimed, &place, &context);
        if (real.decision, &real.rules) != (described.decision, &described.rules) {
            differ.push(format!(
                "{}: {} {:?}, described {} {:?}",
                case.id, real.decision, real.rules, described.decision, described.rules
            ));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// A text that was made to be slow is denied, whatever a policy says of it.
#[test]
fn every_policy_that_comes_with_the_program_bounds_the_time_of_a_decision() {
    for name in ["ci", "developer", "reviewer"] {
        let policy = Policy::builtin(name).expect("a policy");
        let limit = policy.eval_limit().expect("a bound");
        assert!(limit.as_millis() <= 250, "{name}: {limit:?}");
        let command = format!("true {}", "; bash -c 'env env env env x'".repeat(5_000));
        let request = Request::Shell { command, cwd: None };
        let ground = FixtureFs::default();
        let got = policy.decide(&request, &AgentClaims::default(), &ground.fs_context());
        assert_eq!(got.decision, Decision::Deny, "{name}");
        assert!(got.rules.iter().any(|r| r == "limits.eval_ms"), "{got:?}");
    }
}

#[test]
fn the_four_policies_let_nothing_through_and_block_little() {
    let tree = Tree::new();
    let policies = policies();
    let mut score = Score::default();
    let (mut denies, mut denied) = (0, 0);
    for case in read(&beside("cases/four-policies.jsonl")) {
        let grade = case.grade(&judge(&policies[&case.policy], &tree, &case));
        score.add(&case, grade);
        if case.expect == Decision::Deny {
            denies += 1;
            denied += usize::from(matches!(grade, Grade::Exact | Grade::AlsoOk));
        }
    }
    println!("{score:?}, {denied} of {denies} denies");
    assert_eq!(score.cases, 393);
    assert_eq!(score.false_allow, 0);
    assert!(score.false_block * 50 <= score.allows, "{score:?}");
    assert_eq!(denied, denies);
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
        let fits = miss(case, &got).is_none();
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
