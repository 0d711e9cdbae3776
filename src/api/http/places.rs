//! How many connections there are, and which of them goes when another wants its place.
//!
//! Owns the places: for requests, for streams of events, and a few spare ones. A connection on which
//! no request is under way is the first to go, so whoever opens many and asks nothing takes places
//! from himself alone. Must not know what is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Bounds;

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    usual: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    idle: Arc<Idle>,
    grace: Duration,
}

/// Connections on which no request is under way, by when they were last used.
#[derive(Debug, Default)]
struct Idle {
    inner: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    each: BTreeMap<u64, (Instant, CancellationToken)>,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, gone: &CancellationToken) -> u64 {
        let mut waiting = self.lock();
        waiting.next += 1;
        let number = waiting.next;
        waiting.each.insert(number, (Instant::now(), gone.clone()));
        number
    }

    fn leave(&self, number: u64) {
        self.lock().each.remove(&number);
    }

    /// Ends the one that is idle for longest, if that is longer than `grace`; else says when one
    /// will be.
    fn end_one(&self, grace: Duration) -> Option<Instant> {
        let mut waiting = self.lock();
        let first = waiting.each.first_entry()?;
        let old = first.get().0 + grace;
        if old > Instant::now() {
            return Some(old);
        }
        let (_, (_, gone)) = first.remove_entry();
        gone.cancel();
        None
    }
}

impl Places {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self {
            usual: Arc::new(Semaphore::new(bounds.connections)),
            spare: Arc::new(Semaphore::new(bounds.spare)),
            streams: Arc::new(Semaphore::new(bounds.streams)),
            idle: Arc::default(),
            grace: bounds.grace,
        }
    }

    /// A place for a connection that came: a usual one, if need be of one that asks nothing; a spare
    /// one, where all of those have requests under way or are new.
    pub(super) async fn take(&self, bounds: &Bounds) -> Arc<Hold> {
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        loop {
            if let Some(held) = take(&self.usual) {
                return self.hold(held, false, bounds.life);
            }
            let before = self.idle.lock().each.len();
            let old = self.idle.end_one(self.grace);
            let has_ended = old.is_none() && before > 0;
            if !has_ended && let Some(held) = take(&self.spare) {
                return self.hold(held, true, bounds.spare_life);
            }
            let again = old.unwrap_or_else(|| Instant::now() + self.grace);
            tokio::select! {
                biased;
                held = Arc::clone(&self.usual).acquire_owned() => if let Ok(held) = held {
                    return self.hold(held, false, bounds.life);
                },
                held = Arc::clone(&self.spare).acquire_owned(), if !has_ended => if let Ok(held) = held {
                    return self.hold(held, true, bounds.spare_life);
                },
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    fn hold(&self, held: OwnedSemaphorePermit, is_spare: bool, life: Duration) -> Arc<Hold> {
        let hold = Arc::new(Hold {
            is_spare,
            gone: CancellationToken::new(),
            streams: Arc::clone(&self.streams),
            idle: Arc::clone(&self.idle),
            state: Mutex::new(State {
                held,
                until: Instant::now() + life,
                seat: None,
            }),
        });
        hold.rests();
        hold
    }
}

/// The place of one connection; it is free when this is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    /// It is only told whether the supervisor is alive and ready.
    pub(super) is_spare: bool,
    /// Another one took the place.
    pub(super) gone: CancellationToken,
    streams: Arc<Semaphore>,
    idle: Arc<Idle>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held: OwnedSemaphorePermit,
    until: Instant,
    seat: Option<u64>,
}

impl Hold {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the connection ends.
    pub(super) fn until(&self) -> Instant {
        self.lock().until
    }

    /// A request is under way.
    pub(super) fn works(&self) {
        if let Some(seat) = self.lock().seat.take() {
            self.idle.leave(seat);
        }
    }

    /// No request is under way. Spare places come back by themselves.
    pub(super) fn rests(&self) {
        let mut state = self.lock();
        if !self.is_spare && state.seat.is_none() {
            state.seat = Some(self.idle.enter(&self.gone));
        }
    }

    /// The connection carries a stream from here on, and nothing after it: it takes a place for
    /// streams, if there is one, and gives its own back.
    pub(super) fn streams(&self, until: Instant) -> bool {
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            return false;
        };
        let mut state = self.lock();
        state.held = place;
        state.until = until;
        true
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.works();
    }
}
