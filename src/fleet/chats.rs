//! What chats need of the fleet: a session that begins without a slot, its loading, and rows that
//! are durable before anybody is told.
//!
//! Must not know what a turn of a chat is, or who says it.

use std::path::Path;
use std::sync::Arc;

use super::clock::now_us;
use super::conversation::{self, OpenError};
use super::{Conversation, ConversationOrder, FleetHandle, SubmitError};
use crate::journal::{ReadError, Reader, Write};
use crate::model::{Event, EventId, PoolName, RunId, SessionId, SlotId, SlotState, Stamped};

impl FleetHandle {
    /// Begins a session that has no slot yet; returns when its rows are durable, and in the same
    /// commit what `with` makes of its id.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was begun then.
    pub async fn begin_chat(
        &self,
        pool: &PoolName,
        with: impl FnOnce(&SessionId, &RunId) -> Vec<Write> + Send,
    ) -> Result<SessionId, OpenError> {
        let (session, run) = self.fresh_ids()?;
        // Which slot works it is known when it is loaded.
        let slot = SlotId {
            pool: pool.clone(),
            index: 0,
        };
        let mut writes = conversation::begun(run.clone(), session.clone(), slot);
        writes.extend(with(&session, &run));
        let durable = self.make_durable(writes).await;
        durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        Ok(session)
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

    /// Loads a session that [`FleetHandle::begin_chat`] began into a slot, or says why that cannot
    /// be done now. An agent that does not remember it is told what was said.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn load_chat(
        &self,
        pool: &PoolName,
        directory: &Path,
        session: SessionId,
    ) -> Result<Conversation, OpenError> {
        let order = ConversationOrder {
            pool: pool.clone(),
            directory: directory.to_owned(),
            session: Some(session),
        };
        self.open_talk(order, true).await
    }

    /// Whether a client could have a slot of the pool now.
    #[must_use]
    pub fn has_free_slot(&self, pool: &PoolName) -> bool {
        let slots = self.0.shared.slots.of_pool(pool);
        let mut slots = slots.iter();
        slots.any(|view| view.session.is_none() && view.state != SlotState::Parked)
    }

    /// Whether nothing can be begun in the pool until a person has looked.
    #[must_use]
    pub fn is_parked(&self, pool: &PoolName) -> bool {
        let slots = self.0.shared.slots.of_pool(pool);
        slots.iter().all(|view| view.state == SlotState::Parked)
    }

    /// Puts an event of the supervisor's own at the end of a session that is not loaded; returns
    /// when it is durable. Whoever loads sessions must keep this one from being loaded meanwhile.
    ///
    /// # Errors
    /// [`OpenError::Journal`]
    pub async fn append(&self, session: &SessionId, event: Event) -> Result<(), OpenError> {
        // What an earlier slot of it was writing goes first.
        let settled = self.make_durable(Vec::new()).await;
        settled.map_err(|error| OpenError::Journal(error.to_string()))?;
        let of = session.clone();
        let last = self.read_past(move |reader| reader.last_seq(&of)).await?;
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
        let durable = self.make_durable(vec![write]).await;
        durable.map_err(|error| OpenError::Journal(error.to_string()))?;
        self.0.shared.taps.durable(session, seq);
        Ok(())
    }

    /// Reads what is durable.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn recall<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, OpenError> {
        self.read_past(read).await
    }
}
