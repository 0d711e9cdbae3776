//! From the parts of a request to one judgement.
//!
//! Owns severity (deny, ask, allow, default), and the sentence that reaches the model. Must not
//! know how a shell text is read.

use std::sync::Arc;

use super::command::Word;
use super::fact::{self, PathFact};
use super::path::{Place, Walker};
use super::request::{Facts, Judgement, Part, Request, Target, ToolClass};
use super::rule::{Rule, Sets};
use super::url::Url;
use super::{Policy, cwd, shell};
use crate::model::foreign::{is_unsafe, show};
use crate::model::{Claimed, DecidedBy, Decision, Foreign};

/// Something that applied: a rule, or a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub decision: Decision,
    pub id: Arc<str>,
    pub reason: Option<Arc<str>>,
}

impl Hit {
    pub(super) fn rule(rule: &Rule) -> Self {
        Self {
            decision: rule.decision,
            id: Arc::clone(&rule.id),
            reason: rule.reason.clone(),
        }
    }

    pub(super) fn setting(decision: Decision, id: &str, reason: &str) -> Self {
        Self {
            decision,
            id: id.into(),
            reason: Some(reason.into()),
        }
    }
}

/// What is found out about a request.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub parts: Vec<PartOutcome>,
    /// What applies to the whole.
    pub hits: Vec<Hit>,
    pub not_plain: Option<String>,
}

/// What is found out about one part.
#[derive(Debug, Default)]
pub(super) struct PartOutcome {
    pub words: Vec<Foreign>,
    pub hits: Vec<Hit>,
    /// No rule allows it, so the default counts.
    pub unallowed: bool,
}

impl PartOutcome {
    pub(super) fn add(&mut self, hit: Hit) {
        if !self.hits.iter().any(|h| h.id == hit.id) {
            self.hits.push(hit);
        }
    }

    fn decision(&self, default: Decision) -> Decision {
        let hits = self.hits.iter().map(|h| h.decision).max();
        let floor = if self.unallowed {
            default
        } else {
            Decision::Allow
        };
        hits.map_or(floor, |worst| worst.max(floor))
    }
}

/// How much of a request is repeated in facts and reasons.
const SHOWN_PARTS: usize = 64;
const SHOWN_WORDS: usize = 64;
const SHOWN_COLUMNS: usize = 80;
const SHOWN_RULES: usize = 16;

pub(super) fn judge(
    policy: &Policy,
    request: &Request,
    claimed: &Claimed,
    at: &Place<'_>,
) -> Judgement {
    judge_with(policy, request, claimed, at, Vec::new())
}

/// The same with more that applies to the whole request.
pub(super) fn judge_with(
    policy: &Policy,
    request: &Request,
    claimed: &Claimed,
    at: &Place<'_>,
    more: Vec<Hit>,
) -> Judgement {
    let walker = Walker::new(*at);
    let mut outcome = match request {
        Request::Malformed { why } => {
            let why = show(why, SHOWN_COLUMNS * 2);
            return error("malformed", &format!("the request cannot be judged: {why}"));
        }
        _ if !at.workspace.starts_with('/') => {
            return error(
                "no_workspace",
                "the workspace is not known, so nothing can be judged",
            );
        }
        Request::Shell { command, .. } if command.trim().is_empty() => {
            return error(
                "malformed",
                "the request cannot be judged: the command is blank",
            );
        }
        Request::Shell { command, cwd } => shell::outcome(policy, command, cwd.as_deref(), &walker),
        Request::Write { paths } if paths.is_empty() => {
            return error(
                "malformed",
                "the request cannot be judged: it names no path",
            );
        }
        Request::Read { targets } if targets.is_empty() => {
            return error(
                "malformed",
                "the request cannot be judged: it names no path",
            );
        }
        Request::Read { targets } => Outcome {
            parts: targets.iter().map(|t| read(policy, t, &walker)).collect(),
            ..Outcome::default()
        },
        Request::Write { paths } => Outcome {
            parts: paths
                .iter()
                .map(|path| file(policy, ToolClass::Write, path, &walker))
                .collect(),
            ..Outcome::default()
        },
        Request::Fetch { url } => Outcome {
            parts: vec![fetch(policy, url)],
            ..Outcome::default()
        },
        Request::Unknown { tool } => Outcome {
            parts: vec![PartOutcome {
                words: vec![tool.clone()],
                hits: vec![unknown(policy, tool)],
                unallowed: false,
            }],
            ..Outcome::default()
        },
    };
    claims(claimed, &mut outcome);
    outcome.hits.extend(more);
    conclude(policy, outcome)
}

