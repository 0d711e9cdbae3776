//! Approvals for people: list them, show one, answer one.
//!
//! Owns who may answer which approval. Shows only durable approvals. Must not know how a person is
//! reached. It does not decide about a request; the request's session does.

use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::oneshot;

use crate::approval_registry::{AnswerRecipient, OpenApproval};
use crate::clock::{now_us, sleep_until_us};
use crate::messages::{PoolMsg, SessionMsg};
use crate::{FleetHandle, Shared};
use marshal_config::Approver;
use marshal_journal::{
    ApprovalAnswer, ApprovalChange, Commit, CommitResult, Reader, StoredApproval, Write,
};
use marshal_model::{
    ApprovalState, Decision, PermissionRequestId, RememberScope, UntrustedText, limits,
};

/// An approver's answer to an approval.
#[derive(Debug, Clone)]
pub struct AnswerRequest {
    /// The approval's id.
    pub request_id: PermissionRequestId,
    /// The digest that the approver saw. If it differs from the approval's, the answer is rejected.
    /// `None` skips the check; an id never changes its digest.
    pub digest: Option<String>,
    /// [`Decision::Allow`] or [`Decision::Deny`].
    pub decision: Decision,
    /// The approver's reason; of a denial, the model sees it.
    pub reason: Option<UntrustedText>,
    /// For how long the answer is remembered.
    pub remember: RememberScope,
    /// The role that the approver answers as.
    pub approver: Approver,
    /// The approver's identity, for the journal.
    pub who: String,
}

/// The result of an accepted answer. Durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerReceipt {
    /// The approval's new state: `Approved` or `Rejected`, or `Orphaned` if the answer is stored
    /// until the agent comes back.
    pub state: ApprovalState,
    /// For how long the answer is remembered.
    pub remember: RememberScope,
}

/// Why an answer was not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No approval has this id.
    #[error("there is no approval {0}")]
    NoSuchApproval(PermissionRequestId),
    /// The approval has ended.
    #[error("approval {0} has ended ({1}): nothing was changed")]
    AlreadyEnded(PermissionRequestId, String),
    /// The answer's digest is not the approval's.
    #[error(
        "approval {0} has another digest than the answer; nothing was changed: read the approval again"
    )]
    Digest(PermissionRequestId),
    /// This approver may not answer it.
    #[error(
        "{who} may not answer approval {approval} of pool {pool}: approval.approvers has {approvers}"
    )]
    NotPermitted {
        /// The approval's id.
        approval: PermissionRequestId,
        /// Its pool.
        pool: String,
        /// The approver that was rejected.
        who: String,
        /// The approvers that may answer, separated by commas.
        approvers: String,
    },
    /// The answer would be remembered for too long.
    #[error(
        "pool {pool} remembers an answer for at most {most} (approval.remember of pool and policy); nothing was changed"
    )]
    Remember {
        /// Its pool.
        pool: String,
        /// The longest scope that pool and policy permit.
        most: RememberScope,
    },
    /// A rule of the current policy denies the request. The request was denied.
    #[error(
        "a rule denies this request, and no answer overrules a rule: the request was denied ({0})"
    )]
    Denied(String),
    /// The pool's delegate denied it or gave no decision. The request was denied.
    #[error("{0}")]
    Delegate(String),
    /// The request changed after it was shown. The request was denied.
    #[error("{0}: the request was denied, and the agent may send it again")]
    Changed(String),
    /// The journal accepts no writes, so nothing can be allowed.
    #[error(
        "the journal cannot write now, so nothing can be allowed: deny the request, or try again later"
    )]
    ReadOnly,
    /// The journal could not be read.
    #[error("{0}")]
    Journal(String),
    /// The answer was accepted and is not durable yet.
    #[error("the answer is accepted and not durable yet: read the approval again to see its state")]
    Slow,
}

/// The one reply to an answer. If it is dropped unused, it replies that the approval has ended.
#[derive(Debug)]
pub(crate) struct AnswerReply {
    approval: PermissionRequestId,
    sender: Option<oneshot::Sender<Result<AnswerReceipt, AnswerError>>>,
}

impl AnswerReply {
    pub(crate) fn new(
        approval: PermissionRequestId,
    ) -> (Self, oneshot::Receiver<Result<AnswerReceipt, AnswerError>>) {
        let (sender, receiver) = oneshot::channel();
        let sender = Some(sender);
        (Self { approval, sender }, receiver)
    }

    /// Sends the result to the caller.
    pub(crate) fn send(mut self, result: Result<AnswerReceipt, AnswerError>) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(result);
        }
    }

    /// Replies that the approval has ended.
    pub(crate) fn reject_as_ended(self) {
        let error = AnswerError::AlreadyEnded(
            self.approval.clone(),
            "another answer or event came first".into(),
        );
        self.send(Err(error));
    }
}

