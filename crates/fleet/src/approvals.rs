//! What people do with the questions that wait for them: see them, answer them.
//!
//! Owns who may answer what. Shows only what is durable. Must not know how a person is reached, and
//! decides nothing about a request: that is its session's.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::oneshot;

use super::approval_registry::{AnswerRecipient, OpenApproval};
use super::clock::now_us;
use super::pool::PoolMsg;
use super::session::SessionMsg;
use super::{FleetHandle, Shared};
use marshal_config::Approver;
use marshal_journal::{
    ApprovalAnswer, ApprovalChange, Commit, CommitResult, Reader, StoredApproval, Write,
};
use marshal_model::limits;
use marshal_model::{ApprovalState, Decision, PermissionRequestId, RememberScope, UntrustedText};

/// An answer, as it comes in.
#[derive(Debug, Clone)]
pub struct AnswerRequest {
    /// To which question.
    pub request_id: PermissionRequestId,
    /// To what: the digest that was shown, or nothing happens; `None`: to whatever has that id, which
    /// is of one digest for as long as it is there.
    pub digest: Option<String>,
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// Why; the model is told of a denial.
    pub reason: Option<UntrustedText>,
    /// For how long it holds.
    pub remember: RememberScope,
    /// As whom.
    pub approver: Approver,
    /// Who that is, for the record.
    pub who: String,
}

/// What came of an answer. Durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerReceipt {
    /// What the question is now: `Approved` or `Rejected`, or `Orphaned` if the answer is kept for an
    /// agent that is to come back.
    pub state: ApprovalState,
    /// For how long it holds.
    pub remember: RememberScope,
}

/// Why an answer changed nothing, or not what was wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No such question.
    #[error("there is no approval {0}")]
    NoSuchApproval(PermissionRequestId),
    /// It is over.
    #[error("approval {0} has ended ({1}): nothing was changed")]
    AlreadyEnded(PermissionRequestId, String),
    /// The answer is for something else.
    #[error(
        "approval {0} is of another digest than the answer: look at it again; nothing was changed"
    )]
    Digest(PermissionRequestId),
    /// Somebody else is to answer.
    #[error(
        "approval {approval} of pool {pool} is not for {who} to answer; approval.approvers has {approvers}"
    )]
    NotPermitted {
        /// Which.
        approval: PermissionRequestId,
        /// Its pool.
        pool: String,
        /// Who tried.
        who: String,
        /// Who may.
        approvers: String,
    },
    /// It would hold for too long.
    #[error(
        "pool {pool} remembers an answer for {most} at most (approval.remember of pool and policy); nothing was changed"
    )]
    Remember {
        /// Its pool.
        pool: String,
        /// For how long one may hold.
        most: RememberScope,
    },
    /// A rule denies it by now: no person overrules that. The agent was denied.
    #[error("a rule denies this, and no answer overrules a rule: it was denied ({0})")]
    Denied(String),
    /// The pool's delegate denies it, or gave no decision. The agent was denied.
    #[error("{0}")]
    Delegate(String),
    /// It is not what was shown any more. The agent was denied.
    #[error("{0}: it was denied, and can be asked for again")]
    Changed(String),
    /// The journal takes nothing: nothing can be allowed.
    #[error("the journal takes nothing now, so nothing can be allowed; deny it, or try again")]
    ReadOnly,
    /// The journal could not be read.
    #[error("{0}")]
    Journal(String),
    /// The disk has not taken it yet.
    #[error("the answer was given and the disk has not taken it yet; look at the ask again")]
    Slow,
}

/// The one reply to an answer; one that is lost on the way replies itself.
#[derive(Debug)]
pub(crate) struct AnswerReply {
    approval: PermissionRequestId,
    tell: Option<oneshot::Sender<Result<AnswerReceipt, AnswerError>>>,
}

impl AnswerReply {
    pub(crate) fn new(
        approval: PermissionRequestId,
    ) -> (Self, oneshot::Receiver<Result<AnswerReceipt, AnswerError>>) {
        let (tell, told) = oneshot::channel();
        let tell = Some(tell);
        (Self { approval, tell }, told)
    }

    /// Replies.
    pub(crate) fn send(mut self, result: Result<AnswerReceipt, AnswerError>) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(result);
        }
    }

    /// Replies that it is over.
    pub(crate) fn reject_as_ended(self) {
        let error = AnswerError::AlreadyEnded(
            self.approval.clone(),
            "somebody or something was faster".into(),
        );
        self.send(Err(error));
    }
}

impl Drop for AnswerReply {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            let why = "it ended otherwise before the answer held".to_owned();
            let _ = tell.send(Err(AnswerError::AlreadyEnded(self.approval.clone(), why)));
        }
    }
}

impl FleetHandle {
    /// The questions that wait for people, oldest first; with `over` the newest of those that are
    /// over instead. At most [`limits::APPROVALS_LISTED`].
    ///
    /// # Errors
    /// What the journal says.
    pub async fn approvals(&self, over: bool) -> Result<Vec<StoredApproval>, String> {
        let read = move |reader: &Reader| reader.approvals(over, limits::APPROVALS_LISTED);
        self.read_approvals(read).await
    }

    /// One question, also one that is over; `None` if there is none.
    ///
    /// # Errors
    /// What the journal says.
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

