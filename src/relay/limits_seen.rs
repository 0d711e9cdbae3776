//! What one child's answers said of limits in its running turn: shared by its relays, which write,
//! and its session, which asks at the turn's end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One child's answers since its turn began.
#[derive(Debug, Default)]
pub struct LimitWatch(Mutex<Seen>);

/// See [`LimitWatch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Answers that gave what was asked for.
    pub good: u64,
    /// Answers that said that requests are limited.
    pub limited: u64,
    /// The last answer of all said so.
    pub is_limited: bool,
    /// Until when the last of these asked to wait, if it did.
    pub until: Option<Instant>,
}

impl LimitWatch {
    /// A turn begins.
    pub fn begin(&self) {
        *self.lock() = Seen::default();
    }

    /// What came since.
    #[must_use]
    pub fn seen(&self) -> Seen {
        *self.lock()
    }

    pub(super) fn good(&self) {
        let mut seen = self.lock();
        seen.good += 1;
        seen.is_limited = false;
    }

    pub(super) fn limited(&self, announced: Option<Duration>, now: Instant) {
        let mut seen = self.lock();
        seen.limited += 1;
        seen.is_limited = true;
        seen.until = announced.and_then(|wait| now.checked_add(wait));
    }

    /// The body of an answer that limits asks to wait, and its head did not.
    pub(super) fn announced(&self, wait: Duration, now: Instant) {
        let mut seen = self.lock();
        if seen.is_limited && seen.until.is_none() {
            seen.until = now.checked_add(wait);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
