//! Routes: requests of sandboxes to model providers, and the limits of those. No path, header or
//! body of a request is in any of these.

use std::time::Duration;

use crate::labels::{LimitSign, RouteCode, RouteRefusal, RouteTokens};
use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::{PoolName, SlotId};

/// A connection from inside was opened or closed.
#[derive(Debug)]
pub struct RouteConnection<'a> {
    /// Whose.
    pub slot: &'a SlotId,
    /// To which route.
    pub route: &'a str,
    /// Opened; else closed.
    pub opened: bool,
}

impl RouteConnection<'_> {
    /// Counts.
    pub fn emit(self) {
        let gauge = gauge(
            &names::ROUTE_CONNECTIONS,
            &[self.slot.pool.as_str(), self.route],
        );
        gauge.increment(if self.opened { 1.0 } else { -1.0 });
    }
}

/// A request did not pass, or its answer did not come back.
#[derive(Debug)]
pub struct RouteRefused<'a> {
    /// Whose.
    pub slot: &'a SlotId,
    /// To which route.
    pub route: &'a str,
    /// Why.
    pub reason: RouteRefusal,
}

impl RouteRefused<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        let labels = [pool, self.route, self.reason.word()];
        counter(&names::ROUTE_REFUSED, &labels).increment(1);
        tracing::info!(slot = %self.slot, route = self.route, reason = %self.reason, "a request to a model was refused");
    }
}

/// An upstream's answer came to its end, or none came.
#[derive(Debug)]
pub struct RouteAnswered<'a> {
    /// Whose.
    pub slot: &'a SlotId,
    /// From which route.
    pub route: &'a str,
    /// Which line of its list the request was: our own words.
    pub rule: &'a str,
    /// What it was.
    pub code: RouteCode,
    /// From the request being sent to the head of the answer; `None` if none came.
    pub first_byte: Option<Duration>,
    /// To its end.
    pub took: Duration,
    /// What the provider counted.
    pub tokens: [(RouteTokens, u64); 5],
}

impl RouteAnswered<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (pool, route) = (self.slot.pool.as_str(), self.route);
        counter(&names::ROUTE_REQUESTS, &[pool, route, self.code.word()]).increment(1);
        if let Some(first_byte) = self.first_byte {
            histogram(&names::ROUTE_FIRST_BYTE, &[pool, route]).record(first_byte);
        }
        histogram(&names::ROUTE_SECONDS, &[pool, route]).record(self.took);
        for (kind, count) in self.tokens.into_iter().filter(|(_, count)| *count > 0) {
            counter(&names::ROUTE_TOKENS, &[pool, route, kind.word()]).increment(count);
        }
        tracing::debug!(slot = %self.slot, route, asked = self.rule, code = %self.code, first_byte = ?self.first_byte, took = ?self.took, "a model answered");
    }
}

/// A turn failed because a provider limits requests.
#[derive(Debug)]
pub struct RateLimited<'a> {
    /// Whose turn.
    pub slot: &'a SlotId,
    /// What showed it.
    pub sign: LimitSign,
    /// For how long the pool pauses.
    pub pause: Duration,
}

impl RateLimited<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let labels = [self.slot.pool.as_str(), self.sign.word()];
        counter(&names::RATE_LIMITED, &labels).increment(1);
        tracing::warn!(slot = %self.slot, sign = %self.sign, pause = ?self.pause, "the provider limits requests; the pool pauses");
    }
}

/// A pool paused, or works again.
#[derive(Debug)]
pub struct PoolPaused<'a> {
    /// Which.
    pub pool: &'a PoolName,
    /// It pauses.
    pub paused: bool,
}

impl PoolPaused<'_> {
    /// Logs and shows.
    pub fn emit(self) {
        let value = if self.paused { 1.0 } else { 0.0 };
        gauge(&names::POOL_PAUSED, &[self.pool.as_str()]).set(value);
        if !self.paused {
            tracing::info!(pool = %self.pool, "the provider takes requests again");
        }
    }
}
