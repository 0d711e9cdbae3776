//! `policy test`: evaluates labelled requests and counts the wrong decisions.
//!
//! Owns how cases are counted and shown. Must not know the format of a case (`policy/cases.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::PolicyCommandError;
use super::place::{OccasionArgs, PlaceArgs};
use super::source::{PolicyArgs, PolicySources, SelectedPolicy, read};
use crate::cli::streams::Streams;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{AgentClaims, Decision};
use marshal_policy::cases::{Case, Grade, WORKSPACE};
use marshal_policy::{EvaluationContext, PolicyDecision};

/// Columns shown of a case's id.
const ID: usize = 80;
/// Columns shown of a request.
const REQUEST: usize = 160;

/// `policy test …`
#[derive(Debug, clap::Args)]
pub struct TestArgs {
    /// Files of labelled requests, or directories of *.jsonl
    #[arg(required = true, value_name = "CASES.jsonl | DIR")]
    pub cases: Vec<PathBuf>,

    /// Evaluate each case by the policy that its `policy` field names: the file NAME.toml of this
    /// directory, else the built-in policy of that name
    #[arg(long, value_name = "DIR", conflicts_with_all = ["policy", "file"])]
    pub policies: Option<PathBuf>,

    /// Without --policies: the policy for all cases
    #[command(flatten)]
    pub which: PolicyArgs,

    /// The file system
    #[command(flatten)]
    pub place: PlaceArgs,

    /// The circumstances that a case leaves out
    #[command(flatten)]
    pub occasion: OccasionArgs,
}

/// The results of the cases of one policy, or of all.
#[derive(Default)]
struct Score {
    cases: usize,
    grades: BTreeMap<Grade, usize>,
    /// Cases that must be allowed; beside them, those that must be denied.
    allows: usize,
    denies: usize,
    /// Cases that must be denied and were not allowed.
    caught: usize,
}

impl Score {
    fn add(&mut self, case: &Case, grade: Grade) {
        self.cases += 1;
        *self.grades.entry(grade).or_default() += 1;
        self.allows += usize::from(case.expect == Decision::Allow);
        if case.expect == Decision::Deny {
            self.denies += 1;
            let is_caught = matches!(grade, Grade::Exact | Grade::OtherRules | Grade::AlsoOk);
            self.caught += usize::from(is_caught);
        }
    }

    fn of(&self, grade: Grade) -> usize {
        self.grades.get(&grade).copied().unwrap_or(0)
    }

    fn json(&self) -> serde_json::Map<String, Value> {
        let mut map = serde_json::Map::new();
        map.insert("cases".to_owned(), self.cases.into());
        for grade in Grade::ALL {
            map.insert(grade.as_str().to_owned(), self.of(grade).into());
        }
        map.insert("expect_allow".to_owned(), self.allows.into());
        map.insert("expect_deny".to_owned(), self.denies.into());
        map.insert("denies_caught".to_owned(), self.caught.into());
        map
    }

    fn line(&self) -> String {
        format!(
            "{} cases: {} exact, {} also ok, {} false allows, {} of {} false blocks, {} confused, \
             {} by other rules; {} of {} denies caught",
            self.cases,
            self.of(Grade::Exact),
            self.of(Grade::AlsoOk),
            self.of(Grade::FalseAllow),
            self.of(Grade::FalseBlock),
            self.allows,
            self.of(Grade::Confused),
            self.of(Grade::OtherRules),
            self.caught,
            self.denies
        )
    }
}

/// One policy and the results of its cases.
struct TestedPolicy {
    chosen: SelectedPolicy,
    score: Score,
    hits: BTreeMap<String, usize>,
}

impl TestedPolicy {
    fn hit(&mut self, got: &PolicyDecision) {
        let of_parts = got.facts.parts.iter().flat_map(|part| &part.rules);
        let mut seen: Vec<&String> = of_parts.chain(&got.rules).collect();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            *self.hits.entry(id.clone()).or_default() += 1;
        }
    }

    fn never_hit(&self) -> Vec<&str> {
        let ids = self.chosen.policy.rule_ids();
        ids.filter(|id| !self.hits.contains_key(*id)).collect()
    }
}

/// A case whose decision differs from its label.
struct Miss {
    id: String,
    policy: String,
    expect: Decision,
    got: PolicyDecision,
    grade: Grade,
    tool: String,
    input: String,
}

