//! Whether the agent is alive: deadlines of our requests, and a ping after silence.
//!
//! A prompt has no deadline here. Must not know what a request is for.

use std::time::Instant;

use super::shutdown::ShutdownState;
use super::{Acp, Phase, Turn, write};
use crate::driver::Protocol as _;
use crate::{ChannelError, Effect, Effects};
use marshal_model::limits;

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

impl Acp {
    /// When our open request must have its reply.
    pub(super) fn control_due(&self) -> Option<Instant> {
        self.control?
            .sent?
            .checked_add(self.opening.control_timeout?)
    }

    /// Our request has no reply in time.
    pub(super) fn on_control_timeout(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        if self.shutdown != ShutdownState::NotStarted {
            return self.on_shutdown_reply(out);
        }
        let wait = self.opening.control_timeout.unwrap_or_default();
        let message = format!(
            "the agent did not answer {} within {wait:?} (timeouts.control)",
            control.method
        );
        if self.phase != Phase::Initializing {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        self.fail_channel(ChannelError::Unanswered(message), out);
    }

    /// When a silent agent gets a ping: only between turns.
    pub(super) fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.phase == Phase::Ready
            && self.turn == Turn::None
            && self.shutdown == ShutdownState::NotStarted
            && self.control.is_none();
        let since = self
            .keepalive
            .last_ping
            .or(self.keepalive.last_activity)
            .filter(|_| idle)?;
        since.checked_add(self.opening.keepalive_interval?)
    }

    /// Sends a ping: a method that no agent has. Any reply shows that the agent is alive. No reply
    /// at all to several pings is a fault.
    pub(super) fn send_keepalive(&mut self, now: Instant, out: &mut Effects) {
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
