//! How chats are closed, and how turns end that no agent has had.
//!
//! A chat with an actor is closed by that, when its turn is over and its agent is gone; one without
//! at once, while its place keeps an actor from being started. Must not know who asked for it.
//!
//! A turn that ends before an agent had it ends with the event `turn_unsent`, in one commit with its row.
//! A loaded session writes it (`Conversation::note`), else `FleetHandle::append` does, so only one of them
//! numbers the events. What a person stopped while it waits is marked in its row at once. Stops and closes
//! are rows (`turns.stopped`, `chats.closing`) before they are answered. Tests:
//! `tests/drills/fleet/chats_kept.rs`.

use std::sync::Arc;

use tokio::time::timeout;

use super::{ChatError, Chats, Inner, autonomous};
use marshal_fleet::STOPPED_UNSENT;
use marshal_journal::{ChatWrite, StoredChat, Write};
use marshal_model::limits;
use marshal_model::{ChatPhase, Event, SessionId, TurnId, TurnOutcome, TurnState};

impl Chats {
    /// Stops what runs in a chat and ends what waits; nothing to stop is no error.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn stop(&self, workspace: &str, chat: &str) -> Result<SessionId, ChatError> {
        let inner = &self.0;
        let found = inner.find(workspace, chat).await?;
        let id = found.session.clone();
        if found.mode.has_members() {
            inner.stop_work(&found).await?;
            return Ok(id);
        }
        let _place = inner.lock_chat(&id).await;
        let chat = inner.chat(&id).await?;
        let over = autonomous::stop_write(&chat);
        let goes_on = over.is_some();
        if let Some(over) = over {
            inner.fleet.commit_rows(vec![over]).await?;
        }
        inner.stop_turns(&chat).await?;
        if chat.waiting > 0 || chat.running.is_some() || goes_on {
            // Each is ended, and told of, by the chat's actor.
            let to = chat.turns;
            inner.wake(chat, |wants| {
                wants.turns += 1;
                wants.stopped_through = to;
            });
        }
        Ok(id)
    }

    /// Closes a chat for good: what runs in it is stopped, what waits is ended, its agent goes. It
    /// takes no messages from now on; what was said stays as long as the journal keeps it. `false`:
    /// that is under way, and goes on without whoever asked.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn close(&self, workspace: &str, chat: &str) -> Result<bool, ChatError> {
        let found = self.0.find(workspace, chat).await?;
        if let Some(parent) = &found.parent {
            let parent = self.0.chat(parent).await?;
            if parent.phase != Some(ChatPhase::Ended) {
                let why = format!(
                    "the chat works the plan of the chat {}: close that one",
                    parent.session
                );
                return Err(ChatError::Conflict(why));
            }
        }
        if !found.mode.has_members() {
            return self.0.close(&found.session).await;
        }
        self.0.stop_work(&found).await?;
        let id = found.session.clone();
        let read = self.0.readers.read(move |reader| reader.members(&id));
        let members = read.await.map_err(ChatError::Unavailable)?;
        let all = members.iter().chain([&found.session]).cloned();
        let marks = all.map(|chat| Write::Chat(ChatWrite::RequestClose { chat }));
        self.0.fleet.commit_rows(marks.collect()).await?;
        let mut is_closed = true;
        for member in members {
            is_closed &= self.0.close(&member).await?;
        }
        // Its members go first: one that is left would have nobody to close it.
        Ok(is_closed && self.0.close(&found.session).await?)
    }

    /// Goes on with the closing of chats that an earlier start was asked for.
    pub(super) async fn resume_closing(&self) {
        let mut after: Option<SessionId> = None;
        loop {
            let from = after.clone();
            let read = move |reader: &marshal_journal::Reader| {
                reader.closing_chats(from.as_ref(), limits::CHAT_PAGE)
            };
            let page = match self.0.readers.read(read).await {
                Ok(page) => page,
                Err(why) => {
                    tracing::error!(why, "the chats that are to be closed cannot be read");
                    return;
                }
            };
            let Some(last) = page.last().cloned() else {
                return;
            };
            for chat in page {
                if let Err(error) = self.0.close(&chat).await {
                    tracing::error!(%chat, %error, "a chat is not closed now");
                }
            }
            after = Some(last);
        }
    }
}

