//! What the policy says of one request or call, from every directory that it may be made in, and
//! without its secrets as well as with them.
//!
//! Pure but for the resolver's look at the trees. Must not record or answer anything.

use serde_json::value::RawValue;

use super::evaluation_limits;
use super::masking;
use super::prepare::PreparedSession;
use super::shell_directory::ShellDirectory;
use crate::clock;
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

/// What of a request is judged.
#[derive(Clone, Copy)]
pub(super) struct DecisionInput<'a> {
    pub(super) tool: &'a UntrustedText,
    input: &'a RawValue,
    claimed: &'a AgentClaims,
    /// It was not asked for: the agent showed it.
    is_shown: bool,
}

impl<'a> DecisionInput<'a> {
    pub(super) fn from_request(ask: &'a PermissionRequest) -> Self {
        Self {
            tool: &ask.tool,
            input: &ask.input,
            claimed: &ask.claims,
            is_shown: false,
        }
    }
}

/// What was found about a request.
pub(super) struct DecisionResult {
    pub(super) judgement: PolicyDecision,
    pub(super) moved: CwdChange,
    /// What it was as it came, where that is more severe than what is left without its secrets.
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

/// Judges a request without its secrets, and beside it, where it had any, as it came: nothing is
/// ever allowed because a mark stands where something else did.
pub(super) fn evaluate_request(
    pool: &PoolShared,
    by: (&Policy, &EvaluationContext<'_>),
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    asked: DecisionInput<'_>,
    came: Option<DecisionInput<'_>>,
) -> DecisionResult {
    let (judgement, moved) = evaluate_one(pool, by, prepared, directory, asked);
    let Some(came) = came else {
        return DecisionResult::new(judgement, moved);
    };
    let (mut as_it_came, also) = evaluate_one(pool, by, prepared, directory, came);
    // Where it leads is not kept either.
    let is_still = moved == CwdChange::Unchanged && also == CwdChange::Unchanged;
    let moved = if is_still {
        CwdChange::Unchanged
    } else {
        CwdChange::Unknown
    };
    if as_it_came.decision <= judgement.decision {
        return DecisionResult::new(judgement, moved);
    }
    masking::mask_decision(&pool.mask, &mut as_it_came);
    as_it_came.facts = judgement.facts;
    DecisionResult {
        unmasked_decision: Some(as_it_came.decision),
        judgement: as_it_came,
        moved,
    }
}

/// The same of a tool call, which is known as it came.
pub(super) fn evaluate_call(
    pool: &PoolShared,
    by: (&Policy, &EvaluationContext<'_>),
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    name: &UntrustedText,
    input: &RawValue,
) -> DecisionResult {
    let claimed = &AgentClaims::default();
    let came = DecisionInput {
        tool: name,
        input,
        claimed,
        is_shown: true,
    };
    let mut tool = name.clone();
    pool.mask.mask_foreign(&mut tool);
    let masked = pool.mask.mask_json(input);
    if tool == *name && masked.get() == input.get() {
        return evaluate_request(pool, by, prepared, directory, came, None);
    }
    let asked = DecisionInput {
        tool: &tool,
        input: &masked,
        claimed,
        is_shown: true,
    };
    evaluate_request(pool, by, prepared, directory, asked, Some(came))
}

fn evaluate_one(
    pool: &PoolShared,
    (policy, occasion): (&Policy, &EvaluationContext<'_>),
    prepared: Option<&PreparedSession>,
    directory: &ShellDirectory,
    asked: DecisionInput<'_>,
) -> (PolicyDecision, CwdChange) {
    let DecisionInput {
        tool,
        input,
        claimed,
        is_shown,
    } = asked;
    if input.get().len() > PERMISSION_INPUT_BYTES || dialect::is_input_omitted(input) {
        return (deny_too_large(), CwdChange::Unknown);
    }
    let began = clock::thread_cpu_time();
    let Some(prepared) = prepared else {
        let why = "there is no workspace to judge paths by";
        return (
            PolicyDecision::from_error("no_workspace", why),
            CwdChange::Unknown,
        );
    };
    if prepared.is_without_workspace() {
        let why = "the workspace was removed, so that nothing can be judged by it";
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
    let looking = RecordingResolver::new(prepared.place().resolver);
    let judged = places.iter().map(|place| {
        let resolver = &looking;
        let place = FsContext { resolver, ..*place };
        policy.decide_in_context(&request, claimed, &place, occasion)
    });
    let severe = judged.reduce(|a, b| {
        let is_as_severe = match a.decision {
            Decision::Deny => true,
            Decision::Ask => b.decision != Decision::Deny,
            Decision::Allow => b.decision == Decision::Allow,
        };
        if is_as_severe { a } else { b }
    });
    let Some(mut judgement) = severe else {
        let why = "there is no directory to judge paths by";
        return (
            PolicyDecision::from_error("no_directory", why),
            CwdChange::Unknown,
        );
    };
    judgement.facts.fs_observations = looking.into_observations();
    let mut judgement = evaluation_limits::enforce_time_limit(policy, began, judgement);
    if let Some(place) = places.first() {
        judgement.facts.resolved_paths =
            policy::resolve_paths(Some(&request), &judgement.facts.parts, place);
    }
    let moved = match pool.config.shell_cwd {
        ShellCwd::Workspace => CwdChange::Unchanged,
        ShellCwd::Turn | ShellCwd::Sticky => shell_moves(pool, tool, &request, &places),
    };
    (judgement, moved)
}

/// Where the shell may be afterwards, from each place where it may be now.
fn shell_moves(
    pool: &PoolShared,
    tool: &UntrustedText,
    request: &Request,
    places: &[FsContext<'_>],
) -> CwdChange {
    let is_shell = tool_class(pool, Some(tool)) == ToolClass::Shell;
    if is_shell && !matches!(request, Request::Shell { .. }) {
        return CwdChange::Unknown; // It runs something, and nobody can say what.
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

/// The kind of tool that a name stands for.
pub(crate) fn tool_class(pool: &PoolShared, tool: Option<&UntrustedText>) -> ToolClass {
    tool.map_or(ToolClass::Unknown, |tool| pool.extractor.class(tool.raw()))
}

pub(super) fn deny_too_large() -> PolicyDecision {
    PolicyDecision::from_error("too_large", "the input is larger than can be judged")
}
