//! The answer to every permission request, and the tool calls that ran without one.
//!
//! Deciding is pure but for the resolver's look at links; every failure on this way is a deny
//! with a reason. Must not send anything: an answer waits until its verdict is durable.
//!
//! What is denied, with the word of the rule that is on record:
//!
//! - `engine_error`: a rule panics. The session goes on.
//! - `limits.eval_ms`: the decision needs too much work or time (`engine.rs`).
//! - `malformed`: the input is empty, has a key twice, a NUL or a wrong type. ACP has no input of a fixed
//!   form, so there such a request is an unknown tool.
//! - `unknown_tool`: no table knows the tool. Then the policy says what follows.
//! - `too_large`: the input or the name of the tool is too long.
//! - `no_workspace`: the workspace is gone.
//! - `journal`: the journal is read-only. Requests are allowed again when space returns.
//! - `max_pending`: too many requests of the session or the pool wait.
//! - `twice`: a used id comes again. The dialect denies it (`dialect/open_requests.rs`), and the first request, too,
//!   while that is open.
//! - decided by `timeout`: nobody can be asked, or nobody answers in time.
//! - decided by `gone`: the agent or the supervisor ends, or the turn is cancelled. After a kill the next
//!   start writes this; the approval waits on where the session can be resumed.
//! - decided by `delegate`: the delegate says no, says something else, is late or fails.
//!
//! An answer that is late or comes twice is refused and changes nothing. A rule that cannot be evaluated
//! does not exist: what a rule needs is compiled when the policy is loaded. Nothing starts without a valid
//! policy. Tests: `fails_closed`, `permission_requests`, `asks_kept`, `asks_doors`, `delegate` and `full_disk` in
//! `tests/drills/fleet/`.
//!
//! A request that was withdrawn, or whose child is gone, gets no answer. A tool call whose result comes
//! without a request is judged by the same rules afterwards and counted; `state.rs` acts on
//! `on_unasked_deny`.

use std::time::Duration;

use serde_json::value::RawValue;

use super::audit_record;
use super::budget::apply_spent_budget;
use super::engine_tools;
use super::evaluation::{
    DecisionInput, DecisionResult, deny_too_large, evaluate_call, evaluate_request, tool_class,
};
use super::evaluation_limits;
use super::masking;
use super::outbox::Outbox;
use super::policy_snapshot::{self, PolicySnapshot};
use super::prepare::PreparedSession;
use super::shell_directory::ShellDirectory;
use super::tool_calls::{OpenRequests, ToolCall};
use super::work::Work;
use crate::clock;
use crate::setup::PoolShared;
use marshal_config::ShellCwd;
use marshal_journal::{PolicyEvaluation, Write};
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

/// What is kept of what stands beside a request's input.
pub(super) const REQUEST_BOUNDS: PermissionRequestBounds = PermissionRequestBounds {
    tool: PERMISSION_TOOL_BYTES,
    claim: PERMISSION_CLAIM_BYTES,
    id: FOREIGN_ID_BYTES,
};

/// A decided ask; or, with [`Decision::Ask`], one that a person is to decide.
#[derive(Debug)]
pub(crate) struct DecidedRequest {
    /// What the policy said, before "nobody can be asked" made it a deny.
    pub(crate) policy: Decision,
    pub(crate) verdict: Verdict,
    pub(crate) class: ToolClass,
    /// The denial must also end the turn.
    pub(crate) deny_turn: bool,
    /// What it does to the shell's directory.
    pub(crate) moved: CwdChange,
    pub(super) judged: PolicyEvaluation,
    /// How long its policy lets it wait for a person, if that says so.
    pub(crate) ask_timeout: Option<Duration>,
    /// The budget because of which it was not just allowed.
    pub(crate) spent: Option<SpentBudget>,
    /// What the rules saw, where somebody else is to decide.
    pub(crate) facts: Option<Facts>,
    /// The directories that it was judged from, where a person is to decide.
    pub(crate) from: ShellDirectory,
    /// The request as it came, where it holds secrets: on no record, and never shown.
    pub(crate) unmasked: Option<Box<PermissionRequest>>,
    /// What it took of the rules that allow only so often.
    pub(super) uses: Vec<(String, u32)>,
}

