//! What clients ask of chats whose members work a plan, and how these go on after a start.
//!
//! Must not know how a client is reached.

use super::{ReviewDecision, StartedWork};
use crate::chat::{Accepted, ChatError, Chats};
use marshal_journal::{PlanItem, PlanReview, StoredChat};
use marshal_model::SessionId;
use marshal_model::limits;

/// A chat that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// One with an agent of its own, and its first message.
    Chat(SessionId, Accepted),
    /// One whose plan others work.
    Work(StartedWork),
}

/// A plan and how it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanView {
    /// The chat whose plan it is.
    pub chat: StoredChat,
    /// Its items.
    pub items: Vec<PlanItem>,
    /// What was said of it.
    pub reviews: Vec<PlanReview>,
    /// Who writes and works it.
    pub members: Vec<StoredChat>,
}

impl Chats {
    /// Goes on with the plans of earlier starts.
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
                Err(why) => {
                    tracing::error!(why, "the plans of earlier starts cannot be read");
                    return;
                }
            };
            let Some(last) = page.last() else { return };
            after = Some(last.session.clone());
            for chat in page {
                if chat.mode.has_members() {
                    self.0.coordinate(&chat.session);
                } else {
                    // One that goes on by itself.
                    self.0.wake(chat, |wants| wants.turns += 1);
                }
            }
        }
    }

    /// What a person says of a plan that waits for approval.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn review(
        &self,
        workspace: &str,
        chat: &str,
        by: String,
        said: ReviewDecision,
    ) -> Result<SessionId, ChatError> {
        let found = self.0.find(workspace, chat).await?;
        self.0.review(&found, by, said).await?;
        Ok(found.session)
    }

    /// The plan of a chat as it stands on record: its items, what was said of it, and its members.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn plan(&self, workspace: &str, chat: &str) -> Result<PlanView, ChatError> {
        let found = self.0.find(workspace, chat).await?;
        if !found.mode.has_members() {
            let why = "this chat has no plan: its mode is another one";
            return Err(ChatError::NotFound(why.to_owned()));
        }
        let id = found.session.clone();
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
        let (items, reviews, members) = read.await.map_err(ChatError::Unavailable)?;
        Ok(PlanView {
            chat: found,
            items,
            reviews,
            members,
        })
    }
}
