//! One slot of a pool, as its Pool sees it.

use std::time::Instant;

use tokio::sync::oneshot;

use super::ActiveTask;
use super::talk::Held;
use crate::config::Pool as PoolConfig;
use crate::fleet::clock;
use crate::fleet::memory::SlotMemory;
use crate::fleet::session::{SessionRef, StoredSession};
use crate::lifecycle::restart::History;
use crate::lifecycle::state::{self, SlotEvent};
use crate::model::{SessionId, SlotId, SlotState};

/// What a slot works on.
#[derive(Debug)]
pub(super) struct Occupied {
    pub(super) actor: SessionRef,
    pub(super) session: SessionId,
    pub(super) task: ActiveTask,
}

/// A slot's session between tasks, with `session = "slot"`.
#[derive(Debug)]
pub(super) enum Kept {
    /// It waits, with or without a child.
    Waiting {
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
    pub(super) history: History,
    pub(super) work: Option<Occupied>,
    pub(super) kept: Option<Kept>,
    /// A client's conversation has the slot for itself.
    pub(super) held: Option<Held>,
    /// Counts backoffs, so that the end of an outdated one is told from the current one's.
    pub(super) round: u64,
    /// When the current child was started.
    pub(super) spawned_at: Option<Instant>,
    /// Since when it has had no ready child, after a failure.
    pub(super) down_since: Option<Instant>,
    /// Somebody asked for a restart and waits for the old child's end.
    pub(super) restarted: Vec<oneshot::Sender<()>>,
    /// The session that ends as soon as it has nothing to do: somebody said so.
    pub(super) dismissed: Option<SessionId>,
    /// The session that could not be loaded again, and why, until another takes its place.
    pub(super) given_up: Option<(SessionId, String)>,
}

impl Slot {
    pub(super) fn new(pool: &PoolConfig, index: u16, memory: SlotMemory) -> Self {
        Self {
            id: SlotId {
                pool: pool.name.clone(),
                index,
            },
            state: match memory.parked {
                Some(_) => SlotState::Parked,
                None => SlotState::Unloaded,
            },
            history: History::restored(clock::now(), memory.ages),
            work: None,
            kept: None,
            held: None,
            round: 0,
            spawned_at: None,
            down_since: None,
            restarted: Vec::new(),
            dismissed: None,
            given_up: None,
        }
    }

    /// Moves by the table; `false` if the table has no such move.
    pub(super) fn apply(&mut self, change: SlotEvent) -> bool {
        if let Some(next) = state::next(self.state, change) {
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
        let has_place = match (&self.kept, self.state) {
            (Some(Kept::Closing { .. }), _) => false,
            (Some(Kept::Waiting { .. }), SlotState::Ready) => true,
            (_, state) => state == SlotState::Unloaded,
        };
        self.work.is_none() && has_place
    }

    /// Whether a conversation may have it now.
    pub(super) fn has_room(&self) -> bool {
        self.is_idle() && self.kept.is_none() && self.held.is_none()
    }

    /// Whether this conversation has it.
    pub(super) fn holds(&self, session: &SessionId) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.session == *session)
    }

    /// Whether no session is in it.
    pub(super) const fn is_free(&self) -> bool {
        self.work.is_none() && matches!(self.kept, None | Some(Kept::Stored(_)))
    }

    /// The actor and the session that are in it.
    pub(super) fn occupant(&self) -> Option<(&SessionRef, &SessionId)> {
        match (&self.work, &self.kept) {
            (Some(work), _) => Some((&work.actor, &work.session)),
            (None, Some(Kept::Waiting { actor, session } | Kept::Closing { actor, session })) => {
                Some((actor, session))
            }
            _ => None,
        }
    }
}
