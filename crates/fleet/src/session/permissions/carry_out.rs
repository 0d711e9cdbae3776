//! Connects the permissions with their session: what a step needs to know of the moment, and what
//! its effects do to journal, registry, approvers, delegate and agent.
//!
//! An answer to the agent waits until its verdict is durable.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::answers::{ApprovalDetails, TOO_LATE};
use super::approvals::{ApprovalEnd, PendingRequest};
use super::decide::{self, DecisionContext};
use super::evaluation::{self, DecisionInput};
use super::policy_snapshot::PolicySnapshot;
use super::tool_calls::{ReportedResult, ToolCall};
use super::{Effect, Permissions, Surroundings, masking};
use crate::approval_registry::{AnswerRecipient, KnownApproval, OpenApproval, RememberedAnswer};
use crate::approval_rules::{ApprovalRules, CONVERSATION_CLIENT};
use crate::approver::{ApprovalRequest, ApprovalUpdate, ApproverReply};
use crate::clock;
use crate::handle::approvals::{AnswerReply, spawn_approval_expiry};
use crate::messages::{SessionMsg, SessionRef};
use crate::session::Work;
use crate::session::outbox::OnDurable;
use crate::session::state::SessionState;
use crate::session::turn::budget::BudgetCounters;
use crate::session::workspace::prepare::PreparedSession;
use crate::setup::{PoolShared, Shared};
use marshal_config::{Approver, OnUnaskedDeny, ShellCwd, WhenWaiting};
use marshal_journal::{ApprovalAnswer, Write};
use marshal_model::{
    DecidedBy, Decision, DelegateError, Event, PermissionRequest, PermissionRequestId,
    PermissionRequestKey, RememberScope, SpentBudget, TurnOutcome, UntrustedText, Verdict,
};
use marshal_policy::delegation::{
    Claims, DelegateAnswer, DelegateRequest, PHASE_REQUEST, PolicyOutcome, VERSION,
};
use marshal_policy::{self as policy, Part, PolicyDecision, ResolvedPath};
use marshal_telemetry::event::permission::{ApprovalPending, PermissionDecided};
use marshal_telemetry::labels::ToolClass;

/// What runs in the background for requests that wait; dropping it ends that.
#[derive(Default)]
pub(crate) struct ApprovalWaits {
    /// The timers of approvals.
    expiry: HashMap<PermissionRequestId, AbortOnDropHandle<()>>,
    /// The calls of the delegate.
    delegate: HashMap<PermissionRequestId, AbortOnDropHandle<()>>,
}

/// The surroundings of a step: the rest of the session.
struct SessionSurroundings<'a> {
    shared: &'a Arc<Shared>,
    pool: &'a PoolShared,
    work: &'a Work,
    prepared: Option<&'a PreparedSession>,
    budget: &'a BudgetCounters,
    mode: Option<String>,
    is_conversation: bool,
}

impl SessionSurroundings<'_> {
    fn snapshot(&self) -> PolicySnapshot {
        PolicySnapshot::take(self.pool, self.work, self.mode.clone())
    }
}

