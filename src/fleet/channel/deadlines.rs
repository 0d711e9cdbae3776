//! The deadlines of a Channel, its stop ladder, and its end.

use std::time::{Duration, Instant};

use super::explain::explain;
use super::state::{ChannelState, Gone};
use super::stdout::StreamEnd;
use super::{Cause, ChannelEnd, end, stderr, stdout};
use crate::dialect::Command;
use crate::fleet::session::{Item, SessionMsg};
use crate::launch;
use crate::lifecycle::stop::Step;
use crate::lifecycle::watch::Expired;
use crate::telemetry::event::child::ChildExited;
use crate::telemetry::sets::Hang;

/// How long the last words on stderr may take after the process is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long its output may take, unless the journal holds it back.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Until when the pipes of a process that is gone are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    stdout: Instant,
    stderr: Instant,
}

impl Drain {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stdout: now + LAST_OUTPUT,
            stderr: now + LAST_WORDS,
        }
    }
}

impl ChannelState {
    /// Deadlines and the stop ladder.
    pub(super) fn advance(&mut self, now: Instant) {
        if self.dialect.deadline().is_some_and(|at| at <= now) {
            let mut effects = Vec::new();
            self.dialect.tick(now, &mut effects);
            self.carry_out(effects, None, now);
        }
        if self.ended.is_some() {
            return self.drained(now);
        }
        if let Some(expiry) = self.watch.expired(now) {
            match expiry {
                Expired::Handshake => self.fault(Cause::HandshakeTimeout, now),
                Expired::Cancel => {
                    self.hung(Hang::NoReply, now);
                    self.stop(Cause::Wanted, now);
                }
                Expired::Silence | Expired::Turn => {
                    // The session cancels the turn; its time for that begins now.
                    self.watch.cancel_sent(now);
                    self.hung(Hang::NoOutput, now);
                    self.send(vec![Item::Expired(expiry)], None);
                }
            }
        }
        while let Some(step) = self.ladder.poll(now) {
            self.climb(step, now);
        }
    }

    pub(super) fn climb(&mut self, step: Step, now: Instant) {
        if let Some(pipe) = self.broken
            && matches!(step, Step::Int | Step::Term | Step::Kill)
        {
            self.cause.get_or_insert(Cause::Mute(pipe));
        }
        match step {
            Step::Goodbye => {
                let mut effects = Vec::new();
                let _ = self.dialect.command(Command::Goodbye, now, &mut effects);
                self.carry_out(effects, None, now);
            }
            Step::CloseStdin => self.close_stdin(),
            Step::Int => self.signal(launch::Step::Int),
            Step::Term => self.signal(launch::Step::Term),
            Step::Kill => {
                if let Some(keeper) = &self.keeper {
                    keeper.kill();
                }
            }
        }
    }

    /// What is left in the pipes of a process that is gone has its time: a process that could not
    /// be killed may hold them open for ever.
    fn drained(&mut self, now: Instant) {
        let Some(drain) = self.drain else { return };
        if now >= drain.stderr {
            self.stderr_ended = true;
        }
        let waits_for_credits = self.pump.as_ref().is_some_and(stdout::Pump::waits);
        if now >= drain.stdout && self.stream_end.is_none() {
            if waits_for_credits {
                self.drain = Some(Drain::new(now));
            } else {
                tracing::warn!(slot = %self.slot, "somebody holds the stdout of a process that is gone");
                self.pump = None;
                self.stream_end = Some(StreamEnd::Eof);
            }
        }
    }

    pub(super) fn signal(&self, signal: launch::Step) {
        if let Some(keeper) = &self.keeper {
            keeper.signal(signal);
        }
    }

    /// Tells the session that the channel is over, once both the process and its output are.
    pub(super) fn tell_end(&mut self) -> bool {
        let (Some(Gone(ended)), Some(_), true) = (&self.ended, &self.stream_end, self.stderr_ended)
        else {
            return false;
        };
        if !self.told_end {
            self.told_end = true;
            let left = self.clients.as_mut().map(|clients| clients.gone());
            if let Some(items) = left.filter(|items| !items.is_empty()) {
                self.send(items, None);
            }
            let tail = self
                .shared
                .slots
                .log(&self.slot)
                .map(stderr::StderrLog::tail);
            let mut end = end::conclude(
                ended.as_ref(),
                self.cause.take(),
                self.ready,
                tail.unwrap_or_default(),
            );
            end.denials = self.dialect.untold();
            explain(&mut end, &self.pool.config, &self.shared.config.hints);
            ChildExited {
                slot: &self.slot,
                session: &self.session_id,
                class: end.class,
                status: end.status,
                detail: &end.detail,
                stderr: if end.class.is_wanted() {
                    &[]
                } else {
                    &end.stderr
                },
            }
            .emit();
            let _ = self
                .session
                .send_message(SessionMsg::ChannelEnded(Box::new(end)));
        }
        true
    }

    /// One timer for the nearest deadline.
    pub(super) fn arm(&mut self) {
        let nearest = match self.drain {
            Some(drain) => [
                (!self.stderr_ended).then_some(drain.stderr),
                self.stream_end.is_none().then_some(drain.stdout),
                None,
            ],
            None => [
                self.dialect.deadline(),
                self.watch.deadline(),
                self.ladder.deadline(),
            ],
        };
        let nearest = nearest.into_iter().flatten().min();
        let Some(at) = nearest.map(tokio::time::Instant::from_std) else {
            self.timer = None;
            return;
        };
        // A timer that fires early only looks and re-arms: a byte that moves the silence deadline
        // on must not cost a timer.
        if self
            .timer
            .as_ref()
            .is_none_or(|timer| timer.deadline() > at)
        {
            self.timer = Some(Box::pin(tokio::time::sleep_until(at)));
        }
    }
}

impl Drop for ChannelState {
    fn drop(&mut self) {
        self.credits.close();
        if !self.told_end {
            // A fault of this program, unless nobody listens any more.
            let end = Box::new(ChannelEnd::internal("the channel failed"));
            let _ = self.session.send_message(SessionMsg::ChannelEnded(end));
        }
    }
}
