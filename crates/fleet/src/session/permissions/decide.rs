//! The answer to every permission request, and the tool calls that ran without one.
//!
//! Deciding is pure but for the resolver's look at links; every failure here is a deny with a
//! reason. Must not send anything: an answer waits until its verdict is durable.
//!
//! What is denied, by the rule name on record:
//!
//! - `engine_error`: a rule panics. The session continues.
//! - `limits.eval_ms`: the decision needs too much work or time (`evaluation_limits.rs`).
//! - `malformed`: the input is empty, has a duplicate key, a NUL or a wrong type. ACP has no input
//!   of a fixed form, so there such a request is an unknown tool.
//! - `unknown_tool`: no table knows the tool. The policy decides what follows.
//! - `too_large`: the input or the name of the tool is too long.
//! - `no_workspace`: the workspace is gone.
//! - `journal`: the journal is read-only. Requests are allowed again when there is space.
//! - `max_pending`: too many requests of the session or the pool are pending.
//! - `twice`: a request id is used again. The dialect denies it (`dialect/open_requests.rs`), and
//!   also the first request while that is open.
//! - decided by `timeout`: there is no approver, or none answers in time.
//! - decided by `gone`: the agent or the supervisor ends, or the turn is cancelled. After a kill
//!   the next start writes this; the approval stays pending where the session can be resumed.
//! - decided by `delegate`: the delegate denies, gives an invalid answer, is late or fails.
//!
//! An answer that is late or repeated is refused and changes nothing. A rule that cannot be
//! evaluated does not exist: what a rule needs is compiled when the policy is loaded. Nothing
//! starts without a valid policy. Tests: `fails_closed`, `approvals`, `approvals_restart`,
//! `approvals_http`, `delegate` and `full_disk` in `tests/drills/fleet/`.
//!
//! A request that was withdrawn, or whose child is gone, gets no answer. A tool call that ends
//! without a request is evaluated by the same rules afterwards and counted; the session acts on
//! `on_unasked_deny`.

use std::time::Duration;

use serde_json::value::RawValue;

use super::evaluation::{
    DecisionInput, DecisionResult, deny_too_large, evaluate_call, evaluate_request, tool_class,
};
use super::policy_snapshot::{self, PolicySnapshot};
use super::shell_directory::ShellDirectory;
use super::tool_calls::{OpenRequests, ToolCall};
use super::{audit_record, engine_tools, evaluation_limits, masking};
use crate::clock;
use crate::session::lifecycle::work::Work;
use crate::session::turn::budget::apply_spent_budget;
use crate::session::workspace::prepare::PreparedSession;
use crate::setup::PoolShared;
use marshal_config::ShellCwd;
use marshal_journal::PolicyEvaluation;
use marshal_model::limits::{
    APPROVALS_PER_SESSION, FACT_PATHS, FOREIGN_ID_BYTES, PERMISSION_CLAIM_BYTES,
    PERMISSION_INPUT_BYTES, PERMISSION_TOOL_BYTES,
};
use marshal_model::{
    BudgetAction, ClientRequest, DecidedBy, Decision, EngineTool, Event, OnTimeout,
    PermissionRequest, PermissionRequestBounds, PermissionRequestId, PermissionResponse,
    SpentBudget, UntrustedText, Verdict,
};
use marshal_policy::{
    self as policy, CwdChange, EvaluationContext, Facts, FsContext, Part, Policy, PolicyDecision,
    RecordingResolver,
};
use marshal_telemetry::event::permission::{PermissionRequested, PolicyEvaluated};
use marshal_telemetry::event::policy::PolicyDryRun;
use marshal_telemetry::event::turn::UnrequestedToolCall;
use marshal_telemetry::labels::ToolClass;

/// How much is stored of the fields beside a request's input.
pub(crate) const REQUEST_BOUNDS: PermissionRequestBounds = PermissionRequestBounds {
    tool: PERMISSION_TOOL_BYTES,
    claim: PERMISSION_CLAIM_BYTES,
    id: FOREIGN_ID_BYTES,
};

