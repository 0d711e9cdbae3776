//! Evaluates one request or call by the policy: from every possible working directory, and with as
//! well as without its secrets.
//!
//! Pure but for the resolver's look at the filesystem. Must not record or answer anything.

use serde_json::value::RawValue;

use super::shell_directory::ShellDirectory;
use super::{evaluation_limits, masking};
use crate::clock;
use crate::session::workspace::prepare::PreparedSession;
use crate::setup::PoolShared;
use marshal_config::ShellCwd;
use marshal_dialect as dialect;
use marshal_model::limits::PERMISSION_INPUT_BYTES;
use marshal_model::{AgentClaims, Decision, PermissionRequest, UntrustedText};
use marshal_policy::{
    self as policy, CwdChange, EvaluationContext, FsContext, Policy, PolicyDecision,
    RecordingResolver, Request,
};
use marshal_telemetry::labels::ToolClass;

/// The part of a request that is evaluated.
#[derive(Clone, Copy)]
pub(super) struct DecisionInput<'a> {
    pub(super) tool: &'a UntrustedText,
    input: &'a RawValue,
    claimed: &'a AgentClaims,
    /// The agent did not request it, but only showed it.
    is_shown: bool,
}

impl<'a> DecisionInput<'a> {
    pub(super) fn from_request(permission_request: &'a PermissionRequest) -> Self {
        Self {
            tool: &permission_request.tool,
            input: &permission_request.input,
            claimed: &permission_request.claims,
            is_shown: false,
        }
    }
}

/// The result of an evaluation.
pub(super) struct DecisionResult {
    pub(super) judgement: PolicyDecision,
    pub(super) moved: CwdChange,
    /// The decision with the secrets, where that is more severe than without them.
    pub(super) unmasked_decision: Option<Decision>,
}

impl DecisionResult {
    pub(super) fn new(judgement: PolicyDecision, moved: CwdChange) -> Self {
        Self {
            judgement,
            moved,
            unmasked_decision: None,
        }
    }
}

