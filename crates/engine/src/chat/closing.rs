//! Closes chats, and ends turns that no agent received.
//!
//! A chat with an actor is closed by its actor, when the turn and the agent have ended. A chat
//! without one is closed at once; its lock prevents the start of an actor meanwhile. Must not know
//! who requested it.
//!
//! A turn that ends before an agent received it ends with the event `turn_unsent`, in one commit
//! with its row. A loaded session writes the event (`Conversation::note`), otherwise
//! `FleetHandle::append` does, so only one of them numbers the events. A waiting turn that a person
//! stops is marked in its row at once. Stops and closes are rows (`turns.stopped`, `chats.closing`)
//! before they are answered. Tests: `tests/drills/fleet/chats_retention.rs`.

use std::sync::Arc;

use tokio::time::timeout;

use super::{ChatError, Chats, Inner, autonomous};
use marshal_fleet::STOPPED_UNSENT;
use marshal_journal::{ChatWrite, StoredChat, Write};
use marshal_model::limits;
use marshal_model::{ChatPhase, Event, SessionId, TurnId, TurnOutcome, TurnState};

impl Chats {
    /// Stops the running turn of a chat and ends waiting ones; it is no error if there are none.
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
        let _place = inner.lock_chat_for_client(&id).await?;
        let chat = inner.chat(&id).await?;
        let stop_row = autonomous::stop_write(&chat);
        let goes_on = stop_row.is_some();
        if let Some(stop_row) = stop_row {
            inner.fleet.accept_rows(vec![stop_row]).await?;
        }
        inner.stop_turns(&chat).await?;
        if chat.waiting > 0 || chat.running.is_some() || goes_on {
            // The chat's actor ends each turn and writes its event.
            let to = chat.turns;
            inner.wake(chat, |wants| {
                wants.turns += 1;
                wants.stopped_through = to;
            });
        }
        Ok(id)
    }

    /// Closes a chat for good: cancels its running turn, ends waiting turns and stops its agent. It
    /// accepts no more messages; its events stay as long as the journal keeps them. `false` means
    /// that closing continues in the background, also if the caller leaves.
    ///
    /// # Errors
    /// [`ChatError`]
    pub async fn close(&self, workspace: &str, chat: &str) -> Result<bool, ChatError> {
        let stored = self.0.find(workspace, chat).await?;
        if let Some(parent) = &stored.parent {
            let parent = self.0.chat(parent).await?;
            if parent.phase != Some(ChatPhase::Ended) {
                let why = format!(
                    "the chat is a member of the chat {}: close that one",
                    parent.session
                );
                return Err(ChatError::Conflict(why));
            }
        }
        if !stored.mode.has_members() {
            return self.0.close(&stored.session).await;
        }
        self.0.stop_work(&stored).await?;
        let id = stored.session.clone();
        let read = self.0.readers.read(move |reader| reader.members(&id));
        let members = read.await?;
        let all = members.iter().chain([&stored.session]).cloned();
        let marks = all.map(|chat| Write::Chat(ChatWrite::RequestClose { chat }));
        self.0.fleet.accept_rows(marks.collect()).await?;
        let mut is_closed = true;
        for member in members {
            is_closed &= self.0.close(&member).await?;
        }
        // Members are closed first: nothing would close one that is left.
        Ok(is_closed && self.0.close(&stored.session).await?)
    }

    /// Continues to close the chats whose close an earlier start accepted.
    pub(super) async fn resume_closing(&self) {
        let mut after: Option<SessionId> = None;
        loop {
            let from = after.clone();
            let read = move |reader: &marshal_journal::Reader| {
                reader.closing_chats(from.as_ref(), limits::CHAT_PAGE)
            };
            let page = match self.0.readers.read(read).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::error!(why = error.to_string(), "the chats to close cannot be read");
                    return;
                }
            };
            let Some(last) = page.last().cloned() else {
                return;
            };
            for chat in page {
                if let Err(error) = self.0.close(&chat).await {
                    tracing::error!(%chat, %error, "a chat cannot be closed now");
                }
            }
            after = Some(last);
        }
    }
}

impl Inner {
    pub(super) async fn close(self: &Arc<Self>, id: &SessionId) -> Result<bool, ChatError> {
        let place = self.lock_chat_for_client(id).await?;
        let chat = self.chat(id).await?;
        if chat.ended_ms.is_some() {
            return Ok(true);
        }
        if self.stop.is_cancelled() {
            let why = "the supervisor is stopping: close the chat after its restart".to_owned();
            return Err(ChatError::Unavailable(why));
        }
        // The close is durable before the caller gets `closing`: the next start continues it.
        let mark = Write::Chat(ChatWrite::RequestClose { chat: id.clone() });
        let stop_row = autonomous::stop_write(&chat);
        self.fleet
            .accept_rows(std::iter::once(mark).chain(stop_row).collect())
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

    /// Closes a chat that was not used since a time; returns whether it did.
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

    /// Closes a chat without an actor. The caller holds the chat's lock.
    async fn close_unloaded(&self, chat: &StoredChat) -> Result<(), ChatError> {
        let id = &chat.session;
        let of = id.clone();
        let waiting = self.readers.read(move |reader| reader.waiting_turns(&of));
        for turn in waiting.await? {
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
            // Subscribers of the stream receive the end.
            let (event, row) = autonomous::user_cancelled_end(chat);
            self.fleet.append_event(id, event, vec![row]).await?;
        }
        Ok(self.fleet.close_chat(id.clone()).await?)
    }

    /// Marks all waiting turns and the running one as stopped; durable when this returns. The
    /// caller holds the chat's lock.
    pub(super) async fn stop_turns(&self, chat: &StoredChat) -> Result<(), ChatError> {
        let of = chat.session.clone();
        let waiting = self
            .readers
            .read(move |reader| reader.waiting_turns(&of))
            .await?
            .into_iter()
            .filter(|turn| !turn.is_stopped());
        let all = waiting.map(|turn| turn.turn).chain(chat.running.clone());
        let stops = all.map(|turn| Write::Chat(ChatWrite::Stop { turn }));
        let stops: Vec<_> = stops.collect();
        if !stops.is_empty() {
            self.fleet.accept_rows(stops).await?;
        }
        Ok(())
    }

    /// Returns the event and the row of the end of a turn that no agent received.
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

    /// Ends such a turn of a chat whose session is not loaded; `false` if it must be tried again.
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
            Err(error) => {
                tracing::warn!(%chat, why = error.to_string(), "a turn's state cannot be read");
                return false;
            }
        }
        let (event, rows) = self.unsent_turn_end(turn, outcome, why);
        let appended = self.fleet.append_event(chat, event, rows).await;
        if let Err(error) = &appended {
            tracing::warn!(%chat, %error, "a turn's end cannot be stored yet");
        }
        appended.is_ok()
    }
}
