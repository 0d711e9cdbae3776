//! Approvals: published to approvers, answered, or denied because nobody answered.
//!
//! Identical requests share one approval. Every end of a request goes through one function, which
//! journals the verdict; the answer is sent when that is durable. Must not know who the approver
//! is.
//!
//! Approvals work in a daemon, with `run --approvals`, and in a conversation. Elsewhere the
//! decision "ask" becomes a deny that says so, and it ends the turn where `on_timeout` is
//! `deny_turn`.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::SessionMsg;
use super::approval_answers::{ApprovalDetails, request_digest};
use super::delegate_confirmation::DelegateConfirmation;
use super::outbox::OnDurable;
use super::permission_requests::{self, DecidedRequest};
use super::policy_snapshot::PolicySnapshot;
use super::prior_answers::PriorAnswer;
use super::state::SessionState;
use crate::approval_registry::{AnswerRecipient, KnownApproval, OpenApproval};
use crate::approvals::spawn_approval_expiry;
use crate::approver::{ApprovalRequest, ApprovalUpdate, ApproverReply};
use crate::clock;
use marshal_config::{Approver, WhenWaiting};
use marshal_journal::{ApprovalAnswer, ApprovalChange, ApprovalRow, Write};
use marshal_model::limits::{APPROVAL_MARGIN, APPROVALS_PER_SESSION, REQUESTS_PER_APPROVAL};
use marshal_model::{
    ApprovalState, ClientRequest, DecidedBy, Decision, Event, PermissionRequest,
    PermissionRequestId, PermissionRequestKey, RememberScope, TurnOutcome, Verdict,
};
use marshal_telemetry::event::permission::{ApprovalPending, PermissionDecided};
use marshal_telemetry::labels::ToolClass;

/// A permission request that waits for an approval.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(super) permission_request: PermissionRequest,
    pub(super) decided: DecidedRequest,
    /// For a client request: the request, and the path that was evaluated.
    pub(super) client_request: Option<(ClientRequest, Option<String>)>,
    pub(super) since: Instant,
}

impl PendingRequest {
    /// Wraps a permission request of the agent.
    pub(super) fn new(permission_request: PermissionRequest, decided: DecidedRequest) -> Self {
        Self {
            permission_request,
            decided,
            client_request: None,
            since: clock::now(),
        }
    }
}

/// A pending approval.
#[derive(Debug)]
pub(crate) struct PendingApproval {
    /// The requests that share it; at least one.
    pub(super) requests: Vec<PendingRequest>,
    /// The digest that an answer is bound to.
    pub(super) digest: String,
    /// What approvers were shown.
    pub(super) details: ApprovalDetails,
    /// The sequence number of the first request's event.
    seq: u64,
    since: Instant,
    /// When it expires, in microseconds since the Unix epoch.
    until_us: i64,
    /// When its agent stops waiting, in microseconds since the Unix epoch.
    agent_until_us: Option<i64>,
    /// Ends the wait for an answer; set once the approval is durable.
    deadline: Option<AbortHandle>,
    /// An approver allowed it, and the delegate is being asked to confirm.
    pub(super) confirmation: Option<DelegateConfirmation>,
}

impl PendingApproval {
    /// Whether it has expired, by the clock time that approvers were shown.
    pub(super) const fn is_expired(&self, now_us: i64) -> bool {
        self.until_us <= now_us
    }

    /// Whether it is pending because a budget is spent: then an answer applies once.
    pub(super) fn is_for_budget(&self) -> bool {
        let mut members = self.requests.iter();
        members.any(|member| member.decided.spent.is_some())
    }
}

impl Drop for PendingApproval {
    fn drop(&mut self) {
        if let Some(deadline) = &self.deadline {
            deadline.abort();
        }
    }
}

/// How an approval ends.
pub(super) struct ApprovalEnd {
    pub(super) decision: Decision,
    pub(super) by: DecidedBy,
    pub(super) why: String,
    /// The rules that decided, where no approver did.
    pub(super) rules: Option<Vec<String>>,
    /// The approver's answer.
    pub(super) answer: Option<ApprovalAnswer>,
}

impl ApprovalEnd {
    /// A denial that no approver gave.
    pub(super) fn denied(by: DecidedBy, why: &str) -> Self {
        Self {
            decision: Decision::Deny,
            by,
            why: why.to_owned(),
            rules: None,
            answer: None,
        }
    }

