//! What chats need of the fleet: ids, rows that are durable before anybody is told, loading, and
//! events of a session that is not loaded.
//!
//! Must not know what a turn of a chat is, or who says it.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::clock::now_us;
use super::conversation::OpenError;
use super::pool::{PoolMsg, Talk};
use super::session::{OfChat, farewell};
use super::{Conversation, ConversationOrder, FleetHandle, SubmitError};
use crate::journal::{ChatWrite, Write};
use crate::model::{Event, EventId, PoolName, RunId, SessionId, SlotState, Stamped};
use crate::sandbox::workspace::copy;

/// Why a turn ended that a person stopped before its agent had it.
pub const STOPPED_UNSENT: &str = "a person stopped it before it was sent";

impl Conversation {
    /// Puts an event of the supervisor's own into the stream, in one commit with what goes with it;
    /// returns when it is durable. `false`: it may be so or not, and whoever has left the
    /// conversation can see it.
    pub async fn note(&self, event: Event, rows: Vec<Write>) -> bool {
        let (done, noted) = oneshot::channel();
        let note = PoolMsg::Talk(Talk::Note {
            session: self.grant.session.clone(),
            event: Box::new(event),
            rows,
            done,
        });
        self.grant.pool.send_message(note).is_ok() && noted.await.is_ok()
    }

    /// Whether its slot is to get nothing more, once its turn is over.
    #[must_use]
    pub fn is_to_leave(&self) -> bool {
        let entry = self.fleet.entry(&self.pool);
        entry.is_some_and(|entry| entry.shared.unloads(self.grant.slot.index))
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
    pub async fn keep_rows(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        self.make_durable(writes).await
    }

    /// A fresh id, which sorts by its time.
    #[must_use]
    pub fn fresh_id(&self) -> String {
        self.0.shared.ambient.id().to_string()
    }

    /// Checks that a directory is one that a pool's agents can work in.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn can_work_in(&self, pool: &PoolName, directory: &Path) -> Result<(), OpenError> {
        let entry = self.entry(pool).ok_or_else(|| OpenError::NoPool {
            pool: pool.clone(),
            there: String::new(),
        })?;
        self.place(entry, directory).await.map(|_| ())
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
        let order = ConversationOrder {
            pool: pool.clone(),
            directory: directory.to_owned(),
            session: Some(session),
        };
        self.open_talk(order, Some(OfChat { model })).await
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
        self.make_durable(Vec::new()).await?;
        let close = Write::Chat(ChatWrite::Close {
            chat: session.clone(),
            at_ms: self.now_ms(),
        });
        self.make_durable(vec![close]).await?;
        let shared = Arc::clone(&self.0.shared);
        shared.questions.session_over(&session);
        let ambient = shared.ambient.clone();
        // What cannot be removed now goes with the next sweep.
        let work = move || {
            let has_copy = copy::path(&shared.state, &session).exists();
            farewell(&shared, &session, has_copy);
        };
        let _ = ambient.blocking(work).await;
        Ok(())
    }

    /// Whether the pool begins anything now: one that was paused or drained does not.
    #[must_use]
    pub fn gives_slots(&self, pool: &PoolName) -> bool {
        let entry = self.0.pools.get(pool);
        entry.is_some_and(|entry| entry.shared.gives_to(0))
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
    pub async fn append(
        &self,
        session: &SessionId,
        event: Event,
        rows: Vec<Write>,
    ) -> Result<(), SubmitError> {
        // What an earlier slot of it was writing goes first.
        self.make_durable(Vec::new()).await?;
        let of = session.clone();
        let last = self.read_past(move |reader| reader.last_seq(&of)).await;
        let last = last.map_err(|error| SubmitError::Rejected(error.to_string()))?;
        let seq = last + 1;
        let stamped = Stamped {
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
        self.make_durable(std::iter::once(write).chain(rows).collect())
            .await?;
        self.0.shared.taps.durable(session, seq);
        Ok(())
    }
}
