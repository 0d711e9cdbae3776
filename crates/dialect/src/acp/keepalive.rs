//! Whether the agent is alive: deadlines of our requests, and a ping after silence.
//!
//! A prompt has no deadline here. Must not know what a request is for.

use std::time::Instant;

use super::{Acp, Step, Turn, write};
use crate::driver::Protocol as _;
use crate::keepalive::unanswered;
use crate::{Effect, Effects};

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
        if self.channel.is_shutting_down {
            return self.on_shutdown_reply(out);
        }
        if self.step != Step::Initializing {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        let fault = unanswered(control.method, self.opening.control_timeout);
        self.fail_channel(fault, out);
    }

    /// When a silent agent gets a ping: only between turns.
    pub(super) fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.channel.is_ready()
            && self.turn == Turn::None
            && !self.channel.is_shutting_down
            && self.control.is_none();
        let due = self.channel.keepalive.due(self.opening.keepalive_interval);
        due.filter(|_| idle)
    }

    /// Sends a ping: a method that no agent has. Any reply shows that the agent is alive. No reply
    /// at all to several pings is a fault.
    pub(super) fn send_keepalive(&mut self, now: Instant, out: &mut Effects) {
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
