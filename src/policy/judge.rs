//! From the parts of a request to one judgement.
//!
//! Owns severity (deny, ask, allow, default), and the sentence that reaches the model. Must not
//! know how a shell text is read.

use std::sync::Arc;

use super::path::{Place, Walker};
use super::request::{Facts, Judgement, Part, Request, ToolClass};
use super::rule::{Rule, Sets};
use super::{Policy, mcp, shell, tools};
use crate::model::foreign::show;
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
        _ if request.names_nothing() => {
            return error(
                "malformed",
                "the request cannot be judged: it names no path",
            );
        }
        Request::Read { targets } => parts(targets.iter().map(|t| tools::read(policy, t, &walker))),
        Request::Write { paths } => files(policy, ToolClass::Write, paths, &walker),
        Request::Edit { paths } => files(policy, ToolClass::Edit, paths, &walker),
        Request::Delete { paths } => files(policy, ToolClass::Delete, paths, &walker),
        Request::Move { from, to } => {
            let ends = from.iter().chain(to);
            parts(ends.map(|path| tools::file(policy, ToolClass::Move, path, &walker)))
        }
        Request::Fetch { url, method } => {
            parts([tools::fetch(policy, url, method.as_deref())].into_iter())
        }
        Request::Mcp {
            server,
            name,
            arguments,
        } => {
            let call = mcp::Call {
                server: server.raw(),
                name: name.raw(),
                arguments,
            };
            parts([tools::mcp(policy, call, &walker)].into_iter())
        }
        Request::Unknown { tool } => parts(
            [PartOutcome {
                words: vec![tool.clone()],
                hits: vec![tools::unknown(policy, tool)],
                unallowed: false,
            }]
            .into_iter(),
        ),
    };
    claims(claimed, &mut outcome);
    outcome.hits.extend(more);
    conclude(policy, outcome)
}

fn parts(parts: impl Iterator<Item = PartOutcome>) -> Outcome {
    Outcome {
        parts: parts.collect(),
        ..Outcome::default()
    }
}

fn files(policy: &Policy, tool: ToolClass, paths: &[String], walker: &Walker<'_>) -> Outcome {
    parts(
        paths
            .iter()
            .map(|path| tools::file(policy, tool, path, walker)),
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
