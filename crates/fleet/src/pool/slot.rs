//! One slot of a pool.

use std::time::Instant;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::conversations::SlotConversation;
use crate::clock;
use crate::messages::SessionRef;
use crate::session::StoredSession;
use crate::slot_history::SlotHistory;
use marshal_config::Pool as PoolConfig;
use marshal_dialect::lifecycle::restart::FailureHistory;
use marshal_dialect::lifecycle::state::{self, SlotEvent};
use marshal_model::{SessionId, SlotId, SlotState};

/// The task that a slot runs, and the session that runs it.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) actor: SessionRef,
    pub(super) session: SessionId,
    pub(super) task: ActiveTask,
}

/// A slot's session between tasks, with `session = "slot"` or in a conversation.
#[derive(Debug)]
pub(super) enum RetainedSession {
    /// It is idle, with or without a child.
    Idle {
        actor: SessionRef,
        session: SessionId,
    },
    /// It is closing: the slot is free only when it has closed.
    Closing {
        actor: SessionRef,
        session: SessionId,
    },
    /// It is stored and nothing of it runs, for example after a start of the supervisor.
    Stored(StoredSession),
}

/// A slot: a fixed place in the pool for one session at a time.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(super) id: SlotId,
    pub(super) state: SlotState,
    pub(super) history: FailureHistory,
    pub(super) work: Option<Assignment>,
    pub(super) retained: Option<RetainedSession>,
    /// The client's conversation that occupies the slot.
    pub(super) conversation: Option<SlotConversation>,
    /// Counts backoffs, so that the end of an outdated one is ignored.
    pub(super) round: u64,
    /// When the current child was started.
    pub(super) spawned_at: Option<Instant>,
    /// When its last ready child failed; `None` while a child is ready.
    pub(super) down_since: Option<Instant>,
    /// Callers of a restart that wait for the old child's end.
    pub(super) restart_waiters: Vec<oneshot::Sender<()>>,
    /// The session that an operator stops; it ends as soon as it is idle.
    pub(super) stopping_session: Option<SessionId>,
    /// The session that could not be loaded, and the reason, until a new session replaces it.
    pub(super) unloadable_session: Option<(SessionId, String)>,
}

impl Slot {
    pub(super) fn new(pool: &PoolConfig, index: u16, memory: SlotHistory) -> Self {
        Self {
            id: SlotId {
                pool: pool.name.clone(),
                index,
            },
            state: match memory.parked {
                Some(_) => SlotState::Parked,
                None => SlotState::Unloaded,
            },
            history: FailureHistory::from_ages(clock::now(), memory.ages),
            work: None,
            retained: None,
            conversation: None,
            round: 0,
            spawned_at: None,
            down_since: None,
            restart_waiters: Vec::new(),
            stopping_session: None,
            unloadable_session: None,
        }
    }

    /// Changes the state by the state table; `false` if the state stays as it is.
    pub(super) fn apply(&mut self, change: SlotEvent) -> bool {
        if let Some(next) = state::next_state(self.state, change) {
            let moved = next != self.state;
            self.state = next;
            moved
        } else {
            tracing::debug!(slot = %self.id, state = %self.state, ?change, "the slot's state table has no such transition");
            false
        }
    }

    /// Whether a task can be assigned to it now.
    pub(super) fn is_idle(&self) -> bool {
        let is_available = match (&self.retained, self.state) {
            (Some(RetainedSession::Closing { .. }), _) => false,
            (Some(RetainedSession::Idle { .. }), SlotState::Ready) => true,
            (_, state) => state == SlotState::Unloaded,
        };
        self.work.is_none() && is_available
    }

    /// Whether a conversation can occupy it now.
    pub(super) fn can_host_conversation(&self) -> bool {
        self.is_idle() && self.retained.is_none() && self.conversation.is_none()
    }

    /// Whether this conversation occupies it.
    pub(super) fn has_conversation(&self, session: &SessionId) -> bool {
        let conversation = self.conversation.as_ref();
        conversation.is_some_and(|conversation| conversation.session == *session)
    }

    /// Whether no session runs in it.
    pub(super) const fn is_free(&self) -> bool {
        self.work.is_none() && matches!(self.retained, None | Some(RetainedSession::Stored(_)))
    }

    /// The session that runs in it, with its address.
    pub(super) fn occupant(&self) -> Option<(&SessionRef, &SessionId)> {
        match (&self.work, &self.retained) {
            (Some(work), _) => Some((&work.actor, &work.session)),
            (
                None,
                Some(
                    RetainedSession::Idle { actor, session }
                    | RetainedSession::Closing { actor, session },
                ),
            ) => Some((actor, session)),
            _ => None,
        }
    }
}
