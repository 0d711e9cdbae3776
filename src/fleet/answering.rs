//! What people do with the questions that wait for them: see them, answer them.
//!
//! Owns who may answer what. Shows only what is durable. Must not know how a person is reached, and
//! decides nothing about a request: that is its session's.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::oneshot;

use super::clock::now_us;
use super::pool::PoolMsg;
use super::questions::{By, Open};
use super::session::SessionMsg;
use super::{FleetHandle, Shared};
use crate::config::Approver;
use crate::journal::{AnswerRow, Commit, Committed, QuestionChange, Reader, StoredQuestion, Write};
use crate::limits;
use crate::model::{AskId, Decision, Foreign, QuestionState, Remember};

/// An answer, as it comes in.
#[derive(Debug, Clone)]
pub struct AnswerOrder {
    /// To which question.
    pub ask: AskId,
    /// To what: the digest that was shown, or nothing happens; `None`: to whatever has that id, which
    /// is of one digest for as long as it is there.
    pub digest: Option<String>,
    /// `Allow` or `Deny`.
    pub decision: Decision,
    /// Why; the model is told of a denial.
    pub said: Option<Foreign>,
    /// For how long it holds.
    pub remember: Remember,
    /// As whom.
    pub approver: Approver,
    /// Who that is, for the record.
    pub who: String,
}

/// What came of an answer. Durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// What the question is now: `Allowed` or `Denied`, or `Orphaned` if the answer is kept for an
    /// agent that is to come back.
    pub state: QuestionState,
    /// For how long it holds.
    pub remember: Remember,
}

/// Why an answer changed nothing, or not what was wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No such question.
    #[error("there is no ask {0}")]
    NoSuchAsk(AskId),
    /// It is over.
    #[error("ask {0} is over ({1}): nothing was changed")]
    Over(AskId, String),
    /// The answer is for something else.
    #[error("ask {0} is of another digest than the answer: look at it again; nothing was changed")]
    Digest(AskId),
    /// Somebody else is to answer.
    #[error("ask {ask} of pool {pool} is not for {who} to answer; ask.approvers has {approvers}")]
    NotPermitted {
        /// Which.
        ask: AskId,
        /// Its pool.
        pool: String,
        /// Who tried.
        who: String,
        /// Who may.
        approvers: String,
    },
    /// It would hold for too long.
    #[error(
        "pool {pool} remembers an answer for {most} at most (ask.remember of pool and policy); nothing was changed"
    )]
    Remember {
        /// Its pool.
        pool: String,
        /// For how long one may hold.
        most: Remember,
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
    ask: AskId,
    tell: Option<oneshot::Sender<Result<Answered, AnswerError>>>,
}

impl AnswerReply {
    pub(crate) fn new(ask: AskId) -> (Self, oneshot::Receiver<Result<Answered, AnswerError>>) {
        let (tell, told) = oneshot::channel();
        let tell = Some(tell);
        (Self { ask, tell }, told)
    }

    /// Replies.
    pub(crate) fn done(mut self, result: Result<Answered, AnswerError>) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(result);
        }
    }

    /// Replies that it is over.
    pub(crate) fn over(self) {
        let error = AnswerError::Over(self.ask.clone(), "somebody or something was faster".into());
        self.done(Err(error));
    }
}

impl Drop for AnswerReply {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            let why = "it ended otherwise before the answer held".to_owned();
            let _ = tell.send(Err(AnswerError::Over(self.ask.clone(), why)));
        }
    }
}

impl FleetHandle {
    /// The questions that wait for people, oldest first; with `over` the newest of those that are
    /// over instead. At most [`limits::QUESTIONS_LISTED`].
    ///
    /// # Errors
    /// What the journal says.
    pub async fn questions(&self, over: bool) -> Result<Vec<StoredQuestion>, String> {
        let read = move |reader: &Reader| reader.questions(over, limits::QUESTIONS_LISTED);
        self.read_questions(read).await
    }

