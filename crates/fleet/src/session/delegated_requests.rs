//! Requests that the pool's delegate decides on, after the policy did not deny them.
//!
//! The delegate is called before any approver, and the session does not block on it. Its answer can
//! only make a verdict more severe, and no answer is a deny. A request ends here, or continues as
//! if the policy had decided so. Must not know how a delegate is reached.

use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::AbortHandle;

use super::approvals::{ApprovalEnd, PendingRequest};
use super::budget;
use super::outbox::OnDurable;
use super::permission_requests;
use super::policy_snapshot::PolicySnapshot;
use super::state::SessionState;
use super::{SessionMsg, SessionRef};
use marshal_model::limits::DELEGATED_PER_SESSION;
use marshal_model::{
    DecidedBy, Decision, DelegateError, PermissionRequestId, PermissionRequestKey, UntrustedText,
};
use marshal_policy::CwdChange;
use marshal_policy::delegation::{
    Claims, DelegateAnswer, DelegateRequest, PHASE_REQUEST, PolicyOutcome, VERSION,
};

/// The rule name of a denial when the delegate gives no decision.
pub(super) const DELEGATE_ERROR: &str = "delegate_error";

/// A request that waits for the delegate.
#[derive(Debug)]
pub(crate) struct PendingDelegation {
    request: PendingRequest,
    /// Dropping it cancels the call of the delegate.
    _asking: AbortOnDrop,
}

/// Aborts a task when it is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends the delegate's answer to the session; a failure if it is dropped before.
struct DelegateReply(Option<(SessionRef, PermissionRequestId)>);

impl DelegateReply {
    fn send(&mut self, answer: Result<DelegateAnswer, DelegateError>) {
        if let Some((to, permission_request)) = self.0.take() {
            let _ = to.send_message(SessionMsg::DelegateAnswered {
                request_id: permission_request,
                answer,
            });
        }
    }
}

impl Drop for DelegateReply {
    fn drop(&mut self) {
        self.send(Err(DelegateError::Internal));
    }
}

impl SessionState {
    /// Routes an evaluated request: to the delegate if it covers the request, to an approver, or
    /// back.
    pub(super) fn route_decision(&mut self, member: PendingRequest) {
        if member.decided.verdict.decision == Decision::Deny || !self.is_delegated(&member) {
            return self.finish_decision(member);
        }
        if self.delegated.len() >= DELEGATED_PER_SESSION {
            let ending = ApprovalEnd {
                rules: Some(vec!["max_pending".to_owned()]),
                ..ApprovalEnd::denied(
                    DecidedBy::Error,
                    "too many requests already wait for the delegate",
                )
            };
            return self.deny_unrecorded(member, &ending);
        }
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let id = member.decided.verdict.request.clone();
        let verdict = &member.decided.verdict;
        let outcome = (verdict.decision, &verdict.rules[..], &verdict.reason[..]);
        let text = self
            .delegate_request(&member, &delegate.config.name, outcome)
            .into_json();
        let host = Arc::clone(&self.shared.host);
        let mut delegate_reply = DelegateReply(Some((self.myself.clone(), id.clone())));
        let asking = tokio::spawn(async move {
            let answer = delegate.ask(host, text).await;
            delegate_reply.send(answer);
        });
        let delegated = PendingDelegation {
            request: member,
            _asking: AbortOnDrop(asking.abort_handle()),
        };
        self.delegated.insert(id, delegated);
    }

    /// Whether the delegate covers a request, by the tool's name and by the request's class.
    pub(super) fn is_delegated(&self, member: &PendingRequest) -> bool {
        let Some(delegate) = &self.pool.delegate else {
            return false;
        };
        let class = member.decided.class;
        if member.client_request.is_some() {
            return delegate.config.covers(&[class]);
        }
        let unmasked = member
            .decided
            .unmasked
            .as_deref()
            .unwrap_or(&member.permission_request);
        let request = self
            .pool
            .extractor
            .extract(unmasked.tool.raw(), &unmasked.input);
        delegate.config.covers(&[class, request.class()])
    }

    /// Whether the delegate covers one of the requests of an approval.
    pub(super) fn has_delegated_request(&self, id: &PermissionRequestId) -> bool {
        let pending = self.pending.get(id);
        pending.is_some_and(|item| item.requests.iter().any(|member| self.is_delegated(member)))
    }

