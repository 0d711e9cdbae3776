//! The control socket: one JSON request a line, from the supervisor's user or root.
//!
//! Owns connections, their bounds and the runs that came over the socket. Must not know HTTP or
//! the command line. A client that is slow lags behind its stream; one that does not read at all
//! is dropped; neither slows the fleet.

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

/// The bounds of one server; [`Bounds::default`] is what the program uses.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Clients at the same time.
    pub connections: usize,
    /// Bytes of one request.
    pub line: usize,
    /// For one request, and for a client to read what it is told.
    pub wait: Duration,
    /// For open conversations at the end.
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

/// What every conversation needs.
#[derive(Debug, Clone)]
pub(super) struct ConnectionContext<F> {
    fleet: F,
    role: Role,
    bounds: Bounds,
    runs: Arc<Runs>,
    stop: CancellationToken,
}

/// Serves the socket until `stop`, then ends open conversations and removes the socket. `runs` can
/// be watched and cancelled; those that come over the socket are kept in it.
pub async fn serve<F: Fleet>(
    listener: Listener,
    fleet: F,
    role: Role,
    bounds: Bounds,
    runs: Arc<Runs>,
    stop: CancellationToken,
) {
    let desk = ConnectionContext {
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
            let message = format!("{} clients are connected; try again", bounds.connections);
            connection::send_rejection(&stream, Failure::new(Code::Busy, message));
            continue;
        };
        let (desk, kill) = (desk.clone(), kill.clone());
        open.spawn(async move {
            tokio::select! {
                () = connection::serve_client(stream, desk) => {}
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

/// Only the supervisor's user and root: whoever writes here starts processes as that user.
/// `peer` is the client's uid, where the kernel says it.
fn is_permitted(peer: Option<u32>, owner: u32) -> Result<(), Failure> {
    let message = match peer {
        Some(uid) if uid == owner || uid == 0 => return Ok(()),
        Some(uid) => {
            format!("uid {uid} may not control this supervisor, which runs as uid {owner}")
        }
        None => "the kernel does not say who you are".to_owned(),
    };
    Err(Failure::new(Code::NotPermitted, message))
}

/// The runs of a daemon: those that are worked, and the last few that are over; and by name those
/// of earlier starts that it is about to take up.
#[derive(Debug, Default)]
pub struct Runs {
    inner: Mutex<RunsInner>,
    /// Changes when a run is no longer about to be taken up.
    settled: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct RunsInner {
    /// About to be taken up.
    pending: HashSet<RunId>,
    ledgers: HashMap<RunId, Arc<Ledger>>,
    /// Oldest first.
    order: VecDeque<RunId>,
}

impl Runs {
    fn lock(&self) -> std::sync::MutexGuard<'_, RunsInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None yet; these are about to be taken up. Whoever asks for one of them waits for
    /// [`Runs::keep`] or [`Runs::give_up`].
    #[must_use]
    pub fn with_pending(runs: impl IntoIterator<Item = RunId>) -> Self {
        let own = Self::default();
        own.lock().pending.extend(runs);
        own
    }

    /// A run is not taken up.
    pub fn drop_pending(&self, run: &RunId) {
        self.lock().pending.remove(run);
        self.settled.send_replace(());
    }

    /// A run, once it is taken up; `None` if there is none of this name.
    async fn wait_for(&self, run: &RunId) -> Option<Arc<Ledger>> {
        // Before it is looked, so that nothing is missed.
        let mut settled = self.settled.subscribe();
        loop {
            {
                let inner = self.lock();
                let found = inner.ledgers.get(run).cloned();
                if found.is_some() || !inner.pending.contains(run) {
                    return found;
                }
            }
            settled.changed().await.ok()?;
        }
    }

    /// Keeps a run, and forgets the oldest ones that are over beyond the bound. Runs that are
    /// worked are bounded by the fleet's queues.
    pub fn insert(&self, ledger: &Arc<Ledger>) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let over = inner.ledgers.values().filter(|l| l.is_closed()).count();
        let mut surplus = over.saturating_sub(limits::CONTROL_ENDED_RUNS - 1);
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
