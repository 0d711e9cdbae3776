//! What responses said about rate limits during a child's current turn. The child's model proxies
//! write it; its session reads it at the end of the turn.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts the responses since the turn began.
#[derive(Debug, Default)]
pub struct RateLimitWatch(Mutex<RateLimitStatus>);

/// A snapshot of [`RateLimitWatch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// Successful responses.
    pub successes: u64,
    /// Responses that reported a rate limit.
    pub limited_answers: u64,
    /// Whether the latest response reported a rate limit.
    pub is_limited: bool,
    /// Until when the latest rate-limit response asked to wait, if it did.
    pub wait_until: Option<Instant>,
}

impl RateLimitWatch {
    /// Starts a new turn.
    pub fn reset(&self) {
        *self.lock() = RateLimitStatus::default();
    }

    /// The counts since the turn began.
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

    /// Records a wait that the body of a rate-limit response announced, and its head did not.
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
