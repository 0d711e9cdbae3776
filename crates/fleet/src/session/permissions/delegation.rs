//! The pool's delegate: it decides on requests that the policy did not deny, and confirms what an
//! approver allowed, because the request may have changed for it as well.
//!
//! The delegate is called before any approver, and the session does not block on it. Its answer can
//! only make a verdict more severe, and no answer is a deny. While it confirms, the approval stays
//! pending, so whatever ends that ends this, too. Must not know how a delegate is reached.

use serde_json::json;

use super::answers::reject_as_ended;
use super::approvals::{ApprovalEnd, PendingApproval, PendingRequest};
use super::decide::deny_without_approver;
use super::{Effect, Permissions, Surroundings};
use crate::handle::approvals::{AnswerError, AnswerReply};
use crate::session::turn::budget;
use marshal_journal::ApprovalAnswer;
use marshal_model::limits::DELEGATED_PER_SESSION;
use marshal_model::{DecidedBy, Decision, DelegateError, PermissionRequestId, RememberScope};
use marshal_policy::PolicyDecision;
use marshal_policy::delegation::DelegateAnswer;

/// The rule name of a denial when the delegate gives no decision.
const DELEGATE_ERROR: &str = "delegate_error";

type Answer = Result<DelegateAnswer, DelegateError>;

impl Permissions {
    /// The request waits for the delegate.
    pub(super) fn delegate(&mut self, request: PendingRequest) {
        if self.delegated.len() >= DELEGATED_PER_SESSION {
            let why = "too many requests already wait for the delegate";
            return self.deny_unrecorded(request, &ApprovalEnd::queue_full(why));
        }
        let id = request.decided.verdict.request.clone();
        self.delegated.insert(id.clone(), request);
        self.effects.push(Effect::AskDelegate(id));
    }

    /// A request that waits for the delegate.
    pub(super) fn delegated(&self, id: &PermissionRequestId) -> Option<&PendingRequest> {
        self.delegated.get(id)
    }

    /// Ends a request that waits for the delegate.
    pub(super) fn end_delegated(&mut self, id: &PermissionRequestId, end: &ApprovalEnd) {
        if let Some(request) = self.delegated.remove(id) {
            self.effects.push(Effect::CancelDelegate(id.clone()));
            self.deny_unrecorded(request, end);
        }
    }

    /// The delegate answered, or failed to.
    pub(crate) fn delegate_answered(
        &mut self,
        id: &PermissionRequestId,
        answer: Answer,
        at: &dyn Surroundings,
    ) {
        let Some(mut request) = self.delegated.remove(id) else {
            return; // The request ended before.
        };
        self.effects.push(Effect::CancelDelegate(id.clone()));
        let name = self.settings.delegate.clone().unwrap_or_default();
        let before = request.decided.verdict.decision;
        let word = match &answer {
            Ok(answer) => answer.decision.as_str(),
            Err(error) => error.as_str(),
        };
        request.decided.add_fact(
            "delegate",
            &json!({"name": name, "answer": word, "policy": before.as_str()}),
        );
        let answer = match refusal(&name, answer, at) {
            Ok(answer) => answer,
            Err((rule, why)) => {
                let why = format!("the delegate {name} {why}");
                let end = ApprovalEnd::denied_by(DecidedBy::Delegate, vec![rule], &why);
                return self.deny_unrecorded(request, &end);
            }
        };
        if let Err(end) = self.recheck_request(&mut request, at) {
            return self.deny_unrecorded(request, &end);
        }
        let decided = &mut request.decided;
        let verdict = &mut decided.verdict;
        if answer.decision > verdict.decision {
            verdict.rules = vec![format!("delegate.{name}")];
            verdict.reason = format!(
                "the delegate {name} requires approval{}",
                because(&answer, at)
            );
            verdict.decision = Decision::Ask;
            verdict.decided_by = DecidedBy::Delegate;
            decided.policy = Decision::Ask;
        }
        // Requests that were allowed in the meantime count towards the budget.
        if decided.verdict.decision == Decision::Allow
            && let Some(spent) = at.spent_budget()
        {
            budget::reapply_spent_budget(decided, spent);
        }
        if before == Decision::Allow && request.decided.verdict.decision == Decision::Ask {
            return self.escalate(request, at);
        }
        self.finish(request, at);
    }

    /// Evaluates a request again by the newest policy, and resolves its paths again. The more
    /// severe verdict applies.
    fn recheck_request(
        &self,
        request: &mut PendingRequest,
        at: &dyn Surroundings,
    ) -> Result<(), ApprovalEnd> {
        let (now, place) = self.reevaluate(request, at);
        let is_same_place = request.is_same_place(place.as_ref());
        let decided = &mut request.decided;
        let is_stricter = now.decision > decided.verdict.decision;
        if is_stricter {
            let again = json!({"decision": now.decision.as_str(), "rules": now.rules});
            decided.add_fact("again", &again);
        }
        if now.decision == Decision::Deny {
            return Err(ApprovalEnd::denied_by(
                now.decided_by,
                now.rules,
                &now.reason,
            ));
        }
        if !is_same_place {
            let why = "what this request refers to changed while it waited for the delegate; request it again";
            return Err(ApprovalEnd::denied(DecidedBy::Error, why));
        }
        if is_stricter {
            decided.policy = now.decision;
            let verdict = &mut decided.verdict;
            verdict.decision = now.decision;
            verdict.decided_by = now.decided_by;
            verdict.rules = now.rules;
            verdict.reason = now.reason;
            decided.facts = Some(now.facts);
        }
        Ok(())
    }