impl Surroundings for SessionSurroundings<'_> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn now_us(&self) -> i64 {
        clock::now_us()
    }

    fn is_read_only(&self) -> bool {
        self.shared.journal.health().borrow().is_read_only()
    }

    fn rules(&self) -> ApprovalRules {
        self.pool.approval_rules()
    }

    fn has_approver(&self) -> bool {
        (self.is_conversation || self.shared.has_approvers) && !self.rules().approvers.is_empty()
    }

    fn denial_ends_turn(&self) -> bool {
        decide::denial_ends_turn(self.pool, self.snapshot().policy())
    }

    fn spent_budget(&self) -> Option<SpentBudget> {
        self.budget.spent(self.snapshot().policy().budget())
    }

    fn is_delegated(&self, request: &PendingRequest) -> bool {
        let Some(delegate) = &self.pool.delegate else {
            return false;
        };
        // By the tool's name and by the request's class.
        let class = request.decided.class;
        if request.client_request.is_some() {
            return delegate.config.covers(&[class]);
        }
        let unmasked = request
            .decided
            .unmasked
            .as_deref()
            .unwrap_or(&request.permission_request);
        let extractor = &self.pool.extractor;
        let extracted = extractor.extract(unmasked.tool.raw(), &unmasked.input);
        delegate.config.covers(&[class, extracted.class()])
    }

    fn details(&self, request: &PendingRequest, parts: Option<&[Part]>) -> ApprovalDetails {
        let Some(prepared) = self.prepared else {
            return ApprovalDetails::default();
        };
        let of_request = request.decided.facts.as_ref();
        let parts = parts.or(of_request.map(|facts| &facts.parts[..]));
        let places = request.decided.from.possible_places(prepared);
        let mut paths: Vec<ResolvedPath> = Vec::new();
        // With a shell that keeps its directory: where it may be.
        if self.pool.config.shell_cwd != ShellCwd::Workspace {
            let known = places.iter().filter_map(|place| place.cwd);
            paths.extend(known.map(|cwd| ResolvedPath {
                word: UntrustedText::from("."),
                to: UntrustedText::new(cwd),
                inside: true,
            }));
        }
        // A client request names its path itself and is bound to it, so it needs no extraction.
        let extracted = request.client_request.is_none().then(|| {
            let asked = &request.permission_request;
            self.pool.extractor.extract(asked.tool.raw(), &asked.input)
        });
        if let Some(place) = places.first() {
            let parts = parts.unwrap_or_default();
            paths.extend(policy::resolve_paths(extracted.as_ref(), parts, place));
        }
        let as_json = |path: &ResolvedPath| json!({"word": path.word.raw(), "to": path.to.raw(), "inside": path.inside});
        ApprovalDetails {
            paths: serde_json::Value::Array(paths.iter().map(as_json).collect()).to_string(),
            // Two requests that differ only in their secrets look alike here.
            is_certain: request.decided.unmasked.is_none()
                && places.iter().all(|place| place.cwd.is_some()),
        }
    }

    fn reevaluate(
        &self,
        request: &PendingRequest,
        used: &BTreeMap<String, u32>,
    ) -> (PolicyDecision, Option<String>) {
        let Some(prepared) = self.prepared else {
            let why = "there is no workspace to resolve paths from";
            return (PolicyDecision::from_error("no_workspace", why), None);
        };
        let snapshot = self.snapshot();
        let Some(loaded) = snapshot.loaded() else {
            let why = "the policy layer of this session no longer exists";
            return (PolicyDecision::from_error("no_policy", why), None);
        };
        let occasion = snapshot.occasion(self.pool, used);
        let by = (&*loaded.policy, &occasion);
        let asked = &request.permission_request;
        let unmasked = request.decided.unmasked.as_deref();
        if let Some((client_request, _)) = &request.client_request {
            let is_masked = unmasked.is_some();
            return decide::evaluate_client_request(
                self.pool,
                by,
                prepared,
                client_request,
                asked,
                is_masked,
            );
        }
        let (input, unmasked) = (
            DecisionInput::from_request(asked),
            unmasked.map(DecisionInput::from_request),
        );
        let from = &request.decided.from;
        let result =
            evaluation::evaluate_request(self.pool, by, Some(prepared), from, input, unmasked);
        (result.judgement, None)
    }

    fn look_up(&self, digest: &str, paths: &str) -> KnownApproval {
        let (session, now_us) = (&self.work.session, clock::now_us());
        let approvals = &self.shared.approvals;
        approvals.look_up(session, digest, paths, now_us, &self.rules())
    }

    fn remember(&self, digest: &str, answer: RememberedAnswer) -> bool {
        let (session, digest) = (&self.work.session, digest.to_owned());
        self.shared
            .approvals
            .remember_answer(session, digest, answer)
    }

    fn pending_in_pool(&self) -> usize {
        self.shared.approvals.pending_count(&self.pool.config.name)
    }

    fn mask(&self, text: &str) -> String {
        self.pool.mask.load().mask_text(text).into_owned()
    }
}

