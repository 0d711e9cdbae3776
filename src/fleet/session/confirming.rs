//! What a person allows, on its way by the pool's delegate once more: it may deny what it let pass
//! before, because what waits may have become something else to it as well.
//!
//! The question stays open meanwhile, so that whatever ends it ends this, too. No answer of the
//! delegate is a deny. Must not know how a delegate is reached.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::approvals::Ending;
use super::delegated::{Asking, DELEGATE_ERROR};
use super::outbox::After;
use super::state::SessionState;
use super::{SessionMsg, SessionRef};
use crate::fleet::answering::{AnswerError, AnswerReply};
use crate::journal::AnswerRow;
use crate::model::{AskId, DecidedBy, Decision, DelegateError, Remember};
use crate::policy::delegation::Said;

/// What a person said and the delegate is asked about.
#[derive(Debug)]
pub(crate) struct Confirming {
    answer: AnswerRow,
    /// Who waits to hear what came of it; nobody where the client of a conversation decided.
    reply: Option<AnswerReply>,
    /// Dropped, it is not asked any more.
    _asking: Asking,
}

/// Tells the session what came of it, also when nothing did.
struct Tell(Option<(SessionRef, AskId)>);

impl Tell {
    fn send(&mut self, said: Result<Said, DelegateError>) {
        if let Some((to, ask)) = self.0.take() {
            let _ = to.send_message(SessionMsg::Confirmed { ask, said });
        }
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        self.send(Err(DelegateError::Internal));
    }
}

impl SessionState {
    /// A person's answer to a question that waits: it holds, or the delegate is asked first.
    pub(super) fn given(&mut self, id: &AskId, answer: AnswerRow, reply: Option<AnswerReply>) {
        let is_asked = |of: &super::approvals::Pending| of.confirming.is_some();
        let is_confirming = self.pending.get(id).is_some_and(is_asked);
        if answer.decision != Decision::Allow || !self.is_for_delegate(id) {
            // A refusal need not wait for what would come of an earlier answer.
            self.forget_confirming(id);
            return self.hold_answer(id, answer, reply);
        }
        if is_confirming {
            if let Some(reply) = reply {
                reply.over();
            }
            return;
        }
        let Some(texts) = self.documents_now(id) else {
            // It is not what was shown any more, or a rule denies it: that is settled at once.
            return self.hold_answer(id, answer, reply);
        };
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let host = Arc::clone(&self.shared.host);
        let mut tell = Tell(Some((self.myself.clone(), id.clone())));
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
            pending.confirming = Some(Confirming {
                answer,
                reply,
                _asking: Asking(asking.abort_handle()),
            });
        }
    }

    /// Somebody refuses what somebody else allowed a moment ago.
    fn forget_confirming(&mut self, id: &AskId) {
        let pending = self.pending.get_mut(id);
        if let Some(before) = pending.and_then(|of| of.confirming.take())
            && let Some(reply) = before.reply
        {
            reply.over();
        }
    }

    /// What the delegate says of what a person allowed.
    pub(super) fn confirmed(&mut self, id: &AskId, said: Result<Said, DelegateError>) {
        let pending = self.pending.get_mut(id);
        let Some(confirming) = pending.and_then(|of| of.confirming.take()) else {
            return; // It was over before.
        };
        let Confirming {
            mut answer, reply, ..
        } = confirming;
        let Some(delegate) = self.pool.delegate.clone() else {
            return;
        };
        let name = &delegate.config.name;
        let (rule, why) = match said {
            // That it wants a person is answered.
            Ok(said) if said.decision != Decision::Deny => {
                return self.hold_answer(id, answer, reply);
            }
            Ok(said) => {
                let reason = self.pool.mask.text(&said.reason).into_owned();
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
        answer.remember = Remember::Never;
        let ending = Ending {
            decision: Decision::Deny,
            by: DecidedBy::Delegate,
            why: why.clone(),
            rules: Some(vec![rule]),
            answer: Some(answer),
        };
        self.resolve(id, &ending);
        if let Some(reply) = reply {
            let said = Err(AnswerError::Delegate(why));
            self.outbox.after(After::Said(reply, said));
        }
    }

    /// The answer holds, or is overruled.
    fn hold_answer(&mut self, id: &AskId, answer: AnswerRow, reply: Option<AnswerReply>) {
        if answer.decision == Decision::Allow
            && self.shared.journal.health().borrow().is_read_only()
            && let Some(reply) = reply
        {
            return reply.done(Err(AnswerError::ReadOnly));
        }
        let said = self.decides(id, answer);
        if let Some(reply) = reply {
            self.outbox.after(After::Said(reply, said));
        }
    }
}