    /// Escalates a request that the policy allowed at first to an approver; without one it is
    /// denied.
    fn escalate(&mut self, mut request: PendingRequest, at: &dyn Surroundings) {
        let decided = &mut request.decided;
        if at.has_approver() {
            let directory = &mut self.requests.directory;
            directory.record_decision(self.settings.shell_cwd, &decided.moved, Decision::Ask);
            return self.finish(request, at);
        }
        deny_without_approver(&mut decided.verdict);
        decided.deny_turn = at.denial_ends_turn();
        let verdict = decided.verdict.clone();
        let end = ApprovalEnd::denied_by(verdict.decided_by, verdict.rules, &verdict.reason);
        self.deny_unrecorded(request, &end);
    }

    /// An approver allowed what the delegate must confirm.
    pub(super) fn confirm(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: Option<AnswerReply>,
        at: &dyn Surroundings,
    ) {
        let is_confirming = |of: &PendingApproval| of.confirming.is_some();
        if self.pending.get(id).is_some_and(is_confirming) {
            return reject_as_ended(reply);
        }
        if self.recheck(id, at).is_err() {
            // The request has changed, or a rule denies it: that ends it at once.
            return self.finish_answer(id, answer, reply, at);
        }
        if let Some(pending) = self.pending.get_mut(id) {
            pending.confirming = Some((answer, reply));
            self.effects.push(Effect::ConfirmByDelegate(id.clone()));
        }
    }

    /// The current decisions on the requests of an approval that the delegate confirms; `None` for one
    /// that it does not cover.
    pub(super) fn decisions_to_confirm(
        &self,
        id: &PermissionRequestId,
        at: &dyn Surroundings,
    ) -> Vec<Option<PolicyDecision>> {
        let pending = self.pending.get(id);
        let requests = pending.map_or(&[][..], |of| &of.requests).iter();
        let covered = requests.map(|request| at.is_delegated(request).then_some(request));
        covered
            .map(|request| request.map(|request| self.reevaluate(request, at).0))
            .collect()
    }

    /// Cancels a confirmation, because another approver refused.
    pub(super) fn cancel_confirmation(&mut self, id: &PermissionRequestId) {
        let pending = self.pending.get_mut(id);
        if let Some((_, reply)) = pending.and_then(|of| of.confirming.take()) {
            self.effects.push(Effect::CancelDelegate(id.clone()));
            reject_as_ended(reply);
        }
    }

    /// The delegate answered about an approved request, or failed to.
    pub(crate) fn delegate_confirmed(
        &mut self,
        id: &PermissionRequestId,
        delegate_answer: Answer,
        at: &dyn Surroundings,
    ) {
        let pending = self.pending.get_mut(id);
        let Some((mut answer, reply)) = pending.and_then(|of| of.confirming.take()) else {
            return; // The approval ended before.
        };
        self.effects.push(Effect::CancelDelegate(id.clone()));
        let name = self.settings.delegate.clone().unwrap_or_default();
        // A delegate that asks for a person has got one.
        let Err((rule, why)) = refusal(&name, delegate_answer, at) else {
            return self.finish_answer(id, answer, reply, at);
        };
        let why = format!("a person allowed this, and the delegate {name} {why}");
        answer.remember = RememberScope::Never;
        let mut end = ApprovalEnd::denied_by(DecidedBy::Delegate, vec![rule], &why);
        end.answer = Some(answer);
        self.end_approval(id, &end);
        if let Some(reply) = reply {
            let result = Err(AnswerError::Delegate(why));
            self.effects.push(Effect::Reply(reply, result));
        }
    }
}

/// The answer, or the rule and the reason of a denial.
fn refusal(
    name: &str,
    answer: Answer,
    at: &dyn Surroundings,
) -> Result<DelegateAnswer, (String, String)> {
    match answer {
        Ok(answer) if answer.decision == Decision::Deny => {
            let why = format!("denies this{}", because(&answer, at));
            Err((format!("delegate.{name}"), why))
        }
        Ok(answer) => Ok(answer),
        Err(error) => {
            let why = format!(
                "gave no decision ({error}), so this is denied: do it another way or go on without it"
            );
            Err((DELEGATE_ERROR.to_owned(), why))
        }
    }
}

/// The delegate's reason, to be appended.
fn because(answer: &DelegateAnswer, at: &dyn Surroundings) -> String {
    let reason = at.mask(&answer.reason);
    if reason.is_empty() {
        reason
    } else {
        format!(": {reason}")
    }
}
