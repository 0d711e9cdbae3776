//! Whether an agent is alive: a ping after silence.
//!
//! Any reply shows that the agent is alive, also one that refuses. Must not know what a request is
//! for, nor when an agent may be silent.

use std::time::{Duration, Instant};

use super::ChannelError;
use marshal_model::limits;

/// The agent's silence, and our pings since it last sent anything.
#[derive(Debug, Default)]
pub(crate) struct Keepalive {
    /// How long the agent may be silent; `None`: no pings.
    interval: Option<Duration>,
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
    /// Pings after so much silence.
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        Self {
            interval,
            ..Self::default()
        }
    }

    /// Records output of the agent as a sign of life.
    pub(crate) const fn record_activity(&mut self, now: Instant) {
        self.last_activity = Some(now);
        self.last_ping = None;
        self.missed = 0;
    }

    /// Whether a reply belongs to a ping.
    pub(crate) fn take_reply(&mut self, id: u64) -> bool {
        let place = self.pending_pings.iter().position(|open| *open == id);
        place.is_some_and(|at| {
            self.pending_pings.remove(at);
            true
        })
    }

    /// When a silent agent gets a ping.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.last_ping
            .or(self.last_activity)?
            .checked_add(self.interval?)
    }

    /// No reply at all to several pings is a fault.
    pub(crate) fn check_missed(&self) -> Result<(), ChannelError> {
        if self.missed < limits::KEEPALIVE_MISSES {
            return Ok(());
        }
        let (pings, wait) = (limits::KEEPALIVE_MISSES, self.interval.unwrap_or_default());
        Err(ChannelError::Unanswered(format!(
            "the agent did not answer {pings} pings, {wait:?} apart (timeouts.keepalive)"
        )))
    }

    /// Records a ping of this id.
    pub(crate) fn record_ping(&mut self, id: u64, now: Instant) {
        self.last_ping = Some(now);
        self.missed += 1;
        if self.pending_pings.len() > limits::KEEPALIVE_MISSES as usize {
            self.pending_pings.remove(0);
        }
        self.pending_pings.push(id);
    }
}
