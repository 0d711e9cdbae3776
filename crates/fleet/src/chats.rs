//! What chats need of the fleet: ids, rows that are durable before anybody is told, loading, and
//! events of a session that is not loaded.
//!
//! Must not know what a turn of a chat is, or who says it.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::clock::now_us;
use super::conversation::OpenError;
use super::pool::{ConversationMsg, PoolMsg};
use super::session::{ChatArgs, discard_session};
use super::{Conversation, ConversationRequest, FleetHandle, SubmitError};
use marshal_journal::{ChatWrite, Write};
use marshal_model::{Event, EventId, PoolName, RunId, SessionId, SlotState, StampedEvent};
use marshal_sandbox::workspace::copy;

/// Why a turn ended that a person stopped before its agent had it.
pub const STOPPED_UNSENT: &str = "a person stopped it before it was sent";

impl Conversation {
    /// Puts an event of the supervisor's own into the stream, in one commit with what goes with it;
    /// returns when it is durable. `false`: it may be so or not, and whoever has left the
    /// conversation can see it.
    pub async fn append_event(&self, event: Event, rows: Vec<Write>) -> bool {
        let (done, noted) = oneshot::channel();
        let note = PoolMsg::Conversation(ConversationMsg::AppendEvent {
            session: self.grant.session.clone(),
            event: Box::new(event),
            rows,
            done,
        });
        self.grant.pool.send_message(note).is_ok() && noted.await.is_ok()
    }

    /// Whether its slot is to get nothing more, once its turn is over.
    #[must_use]
    pub fn must_release_slot(&self) -> bool {
        let entry = self.fleet.pool_entry(&self.pool);
        entry.is_some_and(|entry| entry.shared.must_unload(self.grant.slot.index))
    }
}

impl FleetHandle {
    /// The time of the rows of chats: milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        now_us().div_euclid(1000)
    }

    /// Fresh ids for a chat: its session, which is its own id, and its run.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn chat_ids(&self) -> Result<(SessionId, RunId), OpenError> {
        self.fresh_ids()
    }

    /// Makes rows of a chat durable.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing of them was kept then.
    pub async fn commit_rows(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        self.commit_durably(writes).await
    }

    /// A fresh id, which sorts by its time.
    #[must_use]
    pub fn fresh_id(&self) -> String {
        self.0.shared.ambient.new_id().to_string()
    }

    /// Checks that a directory is one that a pool's agents can work in.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn check_directory(
        &self,
        pool: &PoolName,
        directory: &Path,
    ) -> Result<(), OpenError> {
        let entry = self.pool_entry(pool).ok_or_else(|| OpenError::NoPool {
            pool: pool.clone(),
            there: String::new(),
        })?;
        self.resolve_directory(entry, directory).await.map(|_| ())
    }

    /// Loads a chat's session into a slot, or says why that cannot
    /// be done now. An agent that does not remember it is told what was said.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn load_chat(
        &self,
        pool: &PoolName,
        directory: &Path,
        session: SessionId,
        model: Option<String>,
    ) -> Result<Conversation, OpenError> {
        let order = ConversationRequest {
            pool: pool.clone(),
            directory: directory.to_owned(),
            session: Some(session),
        };
        self.open_conversation_or_chat(order, Some(ChatArgs { model }))
            .await
    }

    /// Whether a client could have a slot of the pool now.
    #[must_use]
    pub fn has_free_slot(&self, pool: &PoolName) -> bool {
        let slots = self.0.shared.slots.of_pool(pool);
        let mut slots = slots.iter();
        slots.any(|view| view.session.is_none() && view.state != SlotState::Parked)
    }

    /// Ends a chat's session that is not loaded, for good: its run and what waited in it with it.
    /// Its home goes, and the time of its copy runs. Whoever loads sessions must keep this one from
    /// being loaded meanwhile.
    ///
    /// # Errors
    /// [`SubmitError`]; it goes on then.
    pub async fn close_chat(&self, session: SessionId) -> Result<(), SubmitError> {
        // What an earlier slot of it was writing goes first.
        self.commit_durably(Vec::new()).await?;
        let close = Write::Chat(ChatWrite::Close {
            chat: session.clone(),
            at_ms: self.now_ms(),
        });
        self.commit_durably(vec![close]).await?;
        let shared = Arc::clone(&self.0.shared);
        shared.approvals.remove_session(&session);
        let ambient = shared.ambient.clone();
        // What cannot be removed now goes with the next sweep.
        let work = move || {
            let has_copy = copy::path(&shared.state, &session).exists();
            discard_session(&shared, &session, has_copy);
        };
        let _ = ambient.run_blocking(work).await;
        Ok(())
    }

    /// Whether the pool begins anything now: one that was paused or drained does not.
    #[must_use]
    pub fn is_accepting_work(&self, pool: &PoolName) -> bool {
        let entry = self.0.pools.get(pool);
        entry.is_some_and(|entry| entry.shared.is_slot_enabled(0))
    }

    /// Whether nothing can be begun in the pool until a person has looked.
    #[must_use]
    pub fn is_parked(&self, pool: &PoolName) -> bool {
        let slots = self.0.shared.slots.of_pool(pool);
        slots.iter().all(|view| view.state == SlotState::Parked)
    }

    /// Puts an event of the supervisor's own at the end of a session that is not loaded, in one
    /// commit with what goes with it; returns when it is durable. Whoever loads sessions must keep
    /// this one from being loaded meanwhile.
    ///
    /// # Errors
    /// [`SubmitError`]: of [`SubmitError::Journal`] it may be tried again.
    pub async fn append_event(
        &self,
        session: &SessionId,
        event: Event,
        rows: Vec<Write>,
    ) -> Result<(), SubmitError> {
        // What an earlier slot of it was writing goes first.
        self.commit_durably(Vec::new()).await?;
        let of = session.clone();
        let last = self.read_journal(move |reader| reader.last_seq(&of)).await;
        let last = last.map_err(|error| SubmitError::Rejected(error.to_string()))?;
        let seq = last + 1;
        let stamped = StampedEvent {
            id: EventId {
                epoch: self.0.shared.journal.epoch(),
                seq,
            },
            at_us: now_us(),
            event,
        };
        let write = Write::Events {
            session: session.clone(),
            events: Arc::new(vec![stamped]),
        };
        self.commit_durably(std::iter::once(write).chain(rows).collect())
            .await?;
        self.0.shared.subscriptions.notify_durable(session, seq);
        Ok(())
    }
}
