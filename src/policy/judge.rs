//! From the parts of a request to one judgement.
//!
//! Owns severity (deny, ask, allow, default), and the sentence that reaches the model. Must not
//! know how a shell text is read.

use std::sync::Arc;

use super::occasion::{Now, Occasion};
use super::path::{Place, Walker};
use super::request::{Facts, Judgement, Part, Request, ToolClass};
use super::rule::{Rule, Sets};
use super::tools::Taking;
use super::{Policy, mask, mcp, shell, tools};
use crate::model::foreign::show;
use crate::model::{Claimed, DecidedBy, Decision, Foreign};

/// Something that applied: a rule, or a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub decision: Decision,
    pub id: Arc<str>,
    pub reason: Option<Arc<str>>,
    /// Of a policy that is only tried: what it denies is asked.
    pub dry: bool,
}

impl Hit {
    pub(super) fn rule(rule: &Rule) -> Self {
        Self {
            dry: rule.dry,
            decision: rule.decision,
            id: Arc::clone(&rule.id),
            reason: rule.reason.clone(),
        }
    }

    pub(super) fn setting(decision: Decision, id: &str, reason: &str) -> Self {
        Self {
            dry: false,
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
    pub env: Vec<Foreign>,
    pub words: Vec<Foreign>,
    pub redirects: Vec<Foreign>,
    /// A variable before it because of which no rule can allow it.
    pub barred: Option<String>,
    pub hits: Vec<Hit>,
    /// No rule allows it, so the default counts.
    pub unallowed: bool,
}

impl Hit {
    /// What it comes to where its policy is only tried.
    fn softened(&self) -> Decision {
        if self.dry {
            self.decision.min(Decision::Ask)
        } else {
            self.decision
        }
    }
}

impl PartOutcome {
    pub(super) fn add(&mut self, hit: Hit) {
        if !self.hits.iter().any(|h| h.id == hit.id) {
            self.hits.push(hit);
        }
    }

    fn decision(&self, default: Decision) -> Decision {
        self.worst(default, |hit| hit.decision)
    }

    fn worst(&self, default: Decision, of: impl Fn(&Hit) -> Decision) -> Decision {
        let hits = self.hits.iter().map(of).max();
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
    occasion: &Occasion<'_>,
) -> Judgement {
    judge_with(policy, request, claimed, at, Now::on(occasion), Vec::new())
}

/// The same with more that applies to the whole request.
pub(super) fn judge_with(
    policy: &Policy,
    request: &Request,
    claimed: &Claimed,
    at: &Place<'_>,
    now: Now<'_>,
    more: Vec<Hit>,
) -> Judgement {
    let walker = Walker::on(*at, now);
    let mut outcome = match look(policy, request, &walker) {
        Ok(outcome) => outcome,
        Err(refused) => return *refused,
    };
    let spent = spent(policy, &outcome, &walker.now);
    if !spent.is_empty() {
        // Without them: what they would allow once too often, they do not allow.
        let walker = Walker::on(*at, walker.now.without(spent));
        outcome = match look(policy, request, &walker) {
            Ok(outcome) => outcome,
            Err(refused) => return *refused,
        };
    }
    claims(claimed, &mut outcome);
    outcome.hits.extend(mask::held(request));
    outcome.hits.extend(more);
    conclude(policy, outcome)
}

/// What rules that name a call of one of our own tools say of it: none of these is unknown.
pub(super) fn named(
    policy: &Policy,
    request: &Request,
    at: &Place<'_>,
    occasion: &Occasion<'_>,
) -> Judgement {
    let walker = Walker::on(*at, Now::on(occasion));
    match look(policy, request, &walker) {
        Ok(mut outcome) => {
            for part in &mut outcome.parts {
                part.hits.retain(|hit| &*hit.id != tools::UNKNOWN);
            }
            conclude(policy, outcome)
        }
        Err(refused) => *refused,
    }
}

/// How often the rules that allow only so often in a turn allow something here.
fn uses(policy: &Policy, outcome: &Outcome) -> Vec<(Arc<str>, u32)> {
    let count = |id: &Arc<str>| {
        let parts = outcome.parts.iter();
        let parts = parts.filter(|part| part.hits.iter().any(|hit| hit.id == *id));
        u32::try_from(parts.count()).unwrap_or(u32::MAX)
    };
    let counted = policy
        .limited
        .iter()
        .map(|(id, _)| (Arc::clone(id), count(id)));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// Those of them that would allow too often.
fn spent(policy: &Policy, outcome: &Outcome, now: &Now<'_>) -> Vec<Arc<str>> {
    let uses = uses(policy, outcome).into_iter();
    let spent = uses.filter(|(id, count)| {
        let most = policy.limited.iter().find(|(known, _)| known == id);
        most.is_some_and(|(_, most)| !now.has_left(id, *most, *count))
    });
    spent.map(|(id, _)| id).collect()
}

/// Looks at everything in a request; an error if it cannot be judged at all.
fn look(
    policy: &Policy,
    request: &Request,
    walker: &Walker<'_>,
) -> Result<Outcome, Box<Judgement>> {
    let at = &walker.place;
    let error = |name: &str, reason: &str| Err(Box::new(error(name, reason)));
    Ok(match request {
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
        Request::Shell { command, cwd } => shell::outcome(policy, command, cwd.as_deref(), walker),
        _ if request.names_nothing() => {
            return error(
                "malformed",
                "the request cannot be judged: it names no path",
            );
        }
        Request::Read { targets } => parts(targets.iter().map(|t| tools::read(policy, t, walker))),
        Request::Write { paths } => files(policy, ToolClass::Write, paths, walker),
        Request::Edit { paths } => files(policy, ToolClass::Edit, paths, walker),
        Request::Delete { paths } => files(policy, ToolClass::Delete, paths, walker),
        Request::Move { from, to } => {
            let away = from.iter().map(|path| (path, Taking::Away));
            let ends = away.chain(to.iter().map(|path| (path, Taking::Put)));
            let end = |(path, taking): (&String, _)| {
                tools::taken(policy, ToolClass::Move, path, taking, walker)
            };
            parts(ends.map(end))
        }
        Request::Fetch { url, method } => {
            parts([tools::fetch(policy, url, method.as_deref(), walker)].into_iter())
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
            parts([tools::mcp(policy, call, walker)].into_iter())
        }
        Request::Unknown { tool } => parts(
            [PartOutcome {
                words: vec![tool.clone()],
                hits: vec![tools::unknown(policy, tool)],
                ..PartOutcome::default()
            }]
            .into_iter(),
        ),
    })
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
    let as_asked = |decision| match decision {
        Decision::Ask => policy.ask_as,
        other => other,
    };
    let decision = as_asked(worst);
    let mut reason = reason(policy, worst, decision, &deciding, &outcome);
    let would = policy.dry.is_some().then_some(decision);
    let decision = match policy.dry {
        None => decision,
        Some(default) => {
            reason = format!("the policy is only tried (enforce = false); {reason}");
            as_asked(tried(default, &outcome))
        }
    };
    let uses = if decision == Decision::Allow {
        uses(policy, &outcome)
    } else {
        Vec::new()
    };
    let rules = deciding.iter().map(|h| h.id.to_string()).collect();
    let by = DecidedBy::of(!deciding.is_empty());
    Judgement {
        decision,
        rules,
        reason,
        by,
        facts: facts(policy, outcome),
        would,
        uses: uses
            .into_iter()
            .map(|(id, n)| (id.to_string(), n))
            .collect(),
    }
}

/// What is done instead where a policy is only tried: nothing is allowed, and what only that policy
/// denies is asked. `default` is what no rule allows.
fn tried(default: Decision, outcome: &Outcome) -> Decision {
    let parts = outcome.parts.iter();
    let parts = parts.map(|part| part.worst(default, Hit::softened)).max();
    let whole = outcome.hits.iter().map(Hit::softened).max();
    parts.max(whole).unwrap_or(default).max(Decision::Ask)
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
                .env
                .iter()
                .chain(&part.words)
                .chain(&part.redirects)
                .take(SHOWN_WORDS)
                .map(Foreign::raw)
                .collect();
            show(&words.join(" "), SHOWN_COLUMNS)
        },
    );
    let barred = unallowed.and_then(|part| part.barred.as_deref());
    let why = match (&outcome.not_plain, barred) {
        (Some(why), _) => format!(
            "; the command line is not plain: {why}; write simple commands with literal words"
        ),
        (None, Some(name)) => format!(
            "; the variable {} may not be set before a command: run it without",
            show(name, SHOWN_COLUMNS)
        ),
        (None, None) => String::new(),
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
        env: part.env,
        words: part.words,
        redirects: part.redirects,
    };
    Facts {
        parts: outcome
            .parts
            .into_iter()
            .take(SHOWN_PARTS)
            .map(part)
            .collect(),
        not_plain: outcome.not_plain,
        ..Facts::default()
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
        would: None,
        uses: Vec::new(),
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
