//! Approvals that a person decides: put to people, answered, or denied because nobody did.
//!
//! Identical requests are one question. Every end of a request goes through one function, which
//! journals the verdict; the answer is sent when that is durable. Must not know who the person is.
//!
//! People can be asked in a daemon, with `run --approvals`, and in a conversation. Elsewhere "ask" becomes a
//! deny that says so, and ends the turn where `on_timeout` wants that.

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

/// One request that waits for a person.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(super) ask: PermissionRequest,
    pub(super) decided: DecidedRequest,
    /// Of what the agent has its client do: that, and the place that was judged.
    pub(super) client_request: Option<(ClientRequest, Option<String>)>,
    pub(super) since: Instant,
}

impl PendingRequest {
    /// A request for a permission.
    pub(super) fn new(ask: PermissionRequest, decided: DecidedRequest) -> Self {
        Self {
            ask,
            decided,
            client_request: None,
            since: clock::now(),
        }
    }
}

/// A question that waits for a person.
#[derive(Debug)]
pub(crate) struct PendingApproval {
    /// The requests that it is of; at least one.
    pub(super) requests: Vec<PendingRequest>,
    /// What an answer is bound to.
    pub(super) digest: String,
    /// What people were shown.
    pub(super) details: ApprovalDetails,
    /// The seq of the first request's event.
    seq: u64,
    since: Instant,
    /// Until when it can be answered, in microseconds since the Unix epoch.
    until_us: i64,
    /// Until when its agent waits, likewise.
    agent_until_us: Option<i64>,
    /// Ends the wait for an answer; there once it is durable.
    deadline: Option<AbortHandle>,
    /// A person allowed it, and the delegate is asked about that.
    pub(super) confirmation: Option<DelegateConfirmation>,
}

impl PendingApproval {
    /// Whether its time is over, by the time of day that people were shown.
    pub(super) const fn is_expired(&self, now_us: i64) -> bool {
        self.until_us <= now_us
    }

    /// It is asked because a budget is spent: an answer holds once.
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

/// How a question ends.
pub(super) struct ApprovalEnd {
    pub(super) decision: Decision,
    pub(super) by: DecidedBy,
    pub(super) why: String,
    /// The rules that decided, where it was not a person.
    pub(super) rules: Option<Vec<String>>,
    /// What a person said.
    pub(super) answer: Option<ApprovalAnswer>,
}

impl ApprovalEnd {
    /// A denial that no person gave.
    pub(super) fn denied(by: DecidedBy, why: &str) -> Self {
        Self {
            decision: Decision::Deny,
            by,
            why: why.to_owned(),
            rules: None,
            answer: None,
        }
    }

    /// People have enough to decide.
    fn queue_full() -> Self {
        Self {
            rules: Some(vec!["max_pending".to_owned()]),
            ..Self::denied(
                DecidedBy::Error,
                "too many requests wait for people already",
            )
        }
    }

    /// What a person said.
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
    /// In what state of things an approval is decided now.
    pub(super) fn decision_context<'m>(
        &self,
        mode: Option<&'m str>,
    ) -> permission_requests::DecisionContext<'m> {
        let has_people = self.conversation.is_some() || self.shared.has_approvers;
        permission_requests::DecisionContext {
            mode,
            is_read_only: self.shared.journal.health().borrow().is_read_only(),
            has_approver: has_people && !self.pool.approval_rules().approvers.is_empty(),
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

    /// Logs and counts a verdict that is durable.
    pub(super) fn log_verdict(&self, verdict: &Verdict, class: ToolClass, asked: Instant) {
        PermissionDecided {
            slot: &self.work.slot,
            session: &self.work.session,
            request: &verdict.request,
            tool_class: class,
            decision: verdict.decision,
            decided_by: verdict.decided_by,
            rules: &verdict.rules,
            took: clock::since(asked),
        }
        .emit();
    }

    /// The policy wants a person: the request is journalled, then put to them, unless the same was
    /// asked or answered before.
    pub(super) fn request_approval(&mut self, mut member: PendingRequest) {
        if let Some(spent) = &member.decided.spent {
            self.budget.spend.notify_once(spent);
        }
        let digest = request_digest(&member.ask);
        let shown = self.approval_details(&member);
        let before = self.find_prior_answer(&member, &digest, &shown);
        if let Some(question) = before.approval_id() {
            // So that its record leads to whoever answered.
            let question = question.as_str().into();
            member.decided.add_fact("approval", &question);
        }
        if let PriorAnswer::Known(KnownApproval::Orphaned(..)) = &before {
            // People are asked by this request again: whoever follows the session is told.
            member.decided.add_fact("again", &true.into());
        }
        member.decided.record_request(&member.ask, &mut self.outbox);
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
                if !self.remember_answer(&digest, &shown.paths, &answer) {
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
                self.add_pending(id, member, digest, shown, seq, until_us);
            }
            KnownApproval::Outdated(before) => {
                let change = ApprovalChange::Ended {
                    state: ApprovalState::Cancelled,
                    answer: None,
                };
                self.write_approval_change(&before, change);
                self.create_approval(member, digest, shown, seq);
            }
            KnownApproval::None => self.create_approval(member, digest, shown, seq),
        }
    }

