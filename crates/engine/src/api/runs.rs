//! The runs that clients may watch and cancel.
//!
//! Owns how long an ended run is kept. Must not know how a run is submitted or watched.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::run_stream::Ledger;
use marshal_model::RunId;
use marshal_model::limits;

/// The runs of a daemon: current ones, the last few that have ended, and the ids of runs of earlier
/// starts that are about to be resumed.
#[derive(Debug, Default)]
pub struct Runs {
    inner: Mutex<RunsInner>,
    /// Changes when a run is no longer pending.
    settled: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct RunsInner {
    /// Runs that are about to be resumed.
    pending: HashSet<RunId>,
    ledgers: HashMap<RunId, Arc<Ledger>>,
    /// The runs, oldest first.
    order: VecDeque<RunId>,
}

impl Runs {
    fn lock(&self) -> std::sync::MutexGuard<'_, RunsInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an empty list with runs that are about to be resumed. Clients that request one of
    /// them wait for [`Runs::insert`] or [`Runs::drop_pending`].
    #[must_use]
    pub fn with_pending(runs: impl IntoIterator<Item = RunId>) -> Self {
        let own = Self::default();
        own.lock().pending.extend(runs);
        own
    }

    /// Marks a run that will not be resumed.
    pub fn drop_pending(&self, run: &RunId) {
        self.lock().pending.remove(run);
        self.settled.send_replace(());
    }

    /// Waits for a pending run and returns it; `None` if there is no run with this id.
    pub(super) async fn wait_for(&self, run: &RunId) -> Option<Arc<Ledger>> {
        // Subscribe before the check, so that no change is missed.
        let mut settled = self.settled.subscribe();
        loop {
            {
                let inner = self.lock();
                let ledger = inner.ledgers.get(run).cloned();
                if ledger.is_some() || !inner.pending.contains(run) {
                    return ledger;
                }
            }
            settled.changed().await.ok()?;
        }
    }

    /// Adds a run, and removes the oldest ended runs above the limit. The fleet's queues limit the
    /// number of current runs.
    pub fn insert(&self, ledger: &Arc<Ledger>) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let closed = inner.ledgers.values().filter(|l| l.is_closed()).count();
        let mut surplus = closed.saturating_sub(limits::ENDED_RUNS - 1);
        inner.order.retain(|run| {
            let goes = surplus > 0 && inner.ledgers.get(run).is_none_or(|l| l.is_closed());
            if goes {
                surplus -= 1;
                inner.ledgers.remove(run);
            }
            !goes
        });
        inner.order.push_back(ledger.run().clone());
        inner
            .ledgers
            .insert(ledger.run().clone(), Arc::clone(ledger));
        inner.pending.remove(ledger.run());
        self.settled.send_replace(());
    }
}