/// In what state of things a permission request is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionContext<'a> {
    /// The mode that the session is set to.
    pub(crate) mode: Option<&'a str>,
    /// The journal takes nothing new.
    pub(crate) is_read_only: bool,
    /// There is a person to ask.
    pub(crate) has_approver: bool,
    /// Requests that wait for people: they are not on their way to the disk.
    pub(crate) waiting: usize,
    /// The tool's name is longer than any.
    pub(crate) is_too_long: bool,
    /// The budget that is spent, if one is.
    pub(crate) spent: Option<SpentBudget>,
    /// Requests of the turn that were allowed, and those that were denied.
    pub(crate) counted: (u64, u64),
}

impl DecidedRequest {
    /// The permission request's record: the request, how it was judged, the verdict; in this order.
    pub(crate) fn record(&self, ask: &PermissionRequest, outbox: &mut Outbox) {
        self.record_request(ask, outbox);
        outbox.push_event(Event::PermissionDecided(self.verdict.clone()));
    }

    /// The record of a permission request that waits for a person.
    pub(crate) fn record_request(&self, ask: &PermissionRequest, outbox: &mut Outbox) {
        outbox.push_event(Event::PermissionRequested {
            id: self.verdict.request.clone(),
            request: ask.clone(),
        });
        outbox.write(Write::RequestEvaluated {
            request: self.verdict.request.clone(),
            evaluation: self.judged.clone(),
        });
    }

    /// What the rules saw, as its record has it: JSON.
    pub(super) fn facts_json(&self) -> &str {
        &self.judged.facts
    }

    /// Adds to that.
    pub(super) fn add_fact(&mut self, name: &str, value: &serde_json::Value) {
        self.judged.facts = audit_record::with_fact(&self.judged.facts, name, value);
    }

    /// What goes back to the agent.
    pub(crate) fn answer(&self) -> PermissionResponse {
        match self.verdict.decision {
            Decision::Allow => PermissionResponse::Allow,
            Decision::Ask | Decision::Deny => PermissionResponse::Deny(self.verdict.reason.clone()),
        }
    }
}

/// Decides a permission request by policy; where the policy wants a person and there is none, that is a deny.
pub(crate) fn decide_request(
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    work: &Work,
    (ask, came): (&PermissionRequest, Option<Box<PermissionRequest>>),
    asks: &mut OpenRequests,
    at: DecisionContext<'_>,
) -> DecidedRequest {
    let began = clock::now();
    let ruling = PolicySnapshot::take(pool, work, at.mode.map(str::to_owned));
    let crowded = asks.open.len().saturating_sub(at.waiting) >= APPROVALS_PER_SESSION;
    let twice = asks.open.values().any(|open| open.id == ask.key.id);
    let announced = engine_tools::announced_call(pool, came.as_deref().unwrap_or(ask));
    // Such a call was asked for when it comes, and not before.
    if announced.is_none() {
        asks.record_request(came.as_deref().unwrap_or(ask));
    }
    let announces = announced.as_ref().map(|wish| wish.tool);
    let keeps = pool.config.shell_cwd;
    // What runs unasked may have moved the shell already, and what it did is only seen at its end.
    let unseen = keeps != ShellCwd::Workspace
        && asks.calls.iter().any(|call| {
            !call.has_request() && tool_class(pool, Some(&call.name)) == ToolClass::Shell
        });
    let nowhere = ShellDirectory::unknown();
    let directory = if unseen { &nowhere } else { &asks.directory };
    let from = directory.clone();
    let by = |policy: &Policy| {
        let occasion = ruling.occasion(pool, &asks.rule_uses);
        let (asked, came) = (
            DecisionInput::from_request(ask),
            came.as_deref().map(DecisionInput::from_request),
        );
        evaluate_request(pool, (policy, &occasion), prepared, directory, asked, came)
    };
    let refused = if twice {
        Some(("twice", "the same request id was used twice"))
    } else if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        Some(("journal", why))
    } else if crowded {
        let why = "too many requests are open at the same time";
        Some(("max_pending", why))
    } else if at.is_too_long {
        Some(("too_large", "the tool's name is longer than any"))
    } else {
        None
    };
    let DecisionResult {
        judgement,
        moved,
        unmasked_decision: floor,
    } = match (refused, ruling.loaded(), announces) {
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
    let is_judged = refused.is_none() && announces.is_none();
    if let Some(shadow) = ruling.version.shadow.as_ref().filter(|_| is_judged) {
        shadow.evaluate(&judgement, |policy| by(policy).judgement);
    }
    let class = match announces {
        Some(_) => ToolClass::Mcp,
        None => tool_class(pool, Some(&ask.tool)),
    };
    let uses = judgement.rule_uses.clone();
    let mut decided = build_decided_request(pool, &ruling, work, ask, (judgement, took), class, at);
    let occasion = ruling.occasion(pool, &asks.rule_uses);
    let facts = &decided.judged.facts;
    decided.judged.facts =
        audit_record::with_place(facts, pool, prepared, directory, &occasion, floor);
    let decision = decided.verdict.decision;
    asks.directory.record_decision(keeps, &moved, decision);
    if decision == Decision::Allow {
        policy_snapshot::count_uses(&mut asks.rule_uses, &uses);
        decided.uses = uses;
        asks.record_announced(ask.tool_id.as_ref(), announced);
    }
    decided.moved = moved;
    decided.from = from;
    decided.unmasked = came;
    asks.open
        .insert(decided.verdict.request.clone(), ask.key.clone());
    decided
}

