//! Approvals: opened, published, answered, or denied because nobody answered.
//!
//! Identical requests share one approval. Every end of a request goes through one function. Must not
//! know who the approver is.
//!
//! Approvals work in a daemon, with `run --approvals`, and in a conversation. Elsewhere the
//! decision "ask" becomes a deny that says so, and it ends the turn where `on_timeout` is
//! `deny_turn`.

use std::time::{Duration, Instant};

use super::answers::{ApprovalDetails, PriorAnswer, answer_reason, request_digest};
use super::decide::DecidedRequest;
use super::engine_tools::person_answer;
use super::{Effect, Permissions, Surroundings};
use crate::approval_registry::KnownApproval;
use crate::handle::approvals::AnswerReply;
use marshal_journal::{ApprovalAnswer, ApprovalChange, ApprovalRow};
use marshal_model::limits::{APPROVAL_MARGIN, APPROVALS_PER_SESSION, REQUESTS_PER_APPROVAL};
use marshal_model::{
    ApprovalState, ClientRequest, DecidedBy, Decision, PermissionRequest, PermissionRequestId,
    PermissionRequestKey,
};
use marshal_policy::CwdChange;

/// A permission request without a verdict.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) permission_request: PermissionRequest,
    pub(crate) decided: DecidedRequest,
    /// For a client request: the request, and the path that was evaluated.
    pub(crate) client_request: Option<(ClientRequest, Option<String>)>,
    pub(crate) since: Instant,
}

impl PendingRequest {
    /// Wraps a permission request of the agent that arrived at this time.
    pub(crate) fn new(
        permission_request: PermissionRequest,
        decided: DecidedRequest,
        since: Instant,
    ) -> Self {
        Self {
            permission_request,
            decided,
            client_request: None,
            since,
        }
    }
}

/// A pending approval.
#[derive(Debug)]
pub(super) struct PendingApproval {
    /// The requests that share it; at least one.
    pub(super) requests: Vec<PendingRequest>,
    /// The digest that an answer is bound to.
    pub(super) digest: String,
    /// What approvers were shown.
    pub(super) details: ApprovalDetails,
    /// The sequence number of the first request's event.
    pub(super) seq: u64,
    pub(super) since: Instant,
    /// When it expires, in microseconds since the Unix epoch.
    pub(super) until_us: i64,
    /// When its agent stops waiting, in microseconds since the Unix epoch.
    agent_until_us: Option<i64>,
    /// Whether approvers know of it, so that they can answer: it is durable.
    pub(super) is_published: bool,
    /// An approver's answer that the delegate is asked to confirm. There is nobody to reply to if
    /// the client of a conversation gave it.
    pub(super) confirming: Option<(ApprovalAnswer, Option<AnswerReply>)>,
}

impl PendingApproval {
    /// Whether it has expired, by the clock time that approvers were shown.
    pub(super) const fn is_expired(&self, now_us: i64) -> bool {
        self.until_us <= now_us
    }

    /// Whether it is pending because a budget is spent: then an answer applies once.
    pub(super) fn is_for_budget(&self) -> bool {
        let mut requests = self.requests.iter();
        requests.any(|request| request.decided.spent.is_some())
    }
}

/// How an approval ends.
pub(crate) struct ApprovalEnd {
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
    pub(crate) fn denied(by: DecidedBy, why: &str) -> Self {
        Self {
            decision: Decision::Deny,
            by,
            why: why.to_owned(),
            rules: None,
            answer: None,
        }
    }

    /// A denial by these rules.
    pub(super) fn denied_by(by: DecidedBy, rules: Vec<String>, why: &str) -> Self {
        Self {
            rules: Some(rules),
            ..Self::denied(by, why)
        }
    }

    /// A denial because too many requests are pending.
    pub(super) fn queue_full(why: &str) -> Self {
        Self::denied_by(DecidedBy::Error, vec!["max_pending".to_owned()], why)
    }

    /// An end by an approver's answer.
    pub(super) fn from_answer(by: DecidedBy, answer: ApprovalAnswer) -> Self {
        Self {
            decision: answer.decision,
            by,
            why: answer_reason(&answer, by),
            rules: None,
            answer: Some(answer),
        }
    }

