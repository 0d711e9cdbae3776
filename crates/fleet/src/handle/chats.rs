//! Support for chats: ids, durable rows, loading, and events of a session that is not loaded.
//!
//! Must not know what a turn of a chat is, or who sends it.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::conversation::OpenError;
use crate::clock::now_us;
use crate::messages::PoolMsg;
use crate::pool::ConversationMsg;
use crate::session::{ChatArgs, discard_session};
use crate::slot_demand::SlotDemand;
use crate::{Conversation, ConversationRequest, FleetHandle, SubmitError};
use marshal_journal::{ChatWrite, Write};
use marshal_model::{Event, EventId, PoolName, RunId, SessionId, SlotState, StampedEvent};
use marshal_sandbox::workspace::copy;

/// The detail of a turn that a person stopped before its agent got it.
pub const STOPPED_UNSENT: &str = "a person stopped it before it was sent";

impl Conversation {
    /// Appends an event of the supervisor to the stream, in one commit with `rows`; returns `true`
    /// when it is durable. `false`: it is unknown whether it is durable; the journal shows it after
    /// the conversation is left.
    pub async fn append_event(&self, event: Event, rows: Vec<Write>) -> bool {
        let (done, durable) = oneshot::channel();
        let message = PoolMsg::Conversation(ConversationMsg::AppendEvent {
            session: self.grant.session.clone(),
            event: Box::new(event),
            rows,
            done,
        });
        self.grant.pool.send_message(message).is_ok() && durable.await.is_ok()
    }

    /// Whether the conversation must be left when its turn has ended, because its slot receives no
    /// work any more.
    #[must_use]
    pub fn must_release_slot(&self) -> bool {
        let entry = self.fleet.pool_entry(&self.pool);
        entry.is_some_and(|entry| entry.shared.must_unload(self.grant.slot.index))
    }
}

impl FleetHandle {
    /// The current time for rows of chats: milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        now_us().div_euclid(1000)
    }

    /// New ids for a chat: its session, whose id is the chat's id, and its run.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn chat_ids(&self) -> Result<(SessionId, RunId), OpenError> {
        self.fresh_ids()
    }

    /// Commits rows of a chat; returns when they are durable.
    ///
    /// # Errors
    /// [`SubmitError`]; none of the rows was stored.
    pub async fn commit_rows(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        self.commit_durably(writes).await
    }

    /// Commits rows of a request that its client waits for, within a bounded time.
    ///
    /// # Errors
    /// [`SubmitError`]; none of the rows was stored, except perhaps with [`SubmitError::Unknown`].
    pub async fn accept_rows(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        self.commit_within_bound(writes).await
    }

    /// A new id; ids sort by time.
    #[must_use]
    pub fn fresh_id(&self) -> String {
        self.0.shared.ambient.new_id().to_string()
    }

    /// Checks that a pool's agents can work in a directory.
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

    /// Loads a chat's session into a slot, for which it waits as long as it takes. An agent that
    /// cannot load its own session gets the earlier messages as text.
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
            additional_directories: Vec::new(),
            session: Some(session),
        };
        self.open_conversation_or_chat(order, Some(ChatArgs { model }))
            .await
    }

    /// What waits for a slot of the pool; `None` if there is no such pool.
    #[must_use]
    pub fn slot_demand(&self, pool: &PoolName) -> Option<Arc<SlotDemand>> {
        let entry = self.0.pools.get(pool)?;
        Some(Arc::clone(&entry.shared.slot_demand))
    }

    /// Ends a chat whose session is not loaded, for good, with its run and its queued messages. Its
    /// home is removed, and the retention time of its copy begins. The caller must prevent that the
    /// session is loaded meanwhile.
    ///
    /// # Errors
    /// [`SubmitError`]; the chat has not ended.
    pub async fn close_chat(&self, session: SessionId) -> Result<(), SubmitError> {
        // A barrier: events that an earlier slot of the session submitted become durable first.
        self.commit_durably(Vec::new()).await?;
        let close = Write::Chat(ChatWrite::Close {
            chat: session.clone(),
            at_ms: self.now_ms(),
        });
        self.commit_durably(vec![close]).await?;
        let shared = Arc::clone(&self.0.shared);
        shared.approvals.remove_session(&session);
        let ambient = shared.ambient.clone();
        // If this fails, the next sweep removes the rest.
        let work = move || {
            let has_copy = copy::path(&shared.state, &session).exists();
            discard_session(&shared, &session, has_copy);
        };
        let _ = ambient.run_blocking(work).await;
        Ok(())
    }

    /// Whether all slots of the pool are parked, so that nothing starts until a person restarts
    /// one.
    #[must_use]
    pub fn is_parked(&self, pool: &PoolName) -> bool {
        let slots = self.0.shared.slots.of_pool(pool);
        slots.iter().all(|view| view.state == SlotState::Parked)
    }

    /// Appends an event of the supervisor to a session that is not loaded, in one commit with
    /// `rows`; returns when it is durable. The caller must prevent that the session is loaded
    /// meanwhile.
    ///
    /// # Errors
    /// [`SubmitError`]; after [`SubmitError::Journal`] the caller may try again.
    pub async fn append_event(
        &self,
        session: &SessionId,
        event: Event,
        rows: Vec<Write>,
    ) -> Result<(), SubmitError> {
        // A barrier: events that an earlier slot of the session submitted become durable first.
        self.commit_durably(Vec::new()).await?;
        let id = session.clone();
        let last = self
            .read_journal(move |reader| reader.last_seq(&id))
            .await
            .map_err(|error| SubmitError::Rejected(error.to_string()))?;
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