    /// The document for the delegate: the request, with the policy's decision.
    pub(super) fn delegate_request<'a>(
        &'a self,
        member: &'a PendingRequest,
        delegate: &'a str,
        (decision, rules, reason): (Decision, &'a [String], &'a str),
    ) -> DelegateRequest<'a> {
        let PendingRequest {
            permission_request,
            decided,
            ..
        } = member;
        let raw = |text: &'a Option<UntrustedText>| text.as_ref().map(UntrustedText::raw);
        let verdict = &decided.verdict;
        let facts: Result<&RawValue, _> = serde_json::from_str(decided.facts_json());
        DelegateRequest {
            version: VERSION,
            phase: PHASE_REQUEST,
            delegate,
            pool: self.pool.config.name.as_str(),
            agent: &self.pool.config.agent,
            slot: self.work.slot.index,
            session: self.work.session.as_str(),
            run: self.work.run.as_str(),
            task: self.work.task.as_str(),
            ask: verdict.request.as_str(),
            tool: permission_request.tool.raw(),
            class: decided.class.as_str(),
            input: &permission_request.input,
            claimed: Claims {
                title: raw(&permission_request.claims.title),
                kind: raw(&permission_request.claims.kind),
                reason: raw(&permission_request.claims.reason),
                active_mode: raw(&permission_request.claims.active_mode),
                required_mode: raw(&permission_request.claims.required_mode),
            },
            policy: PolicyOutcome {
                name: &decided.judged.policy,
                sha256: &decided.judged.policy_sha256,
                decision: decision.as_str(),
                rules,
                reason,
            },
            facts: facts.unwrap_or(RawValue::NULL),
        }
    }

    /// Handles the delegate's answer, or its failure.
    pub(super) fn delegate_answered(
        &mut self,
        id: &PermissionRequestId,
        answer: Result<DelegateAnswer, DelegateError>,
    ) {
        let Some(PendingDelegation {
            request: mut member,
            ..
        }) = self.delegated.remove(id)
        else {
            return; // The request ended before.
        };
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let name = &delegate.config.name;
        let before = member.decided.verdict.decision;
        let word = match &answer {
            Ok(answer) => answer.decision.as_str(),
            Err(error) => error.as_str(),
        };
        member.decided.add_fact(
            "delegate",
            &json!({"name": name, "answer": word, "policy": before.as_str()}),
        );
        let answer = match answer {
            Err(error) => {
                let why = format!(
                    "the delegate {name} gave no decision ({error}), so this is denied: do it another way or go on without it"
                );
                return self.deny_by_delegate(member, DELEGATE_ERROR.to_owned(), &why);
            }
            Ok(answer) => answer,
        };
        let rule = format!("delegate.{name}");
        let reason = self.pool.mask.load().mask_text(&answer.reason).into_owned();
        let because = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        if answer.decision == Decision::Deny {
            let why = format!("the delegate {name} denies this{because}");
            return self.deny_by_delegate(member, rule, &why);
        }
        if let Err(ending) = self.recheck_request(&mut member) {
            return self.deny_unrecorded(member, &ending);
        }
        let verdict = &mut member.decided.verdict;
        if answer.decision > verdict.decision {
            verdict.rules = vec![rule];
            verdict.reason = format!("the delegate {name} requires approval{because}");
            verdict.decision = Decision::Ask;
            verdict.decided_by = DecidedBy::Delegate;
            member.decided.policy = Decision::Ask;
        }
        // Requests that were allowed in the meantime count towards the budget.
        if member.decided.verdict.decision == Decision::Allow
            && let Some(spent) = self.spent_budget()
        {
            budget::reapply_spent_budget(&mut member.decided, spent);
        }
        if before == Decision::Allow && member.decided.verdict.decision == Decision::Ask {
            return self.escalate_to_approver(member);
        }
        self.finish_decision(member);
    }

    /// Evaluates a request again by the newest policy, and resolves its paths again. The more
    /// severe verdict applies.
    fn recheck_request(&mut self, member: &mut PendingRequest) -> Result<(), ApprovalEnd> {
        let (judgement, place) = self.reevaluate(member);
        let decided = &mut member.decided;
        if judgement.decision > decided.verdict.decision {
            let again = json!({"decision": judgement.decision.as_str(), "rules": judgement.rules});
            decided.add_fact("again", &again);
        }
        if judgement.decision == Decision::Deny {
            return Err(ApprovalEnd {
                rules: Some(judgement.rules),
                ..ApprovalEnd::denied(judgement.decided_by, &judgement.reason)
            });
        }
        let is_same_place = member
            .client_request
            .as_ref()
            .is_none_or(|(_, then)| *then == place);
        if !is_same_place {
            let why = "what this request refers to changed while it waited for the delegate; request it again";
            return Err(ApprovalEnd::denied(DecidedBy::Error, why));
        }
        if judgement.decision > decided.verdict.decision {
            decided.policy = judgement.decision;
            let verdict = &mut decided.verdict;
            verdict.decision = judgement.decision;
            verdict.decided_by = judgement.decided_by;
            verdict.rules = judgement.rules;
            verdict.reason = judgement.reason;
            decided.facts = Some(judgement.facts);
        }
        Ok(())
    }

    /// Escalates a request that the policy allowed at first to an approver; without one it is
    /// denied.
    fn escalate_to_approver(&mut self, mut member: PendingRequest) {
        if self.decision_context(None).has_approver {
            let keeps = self.pool.config.shell_cwd;
            let directory = &mut self.requests.directory;
            directory.record_decision(keeps, &member.decided.moved, Decision::Ask);
            return self.finish_decision(member);
        }
        let snapshot = PolicySnapshot::take(&self.pool, &self.work, None);
        let verdict = &mut member.decided.verdict;
        member.decided.deny_turn =
            permission_requests::deny_without_approver(&self.pool, snapshot.policy(), verdict);
        let verdict = member.decided.verdict.clone();
        let ending = ApprovalEnd {
            rules: Some(verdict.rules),
            ..ApprovalEnd::denied(verdict.decided_by, &verdict.reason)
        };
        self.deny_unrecorded(member, &ending);
    }

    fn deny_by_delegate(&mut self, member: PendingRequest, rule: String, why: &str) {
        let ending = ApprovalEnd {
            rules: Some(vec![rule]),
            ..ApprovalEnd::denied(DecidedBy::Delegate, why)
        };
        self.deny_unrecorded(member, &ending);
    }

    /// Applies the verdict, or requests approval.
    fn finish_decision(&mut self, member: PendingRequest) {
        let PendingRequest {
            permission_request,
            mut decided,
            client_request,
            since: asked_at,
        } = member;
        if decided.verdict.decision == Decision::Ask {
            return self.request_approval(PendingRequest {
                permission_request,
                decided,
                client_request,
                since: asked_at,
            });
        }
        self.tally.add_decision(&decided);
        self.count_verdict(&mut decided);
        decided.record(&permission_request, &mut self.outbox);
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

    /// Denies a request that is not recorded yet.
    fn deny_unrecorded(&mut self, mut member: PendingRequest, ending: &ApprovalEnd) {
        // A move of the shell that may already have happened is not undone.
        member.decided.moved = CwdChange::Unchanged;
        member
            .decided
            .record_request(&member.permission_request, &mut self.outbox);
        self.end_request(member, ending);
    }

    /// Cancels all calls of the delegate.
    pub(super) fn cancel_delegated(&mut self, why: &str) {
        for (
            _,
            PendingDelegation {
                request: member, ..
            },
        ) in std::mem::take(&mut self.delegated)
        {
            self.deny_unrecorded(member, &ApprovalEnd::denied(DecidedBy::Gone, why));
        }
    }

    /// Cancels the call of the delegate for a request that the agent withdrew.
    pub(super) fn withdraw_delegated(&mut self, key: &PermissionRequestKey, why: &str) {
        let mut open = self.delegated.iter();
        let entry = open.find(|(_, item)| item.request.permission_request.key == *key);
        let Some(id) = entry.map(|(id, _)| id.clone()) else {
            return;
        };
        if let Some(PendingDelegation {
            request: member, ..
        }) = self.delegated.remove(&id)
        {
            self.deny_unrecorded(member, &ApprovalEnd::denied(DecidedBy::Gone, why));
        }
    }
}
