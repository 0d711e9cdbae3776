//! Whether the agent is alive: deadlines of our requests, retries when it is overloaded, and a ping
//! after silence.
//!
//! A turn has no deadline here. Must not know what a request is for.

use std::time::{Duration, Instant};

use super::Codex;
use crate::Effects;
use crate::driver::Protocol as _;

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

    /// Takes a request whose wait is over.
    pub(super) fn take(&mut self, now: Instant) -> Option<RetryTarget> {
        let at = self.pending.iter().position(|(at, _)| *at <= now)?;
        Some(self.pending.remove(at).1)
    }
}

impl Codex {
    /// When a request is sent again.
    pub(super) fn retry_due(&self) -> Option<Instant> {
        self.retries
            .due()
            .filter(|_| !self.channel.is_shutting_down)
    }

    /// Our request has no reply in time.
    pub(super) fn on_control_timeout(&mut self, out: &mut Effects) {
        if let Some(control) = self.requests.stop_waiting() {
            self.fail_unanswered(control.method, out);
        }
    }

    /// When a silent agent gets a ping: only between turns.
    pub(super) fn ping_due(&self) -> Option<Instant> {
        self.channel.ping_due(self.turn.is_none())
    }
}
