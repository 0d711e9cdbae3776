//! Combines the parts of a request into one decision.
//!
//! Owns severity (deny, ask, allow, default), and the reason that the model reads. Must not know
//! how a shell text is read.

use std::sync::Arc;

use super::evaluation_context::{ActiveRules, EvaluationContext};
use super::path::{FsContext, Walker};
use super::request::{Facts, Part, PolicyDecision, Request, ToolClass};
use super::rule::{Rule, Sets};
use super::tools::FileAccess;
use super::{Policy, mask, mcp, shell, tools};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{AgentClaims, DecidedBy, Decision, UntrustedText};

/// A rule or setting that applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub decision: Decision,
    pub id: Arc<str>,
    pub reason: Option<Arc<str>>,
    /// Whether its policy is a dry run: it asks where it would deny.
    pub is_dry_run: bool,
}

impl Hit {
    pub(super) fn from_rule(rule: &Rule) -> Self {
        Self {
            is_dry_run: rule.is_dry_run,
            decision: rule.decision,
            id: Arc::clone(&rule.id),
            reason: rule.reason.clone(),
        }
    }

    pub(super) fn from_setting(decision: Decision, id: &str, reason: &str) -> Self {
        Self {
            is_dry_run: false,
            decision,
            id: id.into(),
            reason: Some(reason.into()),
        }
    }
}

/// The findings about a request.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub parts: Vec<PartOutcome>,
    /// Rules and settings that apply to the whole request.
    pub hits: Vec<Hit>,
    pub not_plain: Option<String>,
    /// Whether a rule allows every command, because the sandbox confines what it runs.
    pub is_confined: bool,
}

/// The findings about one part.
#[derive(Debug, Default)]
pub(super) struct PartOutcome {
    pub env: Vec<UntrustedText>,
    pub words: Vec<UntrustedText>,
    pub redirects: Vec<UntrustedText>,
    /// A preceding variable because of which no rule can allow the command.
    pub denied_variable: Option<String>,
    pub hits: Vec<Hit>,
    /// Whether no rule allows it, so that the default counts.
    pub unallowed: bool,
}

