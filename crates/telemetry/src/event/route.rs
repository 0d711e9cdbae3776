//! The model proxy: requests from sandboxes to providers, and the providers' rate limits. No event
//! contains a path, header or body of a request.

use std::time::Duration;

use crate::labels::{LimitSign, RouteCode, RouteRefusal, RouteTokens};
use crate::meters::{counter, gauge, histogram};
use crate::names;
use marshal_model::{PoolName, SlotId};

/// A connection from inside was opened or closed.
#[derive(Debug)]
pub struct RouteConnection<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The route's name.
    pub route: &'a str,
    /// Whether it was opened; otherwise it was closed.
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

/// The proxy refused a request, or its response failed.
#[derive(Debug)]
pub struct RouteRefused<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The route's name.
    pub route: &'a str,
    /// The reason.
    pub reason: RouteRefusal,
}

impl RouteRefused<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let pool = self.slot.pool.as_str();
        let labels = [pool, self.route, self.reason.as_str()];
        counter(&names::ROUTE_REFUSED, &labels).increment(1);
        tracing::info!(slot = %self.slot, route = self.route, reason = %self.reason, "model request refused or failed");
    }
}

/// An upstream's response ended, or there was none.
#[derive(Debug)]
pub struct RouteAnswered<'a> {
    /// The slot.
    pub slot: &'a SlotId,
    /// The route's name.
    pub route: &'a str,
    /// The entry of the allow list that the request matched; not foreign text.
    pub rule: &'a str,
    /// The class of the response's status.
    pub code: RouteCode,
    /// From sending the request to the head of the response; `None` if there was none.
    pub first_byte: Option<Duration>,
    /// From sending the request to the end of the response.
    pub took: Duration,
    /// The tokens that the provider reported.
    pub tokens: [(RouteTokens, u64); 5],
}

impl RouteAnswered<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let (pool, route) = (self.slot.pool.as_str(), self.route);
        counter(&names::ROUTE_REQUESTS, &[pool, route, self.code.as_str()]).increment(1);
        if let Some(first_byte) = self.first_byte {
            histogram(&names::ROUTE_FIRST_BYTE, &[pool, route]).record(first_byte);
        }
        histogram(&names::ROUTE_SECONDS, &[pool, route]).record(self.took);
        for (kind, count) in self.tokens.into_iter().filter(|(_, count)| *count > 0) {
            counter(&names::ROUTE_TOKENS, &[pool, route, kind.as_str()]).increment(count);
        }
        tracing::debug!(slot = %self.slot, route, asked = self.rule, code = %self.code, first_byte = ?self.first_byte, took = ?self.took, "model request ended");
    }
}

/// A turn failed because a provider limits requests.
#[derive(Debug)]
pub struct RateLimited<'a> {
    /// The slot of the turn.
    pub slot: &'a SlotId,
    /// How the limit was detected.
    pub sign: LimitSign,
    /// How long the pool pauses.
    pub pause: Duration,
}

impl RateLimited<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        let labels = [self.slot.pool.as_str(), self.sign.as_str()];
        counter(&names::RATE_LIMITED, &labels).increment(1);
        tracing::warn!(slot = %self.slot, sign = %self.sign, pause = ?self.pause, "the provider limits requests; the pool pauses");
    }
}

/// A pool paused or resumed.
#[derive(Debug)]
pub struct PoolPaused<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// Whether the pool is paused now.
    pub paused: bool,
}

impl PoolPaused<'_> {
    /// Logs the end of a pause and sets the gauge.
    pub fn emit(self) {
        let value = if self.paused { 1.0 } else { 0.0 };
        gauge(&names::POOL_PAUSED, &[self.pool.as_str()]).set(value);
        if !self.paused {
            tracing::info!(pool = %self.pool, "the provider accepts requests again");
        }
    }
}