impl Drop for AnswerReply {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            let why = "it ended before the answer took effect".to_owned();
            let _ = sender.send(Err(AnswerError::AlreadyEnded(self.approval.clone(), why)));
        }
    }
}

impl FleetHandle {
    /// The open approvals, oldest first; with `over` the ended ones instead, newest first. At most
    /// [`limits::APPROVALS_LISTED`].
    ///
    /// # Errors
    /// The journal's error, as text.
    pub async fn approvals(&self, over: bool) -> Result<Vec<StoredApproval>, String> {
        let read = move |reader: &Reader| reader.approvals(over, limits::APPROVALS_LISTED);
        self.read_approvals(read).await
    }

    /// One approval, open or ended; `None` if there is none.
    ///
    /// # Errors
    /// The journal's error, as text.
    pub async fn approval(
        &self,
        approval: PermissionRequestId,
    ) -> Result<Option<StoredApproval>, String> {
        self.read_approvals(move |reader: &Reader| reader.approval(&approval))
            .await
    }

    async fn read_approvals<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, marshal_journal::ReadError> + Send + 'static,
    ) -> Result<T, String> {
        let journal = self.0.shared.journal.clone();
        let read = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            read(&reader).map_err(|error| error.to_string())
        };
        match self.0.shared.ambient.run_blocking(read).await {
            Ok(read) => read,
            Err(_) => Err("the journal could not be read now".to_owned()),
        }
    }

    /// Answers an approval; returns when the answer is durable.
    ///
    /// # Errors
    /// [`AnswerError`]. Nothing was allowed.
    pub async fn answer_approval(
        &self,
        order: AnswerRequest,
    ) -> Result<AnswerReceipt, AnswerError> {
        let shared = &self.0.shared;
        let Some(open) = shared.approvals.get(&order.request_id) else {
            return Err(self.explain_not_open(order.request_id).await);
        };
        self.check_answer_allowed(&order, &open)?;
        let comment = order.reason.map(|reason| {
            let short: String = reason
                .raw()
                .chars()
                .take(limits::ANSWER_REASON_CHARS)
                .collect();
            UntrustedText::new(short)
        });
        let row = ApprovalAnswer {
            decision: order.decision,
            approver: order.who,
            comment,
            remember: order.remember,
        };
        if row.decision == Decision::Allow && shared.journal.health().borrow().is_read_only() {
            return Err(AnswerError::ReadOnly);
        }
        match open.recipient {
            AnswerRecipient::Session(actor) => {
                let (reply, receipt) = AnswerReply::new(order.request_id.clone());
                let decide = SessionMsg::ApproverAnswered {
                    request_id: order.request_id.clone(),
                    answer: Box::new(row),
                    reply,
                };
                // A session that is gone drops the reply, and the reply then answers by itself.
                let _ = actor.send_message(decide);
                match tokio::time::timeout(limits::ANSWER_TIMEOUT, receipt).await {
                    Ok(Ok(receipt)) => receipt,
                    Ok(Err(_)) => Err(self.explain_not_open(order.request_id).await),
                    Err(_) => Err(AnswerError::Slow),
                }
            }
            AnswerRecipient::Orphaned(_) => {
                let receipt = self
                    .store_answer(&order.request_id, open.deadline_us, row)
                    .await;
                // A task in the pool's queue may wait for this answer.
                if let Some(entry) = self.0.pools.get(&open.pool) {
                    let _ = entry
                        .actor
                        .send_message(PoolMsg::ApprovalEnded { expired: None });
                }
                receipt
            }
        }
    }

    /// The error for an approval that is not open.
    async fn explain_not_open(&self, approval: PermissionRequestId) -> AnswerError {
        match self.approval(approval.clone()).await {
            Ok(Some(found)) if found.state.is_open() => {
                AnswerError::AlreadyEnded(approval, "it is being decided".to_owned())
            }
            Ok(Some(found)) => AnswerError::AlreadyEnded(approval, found.state.to_string()),
            Ok(None) => AnswerError::NoSuchApproval(approval),
            Err(why) => AnswerError::Journal(why),
        }
    }

    /// Checks that this approver may give this answer.
    fn check_answer_allowed(
        &self,
        order: &AnswerRequest,
        open: &OpenApproval,
    ) -> Result<(), AnswerError> {
        let is_other = |digest: &String| *digest != open.digest;
        if order.digest.as_ref().is_some_and(is_other) {
            return Err(AnswerError::Digest(order.request_id.clone()));
        }
        // For a pool that is no longer configured, only the owner may answer.
        let entry = self.0.pools.get(&open.pool);
        let rules = entry.map(|entry| entry.shared.approval_rules());
        let owner = [Approver::Owner];
        let approvers = rules
            .as_ref()
            .map_or(&owner[..], |approval| &approval.approvers[..]);
        if !approvers.contains(&order.approver) {
            let names: Vec<_> = approvers.iter().map(ToString::to_string).collect();
            return Err(AnswerError::NotPermitted {
                approval: order.request_id.clone(),
                pool: open.pool.to_string(),
                who: order.who.clone(),
                approvers: if names.is_empty() {
                    "nobody".to_owned()
                } else {
                    names.join(", ")
                },
            });
        }
        let most = rules
            .as_ref()
            .map_or(RememberScope::Never, |approval| approval.remember);
        if order.remember > most {
            return Err(AnswerError::Remember {
                pool: open.pool.to_string(),
                most,
            });
        }
        Ok(())
    }

    /// Stores an answer for an agent that may come back.
    async fn store_answer(
        &self,
        approval: &PermissionRequestId,
        deadline_us: i64,
        answer: ApprovalAnswer,
    ) -> Result<AnswerReceipt, AnswerError> {
        let shared = &self.0.shared;
        let ended = |why: &str| Err(AnswerError::AlreadyEnded(approval.clone(), why.to_owned()));
        if deadline_us <= now_us() {
            return ended("expired");
        }
        if !shared.approvals.store_answer(approval, &answer) {
            return ended("it has an answer, or its agent is back: read it again");
        }
        let remember = answer.remember;
        let write = Write::ApprovalChanged {
            approval: approval.clone(),
            at_us: now_us(),
            change: ApprovalChange::Answered(answer),
        };
        let (done, durable) = oneshot::channel();
        let commit = Commit::new(vec![write]).with_callback(move |result| {
            let _ = done.send(result);
        });
        if let Err(refused) = shared.journal.submit(commit) {
            shared.approvals.discard_answer(approval);
            return Err(AnswerError::Journal(refused.reason.to_string()));
        }
        match tokio::time::timeout(limits::ANSWER_TIMEOUT, durable).await {
            Ok(Ok(CommitResult::Durable { .. })) => Ok(AnswerReceipt {
                state: ApprovalState::Orphaned,
                remember,
            }),
            Ok(_) => {
                shared.approvals.discard_answer(approval);
                ended("its session ended, or the answer was used at once: read it again")
            }
            Err(_) => Err(AnswerError::Slow),
        }
    }

    /// Returns when every commit submitted so far is durable or has failed.
    pub async fn flush_journal(&self) {
        let (done, durable) = oneshot::channel();
        let barrier = Commit::default().with_callback(move |_| {
            let _ = done.send(());
        });
        if self.0.shared.journal.submit(barrier).is_ok() {
            let _ = tokio::time::timeout(limits::ANSWER_TIMEOUT, durable).await;
        }
    }

    /// Restores the approvals that earlier starts left open, and ends each at its deadline.
    pub(crate) async fn restore_approvals(&self) {
        let shared = &self.0.shared;
        // First, so that an approval that ended a moment ago is durable and not restored.
        self.flush_journal().await;
        let read = |reader: &Reader| {
            let open = reader.approvals(false, limits::APPROVALS_RESTORED)?;
            Ok((open, reader.remembered_approvals(limits::ANSWERS_RESTORED)?))
        };
        match self.read_approvals(read).await {
            Ok((open, remembered)) => {
                shared.approvals.restore(&open, remembered);
                for item in open {
                    let entry = self.0.pools.get(&item.pool);
                    let pool = entry.map(|entry| entry.actor.clone());
                    spawn_approval_expiry(shared, item.id, item.deadline_us, pool);
                }
            }
            Err(why) => tracing::warn!(
                why,
                "cannot read the approvals of earlier starts: none is restored"
            ),
        }
    }
}

/// Ends an orphaned approval at its deadline.
pub(crate) fn spawn_approval_expiry(
    shared: &Arc<Shared>,
    approval: PermissionRequestId,
    deadline_us: i64,
    pool: Option<ActorRef<PoolMsg>>,
) {
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        sleep_until_us(deadline_us).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if shared
            .approvals
            .remove_expired(&approval, now_us())
            .is_none()
        {
            return;
        }
        tracing::info!(%approval, "an approval expired: its agent did not come back in time");
        let write = Write::ApprovalChanged {
            approval: approval.clone(),
            at_us: now_us(),
            change: ApprovalChange::Ended {
                state: ApprovalState::Expired,
                answer: None,
            },
        };
        if let Err(refused) = shared.journal.submit(Commit::new(vec![write])) {
            tracing::warn!(%refused, "the end of an approval was not journalled; the next start ends it");
        }
        if let Some(pool) = pool {
            let expired = Some(approval);
            let _ = pool.send_message(PoolMsg::ApprovalEnded { expired });
        }
    });
}
