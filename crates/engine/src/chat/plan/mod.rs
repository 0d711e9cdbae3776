//! Chats without an agent of their own: members execute one plan for them.
//!
//! Owns which plans are active here, and how people's orders reach them: each has one actor
//! (`coordinator.rs`), which alone writes its state. Must not know how a member runs.
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

/// A person's order for an active plan.
#[derive(Debug)]
pub(super) enum Order {
    /// Stop the plan and the turns of its members.
    Stop(oneshot::Sender<Result<(), ChatError>>),
    /// Approve the plan.
    Approve {
        by: String,
        /// The digest of the plan that the approver saw; `None` accepts the pending one.
        sha256: Option<String>,
        reply: oneshot::Sender<Result<(), ChatError>>,
    },
    /// Reject the plan.
    Reject {
        by: String,
        why: String,
        reply: oneshot::Sender<Result<(), ChatError>>,
    },
    /// Send a message to the planner.
    Message {
        content: String,
        key: Option<String>,
        reply: oneshot::Sender<Result<Accepted, ChatError>>,
    },
}

/// The channels to a coordinator.
#[derive(Debug, Clone)]
struct ActorHandle {
    orders: mpsc::Sender<Order>,
    wakeup: Arc<Notify>,
}

/// The active plans.
#[derive(Debug, Default)]
pub(super) struct ActivePlans(Mutex<HashMap<SessionId, ActorHandle>>);

impl ActivePlans {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<SessionId, ActorHandle>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the coordinator of a plan.
    fn wake(&self, chat: &SessionId) {
        if let Some(way) = self.with(|works| works.get(chat).cloned()) {
            way.wakeup.notify_one();
        }
    }
}

impl Inner {
    /// Wakes the coordinator of a member's chat after a turn ended.
    pub(super) fn notify_turn_ended(&self, chat: &StoredChat) {
        if let Some(parent) = &chat.parent {
            self.active_plans.wake(parent);
        }
    }

    /// Starts the coordinator of a chat, unless there is one.
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

    /// Removes the coordinator of a chat.
    fn leave(&self, chat: &SessionId) {
        self.active_plans.with(|works| works.remove(chat));
    }

    /// Sends an order to the coordinator of a chat and waits for its reply.
    async fn order<T>(
        &self,
        chat: &SessionId,
        order: impl FnOnce(oneshot::Sender<Result<T, ChatError>>) -> Order,
    ) -> Result<T, ChatError> {
        let missing = || {
            ChatError::Unavailable("the plan is not being executed now: try again later".to_owned())
        };
        let way = self
            .active_plans
            .with(|works| works.get(chat).cloned())
            .ok_or_else(missing)?;
        let (reply, answer) = oneshot::channel();
        let sent = way.orders.send(order(reply)).await;
        sent.map_err(|_| missing())?;
        answer.await.unwrap_or_else(|_| Err(missing()))
    }

    /// Stops the work of a chat; it is no error if there is nothing to stop.
    pub(super) async fn stop_work(&self, chat: &StoredChat) -> Result<(), ChatError> {
        if chat.phase.is_none_or(|phase| phase == ChatPhase::Ended) {
            return Ok(());
        }
        match self.order(&chat.session, Order::Stop).await {
            Ok(()) => Ok(()),
            // The work may have ended by itself meanwhile.
            Err(error) => match self.chat(&chat.session).await?.phase {
                Some(ChatPhase::Ended) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Sends a message to the planner of a chat without an agent, while there is no approved plan.
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

    /// Applies a person's decision on a plan.
    pub(super) async fn review(
        &self,
        chat: &StoredChat,
        by: String,
        decision: ReviewDecision,
    ) -> Result<(), ChatError> {
        if !chat.mode.has_members() {
            let why = "this chat has no plan to approve: its mode has none";
            return Err(ChatError::Conflict(why.to_owned()));
        }
        if chat.phase != Some(ChatPhase::Approval) {
            return Err(no_pending_plan());
        }
        self.order(&chat.session, |reply| match decision {
            ReviewDecision::Approve { sha256 } => Order::Approve { by, sha256, reply },
            ReviewDecision::Reject { why } => Order::Reject { by, why, reply },
        })
        .await
    }
}

/// A person's decision on a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewDecision {
    /// Approve it.
    Approve {
        /// The digest of the plan that the approver saw; `None` accepts the pending one.
        sha256: Option<String>,
    },
    /// Reject it.
    Reject {
        /// The reason, which is sent to the planner.
        why: String,
    },
}

fn no_own_agent() -> ChatError {
    let why = "this chat has no agent of its own, and its plan is being executed or has ended: send messages to one of its members";
    ChatError::Conflict(why.to_owned())
}

fn no_pending_plan() -> ChatError {
    ChatError::Conflict("no plan of this chat is waiting for approval".to_owned())
}
