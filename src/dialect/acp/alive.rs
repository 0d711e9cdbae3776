//! Whether the agent is there: deadlines of our requests, and a question when it has been silent.
//!
//! A prompt has no deadline here. Must not know what a request is for.

use std::time::Instant;

use super::farewell::Leaving;
use super::{Acp, Phase, Turn, write};
use crate::dialect::{Effect, Effects, Fault};
use crate::limits;

/// What is known of the agent's silence between turns.
#[derive(Debug, Default)]
pub(super) struct Alive {
    /// Its last word.
    heard: Option<Instant>,
    /// When it was last asked whether it is there, since that word.
    asked: Option<Instant>,
    /// The ids of the last such questions that have no reply: a late one is no stranger's.
    open: Vec<u64>,
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

    /// Whether a reply is the one to such a question.
    pub(super) fn answered(&mut self, id: u64) -> bool {
        let place = self.open.iter().position(|open| *open == id);
        place.is_some_and(|at| {
            self.open.remove(at);
            true
        })
    }

    fn asks(&mut self, id: u64, now: Instant) {
        self.asked = Some(now);
        self.misses += 1;
        if self.open.len() > limits::KEEPALIVE_MISSES as usize {
            self.open.remove(0);
        }
        self.open.push(id);
    }
}

impl Acp {
    /// When the open request of ours must have its reply.
    pub(super) fn control_due(&self) -> Option<Instant> {
        self.control?.sent?.checked_add(self.opening.control?)
    }

    /// A request of ours has no reply in its time.
    pub(super) fn unanswered(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        if self.leaving != Leaving::No {
            return self.said_goodbye(out);
        }
        let wait = self.opening.control.unwrap_or_default();
        let said = format!(
            "the agent did not answer {} within {wait:?} (timeouts.control)",
            control.method
        );
        if self.phase != Phase::Initializing {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        self.refuse(Fault::Unanswered(said), out);
    }

    /// When a silent agent is asked whether it is there: only between turns.
    pub(super) fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.phase == Phase::Ready
            && self.turn == Turn::None
            && self.leaving == Leaving::No
            && self.control.is_none();
        let since = self.alive.asked.or(self.alive.heard).filter(|_| idle)?;
        since.checked_add(self.opening.keepalive?)
    }

    /// Asks for a method that no agent has: whatever it replies, it lives. Nothing at all, after
    /// so many questions, is a fault.
    pub(super) fn keep_alive(&mut self, now: Instant, out: &mut Effects) {
        if self.alive.misses >= limits::KEEPALIVE_MISSES {
            let wait = self.opening.keepalive.unwrap_or_default();
            let said = format!(
                "the agent did not answer {} requests, {wait:?} apart (timeouts.keepalive)",
                limits::KEEPALIVE_MISSES
            );
            return self.refuse(Fault::Unanswered(said), out);
        }
        let id = self.fresh_id();
        self.alive.asks(id, now);
        out.push(Effect::Write(write::ping(id)));
    }
}
