//! Whether the agent is alive: deadlines of our requests, and a ping after silence.
//!
//! A turn has no deadline here. Must not know what a request is for.

use std::time::Instant;

use super::Loaf;
use crate::driver::Protocol as _;
use crate::{Effect, Effects, slash};
use marshal_model::limits;

impl Loaf {
    /// When the agent must have acknowledged the prompt.
    pub(super) fn send_due(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().filter(|turn| !turn.is_known())?;
        let waits = self.channel.is_ready() && !self.channel.is_shutting_down;
        self.channel.reply_due(turn.sent.filter(|_| waits))
    }

    /// When the first command of a person must have its answer.
    pub(super) fn command_due(&self) -> Option<Instant> {
        let control = self
            .channel
            .control_timeout
            .unwrap_or(limits::COMMAND_TIMEOUT);
        let waits = self.channel.is_ready() && !self.channel.is_shutting_down;
        let open = self.open_requests.iter().filter(|_| waits);
        let sent = open.filter(|open| open.pending.timed_method().is_some());
        sent.filter_map(|open| open.sent?.checked_add(control))
            .min()
    }

    /// Drops commands without a reply in time, so that they do not delay later ones.
    pub(super) fn on_command_timeout(&mut self, now: Instant, out: &mut Effects) {
        let control = self
            .channel
            .control_timeout
            .unwrap_or(limits::COMMAND_TIMEOUT);
        let is_due = |open: &mut super::OpenRequest| {
            let sent = open.sent.filter(|_| open.pending.timed_method().is_some());
            sent.and_then(|sent| sent.checked_add(control))
                .is_some_and(|due| due <= now)
        };
        for open in self.open_requests.extract_if(.., is_due) {
            let method = open.pending.timed_method().unwrap_or_default();
            slash::report_timeout(method, control, out);
        }
    }

    /// Our request has no reply in time.
    pub(super) fn on_control_timeout(&mut self, out: &mut Effects) {
        let Some(control) = self.requests.stop_waiting() else {
            return;
        };
        if self.channel.is_shutting_down {
            return out.push(Effect::CloseInput);
        }
        self.fail_unanswered(control.method, out);
    }

    /// When a silent agent gets a ping: only between turns.
    pub(super) fn ping_due(&self) -> Option<Instant> {
        let is_idle = self.turn.is_none() && !self.requests.is_waiting();
        self.channel.ping_due(is_idle)
    }
}