impl Hit {
    /// The decision that counts where its policy is a dry run.
    fn dry_run_decision(&self) -> Decision {
        if self.is_dry_run {
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
        self.strictest(default, |hit| hit.decision)
    }

    fn strictest(&self, default: Decision, of: impl Fn(&Hit) -> Decision) -> Decision {
        let hits = self.hits.iter().map(of).max();
        let floor = if self.unallowed {
            default
        } else {
            Decision::Allow
        };
        hits.map_or(floor, |worst| worst.max(floor))
    }
}

/// How many parts of a request are repeated in facts and reasons.
const SHOWN_PARTS: usize = 64;
const SHOWN_WORDS: usize = 64;
const SHOWN_COLUMNS: usize = 80;
const SHOWN_RULES: usize = 16;

pub(super) fn evaluate(
    policy: &Policy,
    request: &Request,
    claimed: &AgentClaims,
    at: &FsContext<'_>,
    occasion: &EvaluationContext<'_>,
) -> PolicyDecision {
    evaluate_with(
        policy,
        request,
        claimed,
        at,
        ActiveRules::in_context(occasion),
        Vec::new(),
    )
}

/// The same with further hits on the whole request.
pub(super) fn evaluate_with(
    policy: &Policy,
    request: &Request,
    claimed: &AgentClaims,
    at: &FsContext<'_>,
    now: ActiveRules<'_>,
    more: Vec<Hit>,
) -> PolicyDecision {
    if let Some(refused) = missing_sandbox(policy, &now) {
        return refused;
    }
    let walker = Walker::with_active_rules(*at, now);
    let mut outcome = match evaluate_request(policy, request, &walker) {
        Ok(outcome) => outcome,
        Err(refused) => return *refused,
    };
    let spent = exhausted_rules(policy, &outcome, &walker.active_rules);
    if !spent.is_empty() {
        // Evaluated again without these rules: they may not allow anything more in this turn.
        let walker = Walker::with_active_rules(*at, walker.active_rules.without_rules(spent));
        outcome = match evaluate_request(policy, request, &walker) {
            Ok(outcome) => outcome,
            Err(refused) => return *refused,
        };
    }
    apply_claims(claimed, &mut outcome);
    outcome.hits.extend(mask::secret_hit(request));
    outcome.hits.extend(more);
    conclude(policy, outcome)
}

/// The denial of a policy whose sandbox is not what it requires.
fn missing_sandbox(policy: &Policy, now: &ActiveRules<'_>) -> Option<PolicyDecision> {
    let sandbox = now.sandbox()?;
    let missing = policy
        .required_sandbox
        .iter()
        .find(|fact| !sandbox.has(**fact))?;
    let reason = format!(
        "the policy {} is only for a sandbox with `{missing}`, and {}",
        policy.name,
        missing.describe_missing()
    );
    Some(error_decision("requires_sandbox", &reason))
}

/// The findings of rules that name one of our own tools; no such tool is unknown.
pub(super) fn evaluate_tool_rules(
    policy: &Policy,
    request: &Request,
    at: &FsContext<'_>,
    occasion: &EvaluationContext<'_>,
) -> PolicyDecision {
    let now = ActiveRules::in_context(occasion);
    if let Some(refused) = missing_sandbox(policy, &now) {
        return refused;
    }
    let walker = Walker::with_active_rules(*at, now);
    match evaluate_request(policy, request, &walker) {
        Ok(mut outcome) => {
            for part in &mut outcome.parts {
                part.hits.retain(|hit| &*hit.id != tools::UNKNOWN_TOOL_RULE);
            }
            conclude(policy, outcome)
        }
        Err(refused) => *refused,
    }
}

/// The number of uses in this request of rules with a limit per turn.
fn count_rule_uses(policy: &Policy, outcome: &Outcome) -> Vec<(Arc<str>, u32)> {
    let count = |id: &Arc<str>| {
        let parts = outcome
            .parts
            .iter()
            .filter(|part| part.hits.iter().any(|hit| hit.id == *id));
        u32::try_from(parts.count()).unwrap_or(u32::MAX)
    };
    let counted = policy
        .per_turn_limits
        .iter()
        .map(|(id, _)| (Arc::clone(id), count(id)));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// The rules among them whose limit this request would exceed.
fn exhausted_rules(policy: &Policy, outcome: &Outcome, now: &ActiveRules<'_>) -> Vec<Arc<str>> {
    let uses = count_rule_uses(policy, outcome).into_iter();
    let spent = uses.filter(|(id, count)| {
        let most = policy.per_turn_limits.iter().find(|(known, _)| known == id);
        most.is_some_and(|(_, most)| !now.has_uses_left(id, *most, *count))
    });
    spent.map(|(id, _)| id).collect()
}

/// Evaluates everything in a request; an error if it cannot be evaluated at all.
fn evaluate_request(
    policy: &Policy,
    request: &Request,
    walker: &Walker<'_>,
) -> Result<Outcome, Box<PolicyDecision>> {
    let at = &walker.fs;
    let error = |name: &str, reason: &str| Err(Box::new(error_decision(name, reason)));
    Ok(match request {
        Request::Malformed { why } => {
            let why = escape_for_display(why, SHOWN_COLUMNS * 2);
            return error(
                "malformed",
                &format!("the request cannot be evaluated: {why}"),
            );
        }
        _ if !at.workspace.starts_with('/') => {
            return error(
                "no_workspace",
                "the workspace is not known, so nothing can be evaluated",
            );
        }
        Request::Shell { command, .. } if command.trim().is_empty() => {
            return error(
                "malformed",
                "the request cannot be evaluated: the command is blank",
            );
        }
        Request::Shell { command, cwd } => {
            shell::evaluate_command_text(policy, command, cwd.as_deref(), walker)
        }
        _ if request.names_nothing() => {
            return error(
                "malformed",
                "the request cannot be evaluated: it names no path",
            );
        }
        Request::Read { targets } => outcome_of_parts(
            targets
                .iter()
                .map(|t| tools::evaluate_read(policy, t, walker)),
        ),
        Request::Write { paths } => evaluate_files(policy, ToolClass::Write, paths, walker),
        Request::Edit { paths } => evaluate_files(policy, ToolClass::Edit, paths, walker),
        Request::Delete { paths } => evaluate_files(policy, ToolClass::Delete, paths, walker),
        Request::Move { from, to } => {
            let away = from.iter().map(|path| (path, FileAccess::Remove));
            let ends = away.chain(to.iter().map(|path| (path, FileAccess::Replace)));
            let end = |(path, taking): (&String, _)| {
                tools::evaluate_file_access(policy, ToolClass::Move, path, taking, walker)
            };
            outcome_of_parts(ends.map(end))
        }
        Request::Fetch { url, method } => outcome_of_parts(
            [tools::evaluate_fetch(
                policy,
                url,
                method.as_deref(),
                walker,
            )]
            .into_iter(),
        ),
        Request::Mcp {
            server,
            name,
            arguments,
        } => {
            let call = mcp::ToolCall {
                server: server.raw(),
                name: name.raw(),
                arguments,
            };
            outcome_of_parts([tools::evaluate_mcp(policy, call, walker)].into_iter())
        }
        Request::Unknown { tool } => outcome_of_parts(
            [PartOutcome {
                words: vec![tool.clone()],
                hits: vec![tools::unknown_tool_hit(policy, tool)],
                ..PartOutcome::default()
            }]
            .into_iter(),
        ),
    })
}

fn outcome_of_parts(parts: impl Iterator<Item = PartOutcome>) -> Outcome {
    Outcome {
        parts: parts.collect(),
        ..Outcome::default()
    }
}

fn evaluate_files(
    policy: &Policy,
    tool: ToolClass,
    paths: &[String],
    walker: &Walker<'_>,
) -> Outcome {
    outcome_of_parts(
        paths
            .iter()
            .map(|path| tools::evaluate_file(policy, tool, path, walker)),
    )
}

/// The agent's claims about its own request may only raise the severity.
fn apply_claims(claimed: &AgentClaims, outcome: &mut Outcome) {
    if claimed.has_no_allow_option {
        outcome.hits.push(Hit::from_setting(
            Decision::Deny,
            "claimed.no_allow",
            "the agent offers no answer that allows this once",
        ));
    }
    let required = claimed
        .required_mode
        .as_ref()
        .map(|m| m.raw().trim().to_lowercase());
    // Full access to a sandbox that confines the command is what such a rule allows.
    if required.as_deref() == Some("danger-full-access") && !outcome.is_confined {
        outcome.hits.push(Hit::from_setting(
            Decision::Ask,
            "claimed.required_mode",
            "the agent itself says that the call needs danger-full-access",
        ));
    }
}

/// The most severe decision, and its reason.
fn conclude(policy: &Policy, outcome: Outcome) -> PolicyDecision {
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
    // An allow by the default beside allowing rules still counts as the default's.
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
    let mut reason = describe_reason(policy, worst, decision, &deciding, &outcome);
    let would = policy.dry_run_default.is_some().then_some(decision);
    let decision = match policy.dry_run_default {
        None => decision,
        Some(default) => {
            reason = format!("the policy is a dry run (enforce = false); {reason}");
            as_asked(decide_dry_run(default, &outcome))
        }
    };
    let uses = if decision == Decision::Allow {
        count_rule_uses(policy, &outcome)
    } else {
        Vec::new()
    };
    let rules = deciding.iter().map(|h| h.id.to_string()).collect();
    let by = super::decided_by(!deciding.is_empty());
    PolicyDecision {
        decision,
        rules,
        reason,
        decided_by: by,
        facts: facts(policy, outcome),
        dry_run_decision: would,
        rule_uses: uses
            .into_iter()
            .map(|(id, n)| (id.to_string(), n))
            .collect(),
    }
}

/// The decision of a dry run: nothing is allowed, and what only that policy denies is asked.
/// `default` counts for what no rule allows.
fn decide_dry_run(default: Decision, outcome: &Outcome) -> Decision {
    let parts = outcome
        .parts
        .iter()
        .map(|part| part.strictest(default, Hit::dry_run_decision))
        .max();
    let whole = outcome.hits.iter().map(Hit::dry_run_decision).max();
    parts.max(whole).unwrap_or(default).max(Decision::Ask)
}

fn describe_reason(
    policy: &Policy,
    worst: Decision,
    decision: Decision,
    deciding: &[&Hit],
    outcome: &Outcome,
) -> String {
    if let Some(first) = deciding.first() {
        let advice = first.reason.as_deref();
        return match (worst, decision) {
            (Decision::Allow, _) => format!("allowed by rule {}", first.id),
            (Decision::Deny, _) => match advice {
                Some(advice) => format!("denied by rule {}: {advice}", first.id),
                None => format!(
                    "denied by rule {}; do not try other ways to reach the same end",
                    first.id
                ),
            },
            (Decision::Ask, Decision::Deny) => {
                format!(
                    "denied: rule {} requires approval, but the policy denies instead of asking",
                    first.id
                )
            }
            (Decision::Ask, _) => match advice {
                Some(advice) => format!("rule {} requires approval: {advice}", first.id),
                None => format!("rule {} requires approval", first.id),
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
                .map(UntrustedText::raw)
                .collect();
            escape_for_display(&words.join(" "), SHOWN_COLUMNS)
        },
    );
    let barred = unallowed.and_then(|part| part.denied_variable.as_deref());
    let why = match (&outcome.not_plain, barred) {
        (Some(why), _) => format!(
            "; the command line is not plain: {why}; write simple commands with literal words"
        ),
        (None, Some(name)) => format!(
            "; the variable {} may not be set before a command: run it without",
            escape_for_display(name, SHOWN_COLUMNS)
        ),
        (None, None) => String::new(),
    };
    match decision {
        Decision::Allow => format!("no rule of policy {} denies it", policy.name),
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

/// A deny without rules: the request could not be evaluated.
pub(super) fn error_decision(name: &str, reason: &str) -> PolicyDecision {
    PolicyDecision {
        decision: Decision::Deny,
        rules: vec![name.to_owned()],
        reason: reason.to_owned(),
        decided_by: DecidedBy::Error,
        facts: Facts::default(),
        dry_run_decision: None,
        rule_uses: Vec::new(),
    }
}

impl Policy {
    pub(super) fn path_sets(&self) -> Sets<'_> {
        Sets {
            all: &self.sets,
            secrets_set: self.secrets_set,
        }
    }
}
