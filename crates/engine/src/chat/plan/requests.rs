//! The requests of clients for chats with plans, and the resumption of these at a start.
//!
//! Must not know how clients connect.

use super::{ReviewDecision, StartedWork};
use crate::chat::{Accepted, ChatError, Chats};
use marshal_journal::{PlanItem, PlanReview, StoredChat};
use marshal_model::SessionId;
use marshal_model::limits;

/// A created chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// A chat with an agent of its own, and its first message.
    Chat(SessionId, Accepted),
    /// A chat with a plan that members execute.
    Work(StartedWork),
}

/// A plan and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanView {
    /// The chat of the plan.
    pub chat: StoredChat,
    /// Its items.
    pub items: Vec<PlanItem>,
    /// Its reviews.
    pub reviews: Vec<PlanReview>,
    /// The planner and the workers.
    pub members: Vec<StoredChat>,
}

impl Chats {
    /// Resumes the plans of earlier starts.
    pub(in crate::chat) async fn resume_plans(&self) {
        let mut after: Option<SessionId> = None;
        loop {
            let from = after.clone();
            let read = move |reader: &marshal_journal::Reader| {
                let mut page = Vec::new();
                for id in reader.autonomous_chats(from.as_ref(), limits::CHAT_PAGE)? {
                    page.extend(reader.chat(&id)?);
                }
                Ok(page)
            };
            let page = match self.0.readers.read(read).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::error!(
                        why = error.to_string(),
                        "the plans of earlier starts cannot be read"
                    );
                    return;
                }
            };
            let Some(last) = page.last() else { return };
            after = Some(last.session.clone());
            for chat in page {
                if chat.mode.has_members() {
                    self.0.coordinate(&chat.session);
                } else {
                    // An autonomous chat has an actor instead of a coordinator.
                    self.0.wake(chat, |wants| wants.turns += 1);
                }
            }
        }
    }

    /// Approves or rejects a plan that waits for approval.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn review(
        &self,
        workspace: &str,
        chat: &str,
        by: String,
        decision: ReviewDecision,
    ) -> Result<SessionId, ChatError> {
        let parent = self.0.find(workspace, chat).await?;
        self.0.review(&parent, by, decision).await?;
        Ok(parent.session)
    }

    /// Returns the stored plan of a chat: its items, reviews and members.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn plan(&self, workspace: &str, chat: &str) -> Result<PlanView, ChatError> {
        let parent = self.0.find(workspace, chat).await?;
        if !parent.mode.has_members() {
            let why = "this chat has no plan: its mode has none";
            return Err(ChatError::NotFound(why.to_owned()));
        }
        let id = parent.session.clone();
        let read = self.0.readers.read(move |reader| {
            let mut members = Vec::new();
            for member in reader.members(&id)? {
                members.extend(reader.chat(&member)?);
            }
            Ok((
                reader.plan_items(&id)?,
                reader.plan_reviews(&id, limits::PLAN_REVIEWS_LISTED)?,
                members,
            ))
        });
        let (items, reviews, members) = read.await?;
        Ok(PlanView {
            chat: parent,
            items,
            reviews,
            members,
        })
    }
}