    /// A denial because too many approvals are pending.
    fn queue_full() -> Self {
        Self {
            rules: Some(vec!["max_pending".to_owned()]),
            ..Self::denied(
                DecidedBy::Error,
                "too many requests already wait for approval",
            )
        }
    }

    /// An end by an approver's answer.
    pub(super) fn from_answer(by: DecidedBy, answer: ApprovalAnswer) -> Self {
        Self {
            decision: answer.decision,
            by,
            why: super::approval_answers::answer_reason(&answer, by),
            rules: None,
            answer: Some(answer),
        }
    }

    const fn state(&self) -> ApprovalState {
        match (self.by, self.decision) {
            (DecidedBy::Timeout, _) => ApprovalState::Expired,
            (DecidedBy::Gone, _) => ApprovalState::Cancelled,
            (_, Decision::Allow) => ApprovalState::Approved,
            _ => ApprovalState::Rejected,
        }
    }
}

impl SessionState {
    /// The current context for the decision on a request.
    pub(super) fn decision_context<'m>(
        &self,
        mode: Option<&'m str>,
    ) -> permission_requests::DecisionContext<'m> {
        let has_approver = self.conversation.is_some() || self.shared.has_approvers;
        permission_requests::DecisionContext {
            mode,
            is_read_only: self.shared.journal.health().borrow().is_read_only(),
            has_approver: has_approver && !self.pool.approval_rules().approvers.is_empty(),
            waiting: self
                .pending
                .values()
                .map(|of| of.requests.len())
                .sum::<usize>()
                + self.delegated.len(),
            is_too_long: false,
            spent: self.spent_budget(),
            counted: (self.budget.allows, self.budget.denies),
        }
    }

    /// Logs and counts a durable verdict.
    pub(super) fn log_verdict(&self, verdict: &Verdict, class: ToolClass, asked_at: Instant) {
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

    /// The policy requires approval. Journals the request, then publishes an approval for it,
    /// unless the same request is pending or was answered before.
    pub(super) fn request_approval(&mut self, mut member: PendingRequest) {
        if let Some(spent) = &member.decided.spent {
            self.budget.spend.notify_once(spent);
        }
        let digest = request_digest(&member.permission_request);
        let details = self.approval_details(&member);
        let before = self.find_prior_answer(&member, &digest, &details);
        if let Some(question) = before.approval_id() {
            // The record then leads to the approver who answered.
            let question = question.as_str().into();
            member.decided.add_fact("approval", &question);
        }
        if let PriorAnswer::Known(KnownApproval::Orphaned(..)) = &before {
            // The approval is pending again: whoever follows the session must see that.
            member.decided.add_fact("again", &true.into());
        }
        member
            .decided
            .record_request(&member.permission_request, &mut self.outbox);
        let seq = self.outbox.last_seq();
        let known = match before {
            PriorAnswer::None => KnownApproval::None,
            PriorAnswer::Pending(id) => return self.join_approval(&id, member),
            PriorAnswer::ForTurn(answer) => KnownApproval::Remembered(answer),
            PriorAnswer::Known(known) => known,
        };
        match known {
            KnownApproval::Remembered(answer) => {
                self.end_request(member, &ApprovalEnd::from_answer(DecidedBy::Cache, answer));
            }
            KnownApproval::Answered(id, mut answer) => {
                answer.remember = answer.remember.min(self.pool.approval_rules().remember);
                if !self.remember_answer(&digest, &details.paths, &answer) {
                    answer.remember = RememberScope::Never;
                }
                let ending = ApprovalEnd::from_answer(DecidedBy::Human, answer);
                let change = ApprovalChange::Ended {
                    state: ending.state(),
                    answer: ending.answer.clone(),
                };
                self.write_approval_change(&id, change);
                self.end_request(member, &ending);
            }
            KnownApproval::Orphaned(id, until_us) => {
                let agent_until_us = self.agent_until(clock::now_us());
                self.write_approval_change(&id, ApprovalChange::RequestedAgain { agent_until_us });
                self.add_pending(id, member, digest, details, seq, until_us);
            }
            KnownApproval::Outdated(before) => {
                let change = ApprovalChange::Ended {
                    state: ApprovalState::Cancelled,
                    answer: None,
                };
                self.write_approval_change(&before, change);
                self.create_approval(member, digest, details, seq);
            }
            KnownApproval::None => self.create_approval(member, digest, details, seq),
        }
    }

    /// Adds a request to the pending approval of an identical one.
    fn join_approval(&mut self, id: &PermissionRequestId, member: PendingRequest) {
        let Some(pending) = self.pending.get_mut(id) else {
            return;
        };
        if pending.requests.len() >= REQUESTS_PER_APPROVAL {
            return self.end_request(member, &ApprovalEnd::queue_full());
        }
        let agent_until_us = pending.agent_until_us;
        pending.requests.push(member);
        self.write_approval_change(id, ApprovalChange::RequestedAgain { agent_until_us });
    }

    fn create_approval(
        &mut self,
        member: PendingRequest,
        digest: String,
        details: ApprovalDetails,
        seq: u64,
    ) {
        let of_pool = self.shared.approvals.pending_count(&self.pool.config.name);
        if self.pending.len() >= APPROVALS_PER_SESSION
            || of_pool >= self.pool.approval_rules().max_pending
        {
            return self.end_request(member, &ApprovalEnd::queue_full());
        }
        let id = member.decided.verdict.request.clone();
        let at_us = clock::now_us();
        let timeout = member.decided.ask_timeout;
        let timeout = timeout.map_or(self.pool.config.approval.timeout, |of| {
            of.min(self.pool.config.approval.timeout)
        });
        let until_us = at_us.saturating_add(micros(timeout));
        self.outbox
            .write(Write::ApprovalOpened(Box::new(ApprovalRow {
                request: id.clone(),
                session: self.work.session.clone(),
                pool: self.pool.config.name.clone(),
                digest: digest.clone(),
                rules: member.decided.verdict.rules.clone(),
                why: member.decided.verdict.reason.clone(),
                paths: details.paths.clone(),
                at_us,
                deadline_us: until_us,
                agent_until_us: self.agent_until(at_us),
            })));
        self.add_pending(id, member, digest, details, seq, until_us);
    }

    /// When the agent stops waiting for an answer, in microseconds since the Unix epoch.
    fn agent_until(&self, now_us: i64) -> Option<i64> {
        let agent_waits = self.pool.config.approval.agent_waits?;
        Some(now_us.saturating_add(micros(agent_waits.saturating_sub(APPROVAL_MARGIN))))
    }

    fn add_pending(
        &mut self,
        id: PermissionRequestId,
        member: PendingRequest,
        digest: String,
        details: ApprovalDetails,
        seq: u64,
        until_us: i64,
    ) {
        let since = clock::now();
        self.pool.set_approval_pending(since, &id, true);
        let open = OpenApproval {
            pool: self.pool.config.name.clone(),
            session: self.work.session.clone(),
            digest: digest.clone(),
            deadline_us: until_us,
            paths: details.paths.clone(),
            recipient: AnswerRecipient::Session(self.myself.clone()),
        };
        self.shared.approvals.insert(id.clone(), open);
        let pending = PendingApproval {
            requests: vec![member],
            digest,
            details,
            seq,
            since,
            until_us,
            agent_until_us: self.agent_until(clock::now_us()),
            deadline: None,
            confirmation: None,
        };
        self.pending.insert(id.clone(), pending);
        self.outbox.on_durable(OnDurable::PublishApproval(id));
    }

    /// The approval is durable: publishes it to approvers.
    pub(super) fn publish_approval(&mut self, id: &PermissionRequestId) {
        let Some(pending) = self.pending.get(id) else {
            return; // It has ended already.
        };
        let within = self.answer_timeout(pending);
        let (to, expired) = (self.myself.clone(), id.clone());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let _ = to.send_message(SessionMsg::ApprovalExpired(expired));
        });
        if let Some(pending) = self.pending.get_mut(id) {
            pending.deadline = Some(timer.abort_handle());
        }
        let Some(pending) = self.pending.get(id) else {
            return;
        };
        let Some(member) = pending.requests.first() else {
            return;
        };
        let verdict = &member.decided.verdict;
        ApprovalPending {
            slot: &self.work.slot,
            session: &self.work.session,
            request: id,
            tool: &member.permission_request.tool,
            rules: &verdict.rules,
            timeout: within,
            has_other_approver: self.conversation.is_some(),
        }
        .emit();
        self.notify_approval_pending(id, member, pending.until_us);
        let is_for_client = self
            .pool
            .approval_rules()
            .approvers
            .contains(&Approver::Owner);
        let Some(talk) = self.conversation.as_ref().filter(|_| is_for_client) else {
            return self.release_child();
        };
        let facts = member.decided.facts.clone().unwrap_or_default();
        let update = ApprovalUpdate::Requested(Box::new(ApprovalRequest {
            id: id.clone(),
            seq: pending.seq,
            tool_id: member.permission_request.tool_id.clone(),
            tool: member.permission_request.tool.clone(),
            class: member.decided.class,
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

    /// How long an approver may still take: the time that pool and policy leave, or what is left of
    /// the agent's own timeout minus a margin for the answer, whichever is shorter.
    fn answer_timeout(&self, pending: &PendingApproval) -> Duration {
        let left = pending.until_us.saturating_sub(clock::now_us()).max(0);
        let left = Duration::from_micros(left.unsigned_abs());
        let elapsed = clock::since(pending.since) + APPROVAL_MARGIN;
        let agent_left = self.pool.config.approval.agent_waits;
        let agent_left = agent_left.map(|waits| waits.saturating_sub(elapsed));
        agent_left.map_or(left, |agent_left| agent_left.min(left))
    }

    /// Whether the approval was published, so that it can be answered.
    pub(super) fn is_published(&self, id: &PermissionRequestId) -> bool {
        // One that is not durable has not been published.
        self.pending.get(id).is_some_and(|of| of.deadline.is_some())
    }

    /// Handles the reply of a conversation's client.
    pub(super) fn client_answered(&mut self, id: &PermissionRequestId, reply: ApproverReply) {
        if !self.is_published(id) {
            tracing::debug!(permission_request = %id, "ignored an answer to an approval that has ended");
            return;
        }
        match reply {
            ApproverReply::Allow => self.answer_from_client(id, Decision::Allow),
            ApproverReply::Reject => self.answer_from_client(id, Decision::Deny),
            ApproverReply::Cancelled => {
                self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Gone, CANCELLED));
            }
            ApproverReply::NoAnswer => self.expire_approval(id, UNDECIDED),
        }
    }

    /// The approval expired.
    pub(super) fn approval_expired(&mut self, id: &PermissionRequestId) {
        self.expire_approval(id, TOO_LATE);
    }

    fn expire_approval(&mut self, id: &PermissionRequestId, why: &str) {
        let snapshot = PolicySnapshot::take(&self.pool, &self.work, None);
        let deny_turn = permission_requests::denial_ends_turn(&self.pool, snapshot.policy());
        if let Some(pending) = self.pending.get_mut(id) {
            for member in &mut pending.requests {
                member.decided.deny_turn = deny_turn;
            }
            self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Timeout, why));
        }
    }

    /// The agent withdrew one of its requests.
    pub(super) fn request_withdrawn(&mut self, key: &PermissionRequestKey) {
        let why = "the agent withdrew its request before this was decided";
        self.withdraw_delegated(key, why);
        let ending = ApprovalEnd::denied(DecidedBy::Gone, why);
        let of_key = |of: &PendingRequest| of.permission_request.key == *key;
        let pending = self.pending.iter_mut();
        let pending = pending
            .into_iter()
            .find(|(_, of)| of.requests.iter().any(of_key));
        let Some((id, pending)) = pending else { return };
        if pending.requests.len() == 1 {
            let id = id.clone();
            return self.end_approval(&id, &ending);
        }
        if let Some(at) = pending.requests.iter().position(of_key) {
            let member = pending.requests.remove(at);
            self.end_request(member, &ending);
        }
    }

    /// Cancels all pending approvals.
    pub(super) fn cancel_approvals(&mut self, why: &str) {
        self.cancel_delegated(why);
        let open: Vec<PermissionRequestId> = self.pending.keys().cloned().collect();
        for id in open {
            self.end_approval(&id, &ApprovalEnd::denied(DecidedBy::Gone, why));
        }
    }

    /// Where the pool is configured so, the child does not wait: its approvals are kept as
    /// orphaned, its turn and the child are ended, and the task is queued again until there is an
    /// answer.
    fn release_child(&mut self) {
        let wanted = self.pool.config.approval.when_waiting == WhenWaiting::Release;
        if !wanted
            || !self.has_task
            || self.conversation.is_some()
            || !self.can_be_resumed()
            || self.ending.is_some()
            || self.turn.is_some()
        {
            return;
        }
        self.released = self.pending.keys().next().cloned();
        let open: Vec<PermissionRequestId> = self.pending.keys().cloned().collect();
        for id in open {
            self.orphan_approval(&id);
        }
        let why = "the child is stopped while its session waits for approval";
        self.interrupt(TurnOutcome::Cancelled, why.to_owned());
    }

    /// Denies the agent's requests, and keeps the approval for the child that comes back.
    fn orphan_approval(&mut self, id: &PermissionRequestId) {
        let Some(mut pending) = self.pending.remove(id) else {
            return;
        };
        self.pool.set_approval_pending(pending.since, id, false);
        self.write_approval_change(id, ApprovalChange::Orphaned);
        let open = OpenApproval {
            pool: self.pool.config.name.clone(),
            session: self.work.session.clone(),
            digest: pending.digest.clone(),
            deadline_us: pending.until_us,
            paths: pending.details.paths.clone(),
            recipient: AnswerRecipient::Orphaned(None),
        };
        self.shared.approvals.insert(id.clone(), open);
        let pool = Some(self.pool_ref.clone());
        spawn_approval_expiry(&self.shared, id.clone(), pending.until_us, pool);
        let ending = ApprovalEnd::denied(DecidedBy::Gone, RELEASED);
        for member in std::mem::take(&mut pending.requests) {
            self.end_request(member, &ending);
        }
    }

    /// Journals a change of an approval.
    pub(super) fn write_approval_change(
        &mut self,
        id: &PermissionRequestId,
        change: ApprovalChange,
    ) {
        self.outbox.write(Write::ApprovalChanged {
            approval: id.clone(),
            at_us: clock::now_us(),
            change,
        });
    }

    /// Ends an approval. Every approval ends here.
    pub(super) fn end_approval(&mut self, id: &PermissionRequestId, ending: &ApprovalEnd) {
        let Some(mut pending) = self.pending.remove(id) else {
            return;
        };
        self.pool.set_approval_pending(pending.since, id, false);
        self.shared.approvals.remove(id);
        let change = ApprovalChange::Ended {
            state: ending.state(),
            answer: ending.answer.clone(),
        };
        self.write_approval_change(id, change);
        for member in std::mem::take(&mut pending.requests) {
            self.end_request(member, ending);
        }
        if let Some(talk) = &self.conversation {
            let (id, decision, by) = (id.clone(), ending.decision, ending.by);
            let _ = talk
                .approver
                .try_send(ApprovalUpdate::Ended { id, decision, by });
        }
    }

    /// Ends a request that needed approval. Every such request ends here.
    pub(super) fn end_request(&mut self, member: PendingRequest, ending: &ApprovalEnd) {
        let PendingRequest {
            permission_request,
            mut decided,
            client_request,
            since: asked_at,
        } = member;
        decided.verdict.decision = ending.decision;
        decided.verdict.decided_by = ending.by;
        decided.verdict.reason.clone_from(&ending.why);
        if let Some(rules) = &ending.rules {
            decided.verdict.rules.clone_from(rules);
        }
        let keeps = self.pool.config.shell_cwd;
        self.requests
            .directory
            .record_resolution(keeps, &decided.moved, ending.decision);
        self.tally.add_decision(&decided);
        self.count_verdict(&mut decided);
        self.outbox
            .push_event(Event::PermissionDecided(decided.verdict.clone()));
        let (key, deny_turn, class) = (permission_request.key, decided.deny_turn, decided.class);
        self.outbox.on_durable(match client_request {
            Some((client_request, place)) => OnDurable::StartClientRequest {
                key,
                place: super::engine_tools::person_answer(&client_request, ending).or(place),
                asked_at,
                verdict: decided.verdict,
                deny_turn,
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
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

const RELEASED: &str = "this needs approval: the session waits for it without its child";
const CANCELLED: &str =
    "this needs approval, and the request was cancelled before an approver decided";
const UNDECIDED: &str =
    "this needs approval, and no approver gave an answer: do it another way or go on without it";
const NOBODY: &str = "this needs approval, and there is no approver any more";
const TOO_LATE: &str =
    "this needs approval, and nobody answered in time: do it another way or go on without it";
