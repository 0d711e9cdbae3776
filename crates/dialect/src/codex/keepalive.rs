//! Whether the agent is alive: deadlines of our requests, retries when it is overloaded, and a ping
//! after silence.
//!
//! A turn has no deadline here. Must not know what a request is for.

use std::time::{Duration, Instant};

use super::{Codex, write};
use crate::driver::Protocol as _;
use crate::keepalive::unanswered;
use crate::{Effect, Effects};

/// The error code of an overloaded agent. The request may be sent again.
pub(super) const OVERLOADED: &str = "-32001";
/// How many times a request is sent again.
const OVERLOAD_RETRIES: u32 = 6;
/// The wait before the first retry. Each further wait is twice as long.
const OVERLOAD_WAIT: Duration = Duration::from_millis(250);

/// The request of ours that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryTarget {
    /// The request that the handshake waits for.
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
            .filter(|_| !self.channel.is_shutting_down)
    }

    fn on_control_timeout(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        let fault = unanswered(control.method, self.opening.control_timeout);
        self.fail_channel(fault, out);
    }

    /// When a silent agent gets a ping: only between turns.
    fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.channel.is_ready() && self.turn.is_none() && !self.channel.is_shutting_down;
        let due = self.channel.keepalive.due(self.opening.keepalive_interval);
        due.filter(|_| idle)
    }

    /// Sends a ping: a method that no version has. Any reply shows that the agent is alive. No
    /// reply at all to several pings is a fault.
    fn send_keepalive(&mut self, now: Instant, out: &mut Effects) {
        if let Err(fault) = self
            .channel
            .keepalive
            .check_missed(self.opening.keepalive_interval)
        {
            return self.fail_channel(fault, out);
        }
        let id = self.fresh_id();
        self.channel.keepalive.record_ping(id, now);
        out.push(Effect::Write(write::ping(id)));
    }
}
