//! One slot of a pool, as its Pool sees it.

use std::time::Instant;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::conversations::SlotConversation;
use crate::clock;
use crate::session::{SessionRef, StoredSession};
use crate::slot_history::SlotHistory;
use marshal_config::Pool as PoolConfig;
use marshal_dialect::lifecycle::restart::FailureHistory;
use marshal_dialect::lifecycle::state::{self, SlotEvent};
use marshal_model::{SessionId, SlotId, SlotState};

/// What a slot works on.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) actor: SessionRef,
    pub(super) session: SessionId,
    pub(super) task: ActiveTask,
}

/// A slot's session between tasks, with `session = "slot"`.
#[derive(Debug)]
pub(super) enum RetainedSession {
    /// It waits, with or without a child.
    Idle {
        actor: SessionRef,
        session: SessionId,
    },
    /// It is being closed: the slot is not free before that is done.
    Closing {
        actor: SessionRef,
        session: SessionId,
    },
    /// An earlier start of the supervisor left it; nothing of it runs.
    Stored(StoredSession),
}

/// A fixed place in the pool.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(super) id: SlotId,
    pub(super) state: SlotState,
    pub(super) history: FailureHistory,
    pub(super) work: Option<Assignment>,
    pub(super) retained: Option<RetainedSession>,
    /// A client's conversation has the slot for itself.
    pub(super) conversation: Option<SlotConversation>,
    /// Counts backoffs, so that the end of an outdated one is told from the current one's.
    pub(super) round: u64,
    /// When the current child was started.
    pub(super) spawned_at: Option<Instant>,
    /// Since when it has had no ready child, after a failure.
    pub(super) down_since: Option<Instant>,
    /// Somebody asked for a restart and waits for the old child's end.
    pub(super) restart_waiters: Vec<oneshot::Sender<()>>,
    /// The session that ends as soon as it has nothing to do: somebody said so.
    pub(super) stopping_session: Option<SessionId>,
    /// The session that could not be loaded again, and why, until another takes its place.
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

    /// Moves by the table; `false` if the table has no such move.
    pub(super) fn apply(&mut self, change: SlotEvent) -> bool {
        if let Some(next) = state::next_state(self.state, change) {
            let moved = next != self.state;
            self.state = next;
            moved
        } else {
            tracing::debug!(slot = %self.id, state = %self.state, ?change, "no such move");
            false
        }
    }

    /// Whether a task may be given to it now.
    pub(super) fn is_idle(&self) -> bool {
        let has_place = match (&self.retained, self.state) {
            (Some(RetainedSession::Closing { .. }), _) => false,
            (Some(RetainedSession::Idle { .. }), SlotState::Ready) => true,
            (_, state) => state == SlotState::Unloaded,
        };
        self.work.is_none() && has_place
    }

    /// Whether a conversation may have it now.
    pub(super) fn can_host_conversation(&self) -> bool {
        self.is_idle() && self.retained.is_none() && self.conversation.is_none()
    }

    /// Whether this conversation has it.
    pub(super) fn has_conversation(&self, session: &SessionId) -> bool {
        let held = self.conversation.as_ref();
        held.is_some_and(|held| held.session == *session)
    }

    /// Whether no session is in it.
    pub(super) const fn is_free(&self) -> bool {
        self.work.is_none() && matches!(self.retained, None | Some(RetainedSession::Stored(_)))
    }

    /// The actor and the session that are in it.
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
