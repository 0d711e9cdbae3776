//! Connects the permissions with their session: what a step needs to know of the moment, and what
//! its effects do to journal, registry, approvers, delegate and agent.
//!
//! An answer to the agent waits until its verdict is durable.

use std::collections::HashMap;
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;

use super::answers::TOO_LATE;
use super::approvals::{ApprovalEnd, PendingRequest};
use super::decide::{self, DecisionContext};
use super::surroundings::SessionSurroundings;
use super::tool_calls::{ReportedResult, ToolCall};
use super::{Effect, Permissions, Surroundings, masking};
use crate::approval_registry::{AnswerRecipient, OpenApproval};
use crate::approval_rules::CONVERSATION_CLIENT;
use crate::approver::{ApprovalRequest, ApprovalUpdate, ApproverReply};
use crate::clock;
use crate::handle::approvals::{AnswerReply, spawn_approval_expiry};
use crate::messages::SessionMsg;
use crate::session::outbox::OnDurable;
use crate::session::state::SessionState;
use marshal_config::{Approver, OnUnaskedDeny, WhenWaiting};
use marshal_journal::{ApprovalAnswer, Write};
use marshal_model::{
    DecidedBy, Decision, Event, PermissionRequest, PermissionRequestId, PermissionRequestKey,
    RememberScope, TurnOutcome, Verdict,
};
use marshal_telemetry::event::permission::{ApprovalPending, PermissionDecided};
use marshal_telemetry::labels::ToolClass;

/// What runs in the background for requests that wait; dropping it ends that.
#[derive(Default)]
pub(crate) struct ApprovalWaits {
    /// The timers of approvals.
    pub(super) expiry: HashMap<PermissionRequestId, AbortOnDropHandle<()>>,
    /// The calls of the delegate.
    pub(super) delegate: HashMap<PermissionRequestId, AbortOnDropHandle<()>>,
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
                if let Some(conversation) = &self.conversation {
                    let ended = ApprovalUpdate::Ended { id, decision, by };
                    let _ = conversation.approver.try_send(ended);
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
        let request = PendingRequest::new(agent_request, decided, clock::now());
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
        match self.pool.config.options.on_unasked_deny {
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
        let Some(conversation) = self.conversation.as_ref().filter(|_| is_for_client) else {
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
        if conversation.approver.try_send(update).is_err() {
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
}

const CANCELLED: &str =
    "this needs approval, and the request was cancelled before an approver decided";
const UNDECIDED: &str =
    "this needs approval, and no approver gave an answer: do it another way or go on without it";
const NOBODY: &str = "this needs approval, and there is no approver any more";