    pub(super) fn change(&self) -> ApprovalChange {
        ApprovalChange::Ended {
            state: match (self.by, self.decision) {
                (DecidedBy::Timeout, _) => ApprovalState::Expired,
                (DecidedBy::Gone, _) => ApprovalState::Cancelled,
                (_, Decision::Allow) => ApprovalState::Approved,
                _ => ApprovalState::Rejected,
            },
            answer: self.answer.clone(),
        }
    }
}

impl Permissions {
    /// A request was evaluated: it goes to the delegate if that covers it, to an approver, or back.
    pub(crate) fn decided(&mut self, request: PendingRequest, at: &dyn Surroundings) {
        if request.decided.verdict.decision != Decision::Deny && at.is_delegated(&request) {
            self.delegate(request);
        } else {
            self.finish(request, at);
        }
    }

    /// Applies the verdict, or requests approval.
    pub(super) fn finish(&mut self, request: PendingRequest, at: &dyn Surroundings) {
        if request.decided.verdict.decision == Decision::Ask {
            return self.request_approval(request, at);
        }
        self.record(&request);
        self.effects.push(Effect::Answer(Box::new(request)));
    }

    fn record(&mut self, request: &PendingRequest) {
        self.effects.push(Effect::Record {
            id: request.decided.verdict.request.clone(),
            request: request.permission_request.clone(),
            evaluation: request.decided.judged.clone(),
        });
    }

    /// The policy requires approval. Records the request, and opens an approval for it unless the
    /// same request is pending or was answered before.
    fn request_approval(&mut self, mut request: PendingRequest, at: &dyn Surroundings) {
        if let Some(spent) = request.decided.spent {
            self.effects.push(Effect::NotifySpent(spent));
        }
        let digest = request_digest(&request.permission_request);
        let details = at.details(&request, None);
        let before = self.find_prior_answer(&request, &digest, &details, at);
        if let Some(question) = before.approval_id() {
            // The record then leads to the approver who answered.
            let question = question.as_str().into();
            request.decided.add_fact("approval", &question);
        }
        if let PriorAnswer::Known(KnownApproval::Orphaned(..)) = &before {
            // The approval is pending again: whoever follows the session must see that.
            request.decided.add_fact("again", &true.into());
        }
        self.record(&request);
        let known = match before {
            PriorAnswer::Pending(id) => return self.join_approval(id, request),
            PriorAnswer::ForTurn(answer) => KnownApproval::Remembered(answer),
            PriorAnswer::Known(known) => known,
        };
        match known {
            KnownApproval::Remembered(answer) => {
                self.end_request(request, &ApprovalEnd::from_answer(DecidedBy::Cache, answer));
            }
            KnownApproval::Answered(id, mut answer) => {
                answer.remember = answer.remember.min(at.rules().remember);
                self.remember(&digest, &details.paths, &mut answer, at);
                let end = ApprovalEnd::from_answer(DecidedBy::Human, answer);
                self.effects.push(Effect::Change(id, end.change()));
                self.end_request(request, &end);
            }
            KnownApproval::Orphaned(id, until_us) => {
                let agent_until_us = self.agent_until(at.now_us());
                let change = ApprovalChange::RequestedAgain { agent_until_us };
                self.effects.push(Effect::Change(id.clone(), change));
                self.wait(id, (digest, details), request, until_us, at);
            }
            KnownApproval::Outdated(before) => {
                let change = ApprovalChange::Ended {
                    state: ApprovalState::Cancelled,
                    answer: None,
                };
                self.effects.push(Effect::Change(before, change));
                self.open_approval((digest, details), request, at);
            }
            KnownApproval::None => self.open_approval((digest, details), request, at),
        }
    }