    /// Answers a question; returns when that is durable.
    ///
    /// # Errors
    /// [`AnswerError`]. Nothing is allowed then.
    pub async fn answer_approval(
        &self,
        order: AnswerRequest,
    ) -> Result<AnswerReceipt, AnswerError> {
        let shared = &self.0.shared;
        let Some(open) = shared.approvals.get(&order.request_id) else {
            return Err(self.explain_not_open(order.request_id).await);
        };
        self.check_answer_allowed(&order, &open)?;
        let said = order.reason.map(|said| {
            let short: String = said
                .raw()
                .chars()
                .take(limits::ANSWER_REASON_CHARS)
                .collect();
            UntrustedText::new(short)
        });
        let row = ApprovalAnswer {
            decision: order.decision,
            approver: order.who,
            comment: said,
            remember: order.remember,
        };
        if row.decision == Decision::Allow && shared.journal.health().borrow().is_read_only() {
            return Err(AnswerError::ReadOnly);
        }
        match open.recipient {
            AnswerRecipient::Session(actor) => {
                let (reply, told) = AnswerReply::new(order.request_id.clone());
                let decide = SessionMsg::ApproverAnswered {
                    request_id: order.request_id.clone(),
                    answer: Box::new(row),
                    reply,
                };
                // One that is gone drops the reply, which says so.
                let _ = actor.send_message(decide);
                match tokio::time::timeout(limits::ANSWER_TIMEOUT, told).await {
                    Ok(Ok(told)) => told,
                    Ok(Err(_)) => Err(self.explain_not_open(order.request_id).await),
                    Err(_) => Err(AnswerError::Slow),
                }
            }
            AnswerRecipient::Orphaned(_) => {
                let kept = self
                    .store_answer(&order.request_id, open.deadline_us, row)
                    .await;
                // A task may wait for it.
                if let Some(entry) = self.0.pools.get(&open.pool) {
                    let _ = entry
                        .actor
                        .send_message(PoolMsg::ApprovalEnded { expired: None });
                }
                kept
            }
        }
    }

    /// Why a question cannot be answered that is not open.
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

    /// Whether this answer may be given at all.
    fn check_answer_allowed(
        &self,
        order: &AnswerRequest,
        open: &OpenApproval,
    ) -> Result<(), AnswerError> {
        let is_other = |said: &String| *said != open.digest;
        if order.digest.as_ref().is_some_and(is_other) {
            return Err(AnswerError::Digest(order.request_id.clone()));
        }
        // A pool that is gone from the configuration has only its owner.
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

    /// Keeps an answer for an agent that is to come back.
    async fn store_answer(
        &self,
        approval: &PermissionRequestId,
        deadline_us: i64,
        answer: ApprovalAnswer,
    ) -> Result<AnswerReceipt, AnswerError> {
        let shared = &self.0.shared;
        let over = |why: &str| Err(AnswerError::AlreadyEnded(approval.clone(), why.to_owned()));
        if deadline_us <= now_us() {
            return over("expired");
        }
        if !shared.approvals.store_answer(approval, &answer) {
            return over("it has an answer, or its agent is back: look at it again");
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
                over("its session ended, or the answer was used at once: look at it again")
            }
            Err(_) => Err(AnswerError::Slow),
        }
    }

    /// Returns when everything that was journalled so far is durable, or cannot be.
    pub async fn flush_journal(&self) {
        let (done, durable) = oneshot::channel();
        let barrier = Commit::default().with_callback(move |_| {
            let _ = done.send(());
        });
        if self.0.shared.journal.submit(barrier).is_ok() {
            let _ = tokio::time::timeout(limits::ANSWER_TIMEOUT, durable).await;
        }
    }

    /// Takes over the questions that earlier starts left, and ends each at its deadline.
    pub(super) async fn restore_approvals(&self) {
        let shared = &self.0.shared;
        // What was ended a moment ago is durable then, and not taken over.
        self.flush_journal().await;
        let read = |reader: &Reader| {
            let open = reader.approvals(false, limits::APPROVALS_RESTORED)?;
            Ok((open, reader.remembered_approvals(limits::ANSWERS_RESTORED)?))
        };
        match self.read_approvals(read).await {
            Ok((open, remembered)) => {
                shared.approvals.restore(&open, remembered);
                for of in open {
                    let entry = self.0.pools.get(&of.pool);
                    let pool = entry.map(|entry| entry.actor.clone());
                    spawn_approval_expiry(shared, of.id, of.deadline_us, pool);
                }
            }
            Err(why) => tracing::warn!(why, "the asks of earlier starts cannot be read"),
        }
    }
}

/// Ends a question that no agent waits for at its deadline.
pub(crate) fn spawn_approval_expiry(
    shared: &Arc<Shared>,
    approval: PermissionRequestId,
    deadline_us: i64,
    pool: Option<ActorRef<PoolMsg>>,
) {
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        // The time of day may be set back meanwhile.
        while now_us() < deadline_us {
            let left = deadline_us.saturating_sub(now_us()).max(1).unsigned_abs();
            tokio::time::sleep(Duration::from_micros(left)).await;
        }
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
        tracing::info!(%approval, "nobody came back for an ask in time");
        let write = Write::ApprovalChanged {
            approval: approval.clone(),
            at_us: now_us(),
            change: ApprovalChange::Ended {
                state: ApprovalState::Expired,
                answer: None,
            },
        };
        if let Err(refused) = shared.journal.submit(Commit::new(vec![write])) {
            tracing::warn!(%refused, "the end of an ask was not journalled; the next start does it");
        }
        if let Some(pool) = pool {
            let expired = Some(approval);
            let _ = pool.send_message(PoolMsg::ApprovalEnded { expired });
        }
    });
}
