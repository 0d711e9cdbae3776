//! Asks the pool's delegate to confirm what an approver allowed: it may deny now what it let pass
//! before, because the request may have changed for it as well.
//!
//! The approval stays pending meanwhile, so whatever ends it ends this, too. No answer of the
//! delegate is a deny. Must not know how a delegate is reached.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::approvals::ApprovalEnd;
use super::delegated_requests::{AbortOnDrop, DELEGATE_ERROR};
use super::outbox::OnDurable;
use super::state::SessionState;
use super::{SessionMsg, SessionRef};
use crate::approvals::{AnswerError, AnswerReply};
use marshal_journal::ApprovalAnswer;
use marshal_model::{DecidedBy, Decision, DelegateError, PermissionRequestId, RememberScope};
use marshal_policy::delegation::DelegateAnswer;

/// An approver's answer that waits for the delegate.
#[derive(Debug)]
pub(crate) struct DelegateConfirmation {
    answer: ApprovalAnswer,
    /// Where the result is sent; `None` if the client of a conversation decided.
    reply: Option<AnswerReply>,
    /// Dropping it cancels the call of the delegate.
    _asking: AbortOnDrop,
}

/// Sends the result to the session; a failure if it is dropped before.
struct ConfirmationReply(Option<(SessionRef, PermissionRequestId)>);

impl ConfirmationReply {
    fn send(&mut self, answer: Result<DelegateAnswer, DelegateError>) {
        if let Some((to, request)) = self.0.take() {
            let _ = to.send_message(SessionMsg::DelegateConfirmed {
                request_id: request,
                answer,
            });
        }
    }
}

impl Drop for ConfirmationReply {
    fn drop(&mut self) {
        self.send(Err(DelegateError::Internal));
    }
}

impl SessionState {
    /// Handles an answer to a pending approval: applies it, or asks the delegate first.
    pub(super) fn handle_answer(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: Option<AnswerReply>,
    ) {
        let is_asked = |of: &super::approvals::PendingApproval| of.confirmation.is_some();
        let is_confirming = self.pending.get(id).is_some_and(is_asked);
        if answer.decision != Decision::Allow || !self.has_delegated_request(id) {
            // A refusal does not wait for the confirmation of an earlier answer.
            self.cancel_confirmation(id);
            return self.finish_answer(id, answer, reply);
        }
        if is_confirming {
            if let Some(reply) = reply {
                reply.reject_as_ended();
            }
            return;
        }
        let Some(texts) = self.delegate_requests(id) else {
            // The request has changed, or a rule denies it: that ends it at once.
            return self.finish_answer(id, answer, reply);
        };
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let host = Arc::clone(&self.shared.host);
        let mut confirmation_reply = ConfirmationReply(Some((self.myself.clone(), id.clone())));
        let asking = tokio::spawn(async move {
            let mut calls = JoinSet::new();
            for text in texts {
                let (delegate, host) = (Arc::clone(&delegate), Arc::clone(&host));
                calls.spawn(async move { delegate.ask(host, text).await });
            }
            let mut all = Err(DelegateError::Internal);
            while let Some(answer) = calls.join_next().await {
                let answer = answer.unwrap_or(Err(DelegateError::Internal));
                let is_no = !matches!(&answer, Ok(answer) if answer.decision != Decision::Deny);
                all = answer;
                if is_no {
                    break;
                }
            }
            confirmation_reply.send(all);
        });
        if let Some(pending) = self.pending.get_mut(id) {
            pending.confirmation = Some(DelegateConfirmation {
                answer,
                reply,
                _asking: AbortOnDrop(asking.abort_handle()),
            });
        }
    }

    /// Cancels a confirmation, because another approver refused.
    fn cancel_confirmation(&mut self, id: &PermissionRequestId) {
        let pending = self.pending.get_mut(id);
        if let Some(before) = pending.and_then(|of| of.confirmation.take())
            && let Some(reply) = before.reply
        {
            reply.reject_as_ended();
        }
    }

    /// Handles the delegate's answer about an approved request.
    pub(super) fn delegate_confirmed(
        &mut self,
        id: &PermissionRequestId,
        delegate_answer: Result<DelegateAnswer, DelegateError>,
    ) {
        let pending = self.pending.get_mut(id);
        let Some(confirming) = pending.and_then(|of| of.confirmation.take()) else {
            return; // The approval ended before.
        };
        let DelegateConfirmation {
            mut answer, reply, ..
        } = confirming;
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let name = &delegate.config.name;
        let (rule, why) = match delegate_answer {
            // A delegate that asks for a person has got one.
            Ok(delegate_answer) if delegate_answer.decision != Decision::Deny => {
                return self.finish_answer(id, answer, reply);
            }
            Ok(delegate_answer) => {
                let reason = self
                    .pool
                    .mask
                    .load()
                    .mask_text(&delegate_answer.reason)
                    .into_owned();
                let because = if reason.is_empty() {
                    String::new()
                } else {
                    format!(": {reason}")
                };
                let why =
                    format!("a person allowed this, and the delegate {name} denies it{because}");
                (format!("delegate.{name}"), why)
            }
            Err(error) => {
                let why = format!(
                    "a person allowed this, and the delegate {name} gave no decision ({error}), so it is denied: do it another way or go on without it"
                );
                (DELEGATE_ERROR.to_owned(), why)
            }
        };
        answer.remember = RememberScope::Never;
        let ending = ApprovalEnd {
            decision: Decision::Deny,
            by: DecidedBy::Delegate,
            why: why.clone(),
            rules: Some(vec![rule]),
            answer: Some(answer),
        };
        self.end_approval(id, &ending);
        if let Some(reply) = reply {
            let result = Err(AnswerError::Delegate(why));
            self.outbox
                .on_durable(OnDurable::ReplyToApprover(reply, result));
        }
    }

    /// Applies the answer, unless it is overruled.
    fn finish_answer(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: Option<AnswerReply>,
    ) {
        if answer.decision == Decision::Allow
            && self.shared.journal.health().borrow().is_read_only()
            && let Some(reply) = reply
        {
            return reply.send(Err(AnswerError::ReadOnly));
        }
        let result = self.apply_answer(id, answer);
        if let Some(reply) = reply {
            self.outbox
                .on_durable(OnDurable::ReplyToApprover(reply, result));
        }
    }
}