impl SessionState {
    /// Takes a step of the permissions, and carries out what follows.
    pub(crate) fn step_permissions(
        &mut self,
        step: impl FnOnce(&mut Permissions, &dyn Surroundings),
    ) {
        let surroundings = SessionSurroundings {
            mode: self.mode(),
            shared: &self.shared,
            pool: &self.pool,
            work: &self.work,
            prepared: self.workspace.prepared.as_ref(),
            budget: &self.budget,
            is_conversation: self.conversation.is_some(),
        };
        step(&mut self.permissions, &surroundings);
        for effect in self.permissions.take_effects() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Record {
                id,
                request,
                evaluation,
            } => {
                self.outbox.push_event(Event::PermissionRequested {
                    id: id.clone(),
                    request,
                });
                self.outbox.write(Write::RequestEvaluated {
                    request: id,
                    evaluation,
                });
            }
            Effect::Answer(request) => self.record_verdict(*request),
            Effect::NotifySpent(spent) => self.budget.spend.notify_once(&spent),
            Effect::AskDelegate(id) => self.ask_delegate(id),
            Effect::ConfirmByDelegate(id) => self.confirm_by_delegate(id),
            Effect::CancelDelegate(id) => {
                self.waits.delegate.remove(&id);
            }
            Effect::Open(row) => self.outbox.write(Write::ApprovalOpened(row)),
            Effect::Publish(id) => self.register_approval(id),
            Effect::Change(approval, change) => self.outbox.write(Write::ApprovalChanged {
                approval,
                at_us: clock::now_us(),
                change,
            }),
            Effect::Close {
                id,
                since,
                decision,
                by,
            } => {
                self.pool.set_approval_pending(since, &id, false);
                self.shared.approvals.remove(&id);
                self.waits.expiry.remove(&id);
                self.waits.delegate.remove(&id);
                if let Some(talk) = &self.conversation {
                    let ended = ApprovalUpdate::Ended { id, decision, by };
                    let _ = talk.approver.try_send(ended);
                }
            }
            Effect::Orphan { id, approval } => {
                self.pool.set_approval_pending(approval.since, &id, false);
                self.waits.expiry.remove(&id);
                self.waits.delegate.remove(&id);
                let (digest, paths) = (approval.digest, approval.details.paths);
                let until_us = approval.until_us;
                let recipient = AnswerRecipient::Orphaned(None);
                self.open_approval(&id, (digest, paths), until_us, recipient);
                let pool = Some(self.pool_ref.clone());
                spawn_approval_expiry(&self.shared, id, until_us, pool);
            }
            Effect::Reply(reply, result) => {
                let step = OnDurable::ReplyToApprover(reply, result);
                self.outbox.on_durable(step);
            }
        }
    }

    /// Adds an approval to the registry, where answers are looked up.
    fn open_approval(
        &self,
        id: &PermissionRequestId,
        (digest, paths): (String, String),
        deadline_us: i64,
        recipient: AnswerRecipient,
    ) {
        let open = OpenApproval {
            pool: self.pool.config.name.clone(),
            session: self.work.session.clone(),
            digest,
            deadline_us,
            paths,
            recipient,
        };
        self.shared.approvals.insert(id.clone(), open);
    }

    /// The approval is pending; it is published when it is durable.
    fn register_approval(&mut self, id: PermissionRequestId) {
        let seq = self.outbox.last_seq();
        let Some(pending) = self.permissions.pending_mut(&id) else {
            return;
        };
        pending.seq = seq;
        let (since, until_us) = (pending.since, pending.until_us);
        let shown = (pending.digest.clone(), pending.details.paths.clone());
        self.pool.set_approval_pending(since, &id, true);
        let recipient = AnswerRecipient::Session(self.myself.clone());
        self.open_approval(&id, shown, until_us, recipient);
        self.outbox.on_durable(OnDurable::PublishApproval(id));
    }

    /// Records the verdict of a request, and answers the agent when that is durable.
    fn record_verdict(&mut self, request: PendingRequest) {
        let PendingRequest {
            permission_request,
            mut decided,
            client_request,
            since: asked_at,
        } = request;
        if let Some(task) = &mut self.task {
            task.tally.add_decision(&decided);
        }
        self.count_verdict(&mut decided);
        let event = Event::PermissionDecided(decided.verdict.clone());
        self.outbox.push_event(event);
        let (key, deny_turn, class) = (permission_request.key, decided.deny_turn, decided.class);
        self.outbox.on_durable(match client_request {
            Some((_, place)) => OnDurable::StartClientRequest {
                key,
                place,
                asked_at,
                deny_turn,
                verdict: decided.verdict,
                class,
            },
            None => OnDurable::SendAnswer {
                key,
                answer: decided.answer(),
                asked_at,
                deny_turn,
                verdict: decided.verdict,
                class,
            },
        });
    }

    /// The current context for the decision on a request.
    pub(super) fn decision_context<'m>(&self, mode: Option<&'m str>) -> DecisionContext<'m> {
        let has_approver = self.conversation.is_some() || self.shared.has_approvers;
        DecisionContext {
            mode,
            is_read_only: self.shared.journal.health().borrow().is_read_only(),
            has_approver: has_approver && !self.pool.approval_rules().approvers.is_empty(),
            waiting: self.permissions.waiting(),
            is_too_long: false,
            spent: self.spent_budget(),
            counted: (self.budget.allows, self.budget.denies),
        }
    }

    /// The agent requests a permission.
    pub(crate) fn handle_permission_request(&mut self, mut agent_request: PermissionRequest) {
        let mode = self.mode();
        let at = DecisionContext {
            is_too_long: agent_request.truncate_to(decide::REQUEST_BOUNDS),
            ..self.decision_context(mode.as_deref())
        };
        let (agent_request, original) =
            masking::mask_request(&self.pool.mask.load(), agent_request);
        let decided = decide::decide_request(
            &self.pool,
            self.workspace.prepared.as_ref(),
            &self.work,
            (&agent_request, original),
            &mut self.permissions.requests,
            at,
        );
        let request = PendingRequest::new(agent_request, decided);
        self.step_permissions(|permissions, at| permissions.decided(request, at));
    }

    /// Evaluates a tool call that ran without a request by the same rules, afterwards.
    pub(crate) fn handle_unrequested_call(&mut self, call: &ToolCall, shown: ReportedResult) {
        let requests = &mut self.permissions.requests;
        if requests.take_matching_engine_call(&self.pool.extractor, call, shown) {
            return;
        }
        let mode = self.mode();
        let event = decide::evaluate_unrequested_call(
            &self.pool,
            self.workspace.prepared.as_ref(),
            &self.work,
            call,
            &mut self.permissions.requests,
            mode,
        );
        let is_denied = matches!(
            event,
            Event::UnrequestedToolCall {
                decision: Decision::Deny,
                ..
            }
        );
        if let Some(task) = &mut self.task {
            task.tally.add_unrequested_call(&event);
        }
        self.outbox.push_event(event);
        if !is_denied {
            return;
        }
        let why = "a tool call that the policy denies ran without a request".to_owned();
        match self.pool.config.on_unasked_deny {
            OnUnaskedDeny::Report => {}
            OnUnaskedDeny::Interrupt => self.interrupt(TurnOutcome::Failed, why),
            OnUnaskedDeny::Stop => {
                if let Some(task) = &mut self.task {
                    task.end_with(TurnOutcome::Failed, why);
                }
                self.stop(false);
            }
        }
    }

    /// Reports a durable verdict.
    pub(crate) fn log_verdict(&self, verdict: &Verdict, class: ToolClass, asked_at: Instant) {
        PermissionDecided {
            slot: &self.work.slot,
            session: &self.work.session,
            request: &verdict.request,
            tool_class: class,
            decision: verdict.decision,
            decided_by: verdict.decided_by,
            rules: &verdict.rules,
            took: clock::since(asked_at),
        }
        .emit();
    }

    /// The approval is durable: publishes it to approvers.
    pub(crate) fn publish_approval(&mut self, id: &PermissionRequestId) {
        let mut within = None;
        self.step_permissions(|permissions, at| within = permissions.publish(id, at));
        let Some(within) = within else {
            return; // It has ended already.
        };
        let (to, expired) = (self.myself.clone(), id.clone());
        let timer = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let _ = to.send_message(SessionMsg::ApprovalExpired(expired));
        }));
        self.waits.expiry.insert(id.clone(), timer);
        let Some(pending) = self.permissions.pending(id) else {
            return;
        };
        let Some(request) = pending.requests.first() else {
            return;
        };
        let verdict = &request.decided.verdict;
        ApprovalPending {
            slot: &self.work.slot,
            session: &self.work.session,
            request: id,
            tool: &request.permission_request.tool,
            rules: &verdict.rules,
            timeout: within,
            has_other_approver: self.conversation.is_some(),
        }
        .emit();
        self.notify_approval_pending(id, request, pending.until_us);
        let approvers = self.pool.approval_rules().approvers;
        let is_for_client = approvers.contains(&Approver::Owner);
        let Some(talk) = self.conversation.as_ref().filter(|_| is_for_client) else {
            return self.release_child();
        };
        let facts = request.decided.facts.clone().unwrap_or_default();
        let update = ApprovalUpdate::Requested(Box::new(ApprovalRequest {
            id: id.clone(),
            seq: pending.seq,
            tool_id: request.permission_request.tool_id.clone(),
            tool: request.permission_request.tool.clone(),
            class: request.decided.class,
            parts: facts.parts,
            not_plain: facts.not_plain,
            rules: verdict.rules.clone(),
            reason: verdict.reason.clone(),
            within,
        }));
        if talk.approver.try_send(update).is_err() {
            self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Gone, NOBODY));
        }
    }

    fn end_approval(&mut self, id: &PermissionRequestId, end: &ApprovalEnd) {
        self.step_permissions(|permissions, _| permissions.end_approval(id, end));
    }

    /// Handles the reply of a conversation's client.
    pub(crate) fn client_answered(&mut self, id: &PermissionRequestId, reply: ApproverReply) {
        let pending = self.permissions.pending(id);
        if !pending.is_some_and(|of| of.is_published) {
            tracing::debug!(permission_request = %id, "ignored an answer to an approval that has ended");
            return;
        }
        let decision = match reply {
            ApproverReply::Allow => Decision::Allow,
            ApproverReply::Reject => Decision::Deny,
            ApproverReply::Cancelled => {
                let end = ApprovalEnd::denied(DecidedBy::Gone, CANCELLED);
                return self.end_approval(id, &end);
            }
            ApproverReply::NoAnswer => {
                return self.step_permissions(|of, at| of.expire(id, UNDECIDED, at));
            }
        };
        let answer = ApprovalAnswer {
            decision,
            approver: CONVERSATION_CLIENT.to_owned(),
            comment: None,
            remember: RememberScope::Never,
        };
        self.step_permissions(|permissions, at| permissions.answer(id, answer, None, at));
    }

    /// Handles the answer of an approver.
    pub(crate) fn answer_from_approver(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: AnswerReply,
    ) {
        self.step_permissions(|permissions, at| permissions.answer(id, answer, Some(reply), at));
    }

    /// The approval expired.
    pub(crate) fn approval_expired(&mut self, id: &PermissionRequestId) {
        self.step_permissions(|permissions, at| permissions.expire(id, TOO_LATE, at));
    }

    /// The agent withdrew one of its requests.
    pub(crate) fn request_withdrawn(&mut self, key: &PermissionRequestKey) {
        self.step_permissions(|permissions, _| permissions.withdraw(key));
    }

    /// Ends everything that waits for an approver or the delegate.
    pub(crate) fn cancel_approvals(&mut self, why: &str) {
        self.step_permissions(|permissions, _| permissions.cancel(why));
    }

    /// Where the pool is configured so, the child does not wait: its approvals are kept as
    /// orphaned, its turn and the child are ended, and the task is queued again until there is an
    /// answer.
    fn release_child(&mut self) {
        let wanted = self.pool.config.approval.when_waiting == WhenWaiting::Release;
        let can_wait = wanted && self.conversation.is_none() && self.can_be_resumed();
        let Some(task) = self.task.as_mut().filter(|_| can_wait) else {
            return;
        };
        if task.turn_is_over() {
            return;
        }
        task.released = self.permissions.first_pending().cloned();
        self.step_permissions(|permissions, _| permissions.orphan());
        let why = "the child is stopped while its session waits for approval";
        self.interrupt(TurnOutcome::Cancelled, why.to_owned());
    }

    /// Asks the delegate about a request.
    fn ask_delegate(&mut self, id: PermissionRequestId) {
        let Some(request) = self.permissions.delegated(&id) else {
            return;
        };
        let verdict = &request.decided.verdict;
        let outcome = (verdict.decision, &verdict.rules[..], &verdict.reason[..]);
        let documents = vec![self.delegate_request(request, outcome)];
        self.call_delegate(id, documents, |request_id, answer| {
            SessionMsg::DelegateAnswered { request_id, answer }
        });
    }

    /// Asks the delegate about the requests of an approval: one document each, with the policy's
    /// current decision.
    fn confirm_by_delegate(&mut self, id: PermissionRequestId) {
        let mut decisions = Vec::new();
        self.step_permissions(|permissions, at| {
            decisions = permissions.decisions_to_confirm(&id, at);
        });
        let pending = self.permissions.pending(&id);
        let requests = pending.map_or(&[][..], |of| &of.requests);
        let documents = decisions
            .iter()
            .zip(requests)
            .filter_map(|(now, request)| {
                let now = now.as_ref()?;
                let outcome = (now.decision, &now.rules[..], &now.reason[..]);
                Some(self.delegate_request(request, outcome))
            })
            .collect();
        self.call_delegate(id, documents, |request_id, answer| {
            SessionMsg::DelegateConfirmed { request_id, answer }
        });
    }

    /// Sends the delegate these documents. Its answer, of several the first denial, is a message.
    fn call_delegate(
        &mut self,
        id: PermissionRequestId,
        documents: Vec<String>,
        message: DelegateMessage,
    ) {
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let host = Arc::clone(&self.shared.host);
        let mut reply = DelegateReply(Some((self.myself.clone(), id.clone(), message)));
        let call = tokio::spawn(async move {
            let mut calls = JoinSet::new();
            for document in documents {
                let (delegate, host) = (Arc::clone(&delegate), Arc::clone(&host));
                calls.spawn(async move { delegate.ask(host, document).await });
            }
            let mut all = Err(DelegateError::Internal);
            while let Some(answer) = calls.join_next().await {
                all = answer.unwrap_or(Err(DelegateError::Internal));
                if !matches!(&all, Ok(answer) if answer.decision != Decision::Deny) {
                    break;
                }
            }
            reply.send(all);
        });
        let call = AbortOnDropHandle::new(call);
        self.waits.delegate.insert(id, call);
    }

    /// The document for the delegate: the request, with the policy's decision.
    fn delegate_request(
        &self,
        request: &PendingRequest,
        (decision, rules, reason): (Decision, &[String], &str),
    ) -> String {
        let PendingRequest {
            permission_request,
            decided,
            ..
        } = request;
        let delegate = self.pool.delegate.as_ref();
        let facts: Result<&RawValue, _> = serde_json::from_str(decided.facts_json());
        let claims = &permission_request.claims;
        let document = DelegateRequest {
            version: VERSION,
            phase: PHASE_REQUEST,
            delegate: delegate.map_or("", |delegate| &delegate.config.name),
            pool: self.pool.config.name.as_str(),
            agent: &self.pool.config.agent,
            slot: self.work.slot.index,
            session: self.work.session.as_str(),
            run: self.work.run.as_str(),
            task: self.work.task.as_str(),
            ask: decided.verdict.request.as_str(),
            tool: permission_request.tool.raw(),
            class: decided.class.as_str(),
            input: &permission_request.input,
            claimed: Claims {
                title: raw(claims.title.as_ref()),
                kind: raw(claims.kind.as_ref()),
                reason: raw(claims.reason.as_ref()),
                active_mode: raw(claims.active_mode.as_ref()),
                required_mode: raw(claims.required_mode.as_ref()),
            },
            policy: PolicyOutcome {
                name: &decided.judged.policy,
                sha256: &decided.judged.policy_sha256,
                decision: decision.as_str(),
                rules,
                reason,
            },
            facts: facts.unwrap_or(RawValue::NULL),
        };
        document.into_json()
    }
}

fn raw(text: Option<&UntrustedText>) -> Option<&str> {
    text.map(UntrustedText::raw)
}

/// The message with the delegate's answer about this request.
type DelegateMessage = fn(PermissionRequestId, Result<DelegateAnswer, DelegateError>) -> SessionMsg;

/// Sends the delegate's answer to the session; a failure if it is dropped before.
struct DelegateReply(Option<(SessionRef, PermissionRequestId, DelegateMessage)>);

impl DelegateReply {
    fn send(&mut self, answer: Result<DelegateAnswer, DelegateError>) {
        if let Some((to, request, message)) = self.0.take() {
            let _ = to.send_message(message(request, answer));
        }
    }
}

impl Drop for DelegateReply {
    fn drop(&mut self) {
        self.send(Err(DelegateError::Internal));
    }
}

const CANCELLED: &str =
    "this needs approval, and the request was cancelled before an approver decided";
const UNDECIDED: &str =
    "this needs approval, and no approver gave an answer: do it another way or go on without it";
const NOBODY: &str = "this needs approval, and there is no approver any more";
