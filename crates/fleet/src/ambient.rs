//! What the fleet takes from its surroundings beside time, children and disk: chance, and threads
//! that may block.
//!
//! A simulation gives it a seed: then every number follows from that, and what may block runs in
//! place, because threads have no order. Must not know what it is used for.
//!
//! One exception: `files/agent.rs` makes an id of its own, which marks the start of this process among the
//! ids of sessions.

use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::clock;
use marshal_model::limits::CONCURRENT_BLOCKING;

/// Chance and threads. Clones share the seed's row of numbers, and the threads.
#[derive(Debug, Clone)]
pub struct Ambient(Source);

#[derive(Debug, Clone)]
enum Source {
    /// The host's chance, and its threads, of which so many are for the fleet.
    Host(Arc<Semaphore>),
    /// Everything from one row of numbers, on the caller's thread.
    Seeded(Arc<Mutex<StdRng>>),
}

impl Default for Ambient {
    fn default() -> Self {
        Self(Source::Host(Arc::new(Semaphore::new(CONCURRENT_BLOCKING))))
    }
}

/// The work was interrupted: its thread panicked, or the runtime ends.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Ambient {
    /// Everything from this seed, on this thread.
    #[doc(hidden)]
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let row = StdRng::seed_from_u64(seed);
        Self(Source::Seeded(Arc::new(Mutex::new(row))))
    }

    /// A number from 0 to below 1.
    pub(crate) fn random_fraction(&self) -> f64 {
        match &self.0 {
            Source::Seeded(row) => row.lock().unwrap_or_else(PoisonError::into_inner).random(),
            Source::Host(_) => rand::random(),
        }
    }

    /// A fresh id, which sorts by its time.
    pub(crate) fn new_id(&self) -> Uuid {
        let Source::Seeded(row) = &self.0 else {
            return Uuid::now_v7();
        };
        let random: [u8; 10] = row.lock().unwrap_or_else(PoisonError::into_inner).random();
        let ms = u64::try_from(clock::now_us() / 1000).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }

    /// Does work that may block, where that is allowed; waits for one of a few places there, so
    /// that a fleet which starts, or is measured, all at once needs no thread for each child.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Interrupted> {
        let Source::Host(places) = &self.0 else {
            return Ok(work());
        };
        let place = Arc::clone(places).acquire_owned().await;
        let place = place.map_err(|_| Interrupted)?;
        let done = tokio::task::spawn_blocking(move || {
            // Given back by the thread: who waits for it may be gone long before.
            let _place = place;
            work()
        });
        done.await.map_err(|_| Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again_and_the_host_does_not() {
        let draw = |ambient: &Ambient| {
            (
                ambient.random_fraction(),
                ambient.new_id().as_bytes()[6..].to_vec(),
            )
        };
        assert_eq!(draw(&Ambient::seeded(7)), draw(&Ambient::seeded(7)));
        assert_ne!(draw(&Ambient::seeded(7)), draw(&Ambient::seeded(8)));
        assert_ne!(draw(&Ambient::default()), draw(&Ambient::default()));
    }
}
