//! What a person allows, on its way by the pool's delegate once more: it may deny what it let pass
//! before, because what waits may have become something else to it as well.
//!
//! The question stays open meanwhile, so that whatever ends it ends this, too. No answer of the
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

/// What a person said and the delegate is asked about.
#[derive(Debug)]
pub(crate) struct DelegateConfirmation {
    answer: ApprovalAnswer,
    /// Who waits to hear what came of it; nobody where the client of a conversation decided.
    reply: Option<AnswerReply>,
    /// Dropped, it is not asked any more.
    _asking: AbortOnDrop,
}

/// Tells the session what came of it, also when nothing did.
struct ConfirmationReply(Option<(SessionRef, PermissionRequestId)>);

impl ConfirmationReply {
    fn send(&mut self, said: Result<DelegateAnswer, DelegateError>) {
        if let Some((to, ask)) = self.0.take() {
            let _ = to.send_message(SessionMsg::DelegateConfirmed {
                request_id: ask,
                answer: said,
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
    /// A person's answer to a question that waits: it holds, or the delegate is asked first.
    pub(super) fn handle_answer(
        &mut self,
        id: &PermissionRequestId,
        answer: ApprovalAnswer,
        reply: Option<AnswerReply>,
    ) {
        let is_asked = |of: &super::approvals::PendingApproval| of.confirmation.is_some();
        let is_confirming = self.pending.get(id).is_some_and(is_asked);
        if answer.decision != Decision::Allow || !self.has_delegated_request(id) {
            // A refusal need not wait for what would come of an earlier answer.
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
            // It is not what was shown any more, or a rule denies it: that is settled at once.
            return self.finish_answer(id, answer, reply);
        };
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let host = Arc::clone(&self.shared.host);
        let mut tell = ConfirmationReply(Some((self.myself.clone(), id.clone())));
        let asking = tokio::spawn(async move {
            let mut asked = JoinSet::new();
            for text in texts {
                let (delegate, host) = (Arc::clone(&delegate), Arc::clone(&host));
                asked.spawn(async move { delegate.ask(host, text).await });
            }
            let mut all = Err(DelegateError::Internal);
            while let Some(said) = asked.join_next().await {
                let said = said.unwrap_or(Err(DelegateError::Internal));
                let is_no = !matches!(&said, Ok(said) if said.decision != Decision::Deny);
                all = said;
                if is_no {
                    break;
                }
            }
            tell.send(all);
        });
        if let Some(pending) = self.pending.get_mut(id) {
            pending.confirmation = Some(DelegateConfirmation {
                answer,
                reply,
                _asking: AbortOnDrop(asking.abort_handle()),
            });
        }
    }

    /// Somebody refuses what somebody else allowed a moment ago.
    fn cancel_confirmation(&mut self, id: &PermissionRequestId) {
        let pending = self.pending.get_mut(id);
        if let Some(before) = pending.and_then(|of| of.confirmation.take())
            && let Some(reply) = before.reply
        {
            reply.reject_as_ended();
        }
    }

    /// What the delegate says of what a person allowed.
    pub(super) fn delegate_confirmed(
        &mut self,
        id: &PermissionRequestId,
        said: Result<DelegateAnswer, DelegateError>,
    ) {
        let pending = self.pending.get_mut(id);
        let Some(confirming) = pending.and_then(|of| of.confirmation.take()) else {
            return; // It was over before.
        };
        let DelegateConfirmation {
            mut answer, reply, ..
        } = confirming;
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let name = &delegate.config.name;
        let (rule, why) = match said {
            // That it wants a person is answered.
            Ok(said) if said.decision != Decision::Deny => {
                return self.finish_answer(id, answer, reply);
            }
            Ok(said) => {
                let reason = self.pool.mask.mask_text(&said.reason).into_owned();
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
            let said = Err(AnswerError::Delegate(why));
            self.outbox
                .on_durable(OnDurable::ReplyToApprover(reply, said));
        }
    }

    /// The answer holds, or is overruled.
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
        let said = self.apply_answer(id, answer);
        if let Some(reply) = reply {
            self.outbox
                .on_durable(OnDurable::ReplyToApprover(reply, said));
        }
    }
}
