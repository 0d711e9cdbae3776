//! What one child's answers said of limits in its running turn: shared by its relays, which write,
//! and its session, which asks at the turn's end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One child's answers since its turn began.
#[derive(Debug, Default)]
pub struct RateLimitWatch(Mutex<RateLimitStatus>);

/// See [`RateLimitWatch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// Answers that gave what was asked for.
    pub successes: u64,
    /// Answers that said that requests are limited.
    pub limited_answers: u64,
    /// The last answer of all said so.
    pub is_limited: bool,
    /// Until when the last of these asked to wait, if it did.
    pub wait_until: Option<Instant>,
}

impl RateLimitWatch {
    /// A turn begins.
    pub fn reset(&self) {
        *self.lock() = RateLimitStatus::default();
    }

    /// What came since.
    #[must_use]
    pub fn status(&self) -> RateLimitStatus {
        *self.lock()
    }

    pub(super) fn record_success(&self) {
        let mut seen = self.lock();
        seen.successes += 1;
        seen.is_limited = false;
    }

    pub(super) fn record_limited(&self, announced: Option<Duration>, now: Instant) {
        let mut seen = self.lock();
        seen.limited_answers += 1;
        seen.is_limited = true;
        seen.wait_until = announced.and_then(|wait| now.checked_add(wait));
    }

    /// The body of an answer that limits asks to wait, and its head did not.
    pub(super) fn record_announced_wait(&self, wait: Duration, now: Instant) {
        let mut seen = self.lock();
        if seen.is_limited && seen.wait_until.is_none() {
            seen.wait_until = now.checked_add(wait);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RateLimitStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
