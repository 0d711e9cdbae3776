//! Random numbers and blocking threads for the fleet.
//!
//! With a seed, for simulations, all numbers follow from the seed, and blocking work runs on the
//! caller's thread, because the order of threads is not deterministic. Must not know what it is
//! used for.
//!
//! One exception: `files/agent.rs` makes an id of its own, which marks the start of this process
//! among the ids of sessions.

use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::clock;
use marshal_model::limits::CONCURRENT_BLOCKING;

/// Random numbers and blocking threads. Clones share the generator and the thread limit.
#[derive(Debug, Clone)]
pub struct Ambient(Source);

#[derive(Debug, Clone)]
enum Source {
    /// The host's random numbers, and a limit of blocking threads for the fleet.
    Host(Arc<Semaphore>),
    /// One seeded generator; blocking work runs on the caller's thread.
    Seeded(Arc<Mutex<StdRng>>),
}

impl Default for Ambient {
    fn default() -> Self {
        Self(Source::Host(Arc::new(Semaphore::new(CONCURRENT_BLOCKING))))
    }
}

/// The work did not finish: its thread panicked, or the runtime ends.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Ambient {
    /// All numbers from this seed, and blocking work on the caller's thread.
    #[doc(hidden)]
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let generator = StdRng::seed_from_u64(seed);
        Self(Source::Seeded(Arc::new(Mutex::new(generator))))
    }

    /// Whether this is a simulation, in which nothing may depend on when the kernel reports events.
    pub(crate) const fn is_simulated(&self) -> bool {
        matches!(self.0, Source::Seeded(_))
    }

    /// A random number from 0 to less than 1.
    pub(crate) fn random_fraction(&self) -> f64 {
        match &self.0 {
            Source::Seeded(rng) => rng.lock().unwrap_or_else(PoisonError::into_inner).random(),
            Source::Host(_) => rand::random(),
        }
    }

    /// A new id; ids sort by time.
    pub(crate) fn new_id(&self) -> Uuid {
        let Source::Seeded(rng) = &self.0 else {
            return Uuid::now_v7();
        };
        let random: [u8; 10] = rng.lock().unwrap_or_else(PoisonError::into_inner).random();
        let ms = u64::try_from(clock::now_us() / 1000).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }

    /// Runs blocking work on a blocking thread. At most [`CONCURRENT_BLOCKING`] run at the same
    /// time, so that a fleet needs no thread for each child when all start or are measured at once.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Interrupted> {
        let Source::Host(permits) = &self.0 else {
            return Ok(work());
        };
        let permit = Arc::clone(permits)
            .acquire_owned()
            .await
            .map_err(|_| Interrupted)?;
        let task = tokio::task::spawn_blocking(move || {
            // Returned by the thread: the caller may be cancelled long before the work ends.
            let _permit = permit;
            work()
        });
        task.await.map_err(|_| Interrupted)
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