fn unknown(policy: &Policy, tool: &Foreign) -> Hit {
    let tool = tool.show(SHOWN_COLUMNS);
    Hit::setting(
        policy.unknown_tool,
        "unknown_tool",
        &format!("no table says what the tool {tool} does"),
    )
}

/// What the agent says of its own request may only raise the severity.
fn claims(claimed: &Claimed, outcome: &mut Outcome) {
    if claimed.no_allow {
        outcome.hits.push(Hit::setting(
            Decision::Deny,
            "claimed.no_allow",
            "the agent takes no answer that allows this once",
        ));
    }
    let required = claimed
        .required_mode
        .as_ref()
        .map(|m| m.raw().trim().to_lowercase());
    if required.as_deref() == Some("danger-full-access") {
        outcome.hits.push(Hit::setting(
            Decision::Ask,
            "claimed.required_mode",
            "the agent itself says that the call needs danger-full-access",
        ));
    }
}

fn read(policy: &Policy, target: &Target, walker: &Walker<'_>) -> PartOutcome {
    match target {
        Target::Path(path) => file(policy, ToolClass::Read, path, walker),
        // Without a path it is where the agent is, which need not be the root, and need not be known.
        Target::Workspace => {
            let root = walker.place.workspace;
            let is_root = walker.place.cwd == Some(root);
            let path = if is_root { root } else { "." };
            file(policy, ToolClass::Read, path, walker)
        }
        Target::Anywhere(pattern) => {
            let mut part = file(policy, ToolClass::Read, pattern, walker);
            part.hits.retain(|hit| hit.decision != Decision::Allow);
            part.unallowed = true;
            part
        }
    }
}

/// The path of a tool that reads or writes one file.
fn file(policy: &Policy, tool: ToolClass, path: &str, walker: &Walker<'_>) -> PartOutcome {
    let mut part = PartOutcome {
        words: vec![Foreign::new(path)],
        unallowed: true,
        ..PartOutcome::default()
    };
    if path.chars().any(is_unsafe) {
        let why = "a control or invisible character is in the path";
        part.add(Hit::setting(Decision::Ask, "limits.characters", why));
    }
    let word = Word {
        text: path.to_owned(),
        tilde: path == "~" || path.starts_with("~/"),
        ..Word::default()
    };
    let bases = cwd::start(walker, walker.place.cwd);
    let mut paths = Vec::new();
    fact::facts(walker, &bases, &word, 0, &mut paths);
    let sets = policy.path_sets();
    for &place in policy.index.tool(tool) {
        let rule = &policy.rules[place];
        if file_fits(rule, &sets, &paths, walker) {
            part.unallowed &= rule.decision != Decision::Allow;
            part.add(Hit::rule(rule));
        }
    }
    part
}

fn file_fits(rule: &Rule, sets: &Sets<'_>, paths: &[PathFact], walker: &Walker<'_>) -> bool {
    match rule.paths {
        None => true,
        Some(area) if rule.decision == Decision::Allow => {
            paths.iter().all(|p| sets.holds(p, area, walker))
        }
        Some(area) => paths.iter().any(|p| sets.touches(p, area, walker)),
    }
}

fn fetch(policy: &Policy, text: &str) -> PartOutcome {
    let mut part = PartOutcome {
        words: vec![Foreign::new(text)],
        unallowed: true,
        ..PartOutcome::default()
    };
    let url = Url::parse(text);
    if let Err(what) = &url {
        let reason = format!("the URL has {what}");
        part.add(Hit::setting(Decision::Deny, "malformed_url", &reason));
    }
    for &place in policy.index.tool(ToolClass::Fetch) {
        let rule = &policy.rules[place];
        let fits = match &url {
            Ok(url) => rule.url.is_empty() || rule.url.iter().any(|p| p.matches(url)),
            Err(_) => rule.url.is_empty() && rule.decision != Decision::Allow,
        };
        if fits {
            part.unallowed &= rule.decision != Decision::Allow;
            part.add(Hit::rule(rule));
        }
    }
    part
}