/// A decided permission request; with [`Decision::Ask`], one that waits for an approver.
#[derive(Debug)]
pub(crate) struct DecidedRequest {
    /// The policy's decision, before a missing approver made it a deny.
    pub(crate) policy: Decision,
    pub(crate) verdict: Verdict,
    pub(crate) class: ToolClass,
    /// Whether the denial also ends the turn.
    pub(crate) deny_turn: bool,
    /// How it changes the shell's directory.
    pub(crate) moved: CwdChange,
    pub(super) judged: PolicyEvaluation,
    /// The policy's limit for the wait for an approver, if it has one.
    pub(crate) ask_timeout: Option<Duration>,
    /// The spent budget because of which it was not allowed.
    pub(crate) spent: Option<SpentBudget>,
    /// The facts for whoever decides; `None` where nobody else does.
    pub(crate) facts: Option<Facts>,
    /// The shell directories that it was evaluated from.
    pub(crate) from: ShellDirectory,
    /// The original request, if it holds secrets: never recorded, never shown.
    pub(crate) unmasked: Option<Box<PermissionRequest>>,
    /// Its uses of rules that allow only a number of times.
    pub(super) uses: Vec<(String, u32)>,
}

/// The context in which a permission request is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionContext<'a> {
    /// The mode that the session is set to.
    pub(crate) mode: Option<&'a str>,
    /// The journal is read-only.
    pub(crate) is_read_only: bool,
    /// There is an approver.
    pub(crate) has_approver: bool,
    /// Requests that wait for an approver or the delegate; they are not waiting for the journal.
    pub(crate) waiting: usize,
    /// The tool's name is too long.
    pub(crate) is_too_long: bool,
    /// The spent budget, if there is one.
    pub(crate) spent: Option<SpentBudget>,
    /// Requests of the turn that were allowed, and those that were denied.
    pub(crate) counted: (u64, u64),
}

impl DecidedRequest {
    /// The facts that the rules saw, as JSON for the record.
    pub(super) fn facts_json(&self) -> &str {
        &self.judged.facts
    }

    /// Adds a fact to the record.
    pub(super) fn add_fact(&mut self, name: &str, value: &serde_json::Value) {
        self.judged.facts = audit_record::with_fact(&self.judged.facts, name, value);
    }

    /// The answer to the agent.
    pub(crate) fn answer(&self) -> PermissionResponse {
        match self.verdict.decision {
            Decision::Allow => PermissionResponse::Allow,
            Decision::Ask | Decision::Deny => PermissionResponse::Deny(self.verdict.reason.clone()),
        }
    }
}

/// Why no policy decides a request: the name of the rule that denies it, and the reason.
fn rejection(
    permission_request: &PermissionRequest,
    requests: &OpenRequests,
    at: DecisionContext<'_>,
) -> Option<(&'static str, &'static str)> {
    let id = &permission_request.key.id;
    if requests.open.values().any(|open| open.id == *id) {
        Some(("twice", "the same request id was used twice"))
    } else if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        Some(("journal", why))
    } else if requests.open.len().saturating_sub(at.waiting) >= APPROVALS_PER_SESSION {
        let why = "too many requests are open at the same time";
        Some(("max_pending", why))
    } else if at.is_too_long {
        Some(("too_large", "the tool's name is too long"))
    } else {
        None
    }
}