    /// One question, also one that is over; `None` if there is none.
    ///
    /// # Errors
    /// What the journal says.
    pub async fn question(&self, ask: AskId) -> Result<Option<StoredQuestion>, String> {
        self.read_questions(move |reader: &Reader| reader.question(&ask))
            .await
    }

    async fn read_questions<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, crate::journal::ReadError> + Send + 'static,
    ) -> Result<T, String> {
        let journal = self.0.shared.journal.clone();
        let read = move || {
            let reader = journal.reader().map_err(|error| error.to_string())?;
            read(&reader).map_err(|error| error.to_string())
        };
        match self.0.shared.ambient.blocking(read).await {
            Ok(read) => read,
            Err(_) => Err("the journal could not be read now".to_owned()),
        }
    }

    /// Answers a question; returns when that is durable.
    ///
    /// # Errors
    /// [`AnswerError`]. Nothing is allowed then.
    pub async fn answer(&self, order: AnswerOrder) -> Result<Answered, AnswerError> {
        let shared = &self.0.shared;
        let Some(open) = shared.questions.find(&order.ask) else {
            return Err(self.why_not(order.ask).await);
        };
        self.may(&order, &open)?;
        let said = order.said.map(|said| {
            let short: String = said
                .raw()
                .chars()
                .take(limits::ANSWER_REASON_CHARS)
                .collect();
            Foreign::new(short)
        });
        let row = AnswerRow {
            decision: order.decision,
            approver: order.who,
            said,
            remember: order.remember,
        };
        if row.decision == Decision::Allow && shared.journal.health().borrow().is_read_only() {
            return Err(AnswerError::ReadOnly);
        }
        match open.by {
            By::Session(actor) => {
                let (reply, told) = AnswerReply::new(order.ask.clone());
                let decide = SessionMsg::Decide {
                    ask: order.ask.clone(),
                    answer: Box::new(row),
                    reply,
                };
                // One that is gone drops the reply, which says so.
                let _ = actor.send_message(decide);
                match tokio::time::timeout(limits::ANSWER_WAIT, told).await {
                    Ok(Ok(told)) => told,
                    Ok(Err(_)) => Err(self.why_not(order.ask).await),
                    Err(_) => Err(AnswerError::Slow),
                }
            }
            By::Nobody(_) => {
                let kept = self.keep(&order.ask, open.deadline_us, row).await;
                // A task may wait for it.
                if let Some(entry) = self.0.pools.get(&open.pool) {
                    let _ = entry.actor.send_message(PoolMsg::AskOver { expired: None });
                }
                kept
            }
        }
    }

    /// Why a question cannot be answered that is not open.
    async fn why_not(&self, ask: AskId) -> AnswerError {
        match self.question(ask.clone()).await {
            Ok(Some(found)) if found.state.is_open() => {
                AnswerError::Over(ask, "it is being decided".to_owned())
            }
            Ok(Some(found)) => AnswerError::Over(ask, found.state.to_string()),
            Ok(None) => AnswerError::NoSuchAsk(ask),
            Err(why) => AnswerError::Journal(why),
        }
    }

    /// Whether this answer may be given at all.
    fn may(&self, order: &AnswerOrder, open: &Open) -> Result<(), AnswerError> {
        let is_other = |said: &String| *said != open.digest;
        if order.digest.as_ref().is_some_and(is_other) {
            return Err(AnswerError::Digest(order.ask.clone()));
        }
        // A pool that is gone from the configuration has only its owner.
        let entry = self.0.pools.get(&open.pool);
        let rules = entry.map(|entry| entry.shared.ask_rules());
        let owner = [Approver::Owner];
        let approvers = rules.as_ref().map_or(&owner[..], |ask| &ask.approvers[..]);
        if !approvers.contains(&order.approver) {
            let names: Vec<_> = approvers.iter().map(ToString::to_string).collect();
            return Err(AnswerError::NotPermitted {
                ask: order.ask.clone(),
                pool: open.pool.to_string(),
                who: order.who.clone(),
                approvers: if names.is_empty() {
                    "nobody".to_owned()
                } else {
                    names.join(", ")
                },
            });
        }
        let most = rules.as_ref().map_or(Remember::Never, |ask| ask.remember);
        if order.remember > most {
            return Err(AnswerError::Remember {
                pool: open.pool.to_string(),
                most,
            });
        }
        Ok(())
    }

    /// Keeps an answer for an agent that is to come back.
    async fn keep(
        &self,
        ask: &AskId,
        deadline_us: i64,
        answer: AnswerRow,
    ) -> Result<Answered, AnswerError> {
        let shared = &self.0.shared;
        let over = |why: &str| Err(AnswerError::Over(ask.clone(), why.to_owned()));
        if deadline_us <= now_us() {
            return over("expired");
        }
        if !shared.questions.keep(ask, &answer) {
            return over("it has an answer, or its agent is back: look at it again");
        }
        let remember = answer.remember;
        let write = Write::QuestionChanged {
            question: ask.clone(),
            at_us: now_us(),
            change: QuestionChange::Kept(answer),
        };
        let (done, durable) = oneshot::channel();
        let commit = Commit::of(vec![write]).then(move |result| {
            let _ = done.send(result);
        });
        if let Err(refused) = shared.journal.submit(commit) {
            shared.questions.unkeep(ask);
            return Err(AnswerError::Journal(refused.reason.to_string()));
        }
        match tokio::time::timeout(limits::ANSWER_WAIT, durable).await {
            Ok(Ok(Committed::Durable { .. })) => Ok(Answered {
                state: QuestionState::Orphaned,
                remember,
            }),
            Ok(_) => {
                shared.questions.unkeep(ask);
                over("its session ended, or the answer was used at once: look at it again")
            }
            Err(_) => Err(AnswerError::Slow),
        }
    }

    /// Returns when everything that was journalled so far is durable, or cannot be.
    pub async fn settled(&self) {
        let (done, durable) = oneshot::channel();
        let barrier = Commit::default().then(move |_| {
            let _ = done.send(());
        });
        if self.0.shared.journal.submit(barrier).is_ok() {
            let _ = tokio::time::timeout(limits::ANSWER_WAIT, durable).await;
        }
    }

    /// Takes over the questions that earlier starts left, and ends each at its deadline.
    pub(super) async fn take_up_questions(&self) {
        let shared = &self.0.shared;
        // What was ended a moment ago is durable then, and not taken over.
        self.settled().await;
        let read = |reader: &Reader| {
            let open = reader.questions(false, limits::QUESTIONS_TAKEN_UP)?;
            Ok((open, reader.remembered(limits::ANSWERS_TAKEN_UP)?))
        };
        match self.read_questions(read).await {
            Ok((open, remembered)) => {
                shared.questions.take_up(&open, remembered);
                for of in open {
                    let entry = self.0.pools.get(&of.pool);
                    let pool = entry.map(|entry| entry.actor.clone());
                    expires(shared, of.ask, of.deadline_us, pool);
                }
            }
            Err(why) => tracing::warn!(why, "the asks of earlier starts cannot be read"),
        }
    }
}

/// Ends a question that no agent waits for at its deadline.
pub(crate) fn expires(
    shared: &Arc<Shared>,
    ask: AskId,
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
        if shared.questions.expire(&ask, now_us()).is_none() {
            return;
        }
        tracing::info!(%ask, "nobody came back for an ask in time");
        let write = Write::QuestionChanged {
            question: ask.clone(),
            at_us: now_us(),
            change: QuestionChange::Ended {
                state: QuestionState::Expired,
                answer: None,
            },
        };
        if let Err(refused) = shared.journal.submit(Commit::of(vec![write])) {
            tracing::warn!(%refused, "the end of an ask was not journalled; the next start does it");
        }
        if let Some(pool) = pool {
            let expired = Some(ask);
            let _ = pool.send_message(PoolMsg::AskOver { expired });
        }
    });
}
