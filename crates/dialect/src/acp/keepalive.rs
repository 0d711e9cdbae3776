//! Whether the agent is alive: deadlines of our requests, and a ping after silence.
//!
//! A prompt has no deadline here. Must not know what a request is for.

use std::time::Instant;

use super::{Acp, Step, Turn, write};
use crate::driver::Protocol as _;
use crate::{Effect, Effects};

impl Acp {
    /// Our request has no reply in time.
    pub(super) fn on_control_timeout(&mut self, out: &mut Effects) {
        let Some(control) = self.requests.stop_waiting() else {
            return;
        };
        if self.channel.is_shutting_down {
            return self.on_shutdown_reply(out);
        }
        if self.step != Step::Initializing {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        self.fail_unanswered(control.method, out);
    }

    /// When a silent agent gets a ping: only between turns.
    pub(super) fn ping_due(&self) -> Option<Instant> {
        let is_idle = self.turn == Turn::None && !self.requests.is_waiting();
        self.channel.ping_due(is_idle)
    }
}