/// Decides what the agent wants its client to do. Beside it stands, unless it is denied, the place
/// that was judged.
pub(crate) fn decide_client_request(
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    work: &Work,
    (ask, came, wish): (
        &PermissionRequest,
        Option<Box<PermissionRequest>>,
        &ClientRequest,
    ),
    asks: &mut OpenRequests,
    at: DecisionContext<'_>,
) -> (DecidedRequest, Option<String>) {
    let began = clock::now();
    let ruling = PolicySnapshot::take(pool, work, at.mode.map(str::to_owned));
    let mut tried = None;
    let by = |policy: &Policy, prepared: &PreparedSession| {
        let occasion = ruling.occasion(pool, &asks.rule_uses);
        let is_masked = came.is_some();
        evaluate_client_request(pool, (policy, &occasion), prepared, wish, ask, is_masked)
    };
    let (judgement, place) = if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        (PolicyDecision::from_error("journal", why), None)
    } else if ask.input.get().len() > PERMISSION_INPUT_BYTES {
        (deny_too_large(), None)
    } else if let Some(prepared) = prepared {
        tried = Some(prepared);
        match ruling.loaded() {
            Some(loaded) => by(&loaded.policy, prepared),
            None => (no_layer(), None),
        }
    } else {
        let why = "there is no workspace to judge paths by";
        (PolicyDecision::from_error("no_workspace", why), None)
    };
    let took = clock::since(began);
    if let Some((shadow, prepared)) = ruling.version.shadow.as_ref().zip(tried) {
        shadow.evaluate(&judgement, |policy| by(policy, prepared).0);
    }
    let class = match wish {
        ClientRequest::Read(_) => ToolClass::Read,
        ClientRequest::Write(_) => ToolClass::Write,
        ClientRequest::Run(_) => ToolClass::Shell,
        ClientRequest::Tool(wish) => match wish.tool {
            EngineTool::WriteFile => ToolClass::Write,
            EngineTool::EditFile => ToolClass::Edit,
            EngineTool::ReadFile => ToolClass::Read,
            EngineTool::AskPerson | EngineTool::PlanStep => ToolClass::Mcp,
        },
    };
    let uses = judgement.rule_uses.clone();
    let mut decided = build_decided_request(pool, &ruling, work, ask, (judgement, took), class, at);
    let (facts, nowhere) = (&decided.judged.facts, ShellDirectory::default());
    let occasion = ruling.occasion(pool, &asks.rule_uses);
    decided.judged.facts =
        audit_record::with_place(facts, pool, prepared, &nowhere, &occasion, None);
    if decided.verdict.decision == Decision::Allow {
        policy_snapshot::count_uses(&mut asks.rule_uses, &uses);
        decided.uses = uses;
    }
    decided.unmasked = came;
    asks.client_requests
        .insert(decided.verdict.request.clone(), ask.key.clone());
    (decided, place)
}