/// Decides a permission request by policy. Without an approver, "ask" becomes a deny.
pub(crate) fn decide_request(
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    work: &Work,
    (permission_request, original): (&PermissionRequest, Option<Box<PermissionRequest>>),
    requests: &mut OpenRequests,
    at: DecisionContext<'_>,
) -> DecidedRequest {
    let began = clock::now();
    let snapshot = PolicySnapshot::take(pool, work, at.mode.map(str::to_owned));
    let announced =
        engine_tools::announced_call(pool, original.as_deref().unwrap_or(permission_request));
    // An announced engine tool call counts as requested when it arrives, not before.
    if announced.is_none() {
        requests.record_request(original.as_deref().unwrap_or(permission_request));
    }
    let announces = announced.as_ref().map(|engine_request| engine_request.tool);
    let keeps = pool.config.options.shell_cwd;
    // A shell call without a request may have moved the shell already; what it did is seen only at
    // its end.
    let unseen = keeps != ShellCwd::Workspace
        && requests.calls.iter().any(|call| {
            !call.has_request() && tool_class(pool, Some(&call.name)) == ToolClass::Shell
        });
    let nowhere = ShellDirectory::unknown();
    let directory = if unseen {
        &nowhere
    } else {
        &requests.directory
    };
    let from = directory.clone();
    let by = |policy: &Policy| {
        let occasion = snapshot.occasion(pool, &requests.rule_uses);
        let (input, original) = (
            DecisionInput::from_request(permission_request),
            original.as_deref().map(DecisionInput::from_request),
        );
        evaluate_request(
            pool,
            (policy, &occasion),
            prepared,
            directory,
            input,
            original,
        )
    };
    let rejection = rejection(permission_request, requests, at);
    let DecisionResult {
        judgement,
        moved,
        unmasked_decision: floor,
    } = match (rejection, snapshot.loaded(), announces) {
        (Some((name, why)), ..) => {
            DecisionResult::new(PolicyDecision::from_error(name, why), CwdChange::Unchanged)
        }
        (None, Some(_), Some(tool)) => {
            DecisionResult::new(policy::allow_announced_tool(tool), CwdChange::Unchanged)
        }
        (None, Some(loaded), None) => by(&loaded.policy),
        (None, None, _) => DecisionResult::new(no_layer(), CwdChange::Unknown),
    };
    let took = clock::since(began);
    let is_judged = rejection.is_none() && announces.is_none();
    if let Some(shadow) = snapshot.version.shadow.as_ref().filter(|_| is_judged) {
        shadow.evaluate(&judgement, |policy| by(policy).judgement);
    }
    let class = match announces {
        Some(_) => ToolClass::Mcp,
        None => tool_class(pool, Some(&permission_request.tool)),
    };
    let uses = judgement.rule_uses.clone();
    let mut decided = build_decided_request(
        pool,
        &snapshot,
        work,
        permission_request,
        (judgement, took),
        class,
        at,
    );
    let occasion = snapshot.occasion(pool, &requests.rule_uses);
    let facts = &decided.judged.facts;
    decided.judged.facts =
        audit_record::with_place(facts, pool, prepared, directory, &occasion, floor);
    let decision = decided.verdict.decision;
    requests.directory.record_decision(keeps, &moved, decision);
    if decision == Decision::Allow {
        policy_snapshot::count_uses(&mut requests.rule_uses, &uses);
        decided.uses = uses;
        requests.record_announced(permission_request.tool_id.as_ref(), announced);
    }
    decided.moved = moved;
    decided.from = from;
    decided.unmasked = original;
    requests.open.insert(
        decided.verdict.request.clone(),
        permission_request.key.clone(),
    );
    decided
}

/// Decides a client request. Gives also the path that was evaluated, unless it is denied.
pub(crate) fn decide_client_request(
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    work: &Work,
    (permission_request, original, request): (
        &PermissionRequest,
        Option<Box<PermissionRequest>>,
        &ClientRequest,
    ),
    requests: &mut OpenRequests,
    at: DecisionContext<'_>,
) -> (DecidedRequest, Option<String>) {
    let began = clock::now();
    let snapshot = PolicySnapshot::take(pool, work, at.mode.map(str::to_owned));
    let mut tried = None;
    let by = |policy: &Policy, prepared: &PreparedSession| {
        let occasion = snapshot.occasion(pool, &requests.rule_uses);
        let is_masked = original.is_some();
        evaluate_client_request(
            pool,
            (policy, &occasion),
            prepared,
            request,
            permission_request,
            is_masked,
        )
    };
    let (judgement, place) = if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        (PolicyDecision::from_error("journal", why), None)
    } else if permission_request.input.get().len() > PERMISSION_INPUT_BYTES {
        (deny_too_large(), None)
    } else if let Some(prepared) = prepared {
        tried = Some(prepared);
        match snapshot.loaded() {
            Some(loaded) => by(&loaded.policy, prepared),
            None => (no_layer(), None),
        }
    } else {
        let why = "there is no workspace to resolve paths from";
        (PolicyDecision::from_error("no_workspace", why), None)
    };
    let took = clock::since(began);
    if let Some((shadow, prepared)) = snapshot.version.shadow.as_ref().zip(tried) {
        shadow.evaluate(&judgement, |policy| by(policy, prepared).0);
    }
    let class = match request {
        ClientRequest::Read(_) => ToolClass::Read,
        ClientRequest::Write(_) => ToolClass::Write,
        ClientRequest::Run(_) => ToolClass::Shell,
        ClientRequest::Tool(request) => match request.tool {
            EngineTool::WriteFile => ToolClass::Write,
            EngineTool::EditFile => ToolClass::Edit,
            EngineTool::ReadFile => ToolClass::Read,
            EngineTool::AskPerson | EngineTool::PlanStep => ToolClass::Mcp,
        },
    };
    let uses = judgement.rule_uses.clone();
    let mut decided = build_decided_request(
        pool,
        &snapshot,
        work,
        permission_request,
        (judgement, took),
        class,
        at,
    );
    let (facts, nowhere) = (&decided.judged.facts, ShellDirectory::default());
    let occasion = snapshot.occasion(pool, &requests.rule_uses);
    decided.judged.facts =
        audit_record::with_place(facts, pool, prepared, &nowhere, &occasion, None);
    if decided.verdict.decision == Decision::Allow {
        policy_snapshot::count_uses(&mut requests.rule_uses, &uses);
        decided.uses = uses;
    }
    decided.unmasked = original;
    requests.client_requests.insert(
        decided.verdict.request.clone(),
        permission_request.key.clone(),
    );
    (decided, place)
}

