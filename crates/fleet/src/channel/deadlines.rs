//! The deadlines of a Channel, its stop ladder, and its end.
//!
//! A channel ends once, however its child ends. The end of stdout, a stdin that fails and the end
//! of the process are combined here. `end.rs` derives one class from them, and `explain.rs` adds
//! the hint that the child's last output suggests.

use tokio_util::task::AbortOnDropHandle;

use crate::messages::{ChannelMsg, ChannelRef};
use std::time::{Duration, Instant};

use super::exec::end_execs;
use super::explain::explain_end;
use super::state::{ChannelState, ProcessExit};
use super::stdout::StreamEnd;
use super::{Cause, ChannelEnd, end, stderr, stdout};
use crate::messages::{ChannelEvent, SessionMsg};
use marshal_dialect::Command;
use marshal_dialect::lifecycle::deadlines::DeadlineKind;
use marshal_dialect::lifecycle::stop::StopStep;
use marshal_launch as launch;
use marshal_telemetry::event::child::ChildExited;
use marshal_telemetry::labels::HangKind;

/// How long stderr is read after the process has ended.
const STDERR_DRAIN_TIME: Duration = Duration::from_secs(1);
/// How long stdout is read after the process has ended, unless the journal holds it back.
const STDOUT_DRAIN_TIME: Duration = Duration::from_secs(2);

/// Until when the pipes of an ended process are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    stdout: Instant,
    stderr: Instant,
}

/// Columns of what an agent wrote before it was ready.
const LAST_WORDS: usize = 200;

impl Drain {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stdout: now + STDOUT_DRAIN_TIME,
            stderr: now + STDERR_DRAIN_TIME,
        }
    }
}

impl ChannelState {
    /// Checks the deadlines and advances the stop ladder.
    pub(super) fn check_deadlines(&mut self, now: Instant) {
        if self.dialect.deadline().is_some_and(|at| at <= now) {
            let mut effects = Vec::new();
            self.dialect.tick(now, &mut effects);
            self.apply_effects(effects, None, now);
        }
        if self.ended.is_some() {
            return self.check_drain_deadline(now);
        }
        if let Some(expiry) = self.deadlines.expired_deadline(now) {
            match expiry {
                DeadlineKind::Handshake => self.end_by_fault(Cause::HandshakeTimeout, now),
                DeadlineKind::Cancel => {
                    self.log_hang(HangKind::NoReply, now);
                    self.stop(Cause::Requested, now);
                }
                DeadlineKind::Silence | DeadlineKind::Turn => {
                    // The session cancels the turn; the cancel deadline starts now.
                    self.deadlines.on_cancel_sent(now);
                    self.log_hang(HangKind::NoOutput, now);
                    self.send(vec![ChannelEvent::DeadlineExpired(expiry)], None);
                }
            }
        }
        while let Some(step) = self.ladder.poll(now) {
            self.run_ladder_step(step, now);
        }
    }

    pub(super) fn run_ladder_step(&mut self, step: StopStep, now: Instant) {
        if let Some(pipe) = self.broken
            && matches!(step, StopStep::Int | StopStep::Term | StopStep::Kill)
        {
            self.cause.get_or_insert(Cause::PipeClosed(pipe));
        }
        match step {
            StopStep::Goodbye => {
                let mut effects = Vec::new();
                let _ = self
                    .dialect
                    .handle_command(Command::Goodbye, now, &mut effects);
                self.apply_effects(effects, None, now);
            }
            StopStep::CloseStdin => self.close_stdin(),
            StopStep::Int => self.signal(launch::Step::Int),
            StopStep::Term => self.signal(launch::Step::Term),
            StopStep::Kill => {
                if let Some(keeper) = &self.keeper {
                    keeper.kill();
                }
            }
        }
    }

    /// Ends the reading of an ended process's pipes at its deadline: a process that could not be
    /// killed may keep them open forever.
    fn check_drain_deadline(&mut self, now: Instant) {
        let Some(drain) = self.drain else { return };
        if now >= drain.stderr {
            self.stderr_ended = true;
        }
        let waits_for_credits = self.pump.as_ref().is_some_and(stdout::Pump::waits);
        if now >= drain.stdout && self.stream_end.is_none() {
            if waits_for_credits {
                self.drain = Some(Drain::new(now));
            } else {
                tracing::warn!(slot = %self.slot, "another process still has the stdout of an ended child open; its output is not read any further");
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

    /// Reports the end of the channel to the session, once both the process and its output have
    /// ended.
    pub(super) fn report_end(&mut self) -> bool {
        let (Some(ProcessExit(ended)), Some(_), true) =
            (&self.ended, &self.stream_end, self.stderr_ended)
        else {
            return false;
        };
        if !self.is_end_reported {
            self.is_end_reported = true;
            let left = self
                .client_requests
                .as_mut()
                .map(|clients| clients.end_terminals());
            if let Some(items) = left.filter(|items| !items.is_empty()) {
                self.send(items, None);
            }
            let execs = end_execs(std::mem::take(&mut self.execs));
            if !execs.is_empty() {
                self.send(execs, None);
            }
            let tail = self
                .shared
                .slots
                .log(&self.slot)
                .map(stderr::StderrLog::tail);
            let mut end = end::classify_end(
                ended.as_ref(),
                self.cause.take(),
                self.ready,
                tail.unwrap_or_default(),
            );
            if !end.was_ready
                && !end.class.is_requested()
                && let Some(words) = self.last_words.take()
            {
                let words = words.escape_for_display(LAST_WORDS);
                end.detail = format!("{}; it wrote: {words}", end.detail);
            }
            end.denials = self.dialect.take_pending_denials();
            explain_end(&mut end, &self.pool.config, &self.shared.config.hints);
            ChildExited {
                slot: &self.slot,
                session: &self.session_id,
                class: end.class,
                status: end.status,
                detail: &end.detail,
                stderr: if end.class.is_requested() {
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

    /// Sets one timer for the nearest deadline.
    pub(super) fn arm(&mut self, myself: &ChannelRef) {
        let nearest = match self.drain {
            Some(drain) => [
                (!self.stderr_ended).then_some(drain.stderr),
                self.stream_end.is_none().then_some(drain.stdout),
                None,
            ],
            None => [
                self.dialect.deadline(),
                self.deadlines.deadline(),
                self.ladder.deadline(),
            ],
        };
        let nearest = nearest.into_iter().flatten().min();
        let Some(at) = nearest.map(tokio::time::Instant::from_std) else {
            self.timer = None;
            return;
        };
        // A timer that fires early only checks and re-arms: a byte that moves the silence deadline
        // must not cost a new timer.
        if self.timer.as_ref().is_none_or(|(until, _)| *until > at) {
            let to = myself.clone();
            let timer = tokio::spawn(async move {
                tokio::time::sleep_until(at).await;
                let _ = to.send_message(ChannelMsg::Tick);
            });
            self.timer = Some((at, AbortOnDropHandle::new(timer)));
        }
    }
}

impl Drop for ChannelState {
    fn drop(&mut self) {
        self.credits.close();
        if !self.is_end_reported {
            // An internal fault, unless the session is already gone.
            let end = Box::new(ChannelEnd::internal("the channel failed"));
            let _ = self.session.send_message(SessionMsg::ChannelEnded(end));
        }
    }
}
