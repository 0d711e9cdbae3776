//! Whether the agent is there: deadlines of our requests, those that it was too busy for, and a
//! question when it has been silent.
//!
//! A turn has no deadline here. Must not know what a request is for.

use std::time::{Duration, Instant};

use super::{Codex, Phase, write};
use crate::dialect::{Effect, Effects, Fault};
use crate::limits;

/// What an agent answers that has no room for a request: it may come again.
pub(super) const OVERLOADED: &str = "-32001";
/// So many times a request is sent again.
const OVERLOAD_RETRIES: u32 = 6;
/// How long we wait before the first time; each further wait is twice as long.
const OVERLOAD_WAIT: Duration = Duration::from_millis(250);

/// Our request that the agent had no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// The one of the handshake that its phase waits for.
    Control,
    /// `turn/start`.
    Turn,
    /// `turn/interrupt`.
    Interrupt,
}

/// Requests that are to be sent again.
#[derive(Debug, Default)]
pub(super) struct Overload {
    waits: Vec<(Instant, Again)>,
    /// Refusals since the last request that was taken.
    refusals: u32,
}

impl Overload {
    /// A request was refused; `false`: too often.
    pub(super) fn refused(&mut self, what: Again, now: Instant) -> bool {
        if self.refusals >= OVERLOAD_RETRIES {
            self.refusals = 0;
            return false;
        }
        let wait = OVERLOAD_WAIT * 2_u32.saturating_pow(self.refusals);
        self.refusals += 1;
        self.waits.retain(|(_, of)| *of != what);
        self.waits.push((now + wait, what));
        true
    }

    /// A request was taken.
    pub(super) const fn taken(&mut self) {
        self.refusals = 0;
    }

    /// A request is not to be sent again; whether it would have been.
    pub(super) fn drop(&mut self, what: Again) -> bool {
        let before = self.waits.len();
        self.waits.retain(|(_, of)| *of != what);
        self.waits.len() < before
    }

    fn due(&self) -> Option<Instant> {
        self.waits.iter().map(|(at, _)| *at).min()
    }

    fn take(&mut self, now: Instant) -> Option<Again> {
        let at = self.waits.iter().position(|(at, _)| *at <= now)?;
        Some(self.waits.remove(at).1)
    }
}

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

impl Codex {
    /// When something is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = [self.control_due(), self.again_due(), self.keepalive_due()];
        due.into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) fn at(&mut self, now: Instant, out: &mut Effects) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.control_due()) {
            self.unanswered(out);
        } else if is_due(self.again_due()) {
            if let Some(again) = self.overload.take(now) {
                self.send_again(again, out);
            }
        } else if is_due(self.keepalive_due()) {
            self.keep_alive(now, out);
        }
    }

    /// When the open request of ours must have its reply.
    fn control_due(&self) -> Option<Instant> {
        self.control?.sent?.checked_add(self.opening.control?)
    }

    fn again_due(&self) -> Option<Instant> {
        self.overload
            .due()
            .filter(|_| self.phase != Phase::Closed && !self.leaving)
    }

    fn unanswered(&mut self, out: &mut Effects) {
        let Some(control) = self.control.take() else {
            return;
        };
        let wait = self.opening.control.unwrap_or_default();
        let said = format!(
            "the agent did not answer {} within {wait:?} (timeouts.control)",
            control.method
        );
        self.refuse(Fault::Unanswered(said), out);
    }

    /// When a silent agent is asked whether it is there: only between turns.
    fn keepalive_due(&self) -> Option<Instant> {
        let idle = self.phase == Phase::Ready && self.turn.is_none() && !self.leaving;
        let since = self.alive.asked.or(self.alive.heard).filter(|_| idle)?;
        since.checked_add(self.opening.keepalive?)
    }

    /// Asks for a method that no version has: whatever it replies, it lives. Nothing at all, after
    /// so many questions, is a fault.
    fn keep_alive(&mut self, now: Instant, out: &mut Effects) {
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