/// The worst of everything, and why.
fn conclude(policy: &Policy, outcome: Outcome) -> Judgement {
    let parts = outcome
        .parts
        .iter()
        .map(|p| p.decision(policy.default))
        .max();
    let floor = outcome.hits.iter().map(|h| h.decision).max();
    let worst = parts
        .unwrap_or(policy.default)
        .max(floor.unwrap_or(Decision::Allow));
    let mut deciding: Vec<&Hit> = Vec::new();
    let all = outcome
        .parts
        .iter()
        .flat_map(|p| &p.hits)
        .chain(&outcome.hits);
    for hit in all.filter(|h| h.decision == worst) {
        if deciding.len() < SHOWN_RULES && !deciding.iter().any(|h| h.id == hit.id) {
            deciding.push(hit);
        }
    }
    // An allow by the default beside allowing rules is still the default's.
    let defaulted = worst == policy.default
        && worst == Decision::Allow
        && outcome.parts.iter().any(|p| p.unallowed);
    if defaulted {
        deciding.clear();
    }
    let decision = match worst {
        Decision::Ask => policy.ask_as,
        other => other,
    };
    let reason = reason(policy, worst, decision, &deciding, &outcome);
    let rules = deciding.iter().map(|h| h.id.to_string()).collect();
    let by = DecidedBy::of(!deciding.is_empty());
    Judgement {
        decision,
        rules,
        reason,
        by,
        facts: facts(policy, outcome),
    }
}

fn reason(
    policy: &Policy,
    worst: Decision,
    decision: Decision,
    deciding: &[&Hit],
    outcome: &Outcome,
) -> String {
    if let Some(first) = deciding.first() {
        let said = first.reason.as_deref();
        return match (worst, decision) {
            (Decision::Allow, _) => format!("allowed by rule {}", first.id),
            (Decision::Deny, _) => match said {
                Some(said) => format!("denied by rule {}: {said}", first.id),
                None => format!(
                    "denied by rule {}; do not try other ways to the same end",
                    first.id
                ),
            },
            (Decision::Ask, Decision::Deny) => {
                format!(
                    "denied: rule {} wants a person, and the policy has none",
                    first.id
                )
            }
            (Decision::Ask, _) => match said {
                Some(said) => format!("rule {} wants a person: {said}", first.id),
                None => format!("rule {} wants a person", first.id),
            },
        };
    }
    let unallowed = outcome.parts.iter().find(|p| p.unallowed);
    let what = unallowed.map_or_else(
        || "this".to_owned(),
        |part| {
            let words: Vec<_> = part
                .words
                .iter()
                .take(SHOWN_WORDS)
                .map(Foreign::raw)
                .collect();
            show(&words.join(" "), SHOWN_COLUMNS)
        },
    );
    let why = match &outcome.not_plain {
        Some(why) => format!(
            "; the command line is not plain: {why}; write simple commands with literal words"
        ),
        None => String::new(),
    };
    match decision {
        Decision::Allow => format!("no rule of policy {} is against it", policy.name),
        _ => format!("no rule of policy {} allows `{what}`{why}", policy.name),
    }
}

fn facts(policy: &Policy, outcome: Outcome) -> Facts {
    let part = |part: PartOutcome| Part {
        decision: part.decision(policy.default),
        rules: part.hits.iter().map(|h| h.id.to_string()).collect(),
        words: part.words,
    };
    Facts {
        parts: outcome
            .parts
            .into_iter()
            .take(SHOWN_PARTS)
            .map(part)
            .collect(),
        not_plain: outcome.not_plain,
    }
}

/// A deny without rules: the request could not be judged.
pub(super) fn error(name: &str, reason: &str) -> Judgement {
    Judgement {
        decision: Decision::Deny,
        rules: vec![name.to_owned()],
        reason: reason.to_owned(),
        by: DecidedBy::Error,
        facts: Facts::default(),
    }
}

impl Policy {
    pub(super) fn path_sets(&self) -> Sets<'_> {
        Sets {
            all: &self.sets,
            secrets: self.secrets,
        }
    }
}
