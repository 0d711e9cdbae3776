//! Chats that have no agent of their own: members work one plan for them.
//!
//! Owns which of them is worked here, and how people's orders reach it: each has one actor
//! (`coordinator.rs`), which alone writes what is kept of it. Must not know how a member runs.
//!
//! Tests: `tests/drills/fleet/plans.rs`. Templates: `config/template.rs`; bounds: `model/limits/plans.rs`.

mod coordinator;
mod create;
mod execution;
mod file;
mod forward;
mod items;
mod prompts;
mod requests;
mod review;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot};

use super::{Accepted, ChatError, Inner};
use coordinator::Coordinator;
use marshal_journal::StoredChat;
use marshal_model::limits;
use marshal_model::{ChatPhase, SessionId};

pub use create::{StartedWork, WorkRequest};
pub(super) use prompts::with_instructions;
pub use requests::{Created, PlanView};

/// What a person wants of a plan that is worked.
#[derive(Debug)]
pub(super) enum Order {
    /// It ends, and with it what its members do.
    Stop(oneshot::Sender<Result<(), ChatError>>),
    /// The plan may be worked.
    Approve {
        by: String,
        /// The digest of the text that was looked at.
        sha256: Option<String>,
        reply: oneshot::Sender<Result<(), ChatError>>,
    },
    /// The plan is to be otherwise.
    Reject {
        by: String,
        why: String,
        reply: oneshot::Sender<Result<(), ChatError>>,
    },
    /// A word to the planner.
    Message {
        content: String,
        key: Option<String>,
        reply: oneshot::Sender<Result<Accepted, ChatError>>,
    },
}

/// The way to an actor.
#[derive(Debug, Clone)]
struct ActorHandle {
    orders: mpsc::Sender<Order>,
    wakeup: Arc<Notify>,
}

/// The plans that are worked now.
#[derive(Debug, Default)]
pub(super) struct ActivePlans(Mutex<HashMap<SessionId, ActorHandle>>);

impl ActivePlans {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<SessionId, ActorHandle>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Something may have changed for a plan.
    fn wake(&self, chat: &SessionId) {
        if let Some(way) = self.with(|works| works.get(chat).cloned()) {
            way.wakeup.notify_one();
        }
    }
}

impl Inner {
    /// A turn of a chat ended: whoever coordinates it looks.
    pub(super) fn notify_turn_ended(&self, chat: &StoredChat) {
        if let Some(parent) = &chat.parent {
            self.active_plans.wake(parent);
        }
    }

    /// Goes on with the work of a chat; there is one actor for it after this.
    pub(super) fn coordinate(self: &Arc<Self>, chat: &SessionId) {
        if self.stop.is_cancelled() {
            return;
        }
        self.active_plans.with(|works| {
            if works.contains_key(chat) {
                return;
            }
            let (orders, inbox) = mpsc::channel(limits::PLAN_COMMAND_QUEUE);
            let poke = Arc::new(Notify::new());
            let way = ActorHandle {
                orders,
                wakeup: Arc::clone(&poke),
            };
            works.insert(chat.clone(), way);
            let actor = Coordinator::new(Arc::clone(self), chat.clone(), inbox, poke);
            tokio::spawn(actor.run());
        });
    }

    /// The actor of a chat ends.
    fn leave(&self, chat: &SessionId) {
        self.active_plans.with(|works| works.remove(chat));
    }

    /// Gives an order to the actor of a chat and waits for its answer.
    async fn order<T>(
        &self,
        chat: &SessionId,
        order: impl FnOnce(oneshot::Sender<Result<T, ChatError>>) -> Order,
    ) -> Result<T, ChatError> {
        let gone = || ChatError::Unavailable("the plan is not worked now: try again".to_owned());
        let way = self.active_plans.with(|works| works.get(chat).cloned());
        let way = way.ok_or_else(gone)?;
        let (reply, answer) = oneshot::channel();
        let sent = way.orders.send(order(reply)).await;
        sent.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Stops the work of a chat; nothing to stop is no error.
    pub(super) async fn stop_work(&self, chat: &StoredChat) -> Result<(), ChatError> {
        if chat.phase.is_none_or(|phase| phase == ChatPhase::Ended) {
            return Ok(());
        }
        match self.order(&chat.session, Order::Stop).await {
            Ok(()) => Ok(()),
            // It may have ended by itself meanwhile.
            Err(error) => match self.chat(&chat.session).await?.phase {
                Some(ChatPhase::Ended) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// A message to a chat that has no agent: one to its planner, while there is no approved plan.
    pub(super) async fn message_planner(
        &self,
        chat: &StoredChat,
        content: String,
        key: Option<String>,
    ) -> Result<Accepted, ChatError> {
        let takes = matches!(chat.phase, Some(ChatPhase::Planning | ChatPhase::Approval));
        if !takes {
            return Err(no_own_agent());
        }
        self.order(&chat.session, |reply| Order::Message {
            content,
            key,
            reply,
        })
        .await
    }

    /// What a person said of a plan.
    pub(super) async fn review(
        &self,
        chat: &StoredChat,
        by: String,
        said: ReviewDecision,
    ) -> Result<(), ChatError> {
        if !chat.mode.has_members() {
            let why = "this chat has no plan that is approved: its mode is another one";
            return Err(ChatError::Conflict(why.to_owned()));
        }
        if chat.phase != Some(ChatPhase::Approval) {
            return Err(no_pending_plan());
        }
        self.order(&chat.session, |reply| match said {
            ReviewDecision::Approve { sha256 } => Order::Approve { by, sha256, reply },
            ReviewDecision::Reject { why } => Order::Reject { by, why, reply },
        })
        .await
    }
}

/// What a person says of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewDecision {
    /// It may be worked.
    Approve {
        /// The digest of the text that was looked at.
        sha256: Option<String>,
    },
    /// It may not.
    Reject {
        /// Why.
        why: String,
    },
}

fn no_own_agent() -> ChatError {
    let why = "this chat has no agent of its own, and its plan is worked or over: send messages to one of its members";
    ChatError::Conflict(why.to_owned())
}

fn no_pending_plan() -> ChatError {
    ChatError::Conflict("no plan of this chat waits for approval now".to_owned())
}