impl Inner {
    pub(super) async fn close(self: &Arc<Self>, id: &SessionId) -> Result<bool, ChatError> {
        let place = self.lock_chat(id).await;
        let chat = self.chat(id).await?;
        if chat.ended_ms.is_some() {
            return Ok(true);
        }
        if self.stop.is_cancelled() {
            let why = "the supervisor stops: close the chat when it runs again".to_owned();
            return Err(ChatError::Unavailable(why));
        }
        // Whoever asked may be told that it is under way: the next start goes on with it.
        let mark = Write::Chat(ChatWrite::RequestClose { chat: id.clone() });
        let over = autonomous::stop_write(&chat);
        self.fleet
            .commit_rows(std::iter::once(mark).chain(over).collect())
            .await?;
        self.stop_turns(&chat).await?;
        let actor = self.lock_actors().get(id).map(|actor| {
            actor.send_modify(|wants| {
                wants.stopped_through = chat.turns;
                wants.is_closed = true;
            });
            actor.clone()
        });
        let Some(actor) = actor else {
            return self.close_unloaded(&chat).await.map(|()| true);
        };
        drop(place);
        if timeout(limits::CHAT_CLOSE_TIMEOUT, actor.closed())
            .await
            .is_err()
        {
            return Ok(false);
        }
        Ok(self.chat(id).await?.ended_ms.is_some())
    }

    /// Closes a chat that nobody has used since that time; whether it did.
    pub(super) async fn close_unused(
        &self,
        id: &SessionId,
        before_ms: i64,
    ) -> Result<bool, ChatError> {
        let _place = self.lock_chat(id).await;
        let chat = self.chat(id).await?;
        let is_used = chat.used_ms >= before_ms || chat.waiting > 0 || chat.running.is_some();
        let goes_on = |of: &StoredChat| of.phase.is_some_and(|phase| phase != ChatPhase::Ended);
        let is_worked = match &chat.parent {
            Some(parent) => goes_on(&self.chat(parent).await?),
            None => goes_on(&chat),
        };
        let is_used = is_used || is_worked;
        if is_used || chat.ended_ms.is_some() || self.lock_actors().contains_key(id) {
            return Ok(false);
        }
        self.close_unloaded(&chat).await.map(|()| true)
    }

    /// The caller has the chat's place, and the chat has no actor.
    async fn close_unloaded(&self, chat: &StoredChat) -> Result<(), ChatError> {
        let id = &chat.session;
        let of = id.clone();
        let waiting = self.readers.read(move |reader| reader.waiting_turns(&of));
        for turn in waiting.await.map_err(ChatError::Unavailable)? {
            let outcome = TurnOutcome::Cancelled;
            if !self
                .end_unsent(id, &turn.turn, outcome, STOPPED_UNSENT)
                .await
            {
                let why = "a waiting message cannot be ended now: try again later".to_owned();
                return Err(ChatError::Unavailable(why));
            }
        }
        if autonomous::is_continuing(chat) {
            // Who reads its stream is told of the end.
            let (event, row) = autonomous::user_cancelled_end(chat);
            self.fleet.append_event(id, event, vec![row]).await?;
        }
        Ok(self.fleet.close_chat(id.clone()).await?)
    }

    /// No message that waits is sent any more, and what runs is cancelled whoever ends it; durable when
    /// this returns. The caller has the chat's place.
    pub(super) async fn stop_turns(&self, chat: &StoredChat) -> Result<(), ChatError> {
        let of = chat.session.clone();
        let waiting = self.readers.read(move |reader| reader.waiting_turns(&of));
        let waiting = waiting.await.map_err(ChatError::Unavailable)?;
        let waiting = waiting.into_iter().filter(|turn| !turn.is_stopped());
        let all = waiting.map(|turn| turn.turn).chain(chat.running.clone());
        let stops = all.map(|turn| Write::Chat(ChatWrite::Stop { turn }));
        let stops: Vec<_> = stops.collect();
        if !stops.is_empty() {
            self.fleet.commit_rows(stops).await?;
        }
        Ok(())
    }

    /// The event and the row of the end of a turn that no agent has had.
    pub(super) fn unsent_turn_end(
        &self,
        turn: &TurnId,
        outcome: TurnOutcome,
        why: &str,
    ) -> (Event, Vec<Write>) {
        let event = Event::TurnUnsent {
            turn: turn.clone(),
            outcome,
            detail: why.to_owned(),
        };
        let end = Write::Chat(ChatWrite::End {
            turn: turn.clone(),
            outcome,
            at_ms: self.fleet.now_ms(),
        });
        (event, vec![end])
    }

    /// Ends such a turn of a chat whose session is not loaded; `false` if that is to be tried again.
    pub(super) async fn end_unsent(
        &self,
        chat: &SessionId,
        turn: &TurnId,
        outcome: TurnOutcome,
        why: &str,
    ) -> bool {
        let of = turn.clone();
        match self.readers.read(move |reader| reader.turn(&of)).await {
            Ok(Some(found)) if found.state != TurnState::Ended => {}
            Ok(_) => return true,
            Err(why) => {
                tracing::warn!(%chat, why, "a turn's end is not looked up");
                return false;
            }
        }
        let (event, rows) = self.unsent_turn_end(turn, outcome, why);
        let kept = self.fleet.append_event(chat, event, rows).await;
        if let Err(error) = &kept {
            tracing::warn!(%chat, %error, "a turn's end is not kept yet");
        }
        kept.is_ok()
    }
}