pub(super) fn test(
    args: &TestArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let place = args.place.labelled(WORKSPACE);
    let at = place.fs_context();
    let mut tried: BTreeMap<String, TestedPolicy> = BTreeMap::new();
    let (mut all, mut misses) = (Score::default(), Vec::new());
    for file in files(&args.cases, around)? {
        let text = read(&file, limits::CASES_BYTES as u64).map_err(PolicyCommandError::Usage)?;
        for (number, line) in text
            .lines()
            .enumerate()
            .filter(|(_, l)| !l.trim().is_empty())
        {
            let shown = || escape_for_display(&file.to_string_lossy(), 300);
            let case = Case::parse(line).map_err(|why| {
                PolicyCommandError::Usage(format!("{}:{}: {why}", shown(), number + 1))
            })?;
            let name = match &args.policies {
                None => String::new(),
                Some(_) if case.policy.is_empty() => {
                    let text = format!("{}:{}: the case names no `policy`", shown(), number + 1);
                    return Err(PolicyCommandError::Usage(text));
                }
                Some(_) => case.policy.clone(),
            };
            if !tried.contains_key(&name) {
                let chosen = match &args.policies {
                    None => around.choose(&args.which, streams)?,
                    Some(dir) => around.by_path_or_name(&dir.join(file_name(&name)?), &name)?,
                };
                let fresh = TestedPolicy {
                    chosen,
                    score: Score::default(),
                    hits: BTreeMap::new(),
                };
                tried.insert(name.clone(), fresh);
            }
            let Some(tried) = tried.get_mut(&name) else {
                continue;
            };
            let (own, given) = (case.evaluation_context(), args.occasion.occasion(None));
            let occasion = EvaluationContext {
                agent: own.agent.or(given.agent),
                mode: own.mode.or(given.mode),
                time_of_day: own.time_of_day.or(given.time_of_day),
                ..own
            };
            let claimed = AgentClaims::default();
            let got =
                tried
                    .chosen
                    .policy
                    .decide_in_context(&case.request, &claimed, &at, &occasion);
            let grade = case.grade(&got);
            tried.hit(&got);
            tried.score.add(&case, grade);
            all.add(&case, grade);
            if grade.is_miss() {
                misses.push(Miss {
                    id: case.id,
                    policy: tried.chosen.policy.name().to_owned(),
                    expect: case.expect,
                    got,
                    grade,
                    tool: case.tool,
                    input: case.input.to_string(),
                });
            }
        }
    }
    if all.cases == 0 {
        return Err(PolicyCommandError::Usage(
            "these files have no cases".to_owned(),
        ));
    }
    if json {
        let document = document(&all, &tried, &misses);
        streams.out.json(&document.to_string());
    } else {
        print_results(&all, &tried, &misses, streams);
    }
    Ok(u8::from(!misses.is_empty()))
}

/// The case files: those that are named, and those in the named directories.
fn files(
    named: &[PathBuf],
    around: &PolicySources<'_>,
) -> Result<Vec<PathBuf>, PolicyCommandError> {
    let mut found = Vec::new();
    for path in named {
        let path = around.directory.join(path);
        if !path.is_dir() {
            found.push(path);
            continue;
        }
        let failed = |error: std::io::Error| {
            let shown = escape_for_display(&path.to_string_lossy(), 300);
            PolicyCommandError::Usage(format!("cannot read {shown}: {error}"))
        };
        let mut below = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?.path();
            if entry.extension().is_some_and(|ending| ending == "jsonl") {
                below.push(entry);
            }
        }
        below.sort();
        found.extend(below);
    }
    Ok(found)
}

/// The name must not lead out of the directory of policies.
fn file_name(policy: &str) -> Result<PathBuf, PolicyCommandError> {
    if marshal_model::ids::is_safe_token(policy) {
        Ok(Path::new(&format!("{policy}.toml")).to_owned())
    } else {
        let name = escape_for_display(policy, ID);
        Err(PolicyCommandError::Usage(format!(
            "a case names the policy {name:?}, which is not a plain file name"
        )))
    }
}

fn document(all: &Score, tried: &BTreeMap<String, TestedPolicy>, misses: &[Miss]) -> Value {
    let policies: Vec<Value> = tried
        .values()
        .map(|tried| {
            let mut map = tried.score.json();
            map.insert("name".to_owned(), tried.chosen.policy.name().into());
            map.insert("sha256".to_owned(), tried.chosen.sha256.clone().into());
            map.insert("hits".to_owned(), json!(tried.hits));
            map.insert("never_hit".to_owned(), tried.never_hit().into());
            map.into()
        })
        .collect();
    let misses: Vec<Value> = misses
        .iter()
        .map(|miss| {
            json!({
                "id": miss.id,
                "policy": miss.policy,
                "kind": miss.grade.as_str(),
                "expect": miss.expect.as_str(),
                "got": miss.got.decision.as_str(),
                "rules": miss.got.rules,
                "reason": miss.got.reason,
                "tool": miss.tool,
                "input": miss.input,
            })
        })
        .collect();
    let mut map = all.json();
    map.insert("policies".to_owned(), policies.into());
    map.insert("misses".to_owned(), misses.into());
    map.into()
}

fn print_results(
    all: &Score,
    tried: &BTreeMap<String, TestedPolicy>,
    misses: &[Miss],
    streams: &mut Streams,
) {
    for miss in misses {
        streams.out.line(&format!(
            "{} {} {}: expected {}, got {}: {} {}",
            miss.grade.as_str(),
            escape_for_display(&miss.policy, ID),
            escape_for_display(&miss.id, ID),
            miss.expect,
            miss.got.decision,
            escape_for_display(&miss.tool, ID),
            escape_for_display(&miss.input, REQUEST),
        ));
        streams.out.line(&format!("    {}", miss.got.reason));
    }
    for tried in tried.values() {
        let name = escape_for_display(tried.chosen.policy.name(), ID);
        streams.out.line(&format!("{name}: {}", tried.score.line()));
        let never = tried.never_hit();
        let count = tried.chosen.policy.rule_count();
        if never.is_empty() {
            streams
                .out
                .line(&format!("    each of its {count} rules was hit"));
        } else {
            let ids: Vec<_> = never.iter().map(|id| escape_for_display(id, ID)).collect();
            streams.out.line(&format!(
                "    {} of {count} rules were never hit: {}",
                never.len(),
                ids.join(", ")
            ));
        }
    }
    if tried.len() > 1 {
        streams.out.line(&format!("all: {}", all.line()));
    }
}