/// Evaluates a client request by the policy. It is evaluated as it arrived, because that is what
/// will be done. What is recorded is masked, and with a secret in it no rule allows it.
pub(super) fn evaluate_client_request(
    pool: &PoolShared,
    (policy, occasion): (&Policy, &EvaluationContext<'_>),
    prepared: &PreparedSession,
    request: &ClientRequest,
    permission_request: &PermissionRequest,
    is_masked: bool,
) -> (PolicyDecision, Option<String>) {
    let began = clock::thread_cpu_time();
    let recorder = RecordingResolver::new(prepared.place().resolver);
    let resolver = &recorder;
    let at = FsContext {
        resolver,
        ..prepared.place()
    };
    let (judgement, place) = policy.decide_client_in_context(request, &at, occasion);
    let mut judgement = evaluation_limits::enforce_time_limit(policy, began, judgement);
    judgement.facts.fs_observations = recorder.into_observations();
    if is_masked {
        judgement = policy.require_approval_for_secret(judgement);
        masking::mask_decision(&pool.mask.load(), &mut judgement);
    }
    show_text(request, &permission_request.input, &mut judgement);
    (judgement, place)
}

/// Shows an approver also the text to be written: no tool call shows it.
fn show_text(request: &ClientRequest, input: &RawValue, judgement: &mut PolicyDecision) {
    let writes = match request {
        ClientRequest::Write(_) => true,
        ClientRequest::Tool(request) => request.tool.writes(),
        ClientRequest::Read(_) | ClientRequest::Run(_) => false,
    };
    if writes {
        judgement.facts.parts.extend(text_part(input));
    }
}

/// The size and digest of a text to be written, for the record and for whoever decides.
fn text_part(input: &RawValue) -> Option<Part> {
    #[derive(serde::Deserialize)]
    struct Text {
        bytes: u64,
        sha256: String,
    }
    let text: Text = serde_json::from_str(input.get()).ok()?;
    let bytes = text.bytes.to_string();
    let words = ["text:", &bytes, "bytes,", "SHA-256", &text.sha256];
    Some(Part {
        env: Vec::new(),
        redirects: Vec::new(),
        words: words.into_iter().map(UntrustedText::from).collect(),
        decision: Decision::Allow,
        rules: Vec::new(),
    })
}

/// Builds the decided request from a decision; without an approver, "ask" becomes a deny.
fn build_decided_request(
    pool: &PoolShared,
    snapshot: &PolicySnapshot,
    work: &Work,
    permission_request: &PermissionRequest,
    (judgement, took): (PolicyDecision, Duration),
    class: ToolClass,
    at: DecisionContext<'_>,
) -> DecidedRequest {
    let loaded = snapshot.loaded().unwrap_or(&snapshot.version.base);
    PolicyEvaluated {
        took,
        error: evaluation_limits::evaluation_error(&judgement),
    }
    .emit();
    let mut judgement = judgement;
    let spent = at.spent.filter(|_| judgement.decision == Decision::Allow);
    if let Some(spent) = &spent {
        apply_spent_budget(&mut judgement, spent);
    }
    let policy = judgement.decision;
    let mut verdict = Verdict {
        request: new_request_id(pool),
        decision: judgement.decision,
        decided_by: judgement.decided_by,
        rules: judgement.rules,
        reason: judgement.reason,
    };
    let mut deny_turn = spent.is_some_and(|spent| spent.action >= BudgetAction::Interrupt);
    if verdict.decision == Decision::Ask && !at.has_approver {
        deny_without_approver(&mut verdict);
        deny_turn = denial_ends_turn(pool, &loaded.policy);
    }
    if let Some(would) = judgement.dry_run_decision {
        PolicyDryRun {
            slot: &work.slot,
            session: &work.session,
            request: &verdict.request,
            decision: would,
            rules: &verdict.rules,
        }
        .emit();
    }
    PermissionRequested {
        slot: &work.slot,
        session: &work.session,
        request: &verdict.request,
        tool: &permission_request.tool,
    }
    .emit();
    DecidedRequest {
        policy,
        facts: (verdict.decision == Decision::Ask || pool.delegate.is_some())
            .then(|| judgement.facts.clone()),
        verdict,
        class,
        deny_turn,
        spent,
        moved: CwdChange::Unchanged,
        from: ShellDirectory::default(),
        unmasked: None,
        uses: Vec::new(),
        judged: PolicyEvaluation {
            policy: loaded.policy.name().to_owned(),
            policy_sha256: loaded.sha256.clone(),
            facts: facts_json(&judgement.facts, at.counted),
            eval_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        },
        ask_timeout: loaded.policy.approval_timeout(),
    }
}

/// Turns "ask" into a deny, because there is no approver.
pub(super) fn deny_without_approver(verdict: &mut Verdict) {
    verdict.decision = Decision::Deny;
    verdict.decided_by = DecidedBy::Timeout;
    verdict.reason = format!(
        "{}; this needs approval, and there is no approver here: do it another way or go on without it",
        verdict.reason
    );
}

/// Whether a permission request that nobody answers also ends the turn.
pub(super) fn denial_ends_turn(pool: &PoolShared, policy: &Policy) -> bool {
    pool.config.approval.on_timeout == OnTimeout::DenyTurn
        || policy.on_timeout() == Some(OnTimeout::DenyTurn)
}

/// Evaluates a call that ran without a request.
pub(crate) fn evaluate_unrequested_call(
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    work: &Work,
    call: &ToolCall,
    requests: &mut OpenRequests,
    mode: Option<String>,
) -> Event {
    let snapshot = PolicySnapshot::take(pool, work, mode);
    let (judgement, moved) = match (&call.input, snapshot.loaded()) {
        (Some(input), Some(loaded)) => {
            let occasion = snapshot.occasion(pool, &requests.rule_uses);
            let by = (&*loaded.policy, &occasion);
            let result = evaluate_call(pool, by, prepared, &requests.directory, &call.name, input);
            (result.judgement, result.moved)
        }
        (Some(_), None) => (no_layer(), CwdChange::Unknown),
        (None, _) if tool_class(pool, Some(&call.name)) == ToolClass::Shell => {
            (deny_too_large(), CwdChange::Unknown)
        }
        (None, _) => (deny_too_large(), CwdChange::Unchanged),
    };
    // It ran, whatever the decision is.
    policy_snapshot::count_uses(&mut requests.rule_uses, &judgement.rule_uses);
    let keeps = pool.config.options.shell_cwd;
    requests
        .directory
        .record_decision(keeps, &moved, Decision::Allow);
    UnrequestedToolCall {
        slot: &work.slot,
        session: &work.session,
        tool_class: tool_class(pool, Some(&call.name)),
        verdict: judgement.decision,
        rules: &judgement.rules,
    }
    .emit();
    Event::UnrequestedToolCall {
        id: call.id.clone(),
        tool: call.name.clone(),
        decision: judgement.decision,
        rules: judgement.rules,
    }
}

fn no_layer() -> PolicyDecision {
    let why = "the policy layer of this session no longer exists: nothing can be allowed";
    PolicyDecision::from_error("no_policy", why)
}

fn new_request_id(pool: &PoolShared) -> PermissionRequestId {
    let id = pool.ambient.new_id().to_string();
    PermissionRequestId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
}

/// The facts and the counts of budgets, as JSON for the audit record.
fn facts_json(facts: &Facts, (allows, denies): (u64, u64)) -> String {
    let parts: Vec<_> = facts
        .parts
        .iter()
        .map(|part| {
            let texts = |of: &[UntrustedText]| -> serde_json::Value {
                of.iter().map(UntrustedText::raw).collect::<Vec<_>>().into()
            };
            let mut json = serde_json::json!({
                "words": texts(&part.words),
                "decision": part.decision.as_str(),
                "rules": part.rules,
            });
            for (key, of) in [("env", &part.env), ("redirects", &part.redirects)] {
                if !of.is_empty() {
                    json[key] = texts(of);
                }
            }
            json
        })
        .collect();
    let budget = serde_json::json!({"allows": allows, "denies": denies});
    let mut json =
        serde_json::json!({"parts": parts, "not_plain": facts.not_plain, "budget": budget});
    if !facts.resolved_paths.is_empty() {
        let paths = facts.resolved_paths.iter().take(FACT_PATHS).map(|led| {
            serde_json::json!({"word": led.word.raw(), "to": led.to.raw(), "inside": led.inside})
        });
        json["paths"] = paths.collect::<Vec<_>>().into();
    }
    if !facts.fs_observations.is_empty() {
        json["observations"] = serde_json::json!(facts.fs_observations);
    }
    json.to_string()
}
