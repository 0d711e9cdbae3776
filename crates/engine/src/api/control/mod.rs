//! The control socket: one JSON request per line, from the supervisor's user or root.
//!
//! Owns the connections, their limits and the runs that were submitted over the socket. A client
//! that reads slowly lags behind its stream, and one that does not read is disconnected; neither
//! slows the fleet. Must not know HTTP or the command line.

mod connection;
mod conversation;
mod lines;
pub mod socket;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::reply::Role;
use super::request::{Code, Failure};
use super::run_stream::Ledger;
use super::service::Fleet;
use marshal_model::RunId;
use marshal_model::limits;

pub use lines::{LineError, LineReader, LineWriter, Lines};
pub use socket::{BindError, Listener, bind, connect, connect_as};

/// The limits of one server; [`Bounds::default`] has those of the program.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The maximum number of clients at the same time.
    pub connections: usize,
    /// The maximum length of a request in bytes.
    pub line: usize,
    /// The time limit for a client to send one request, and to read what is sent to it.
    pub wait: Duration,
    /// The time limit for open conversations at shutdown.
    pub drain: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::CONTROL_CONNECTIONS,
            line: limits::CONTROL_LINE_BYTES,
            wait: limits::CONTROL_TIMEOUT,
            drain: limits::HTTP_DRAIN,
        }
    }
}

/// The state that all connections share.
#[derive(Debug, Clone)]
pub(super) struct ConnectionContext<F> {
    fleet: F,
    role: Role,
    bounds: Bounds,
    runs: Arc<Runs>,
    stop: CancellationToken,
}

/// Serves the socket until `stop`, then ends open conversations and removes the socket. Clients can
/// watch and cancel `runs`; submitted runs are added to it.
pub async fn serve<F: Fleet>(
    listener: Listener,
    fleet: F,
    role: Role,
    bounds: Bounds,
    runs: Arc<Runs>,
    stop: CancellationToken,
) {
    let context = ConnectionContext {
        fleet,
        role,
        bounds,
        runs,
        stop: stop.clone(),
    };
    let places = Arc::new(Semaphore::new(bounds.connections));
    let open = TaskTracker::new();
    let kill = CancellationToken::new();
    let owner = rustix::process::geteuid().as_raw();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.unix.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let peer = stream.peer_cred().ok().map(|peer| peer.uid());
        if let Err(failure) = is_permitted(peer, owner) {
            connection::send_rejection(&stream, failure);
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            let message = format!(
                "the limit of {} connected clients is reached; try again later",
                bounds.connections
            );
            connection::send_rejection(&stream, Failure::new(Code::Busy, message));
            continue;
        };
        let (context, kill) = (context.clone(), kill.clone());
        open.spawn(async move {
            tokio::select! {
                () = connection::serve_client(stream, context) => {}
                () = kill.cancelled() => {}
            }
            drop(place);
        });
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(bounds.drain, open.wait())
        .await
        .is_err()
    {
        kill.cancel();
        open.wait().await;
    }
}

/// Only the supervisor's user and root may connect, because a client can start processes as that
/// user. `peer` is the client's uid; `None` if the kernel does not report it.
fn is_permitted(peer: Option<u32>, owner: u32) -> Result<(), Failure> {
    let message = match peer {
        Some(uid) if uid == owner || uid == 0 => return Ok(()),
        Some(uid) => {
            format!("uid {uid} may not control this supervisor, which runs as uid {owner}")
        }
        None => "the kernel does not report your user id".to_owned(),
    };
    Err(Failure::new(Code::NotPermitted, message))
}

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
    async fn wait_for(&self, run: &RunId) -> Option<Arc<Ledger>> {
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
        let mut surplus = closed.saturating_sub(limits::CONTROL_ENDED_RUNS - 1);
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

#[cfg(test)]
mod tests;
