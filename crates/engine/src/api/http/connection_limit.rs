//! Limits the number of connections, and decides which one is closed for a new one.
//!
//! Owns the permits: for requests, for streams of events, and a few spare ones. A connection that is
//! idle, or waits for the rest of its request's body, is closed first, so a client that opens many of
//! them only takes permits from itself. Must not know the requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Bounds;

/// The permits of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    usual: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    stream_permits: Arc<Semaphore>,
    idle: Arc<IdleConnections>,
    grace: Duration,
}

/// Connections without a request in progress, by their last use, and those that wait for a body.
#[derive(Debug, Default)]
struct IdleConnections {
    inner: Mutex<IdleState>,
}

#[derive(Debug, Default)]
struct IdleState {
    next: u64,
    each: BTreeMap<IdleKey, CancellationToken>,
}

/// Since when a connection waits for its client, and a number that no other one has.
type IdleKey = (Instant, u64);

impl IdleConnections {
    fn lock(&self) -> MutexGuard<'_, IdleState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, since: Instant, closed: &CancellationToken) -> IdleKey {
        let mut waiting = self.lock();
        waiting.next += 1;
        let key = (since, waiting.next);
        waiting.each.insert(key, closed.clone());
        key
    }

    fn remove(&self, key: IdleKey) {
        self.lock().each.remove(&key);
    }

    /// Closes the connection that is idle for longest, if that is longer than `grace`; otherwise
    /// returns when one will be.
    fn evict_oldest(&self, grace: Duration) -> Option<Instant> {
        let mut waiting = self.lock();
        let first = waiting.each.first_entry()?;
        let old = first.key().0 + grace;
        if old > Instant::now() {
            return Some(old);
        }
        first.remove().cancel();
        None
    }
}

impl ConnectionLimit {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self {
            usual: Arc::new(Semaphore::new(bounds.connections)),
            spare: Arc::new(Semaphore::new(bounds.spare)),
            stream_permits: Arc::new(Semaphore::new(bounds.streams)),
            idle: Arc::default(),
            grace: bounds.grace,
        }
    }

    /// Returns a permit for a new connection: a regular one, if necessary that of an idle
    /// connection; or a spare one, if all others are busy or new.
    pub(super) async fn acquire(&self, bounds: &Bounds) -> Arc<ConnectionPermit> {
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        loop {
            if let Some(permit) = take(&self.usual) {
                return self.new_permit(permit, false, bounds.life);
            }
            let before = self.idle.lock().each.len();
            let old = self.idle.evict_oldest(self.grace);
            let has_ended = old.is_none() && before > 0;
            if !has_ended && let Some(permit) = take(&self.spare) {
                return self.new_permit(permit, true, bounds.spare_life);
            }
            let again = old.unwrap_or_else(|| Instant::now() + self.grace);
            tokio::select! {
                biased;
                permit = Arc::clone(&self.usual).acquire_owned() => if let Ok(permit) = permit {
                    return self.new_permit(permit, false, bounds.life);
                },
                permit = Arc::clone(&self.spare).acquire_owned(), if !has_ended => if let Ok(permit) = permit {
                    return self.new_permit(permit, true, bounds.spare_life);
                },
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    fn new_permit(
        &self,
        permit: OwnedSemaphorePermit,
        is_spare: bool,
        life: Duration,
    ) -> Arc<ConnectionPermit> {
        let hold = Arc::new(ConnectionPermit {
            is_spare,
            evicted: CancellationToken::new(),
            stream_permits: Arc::clone(&self.stream_permits),
            idle: Arc::clone(&self.idle),
            state: Mutex::new(State {
                permit,
                deadline: Instant::now() + life,
                idle_entry: None,
            }),
        });
        hold.mark_idle();
        hold
    }
}

/// The permit of one connection; released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    /// The connection serves only liveness and readiness.
    pub(super) is_spare: bool,
    /// Cancelled when another connection took the permit.
    pub(super) evicted: CancellationToken,
    stream_permits: Arc<Semaphore>,
    idle: Arc<IdleConnections>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    permit: OwnedSemaphorePermit,
    deadline: Instant,
    idle_entry: Option<IdleKey>,
}

impl ConnectionPermit {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the connection is closed.
    pub(super) fn deadline(&self) -> Instant {
        self.lock().deadline
    }

    /// Marks that a request is in progress.
    pub(super) fn mark_busy(&self) {
        if let Some(seat) = self.lock().idle_entry.take() {
            self.idle.remove(seat);
        }
    }

    /// Marks that no request is in progress.
    pub(super) fn mark_idle(&self) {
        self.mark_waiting(Instant::now());
    }

    /// Marks that the client has kept the connection waiting since then. Spare permits need no mark,
    /// because their connections end by themselves.
    pub(super) fn mark_waiting(&self, since: Instant) {
        let mut state = self.lock();
        if !self.is_spare && state.idle_entry.is_none() {
            state.idle_entry = Some(self.idle.insert(since, &self.evicted));
        }
    }

    /// Changes the permit to a stream permit and releases the regular one; `false` if no stream
    /// permit is free. Nothing follows a stream on its connection.
    pub(super) fn become_stream(&self, until: Instant) -> bool {
        let Ok(place) = Arc::clone(&self.stream_permits).try_acquire_owned() else {
            return false;
        };
        let mut state = self.lock();
        state.permit = place;
        state.deadline = until;
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.mark_busy();
    }
}