    /// The same waits already: they are one question.
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
        shown: ApprovalDetails,
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
        let most = member.decided.ask_timeout;
        let most = most.map_or(self.pool.config.approval.timeout, |of| {
            of.min(self.pool.config.approval.timeout)
        });
        let until_us = at_us.saturating_add(micros(most));
        self.outbox
            .write(Write::ApprovalOpened(Box::new(ApprovalRow {
                request: id.clone(),
                session: self.work.session.clone(),
                pool: self.pool.config.name.clone(),
                digest: digest.clone(),
                rules: member.decided.verdict.rules.clone(),
                why: member.decided.verdict.reason.clone(),
                paths: shown.paths.clone(),
                at_us,
                deadline_us: until_us,
                agent_until_us: self.agent_until(at_us),
            })));
        self.add_pending(id, member, digest, shown, seq, until_us);
    }

    /// Until when the agent waits for an answer.
    fn agent_until(&self, now_us: i64) -> Option<i64> {
        let waits = self.pool.config.approval.agent_waits?;
        Some(now_us.saturating_add(micros(waits.saturating_sub(APPROVAL_MARGIN))))
    }

    fn add_pending(
        &mut self,
        id: PermissionRequestId,
        member: PendingRequest,
        digest: String,
        shown: ApprovalDetails,
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
            paths: shown.paths.clone(),
            recipient: AnswerRecipient::Session(self.myself.clone()),
        };
        self.shared.approvals.insert(id.clone(), open);
        let pending = PendingApproval {
            requests: vec![member],
            digest,
            details: shown,
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

    /// The question is durable: people are asked.
    pub(super) fn publish_approval(&mut self, id: &PermissionRequestId) {
        let Some(pending) = self.pending.get(id) else {
            return; // It is over already.
        };
        let within = self.answer_timeout(pending);
        let (to, expired) = (self.myself.clone(), id.clone());
        let waits = tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let _ = to.send_message(SessionMsg::ApprovalExpired(expired));
        });
        if let Some(pending) = self.pending.get_mut(id) {
            pending.deadline = Some(waits.abort_handle());
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
            tool: &member.ask.tool,
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
        let asked = ApprovalUpdate::Requested(Box::new(ApprovalRequest {
            id: id.clone(),
            seq: pending.seq,
            tool_id: member.ask.tool_id.clone(),
            tool: member.ask.tool.clone(),
            class: member.decided.class,
            parts: facts.parts,
            not_plain: facts.not_plain,
            rules: verdict.rules.clone(),
            reason: verdict.reason.clone(),
            within,
        }));
        if talk.approver.try_send(asked).is_err() {
            self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Gone, NOBODY));
        }
    }

    /// How long a person may take from now on: what the pool and the policy say, and what is left
    /// of the agent's own patience without some time for the answer; the shortest of them.
    fn answer_timeout(&self, pending: &PendingApproval) -> Duration {
        let left = pending.until_us.saturating_sub(clock::now_us()).max(0);
        let left = Duration::from_micros(left.unsigned_abs());
        let gone = clock::since(pending.since) + APPROVAL_MARGIN;
        let of_agent = self.pool.config.approval.agent_waits;
        let of_agent = of_agent.map(|waits| waits.saturating_sub(gone));
        of_agent.map_or(left, |of_agent| of_agent.min(left))
    }

    /// Whether people have been asked, so that they can answer.
    pub(super) fn is_published(&self, id: &PermissionRequestId) -> bool {
        // One that is not durable has been put to nobody.
        self.pending.get(id).is_some_and(|of| of.deadline.is_some())
    }

    /// Something came back of the client of a conversation.
    pub(super) fn client_answered(&mut self, id: &PermissionRequestId, said: ApproverReply) {
        if !self.is_published(id) {
            tracing::debug!(ask = %id, "an answer to an ask that is over");
            return;
        }
        match said {
            ApproverReply::Allow => self.answer_from_client(id, Decision::Allow),
            ApproverReply::Reject => self.answer_from_client(id, Decision::Deny),
            ApproverReply::Cancelled => {
                self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Gone, CANCELLED));
            }
            ApproverReply::NoAnswer => self.expire_approval(id, UNDECIDED),
        }
    }

    /// Nobody decided in time.
    pub(super) fn approval_expired(&mut self, id: &PermissionRequestId) {
        self.expire_approval(id, TOO_LATE);
    }

    fn expire_approval(&mut self, id: &PermissionRequestId, why: &str) {
        let ruling = PolicySnapshot::take(&self.pool, &self.work, None);
        let deny_turn = permission_requests::denial_ends_turn(&self.pool, ruling.policy());
        if let Some(pending) = self.pending.get_mut(id) {
            for member in &mut pending.requests {
                member.decided.deny_turn = deny_turn;
            }
            self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Timeout, why));
        }
    }

    /// The agent does not wait for the answer to one of its requests any more.
    pub(super) fn request_withdrawn(&mut self, key: &PermissionRequestKey) {
        let why = "the agent withdrew its request before this was decided";
        self.withdraw_delegated(key, why);
        let ending = ApprovalEnd::denied(DecidedBy::Gone, why);
        let of_key = |of: &PendingRequest| of.ask.key == *key;
        let found = self.pending.iter_mut();
        let found = found
            .into_iter()
            .find(|(_, of)| of.requests.iter().any(of_key));
        let Some((id, pending)) = found else { return };
        if pending.requests.len() == 1 {
            let id = id.clone();
            return self.end_approval(&id, &ending);
        }
        if let Some(at) = pending.requests.iter().position(of_key) {
            let member = pending.requests.remove(at);
            self.end_request(member, &ending);
        }
    }

    /// Nobody will decide what is open.
    pub(super) fn cancel_approvals(&mut self, why: &str) {
        self.cancel_delegated(why);
        let open: Vec<PermissionRequestId> = self.pending.keys().cloned().collect();
        for id in open {
            self.end_approval(&id, &ApprovalEnd::denied(DecidedBy::Gone, why));
        }
    }

    /// Where the pool says so, the child does not wait: what it asked is kept, its turn and then
    /// itself are ended, and the task is put back until there is an answer.
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
        let why = "the child is stopped while its session waits for a person";
        self.interrupt(TurnOutcome::Cancelled, why.to_owned());
    }

    /// The agent is told no, and the question stays for the one that comes back.
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

    /// Journals a change of a question.
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

    /// The one end of every question that waited.
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

    /// The one end of every request that a person was to decide.
    pub(super) fn end_request(&mut self, member: PendingRequest, ending: &ApprovalEnd) {
        let PendingRequest {
            ask,
            mut decided,
            client_request: wish,
            since: asked,
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
        let (key, deny_turn, class) = (ask.key, decided.deny_turn, decided.class);
        self.outbox.on_durable(match wish {
            Some((wish, place)) => OnDurable::StartClientRequest {
                key,
                place: super::engine_tools::person_answer(&wish, ending).or(place),
                asked,
                verdict: decided.verdict,
                deny_turn,
                class,
            },
            None => OnDurable::SendAnswer {
                key,
                answer: decided.answer(),
                asked,
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

const RELEASED: &str =
    "a person would have to allow this: the session waits for one without its child";
const CANCELLED: &str =
    "a person would have to allow this, and the request was cancelled before one decided";
const UNDECIDED: &str = "a person would have to allow this and none gave an answer: do it another way or go on without it";
const NOBODY: &str = "a person would have to allow this and there is nobody to ask any more";
const TOO_LATE: &str = "a person would have to allow this and nobody answered in time: do it another way or go on without it";
