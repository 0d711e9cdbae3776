//! The turn from our side: a prompt, its acknowledgement, a cancel; and commands beside it.
//!
//! Must not know what the agent's events look like.

use std::time::Instant;

use serde_json::value::RawValue;

use super::message::{self, Executed, Sent, Word};
use super::{Loaf, Wait, write};
use crate::dialect::acp::reported;
use crate::dialect::envelope::ErrorReply;
use crate::dialect::lenient::members;
use crate::dialect::{Effect, Effects, Refused, bad_line, slash};
use crate::model::{Event, Foreign, Origin, TurnOutcome, Usage};

/// The command by which a text goes into the running turn.
const STEER: &str = "steer";

/// How often a turn is interrupted that goes on all the same.
const INTERRUPTS: u32 = 3;

/// The running turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// The id of its prompt's request.
    request: u64,
    pub(super) sent: Option<Instant>,
    /// The agent's name for it.
    pub(super) name: Option<String>,
    /// Something came of it.
    pub(super) is_started: bool,
    /// The agent said that it has the prompt.
    is_acknowledged: bool,
    /// It waits in the agent, behind another.
    pub(super) is_queued: bool,
    pub(super) is_cancelled: bool,
    interrupts: u32,
}

impl Turn {
    /// Whether the agent has shown that it has the prompt.
    pub(super) const fn is_known(&self) -> bool {
        self.is_acknowledged || self.is_started
    }
}

/// How a turn ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) outcome: TurnOutcome,
    pub(super) stop_reason: Option<Foreign>,
    pub(super) detail: Option<String>,
}

impl End {
    pub(super) const fn failed(detail: String) -> Self {
        Self {
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            detail: Some(detail),
        }
    }
}

impl Loaf {
    pub(super) fn prompt(
        &mut self,
        session: &Foreign,
        text: &Foreign,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        if self.turn.is_some() {
            return Err(Refused::Busy);
        }
        let request = self.ask_beside(Wait::Send, out, |id| {
            write::text(id, "session.send", session, text.raw())
        });
        self.said.begin();
        self.turn = Some(Turn {
            request,
            sent: self.now,
            name: None,
            is_started: false,
            is_acknowledged: false,
            is_queued: false,
            is_cancelled: false,
            interrupts: 0,
        });
        Ok(())
    }