/// Evaluates a request without its secrets and, if it had any, also as it arrived: nothing is ever
/// allowed because a mask stands where a secret was.
pub(super) fn evaluate_request(
    pool: &PoolShared,
    by: (&Policy, &EvaluationContext<'_>),
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    input: DecisionInput<'_>,
    unmasked: Option<DecisionInput<'_>>,
) -> DecisionResult {
    let (judgement, moved) = evaluate_one(pool, by, prepared, directory, input);
    let Some(unmasked) = unmasked else {
        return DecisionResult::new(judgement, moved);
    };
    let (mut as_it_came, also) = evaluate_one(pool, by, prepared, directory, unmasked);
    // The target directory may contain a secret, so it is not recorded either.
    let is_still = moved == CwdChange::Unchanged && also == CwdChange::Unchanged;
    let moved = if is_still {
        CwdChange::Unchanged
    } else {
        CwdChange::Unknown
    };
    if as_it_came.decision <= judgement.decision {
        return DecisionResult::new(judgement, moved);
    }
    masking::mask_decision(&pool.mask.load(), &mut as_it_came);
    as_it_came.facts = judgement.facts;
    DecisionResult {
        unmasked_decision: Some(as_it_came.decision),
        judgement: as_it_came,
        moved,
    }
}

/// Evaluates a tool call, which is known only as it arrived.
pub(super) fn evaluate_call(
    pool: &PoolShared,
    by: (&Policy, &EvaluationContext<'_>),
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    name: &UntrustedText,
    input: &RawValue,
) -> DecisionResult {
    let claimed = &AgentClaims::default();
    let unmasked = DecisionInput {
        tool: name,
        input,
        claimed,
        is_shown: true,
    };
    let mut tool = name.clone();
    pool.mask.load().mask_foreign(&mut tool);
    let masked = pool.mask.load().mask_json(input);
    if tool == *name && masked.get() == input.get() {
        return evaluate_request(pool, by, prepared, directory, unmasked, None);
    }
    let decision_input = DecisionInput {
        tool: &tool,
        input: &masked,
        claimed,
        is_shown: true,
    };
    evaluate_request(
        pool,
        by,
        prepared,
        directory,
        decision_input,
        Some(unmasked),
    )
}

fn evaluate_one(
    pool: &PoolShared,
    (policy, occasion): (&Policy, &EvaluationContext<'_>),
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    input: DecisionInput<'_>,
) -> (PolicyDecision, CwdChange) {
    let DecisionInput {
        tool,
        input,
        claimed,
        is_shown,
    } = input;
    if input.get().len() > PERMISSION_INPUT_BYTES || dialect::is_input_omitted(input) {
        return (deny_too_large(), CwdChange::Unknown);
    }
    let began = clock::thread_cpu_time();
    let Some(prepared) = prepared else {
        let why = "there is no workspace to resolve paths from";
        return (
            PolicyDecision::from_error("no_workspace", why),
            CwdChange::Unknown,
        );
    };
    if prepared.is_without_workspace() {
        let why = "the workspace was removed, so no path in it can be evaluated";
        return (
            PolicyDecision::from_error("no_workspace", why),
            CwdChange::Unknown,
        );
    }
    let request = if is_shown {
        pool.extractor.extract_displayed(tool.raw(), input)
    } else {
        pool.extractor.extract(tool.raw(), input)
    };
    let places = directory.possible_places(prepared);
    let recorder = RecordingResolver::new(prepared.place().resolver);
    let decisions = places.iter().map(|place| {
        let resolver = &recorder;
        let place = FsContext { resolver, ..*place };
        policy.decide_in_context(&request, claimed, &place, occasion)
    });
    let severe = decisions.reduce(|a, b| {
        let is_as_severe = match a.decision {
            Decision::Deny => true,
            Decision::Ask => b.decision != Decision::Deny,
            Decision::Allow => b.decision == Decision::Allow,
        };
        if is_as_severe { a } else { b }
    });
    let Some(mut judgement) = severe else {
        let why = "there is no directory to resolve paths from";
        return (
            PolicyDecision::from_error("no_directory", why),
            CwdChange::Unknown,
        );
    };
    judgement.facts.fs_observations = recorder.into_observations();
    let mut judgement = evaluation_limits::enforce_time_limit(policy, began, judgement);
    if let Some(place) = places.first() {
        judgement.facts.resolved_paths =
            policy::resolve_paths(Some(&request), &judgement.facts.parts, place);
    }
    let moved = match pool.config.options.shell_cwd {
        ShellCwd::Workspace => CwdChange::Unchanged,
        ShellCwd::Turn | ShellCwd::Sticky => shell_moves(pool, tool, &request, &places),
    };
    (judgement, moved)
}

/// Where the shell may be afterwards, from each possible directory.
fn shell_moves(
    pool: &PoolShared,
    tool: &UntrustedText,
    request: &Request,
    places: &[FsContext<'_>],
) -> CwdChange {
    let is_shell = tool_class(pool, Some(tool)) == ToolClass::Shell;
    if is_shell && !matches!(request, Request::Shell { .. }) {
        return CwdChange::Unknown; // It runs an unknown command.
    }
    let mut all = Vec::new();
    for place in places {
        match policy::resolve_cwd_change(request, place) {
            CwdChange::Unchanged => {}
            CwdChange::OneOf(ends) => all.extend(ends),
            CwdChange::Unknown => return CwdChange::Unknown,
        }
    }
    if all.is_empty() {
        CwdChange::Unchanged
    } else {
        CwdChange::OneOf(all)
    }
}

/// The class of the tool with this name.
pub(crate) fn tool_class(pool: &PoolShared, tool: Option<&UntrustedText>) -> ToolClass {
    tool.map_or(ToolClass::Unknown, |tool| pool.extractor.class(tool.raw()))
}

pub(super) fn deny_too_large() -> PolicyDecision {
    PolicyDecision::from_error("too_large", "the input is too large to evaluate")
}
