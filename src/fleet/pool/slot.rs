//! One slot of a pool, as its Pool sees it.

use std::time::Instant;

use ractor::ActorRef;
use tokio::sync::oneshot;

use super::ActiveTask;
use crate::config::Pool as PoolConfig;
use crate::fleet::memory::SlotMemory;
use crate::fleet::session::SessionMsg;
use crate::lifecycle::restart::History;
use crate::lifecycle::state::{self, SlotEvent};
use crate::model::{SessionId, SlotId, SlotState};

/// What a slot works on.
#[derive(Debug)]
pub(super) struct Occupied {
    pub(super) actor: ActorRef<SessionMsg>,
    pub(super) session: SessionId,
    pub(super) task: ActiveTask,
}

/// A fixed place in the pool.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(super) id: SlotId,
    pub(super) state: SlotState,
    pub(super) history: History,
    pub(super) work: Option<Occupied>,
    /// Counts backoffs, so that the end of an outdated one is told from the current one's.
    pub(super) round: u64,
    /// When the current child was started.
    pub(super) spawned_at: Option<Instant>,
    /// Since when it has had no ready child, after a failure.
    pub(super) down_since: Option<Instant>,
    /// Somebody asked for a restart and waits for the old child's end.
    pub(super) restarted: Vec<oneshot::Sender<()>>,
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
            history: History::restored(Instant::now(), memory.ages),
            work: None,
            round: 0,
            spawned_at: None,
            down_since: None,
            restarted: Vec::new(),
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
        self.work.is_none() && self.state == SlotState::Unloaded
    }

    /// Whether no session is in it.
    pub(super) const fn is_free(&self) -> bool {
        self.work.is_none()
    }
}
