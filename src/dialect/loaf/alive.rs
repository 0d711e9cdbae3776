//! Whether the agent is there: deadlines of our requests, and a ping when it has been silent.
//!
//! A turn has no deadline here. Must not know what a request is for.

use std::time::Instant;

use super::{Loaf, Phase, Wait, write};
use crate::dialect::{Effect, Effects, Fault, slash};
use crate::limits;

/// What is known of the agent's silence between turns.
#[derive(Debug, Default)]
pub(super) struct Alive {
    /// Its last word.
    heard: Option<Instant>,
    /// When it was last asked whether it is there, since that word.
    asked: Option<Instant>,
    /// Questions since its last word.
    misses: u32,
}

impl Alive {
    /// Any word of the agent is a sign of life.
    pub(super) const fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
        self.asked = None;
        self.misses = 0;
    }
}

impl Loaf {
    /// When the open request of ours must have its reply.
    pub(super) fn control_due(&self) -> Option<Instant> {
        self.control?.sent?.checked_add(self.opening.control?)
    }

    /// When the agent must have said that it has the prompt.
    pub(super) fn send_due(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().filter(|turn| !turn.is_known())?;
        let waits = self.phase == Phase::Ready && !self.leaving;
        turn.sent
            .filter(|_| waits)?
            .checked_add(self.opening.control?)
    }

    /// When the first command must have been answered that a person waits for.
    pub(super) fn command_due(&self) -> Option<Instant> {
        let control = self.opening.control.unwrap_or(limits::COMMAND_WAIT);
        let waits = self.phase == Phase::Ready && !self.leaving;
        let open = self.open.iter().filter(|_| waits);
        let sent = open.filter(|open| open.wait.bounded().is_some());
        sent.filter_map(|open| open.sent?.checked_add(control))
            .min()
    }

    /// Commands without a reply in their time hold up no later ones.
    pub(super) fn command_is_silent(&mut self, now: Instant, out: &mut Effects) {
        let control = self.opening.control.unwrap_or(limits::COMMAND_WAIT);
        let is_due = |open: &mut super::Open| {
            let sent = open.sent.filter(|_| open.wait.bounded().is_some());
            sent.and_then(|sent| sent.checked_add(control))
                .is_some_and(|due| due <= now)
        };
        for open in self.open.extract_if(.., is_due) {
            let method = open.wait.bounded().unwrap_or_default();
            slash::unanswered(method, control, out);
        }
    }

    /// A request of ours has no reply in its time.
    pub(super) fn unanswered(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        if self.leaving {
            return out.push(Effect::CloseInput);
        }
        self.not_acknowledged(control.method, out);
    }

    pub(super) fn not_acknowledged(&mut self, method: &str, out: &mut Effects) {
        let wait = self.opening.control.unwrap_or_default();
        let said = format!("the agent did not answer {method} within {wait:?} (timeouts.control)");
        self.refuse(Fault::Unanswered(said), out);
    }

    /// When a silent agent is asked whether it is there: only between turns.
    pub(super) fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.phase == Phase::Ready
            && self.turn.is_none()
            && !self.leaving
            && self.control.is_none();
        let since = self.alive.asked.or(self.alive.heard).filter(|_| idle)?;
        since.checked_add(self.opening.keepalive?)
    }

    /// Pings. Nothing at all, after so many pings, is a fault.
    pub(super) fn keep_alive(&mut self, now: Instant, out: &mut Effects) {
        if self.alive.misses >= limits::KEEPALIVE_MISSES {
            let wait = self.opening.keepalive.unwrap_or_default();
            let said = format!(
                "the agent did not answer {} pings, {wait:?} apart (timeouts.keepalive)",
                limits::KEEPALIVE_MISSES
            );
            return self.refuse(Fault::Unanswered(said), out);
        }
        self.alive.asked = Some(now);
        self.alive.misses += 1;
        self.ask_beside(Wait::Ping, out, write::ping);
    }
}
