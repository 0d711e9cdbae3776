//! The turn from our side: a prompt, its acknowledgement, a cancel; and the commands beside it.
//!
//! Must not know the format of the agent's events.

use std::time::Instant;

use super::message::{self, AckResult, CommandResult, SendResult};
use super::{Loaf, PendingReply, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::{ErrorReply, Outcome};
use crate::lenient::parse_object;
use crate::turn_end::TurnEnd;
use crate::{DialectError, Effect, Effects, report_bad_line, slash};
use marshal_model::{Event, TurnOutcome, UntrustedText};

/// The command that adds a text to the running turn.
const STEER: &str = "steer";

/// How often a turn that continues all the same is interrupted.
const INTERRUPTS: u32 = 3;

/// The running turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// The id of its prompt's request.
    request: u64,
    pub(super) sent: Option<Instant>,
    /// The agent's name for it.
    pub(super) name: Option<String>,
    /// Whether it has output.
    pub(super) is_started: bool,
    /// Whether the agent acknowledged the prompt.
    is_acknowledged: bool,
    /// Whether it waits in the agent, behind another turn.
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

impl Loaf {
    pub(super) fn prompt(
        &mut self,
        session: &UntrustedText,
        text: &UntrustedText,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        if self.turn.is_some() {
            return Err(DialectError::Busy);
        }
        let request = self.send_side_request(PendingReply::Send, out, |id| {
            write::text(id, "session.send", session, text.raw())
        });
        self.answer_text.begin();
        self.turn = Some(Turn {
            request,
            sent: self.channel.now,
            name: None,
            is_started: false,
            is_acknowledged: false,
            is_queued: false,
            is_cancelled: false,
            interrupts: 0,
        });
        Ok(())
    }

    /// The agent accepts the prompt, or says why not. Its turn may already have begun, or ended.
    pub(super) fn on_send_reply(
        &mut self,
        id: u64,
        outcome: Outcome<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.request == id) else {
            return;
        };
        turn.is_acknowledged = true;
        let sent = match outcome {
            Ok(result) => parse_object::<SendResult<'_>>(result),
            Err(error) => return self.fail_turn(error, out),
        };
        let Some(sent) = sent else {
            return report_bad_line("bad_shape", line, out);
        };
        if sent.is_refused() {
            let detail = "the agent did not accept the prompt".to_owned();
            return self.end_turn(TurnEnd::failure(detail), out);
        }
        match (sent.turn(), &turn.name) {
            (Some(now), Some(before)) if now != *before => {
                let (now, before) = (UntrustedText::new(now), UntrustedText::new(before.clone()));
                let message = format!(
                    "the agent gave one turn two names: {} and {}",
                    before.escape_for_display(80),
                    now.escape_for_display(80)
                );
                return self.fail_protocol(message, out);
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
            self.send_side_request(PendingReply::Queue, out, |id| {
                write::of_session(id, method, &session)
            });
        }
    }

    /// Ends the turn with an error that is not a fault of the channel: a busy session is one.
    fn fail_turn(&mut self, error: ErrorReply, out: &mut Effects) {
        let message = error.describe();
        out.push(Effect::Event(error.into_event()));
        self.end_turn(TurnEnd::failure(message), out);
    }

    /// Handles the length of the queue in which the prompt waits.
    pub(super) fn on_queue_list_reply(&self, outcome: Outcome<'_>, out: &mut Effects) {
        let waits = self.turn.as_ref().is_some_and(|turn| turn.is_queued);
        let Some(queued) = outcome
            .ok()
            .and_then(message::parse_queue_length)
            .filter(|_| waits)
        else {
            return;
        };
        let title = format!("the agent runs another turn; prompts in its queue: {queued}");
        out.push(Effect::Event(Event::Notice {
            severity: None,
            title: title.into(),
            description: None,
        }));
    }

    /// Cancels the running turn: nothing of it may stay in the agent's queue. Does nothing if none
    /// runs, or if it is already cancelled.
    pub(super) fn cancel(&mut self, session: &UntrustedText, out: &mut Effects) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_cancelled) else {
            return;
        };
        turn.is_cancelled = true;
        if !turn.is_started {
            self.clear_queue(session, out);
        }
        self.interrupt(out);
    }

    pub(super) fn clear_queue(&mut self, session: &UntrustedText, out: &mut Effects) {
        self.send_side_request(PendingReply::Clear, out, |id| {
            write::of_session(id, "session.queue.clear", session)
        });
    }

    /// The agent's queue was cleared. If the prompt was in it, its turn has ended.
    pub(super) fn on_queue_clear_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let cleared = outcome.map_or(0, message::parse_cleared_count);
        let waited = |turn: &Turn| turn.is_cancelled && !turn.is_started;
        if cleared > 0 && self.turn.as_ref().is_some_and(waited) {
            let end = TurnEnd {
                outcome: TurnOutcome::Cancelled,
                stop_reason: None,
                usage: None,
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
            self.send_side_request(PendingReply::Interrupt, out, |id| {
                write::of_session(id, "session.interrupt", &session)
            });
        }
    }

    /// Handles the reply to an interrupt. It fails for a turn that has not quite begun.
    pub(super) fn on_interrupt_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        let missed = outcome.is_ok_and(|result| AckResult::parse(result).found_nothing());
        let runs = |turn: &Turn| turn.is_cancelled && turn.is_started;
        if missed && !self.channel.is_shutting_down && self.turn.as_ref().is_some_and(runs) {
            self.interrupt(out);
        }
    }

    /// Records that the turn has output, under the agent's name for it.
    pub(super) fn note_turn_activity(&mut self, name: Option<&str>, out: &mut Effects) {
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
            turn: turn.name.clone().map(UntrustedText::new),
        }));
        if turn.is_cancelled && !self.channel.is_shutting_down {
            self.interrupt(out);
        }
    }

    pub(super) fn end_turn(&mut self, end: TurnEnd, out: &mut Effects) {
        let Some(turn) = self.turn.take() else { return };
        self.calls.clear();
        self.last = turn.name.or_else(|| self.last.take());
        out.push(Effect::Event(end.into_event(turn.is_cancelled)));
    }

    /// Runs a command of the agent; `steer` adds a text to the running turn.
    pub(super) fn slash(
        &mut self,
        session: &UntrustedText,
        command: String,
        args: &str,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        if command == STEER {
            if self.turn.is_none() {
                let why = "no turn is running, so there is nothing to steer";
                return Err(DialectError::NotOffered(why.to_owned()));
            }
            self.send_side_request(PendingReply::Steer, out, |id| {
                write::text(id, "session.steer", session, args)
            });
            return Ok(());
        }
        let is_one = |open: &super::OpenRequest| matches!(open.pending, PendingReply::Command(_));
        if self.turn.is_some() {
            return Err(DialectError::Busy);
        }
        if self.open_requests.iter().any(is_one) {
            return Err(DialectError::CommandPending);
        }
        let raw = format!("/{command} {args}");
        self.send_side_request(PendingReply::Command(command), out, |id| {
            write::command(id, session, raw.trim_end())
        });
        Ok(())
    }

    pub(super) fn on_command_reply(
        &mut self,
        command: String,
        outcome: Outcome<'_>,
        out: &mut Effects,
    ) {
        let result: CommandResult<'_> = match outcome {
            Ok(result) => parse_object(result).unwrap_or_default(),
            Err(error) => return report_command_error(error, out),
        };
        let (exit, text) = (result.exits(), result.text());
        let end = slash::answer_effect(result.is_done(), &text);
        out.push(Effect::Event(Event::SlashResult {
            command: command.into(),
            text,
            data: result.output.map(ToOwned::to_owned),
            clear_session: result.is_session_cleared(),
            exit,
        }));
        out.push(end);
        if exit {
            // The agent accepts no more input, but stays until its stdin ends.
            self.channel.is_shutting_down = true;
            out.push(Effect::ExitExpected);
            out.push(Effect::CloseInput);
        }
    }
}

/// Whether the running turn accepted a text.
pub(super) fn on_steer_reply(outcome: Outcome<'_>, out: &mut Effects) {
    let is_taken = match outcome {
        Ok(result) => AckResult::parse(result).is_accepted(),
        Err(error) => return report_command_error(error, out),
    };
    let text = UntrustedText::from(if is_taken {
        "the agent accepted it"
    } else {
        "the agent did not accept it"
    });
    let end = slash::answer_effect(is_taken, &text);
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
fn report_command_error(error: ErrorReply, out: &mut Effects) {
    let end = slash::answer_effect(false, &error.message.as_str().into());
    out.push(Effect::Event(error.into_event()));
    out.push(end);
}