    /// Adds a request to the pending approval of an identical one.
    fn join_approval(&mut self, id: PermissionRequestId, request: PendingRequest) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        if pending.requests.len() >= REQUESTS_PER_APPROVAL {
            return self.end_request(request, &ApprovalEnd::queue_full(TOO_MANY));
        }
        pending.requests.push(request);
        let agent_until_us = pending.agent_until_us;
        let change = ApprovalChange::RequestedAgain { agent_until_us };
        self.effects.push(Effect::Change(id, change));
    }

    fn open_approval(
        &mut self,
        (digest, details): (String, ApprovalDetails),
        request: PendingRequest,
        at: &dyn Surroundings,
    ) {
        let is_full = self.pending.len() >= APPROVALS_PER_SESSION
            || at.pending_in_pool() >= at.rules().max_pending;
        if is_full {
            return self.end_request(request, &ApprovalEnd::queue_full(TOO_MANY));
        }
        let verdict = &request.decided.verdict;
        let id = verdict.request.clone();
        let now_us = at.now_us();
        let of_policy = request.decided.ask_timeout.unwrap_or(Duration::MAX);
        let until_us = now_us.saturating_add(micros(self.settings.timeout.min(of_policy)));
        self.effects.push(Effect::Open(Box::new(ApprovalRow {
            request: id.clone(),
            session: self.settings.session.clone(),
            pool: self.settings.pool.clone(),
            digest: digest.clone(),
            rules: verdict.rules.clone(),
            why: verdict.reason.clone(),
            paths: details.paths.clone(),
            at_us: now_us,
            deadline_us: until_us,
            agent_until_us: self.agent_until(now_us),
        })));
        self.wait(id, (digest, details), request, until_us, at);
    }

    /// When the agent stops waiting for an answer, in microseconds since the Unix epoch.
    fn agent_until(&self, now_us: i64) -> Option<i64> {
        let agent_waits = self.settings.agent_waits?;
        Some(now_us.saturating_add(micros(agent_waits.saturating_sub(APPROVAL_MARGIN))))
    }

    fn wait(
        &mut self,
        id: PermissionRequestId,
        (digest, details): (String, ApprovalDetails),
        request: PendingRequest,
        until_us: i64,
        at: &dyn Surroundings,
    ) {
        let pending = PendingApproval {
            requests: vec![request],
            digest,
            details,
            seq: 0,
            since: at.now(),
            until_us,
            agent_until_us: self.agent_until(at.now_us()),
            is_published: false,
            confirming: None,
        };
        self.pending.insert(id.clone(), pending);
        self.effects.push(Effect::Publish(id));
    }

    /// A pending approval.
    pub(super) fn pending(&self, id: &PermissionRequestId) -> Option<&PendingApproval> {
        self.pending.get(id)
    }

    pub(super) fn pending_mut(&mut self, id: &PermissionRequestId) -> Option<&mut PendingApproval> {
        self.pending.get_mut(id)
    }

    /// The approval with the first id; ids are ordered by time.
    pub(crate) fn first_pending(&self) -> Option<&PermissionRequestId> {
        self.pending.keys().next()
    }

    /// The approval is durable: approvers learn of it now. Gives how long one may take to answer;
    /// `None` if it has ended already.
    pub(super) fn publish(
        &mut self,
        id: &PermissionRequestId,
        at: &dyn Surroundings,
    ) -> Option<Duration> {
        self.pending.get_mut(id)?.is_published = true;
        self.pending
            .get(id)
            .map(|pending| self.time_left(pending, at))
    }

    /// How long an approver may still take: the time that pool and policy leave, or what is left of
    /// the agent's own timeout minus a margin for the answer, whichever is shorter.
    fn time_left(&self, pending: &PendingApproval, at: &dyn Surroundings) -> Duration {
        let left = pending.until_us.saturating_sub(at.now_us()).max(0);
        let left = Duration::from_micros(left.unsigned_abs());
        let elapsed = at.now().saturating_duration_since(pending.since) + APPROVAL_MARGIN;
        let of_agent = self.settings.agent_waits;
        of_agent.map_or(left, |waits| waits.saturating_sub(elapsed).min(left))
    }

    /// Nobody answered in time.
    pub(super) fn expire(&mut self, id: &PermissionRequestId, why: &str, at: &dyn Surroundings) {
        if let Some(pending) = self.pending.get_mut(id) {
            let ends_turn = at.denial_ends_turn();
            for request in &mut pending.requests {
                request.decided.deny_turn = ends_turn;
            }
            self.end_approval(id, &ApprovalEnd::denied(DecidedBy::Timeout, why));
        }
    }

    /// The agent withdrew one of its requests.
    pub(crate) fn withdraw(&mut self, key: &PermissionRequestKey) {
        self.requests.withdraw(key);
        let end = ApprovalEnd::denied(
            DecidedBy::Gone,
            "the agent withdrew its request before this was decided",
        );
        let of_key = |of: &PendingRequest| of.permission_request.key == *key;
        let delegated = self.delegated.iter().find(|(_, of)| of_key(of));
        if let Some(id) = delegated.map(|(id, _)| id.clone()) {
            self.end_delegated(&id, &end);
        }
        let mut pending = self.pending.iter_mut();
        let Some((id, pending)) = pending.find(|(_, of)| of.requests.iter().any(of_key)) else {
            return;
        };
        if pending.requests.len() == 1 {
            let id = id.clone();
            return self.end_approval(&id, &end);
        }
        if let Some(at) = pending.requests.iter().position(of_key) {
            let request = pending.requests.remove(at);
            self.end_request(request, &end);
        }
    }

    /// Ends everything that waits.
    pub(crate) fn cancel(&mut self, why: &str) {
        let end = ApprovalEnd::denied(DecidedBy::Gone, why);
        for id in self.delegated.keys().cloned().collect::<Vec<_>>() {
            self.end_delegated(&id, &end);
        }
        for id in self.pending.keys().cloned().collect::<Vec<_>>() {
            self.end_approval(&id, &end);
        }
    }

    /// Denies the agent's requests, and keeps their approvals for the child that comes back.
    pub(crate) fn orphan(&mut self) {
        let end = ApprovalEnd::denied(DecidedBy::Gone, RELEASED);
        for (id, mut approval) in std::mem::take(&mut self.pending) {
            let requests = std::mem::take(&mut approval.requests);
            let change = Effect::Change(id.clone(), ApprovalChange::Orphaned);
            self.effects.push(change);
            self.effects.push(Effect::Orphan { id, approval });
            for request in requests {
                self.end_request(request, &end);
            }
        }
    }

    /// Ends a pending approval. Every one of them ends here.
    pub(super) fn end_approval(&mut self, id: &PermissionRequestId, end: &ApprovalEnd) {
        let Some(pending) = self.pending.remove(id) else {
            return;
        };
        self.effects.push(Effect::Close {
            id: id.clone(),
            since: pending.since,
            decision: end.decision,
            by: end.by,
        });
        self.effects.push(Effect::Change(id.clone(), end.change()));
        for request in pending.requests {
            self.end_request(request, end);
        }
    }

    /// Ends a request that waited. Every such request ends here.
    pub(super) fn end_request(&mut self, mut request: PendingRequest, end: &ApprovalEnd) {
        let decided = &mut request.decided;
        decided.verdict.decision = end.decision;
        decided.verdict.decided_by = end.by;
        decided.verdict.reason.clone_from(&end.why);
        if let Some(rules) = &end.rules {
            decided.verdict.rules.clone_from(rules);
        }
        let directory = &mut self.requests.directory;
        directory.record_resolution(self.settings.shell_cwd, &decided.moved, end.decision);
        if let Some((client_request, place)) = &mut request.client_request
            && let Some(text) = person_answer(client_request, end)
        {
            *place = Some(text);
        }
        self.effects.push(Effect::Answer(Box::new(request)));
    }

    /// Denies a request that is not recorded yet.
    pub(super) fn deny_unrecorded(&mut self, mut request: PendingRequest, end: &ApprovalEnd) {
        // A move of the shell that was allowed may already have happened, and is not undone.
        if request.decided.verdict.decision != Decision::Ask {
            request.decided.moved = CwdChange::Unchanged;
        }
        self.record(&request);
        self.end_request(request, end);
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

const TOO_MANY: &str = "too many requests already wait for approval";
const RELEASED: &str = "this needs approval: the session waits for it without its child";