/// What the policy says of it. It is judged as it came, because that is what will be done; what is
/// kept of that is masked, and with a secret in it no rule allows it.
pub(super) fn evaluate_client_request(
    pool: &PoolShared,
    (policy, occasion): (&Policy, &EvaluationContext<'_>),
    prepared: &PreparedSession,
    wish: &ClientRequest,
    ask: &PermissionRequest,
    is_masked: bool,
) -> (PolicyDecision, Option<String>) {
    let began = clock::thread_cpu_time();
    let looking = RecordingResolver::new(prepared.place().resolver);
    let resolver = &looking;
    let at = FsContext {
        resolver,
        ..prepared.place()
    };
    let (judgement, place) = policy.decide_client_in_context(wish, &at, occasion);
    let mut judgement = evaluation_limits::enforce_time_limit(policy, began, judgement);
    judgement.facts.fs_observations = looking.into_observations();
    if is_masked {
        judgement = policy.require_approval_for_secret(judgement);
        masking::mask_decision(&pool.mask, &mut judgement);
    }
    show_text(wish, &ask.input, &mut judgement);
    (judgement, place)
}

/// A person is asked about the text that is to be written, too, and there is no tool call that shows
/// it.
fn show_text(wish: &ClientRequest, input: &RawValue, judgement: &mut PolicyDecision) {
    let writes = match wish {
        ClientRequest::Write(_) => true,
        ClientRequest::Tool(wish) => wish.tool.writes(),
        ClientRequest::Read(_) | ClientRequest::Run(_) => false,
    };
    if writes {
        judgement.facts.parts.extend(text_part(input));
    }
}

/// What is on record of a text that is to be written, for whoever decides.
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

/// A judgement, with what follows where nobody can be asked.
fn build_decided_request(
    pool: &PoolShared,
    ruling: &PolicySnapshot,
    work: &Work,
    ask: &PermissionRequest,
    (judgement, took): (PolicyDecision, Duration),
    class: ToolClass,
    at: DecisionContext<'_>,
) -> DecidedRequest {
    let loaded = ruling.loaded().unwrap_or(&ruling.version.base);
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
        deny_turn = deny_without_approver(pool, &loaded.policy, &mut verdict);
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
        tool: &ask.tool,
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

/// Makes a denial of what a person should have decided. Gives whether it also ends the turn.
pub(super) fn deny_without_approver(
    pool: &PoolShared,
    policy: &Policy,
    verdict: &mut Verdict,
) -> bool {
    verdict.decision = Decision::Deny;
    verdict.decided_by = DecidedBy::Timeout;
    verdict.reason = format!(
        "{}; a person would have to allow this and nobody can be asked here: do it another way or go on without it",
        verdict.reason
    );
    denial_ends_turn(pool, policy)
}

/// Whether a permission request that nobody answers also ends the turn.
pub(super) fn denial_ends_turn(pool: &PoolShared, policy: &Policy) -> bool {
    pool.config.approval.on_timeout == OnTimeout::DenyTurn
        || policy.on_timeout() == Some(OnTimeout::DenyTurn)
}

/// Judges a call that ran without a request.
pub(crate) fn evaluate_unrequested_call(
    pool: &PoolShared,
    prepared: Option<&PreparedSession>,
    work: &Work,
    call: &ToolCall,
    asks: &mut OpenRequests,
    mode: Option<String>,
) -> Event {
    let ruling = PolicySnapshot::take(pool, work, mode);
    let (judgement, moved) = match (&call.input, ruling.loaded()) {
        (Some(input), Some(loaded)) => {
            let occasion = ruling.occasion(pool, &asks.rule_uses);
            let by = (&*loaded.policy, &occasion);
            let looked = evaluate_call(pool, by, prepared, &asks.directory, &call.name, input);
            (looked.judgement, looked.moved)
        }
        (Some(_), None) => (no_layer(), CwdChange::Unknown),
        (None, _) if tool_class(pool, Some(&call.name)) == ToolClass::Shell => {
            (deny_too_large(), CwdChange::Unknown)
        }
        (None, _) => (deny_too_large(), CwdChange::Unchanged),
    };
    // It ran, whatever is said of it.
    policy_snapshot::count_uses(&mut asks.rule_uses, &judgement.rule_uses);
    let keeps = pool.config.shell_cwd;
    asks.directory
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
    let why = "the policy that lies on top of this session's is not there any more: nothing can be allowed";
    PolicyDecision::from_error("no_policy", why)
}

fn new_request_id(pool: &PoolShared) -> PermissionRequestId {
    let id = pool.ambient.new_id().to_string();
    PermissionRequestId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
}

/// What the rules saw and what budgets had counted, for the audit record.
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
                "decision": part.decision.word(),
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
        json["looked"] = serde_json::json!(facts.fs_observations);
    }
    json.to_string()
}
