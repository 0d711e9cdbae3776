//! What the fleet takes from its surroundings beside time, children and disk: chance, and threads
//! that may block.
//!
//! A simulation gives it a seed: then every number follows from that, and what may block runs in
//! place, because threads have no order. Must not know what it is used for.

use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use uuid::Uuid;

use super::clock;

/// Chance and threads. Clones share the seed's row of numbers.
#[derive(Debug, Clone, Default)]
pub struct Ambient(Option<Arc<Mutex<StdRng>>>);

/// The work was interrupted: its thread panicked, or the runtime ends.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl Ambient {
    /// Everything from this seed, on this thread.
    #[doc(hidden)]
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))))
    }

    /// A number from 0 to below 1.
    pub(crate) fn fraction(&self) -> f64 {
        match &self.0 {
            Some(row) => row.lock().unwrap_or_else(PoisonError::into_inner).random(),
            None => rand::random(),
        }
    }

    /// A fresh id, which sorts by its time.
    pub(crate) fn id(&self) -> Uuid {
        let Some(row) = &self.0 else {
            return Uuid::now_v7();
        };
        let random: [u8; 10] = row.lock().unwrap_or_else(PoisonError::into_inner).random();
        let ms = u64::try_from(clock::now_us() / 1000).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }

    /// Does work that may block, where that is allowed.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Interrupted> {
        if self.0.is_some() {
            return Ok(work());
        }
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|_| Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again_and_the_host_does_not() {
        let draw = |ambient: &Ambient| (ambient.fraction(), ambient.id().as_bytes()[6..].to_vec());
        assert_eq!(draw(&Ambient::seeded(7)), draw(&Ambient::seeded(7)));
        assert_ne!(draw(&Ambient::seeded(7)), draw(&Ambient::seeded(8)));
        assert_ne!(draw(&Ambient::default()), draw(&Ambient::default()));
    }
}
