//! What responses said about rate limits, and what the proxy refused, during a child's current turn.
//! The child's model proxies write it; its session reads it at the end of the turn.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marshal_telemetry::labels::RouteRefusal;

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
    /// Why the proxy refused the latest model request, if no later one succeeded.
    pub refusal: Option<RouteRefusal>,
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
        seen.refusal = None;
    }

    /// Records a refusal by the proxy. A request that no rule allows counts only before the first
    /// success: afterwards it is seldom one to a model.
    pub(super) fn record_refusal(&self, reason: RouteRefusal) {
        let mut seen = self.lock();
        let is_other = matches!(
            reason,
            RouteRefusal::NotAllowed | RouteRefusal::Path | RouteRefusal::Query
        );
        if !is_other || seen.successes == 0 {
            seen.refusal = Some(reason);
        }
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