    /// The agent has the prompt, or says why not. Its turn may have begun, or ended, before.
    pub(super) fn sent(
        &mut self,
        id: u64,
        outcome: Result<&RawValue, ErrorReply>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.request == id) else {
            return;
        };
        turn.is_acknowledged = true;
        let sent = match outcome {
            Ok(result) => members::<Sent<'_>>(result),
            Err(error) => return self.failed_by(error, out),
        };
        let Some(sent) = sent else {
            return bad_line("bad_shape", line, out);
        };
        if sent.is_refused() {
            let detail = "the agent did not accept the prompt".to_owned();
            return self.end_turn(End::failed(detail), out);
        }
        match (sent.turn(), &turn.name) {
            (Some(now), Some(before)) if now != *before => {
                let (now, before) = (Foreign::new(now), Foreign::new(before.clone()));
                let said = format!(
                    "the agent gave one turn two names: {} and {}",
                    before.show(80),
                    now.show(80)
                );
                return self.fault(said, out);
            }
            (Some(now), _) => turn.name = Some(now),
            (None, _) => {}
        }
        turn.is_queued = sent.is_queued() && !turn.is_started;
        let (is_queued, is_cancelled) = (turn.is_queued, turn.is_cancelled);
        if is_queued
            && !is_cancelled
            && let Some(session) = self.session.clone()
        {
            let method = "session.queue.list";
            self.ask_beside(Wait::Queue, out, |id| {
                write::of_session(id, method, &session)
            });
        }
    }

    /// An error as the end of the turn, and no fault of the channel: a busy session is one.
    fn failed_by(&mut self, error: ErrorReply, out: &mut Effects) {
        let said = reported(&error);
        out.push(told(error));
        self.end_turn(End::failed(said), out);
    }

    /// Where in the queue the prompt is.
    pub(super) fn told_queue(&self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let waits = self.turn.as_ref().is_some_and(|turn| turn.is_queued);
        let Some(queued) = outcome.ok().and_then(message::queued).filter(|_| waits) else {
            return;
        };
        let title = format!("the agent runs another turn; prompts in its queue: {queued}");
        out.push(Effect::Event(Event::Notice {
            severity: None,
            title: title.into(),
            description: None,
        }));
    }

    /// Ends the running turn from our side: nothing of it may wait in the agent. Nothing to do if
    /// none runs, or if that was said.
    pub(super) fn cancel(&mut self, session: &Foreign, out: &mut Effects) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_cancelled) else {
            return;
        };
        turn.is_cancelled = true;
        if !turn.is_started {
            self.clear_queue(session, out);
        }
        self.interrupt(out);
    }

    pub(super) fn clear_queue(&mut self, session: &Foreign, out: &mut Effects) {
        self.ask_beside(Wait::Clear, out, |id| {
            write::of_session(id, "session.queue.clear", session)
        });
    }

    /// What waited was thrown away: if the prompt was among it, its turn is over.
    pub(super) fn cleared(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        let cleared = outcome.map_or(0, message::cleared);
        let waited = |turn: &Turn| turn.is_cancelled && !turn.is_started;
        if cleared > 0 && self.turn.as_ref().is_some_and(waited) {
            let end = End {
                outcome: TurnOutcome::Cancelled,
                stop_reason: None,
                detail: Some("it was taken out of the agent's queue".to_owned()),
            };
            self.end_turn(end, out);
        }
    }

    fn interrupt(&mut self, out: &mut Effects) {
        let (Some(session), Some(turn)) = (self.session.clone(), &mut self.turn) else {
            return;
        };
        if turn.interrupts < INTERRUPTS {
            turn.interrupts += 1;
            self.ask_beside(Wait::Interrupt, out, |id| {
                write::of_session(id, "session.interrupt", &session)
            });
        }
    }

    /// The agent's word to an interrupt. It finds nothing in a turn that has not quite begun.
    pub(super) fn interrupted(
        &mut self,
        outcome: Result<&RawValue, ErrorReply>,
        out: &mut Effects,
    ) {
        let missed = outcome.is_ok_and(|result| Word::of(result).missed());
        let runs = |turn: &Turn| turn.is_cancelled && turn.is_started;
        if missed && !self.leaving && self.turn.as_ref().is_some_and(runs) {
            self.interrupt(out);
        }
    }

    /// Notes that something of the turn came, under the name that it has there.
    pub(super) fn turn_goes_on(&mut self, name: Option<&str>, out: &mut Effects) {
        let Some(turn) = &mut self.turn else { return };
        if turn.name.is_none() {
            turn.name = name.map(str::to_owned);
        }
        if turn.is_started {
            return;
        }
        turn.is_started = true;
        turn.is_queued = false;
        out.push(Effect::Event(Event::TurnStarted {
            turn: turn.name.clone().map(Foreign::new),
        }));
        if turn.is_cancelled && !self.leaving {
            self.interrupt(out);
        }
    }

    pub(super) fn end_turn(&mut self, end: End, out: &mut Effects) {
        let Some(turn) = self.turn.take() else { return };
        self.calls.clear();
        let outcome = match end.outcome {
            TurnOutcome::Failed if turn.is_cancelled => TurnOutcome::Cancelled,
            outcome => outcome,
        };
        self.last = turn.name.or_else(|| self.last.take());
        out.push(Effect::Event(Event::TurnEnded {
            outcome,
            stop_reason: end.stop_reason,
            usage: Usage::default(),
            detail: end.detail,
        }));
    }

    /// Runs a command of the agent's; `steer` adds a text to the running turn.
    pub(super) fn slash(
        &mut self,
        session: &Foreign,
        command: String,
        args: &str,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        if command == STEER {
            if self.turn.is_none() {
                let why = "no turn is running that could be steered";
                return Err(Refused::NotOffered(why.to_owned()));
            }
            self.ask_beside(Wait::Steer, out, |id| {
                write::text(id, "session.steer", session, args)
            });
            return Ok(());
        }
        let is_one = |open: &super::Open| matches!(open.wait, Wait::Command(_));
        if self.turn.is_some() {
            return Err(Refused::Busy);
        }
        if self.open.iter().any(is_one) {
            return Err(Refused::Commanded);
        }
        let raw = format!("/{command} {args}");
        self.ask_beside(Wait::Command(command), out, |id| {
            write::command(id, session, raw.trim_end())
        });
        Ok(())
    }

    pub(super) fn executed(
        &mut self,
        command: String,
        outcome: Result<&RawValue, ErrorReply>,
        out: &mut Effects,
    ) {
        let result: Executed<'_> = match outcome {
            Ok(result) => members(result).unwrap_or_default(),
            Err(error) => return not_done(error, out),
        };
        let (exit, text) = (result.exits(), result.text());
        let end = slash::said(result.is_done(), &text);
        out.push(Effect::Event(Event::SlashResult {
            command: command.into(),
            text,
            data: result.output.map(ToOwned::to_owned),
            clear_session: result.cleared(),
            exit,
        }));
        out.push(end);
        if exit {
            // It takes nothing any more, and stays: the end of its stdin ends it.
            self.leaving = true;
            out.push(Effect::ExitWanted);
            out.push(Effect::CloseInput);
        }
    }
}

/// Whether the running turn took a text.
pub(super) fn steered(outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
    let is_taken = match outcome {
        Ok(result) => Word::of(result).is_accepted(),
        Err(error) => return not_done(error, out),
    };
    let text = Foreign::from(if is_taken {
        "the agent took it"
    } else {
        "the agent did not take it"
    });
    let end = slash::said(is_taken, &text);
    out.push(Effect::Event(Event::SlashResult {
        command: STEER.into(),
        text,
        data: None,
        clear_session: false,
        exit: false,
    }));
    out.push(end);
}

/// A command ended with an error.
fn not_done(error: ErrorReply, out: &mut Effects) {
    let end = slash::said(false, &error.message.as_str().into());
    out.push(told(error));
    out.push(end);
}

/// An error of the agent as an event.
fn told(error: ErrorReply) -> Effect {
    Effect::Event(Event::AgentError {
        code: error.code.into(),
        message: error.message.into(),
        origin: Origin::Unknown,
    })
}
