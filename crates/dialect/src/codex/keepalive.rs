//! Whether the agent is alive: deadlines of our requests, retries when it is overloaded, and a ping
//! after silence.
//!
//! A turn has no deadline here. Must not know what a request is for.

use std::time::{Duration, Instant};

use super::{Codex, Phase, write};
use crate::driver::Protocol as _;
use crate::{ChannelError, Effect, Effects};
use marshal_model::limits;

/// The error code of an overloaded agent. The request may be sent again.
pub(super) const OVERLOADED: &str = "-32001";
/// How many times a request is sent again.
const OVERLOAD_RETRIES: u32 = 6;
/// The wait before the first retry. Each further wait is twice as long.
const OVERLOAD_WAIT: Duration = Duration::from_millis(250);

/// The request of ours that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryTarget {
    /// The handshake request that the phase waits for.
    Control,
    /// `turn/start`.
    Turn,
    /// `turn/interrupt`.
    Interrupt,
}

/// Requests that are to be sent again.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    pending: Vec<(Instant, RetryTarget)>,
    /// Rejections since the last accepted request.
    refusals: u32,
}

impl RetryQueue {
    /// Schedules a retry after a rejection; `false` if there were too many.
    pub(super) fn schedule(&mut self, what: RetryTarget, now: Instant) -> bool {
        if self.refusals >= OVERLOAD_RETRIES {
            self.refusals = 0;
            return false;
        }
        let wait = OVERLOAD_WAIT * 2_u32.saturating_pow(self.refusals);
        self.refusals += 1;
        self.pending.retain(|(_, item)| *item != what);
        self.pending.push((now + wait, what));
        true
    }

    /// Resets the count after an accepted request.
    pub(super) const fn reset(&mut self) {
        self.refusals = 0;
    }

    /// Cancels a retry; returns whether one was scheduled.
    pub(super) fn cancel(&mut self, what: RetryTarget) -> bool {
        let before = self.pending.len();
        self.pending.retain(|(_, item)| *item != what);
        self.pending.len() < before
    }

    fn due(&self) -> Option<Instant> {
        self.pending.iter().map(|(at, _)| *at).min()
    }

    fn take(&mut self, now: Instant) -> Option<RetryTarget> {
        let at = self.pending.iter().position(|(at, _)| *at <= now)?;
        Some(self.pending.remove(at).1)
    }
}

/// The agent's silence between turns.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    /// When the agent last sent anything.
    last_activity: Option<Instant>,
    /// When the last ping since then was sent.
    last_ping: Option<Instant>,
    /// The ids of pings without a reply, so that a late reply is recognized.
    pending_pings: Vec<u64>,
    /// Unanswered pings since then.
    missed: u32,
}

impl Keepalive {
    /// Records output of the agent as a sign of life.
    pub(super) const fn record_activity(&mut self, now: Instant) {
        self.last_activity = Some(now);
        self.last_ping = None;
        self.missed = 0;
    }

    /// Whether a reply belongs to a ping.
    pub(super) fn take_reply(&mut self, id: u64) -> bool {
        let place = self.pending_pings.iter().position(|open| *open == id);
        place.is_some_and(|at| {
            self.pending_pings.remove(at);
            true
        })
    }

    fn record_ping(&mut self, id: u64, now: Instant) {
        self.last_ping = Some(now);
        self.missed += 1;
        if self.pending_pings.len() > limits::KEEPALIVE_MISSES as usize {
            self.pending_pings.remove(0);
        }
        self.pending_pings.push(id);
    }
}

impl Codex {
    /// When the next deadline passes.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = [self.control_due(), self.retry_due(), self.keepalive_due()];
        due.into_iter().flatten().min()
    }

    /// Handles the deadlines that have passed.
    pub(super) fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.control_due()) {
            self.on_control_timeout(out);
        } else if is_due(self.retry_due()) {
            if let Some(again) = self.retries.take(now) {
                self.retry_request(again, out);
            }
        } else if is_due(self.keepalive_due()) {
            self.send_keepalive(now, out);
        }
    }

    /// When our open request must have its reply.
    fn control_due(&self) -> Option<Instant> {
        self.control?
            .sent?
            .checked_add(self.opening.control_timeout?)
    }

    fn retry_due(&self) -> Option<Instant> {
        self.retries
            .due()
            .filter(|_| self.phase != Phase::Closed && !self.is_shutting_down)
    }

    fn on_control_timeout(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        let wait = self.opening.control_timeout.unwrap_or_default();
        let message = format!(
            "the agent did not answer {} within {wait:?} (timeouts.control)",
            control.method
        );
        self.fail_channel(ChannelError::Unanswered(message), out);
    }

    /// When a silent agent gets a ping: only between turns.
    fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.phase == Phase::Ready && self.turn.is_none() && !self.is_shutting_down;
        let since = self
            .keepalive
            .last_ping
            .or(self.keepalive.last_activity)
            .filter(|_| idle)?;
        since.checked_add(self.opening.keepalive_interval?)
    }

    /// Sends a ping: a method that no version has. Any reply shows that the agent is alive. No
    /// reply at all to several pings is a fault.
    fn send_keepalive(&mut self, now: Instant, out: &mut Effects) {
        if self.keepalive.missed >= limits::KEEPALIVE_MISSES {
            let wait = self.opening.keepalive_interval.unwrap_or_default();
            let message = format!(
                "the agent did not answer {} requests, {wait:?} apart (timeouts.keepalive)",
                limits::KEEPALIVE_MISSES
            );
            return self.fail_channel(ChannelError::Unanswered(message), out);
        }
        let id = self.fresh_id();
        self.keepalive.record_ping(id, now);
        out.push(Effect::Write(write::ping(id)));
    }
}
