//! ScaiFlux serve mode, protocol 1, from the controller's side. Source: its page "Serve mode
//! protocol", revision 4 of 2026-05-18.
//!
//! Owns the order of the conversation: the version gate, one turn at a time, which requests are
//! open. Must not know how a message looks (`message`), or what becomes of an event.
//!
//! What that page leaves open is decided so:
//!
//! - An `error` that names the running turn ends it `failed`; so does one that names no turn while
//!   a prompt has no `turn_started` yet (the prompt was rejected). Any other is only reported. A
//!   `turn_complete` that follows such an end adds its mutations and nothing else.
//! - A `turn_complete` that cannot be read ends the turn `failed`: waiting for another is vain.
//! - An event of another turn, or outside of one, is out of state: text is dropped, tool calls are
//!   passed on all the same, so that they are judged.
//! - A permission request outside of a turn and of a slash command, one that cannot be read, and
//!   one whose id was used before, is denied at once. If a request of that id is still open, the
//!   denial answers it too, so it is withdrawn. While a turn is being cancelled a request gets no
//!   answer: the `interrupt` already under way ends it.
//! - An `interrupt` that was written before `turn_started` came is written again then: the first
//!   may have found no turn.
//! - A mode that asks for less than the one that the agent was begun in ends its child, whatever
//!   brought it about. An agent that says that it exits takes nothing any more.
//! - A slash command without a result in its time is told as unanswered; until its result comes there
//!   is no other.
//! - The agent's session, not this module, says what becomes of a turn whose channel ends.

mod events;
mod message;

use std::time::Instant;

use super::asks::{Asks, Ids};
use super::drift::Drift;
use super::slash::{self, Heard, Slash};
use super::{Command, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::limits;
use crate::model::{Answer, Event, Foreign, TurnOutcome, Usage};
use crate::wire::json::{self, BadFrame};

/// The version that we speak, as `ready.protocol` writes it.
const PROTOCOL: &str = "1";

/// The permission modes, from the one that asks for the most.
const MODES: [&str; 4] = [
    "prompt",
    "read-only",
    "workspace-write",
    "danger-full-access",
];

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// `ready` has not come.
    #[default]
    Handshaking,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The turn.
#[derive(Debug, PartialEq, Eq, Default)]
enum Turn {
    /// None runs.
    #[default]
    None,
    /// Its prompt was written; `turn_started` has not come.
    Sent,
    /// It runs, under the agent's name for it, if there is one.
    Running(Option<String>),
}

/// The turn that ended last, to know its late events.
#[derive(Debug, Default)]
struct LastTurn {
    id: Option<String>,
    /// An `error` ended it; its `turn_complete` may follow.
    by_error: bool,
}

/// One channel that speaks ScaiFlux.
#[derive(Debug, Default)]
pub struct Scaiflux {
    phase: Phase,
    turn: Turn,
    /// The turn was interrupted.
    cancelling: bool,
    last: LastTurn,
    slash: Slash,
    modes: Drift,
    /// `shutdown` was written.
    leaving: bool,
    ids: Ids,
    asks: Asks<()>,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    asks_beyond: u32,
}

impl Dialect for Scaiflux {
    /// Says nothing: the agent speaks first.
    fn open(&mut self, opening: &Opening, _now: Instant, _out: &mut Effects) {
        self.slash = Slash::within(opening.control);
        self.modes = Drift::of(opening, &MODES);
    }

    fn input(&mut self, input: Input<'_>, _now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        match input {
            Input::Frame(line) => self.line(line, out),
            Input::TooLong(head) => {
                bad_line("too_long", head, out);
                let cap = limits::LINE_BYTES;
                self.fault(
                    format!("the agent wrote a line of more than {cap} bytes"),
                    out,
                );
            }
            Input::Eof => {
                self.withdraw(out);
                self.phase = Phase::Closed;
            }
        }
    }

    fn command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        if self.phase == Phase::Closed {
            return Err(Refused::Closed);
        }
        if let Command::Goodbye = command {
            self.leave(out);
            return Ok(());
        }
        if self.leaving {
            return Err(Refused::Closed);
        }
        if self.phase == Phase::Handshaking {
            return Err(Refused::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(Refused::Busy),
            Command::Prompt { text, .. } => {
                self.turn = Turn::Sent;
                self.last.by_error = false;
                out.push(Effect::Write(message::prompt(&text)));
            }
            Command::Slash { command, args } => {
                self.slash.begin(self.turn != Turn::None, now)?;
                out.push(Effect::Write(message::slash(&command, &args)));
            }
            Command::Cancel => self.cancel(out),
            Command::Answer { key, answer } => {
                self.asks.answered(&key).ok_or(Refused::UnknownAsk)?;
                let answer = message::permission_response(&key.id, &answer);
                out.push(Effect::Write(answer));
            }
            Command::Client { .. } => return Err(Refused::Unsupported),
            Command::Set(_) => {
                let why = "this agent has neither modes nor options that could be set";
                return Err(Refused::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let is_open = self.phase != Phase::Closed;
        self.slash.due().filter(|_| is_open)
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        if self.phase != Phase::Closed {
            self.slash.tick(now, out);
        }
    }
}

impl Scaiflux {
    fn line(&mut self, line: &[u8], out: &mut Effects) {
        let (object, tag) = match json::object(line).and_then(|o| Ok((o, json::tag(o)?))) {
            Ok(found) => found,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        match message::read(&tag, object) {
            Ok(message) => self.message(message, line, out),
            Err(BadFrame::Shape) => self.misshapen(&tag, object, out),
            Err(bad) => self.count_bad(bad, line, out),
        }
    }

    /// A message that we know, with a shape that we do not: what waits for it must not wait on.
    fn misshapen(&mut self, tag: &str, object: &str, out: &mut Effects) {
        self.count_bad(BadFrame::Shape, object.as_bytes(), out);
        match tag {
            _ if self.phase == Phase::Closed => {}
            "ready" => self.fault("the agent's ready message cannot be read".to_owned(), out),
            "turn_complete" if self.turn != Turn::None => {
                let detail = "the agent's turn_complete cannot be read".to_owned();
                self.end_turn(End::failed(detail), out);
            }
            "permission_request" if self.phase == Phase::Ready && !self.is_winding_down() => {
                if let Some(id) = message::request_id(object) {
                    self.deny_at_once(&id, "the permission request cannot be read", out);
                }
            }
            "state_changed" | "slash_result" => {
                // What it says of the mode counts all the same.
                let is_safe = message::StateChanged::mode(object)
                    .is_none_or(|state| self.state_is(state, out));
                if is_safe && tag == "slash_result" && self.slash.end() == Heard::Awaited {
                    let why = "the agent's slash_result cannot be read";
                    out.push(slash::said(false, &why.into()));
                }
            }
            _ => {}
        }
    }

    /// Counts a line that is no message; too many of them are another program.
    fn count_bad(&mut self, bad: BadFrame, line: &[u8], out: &mut Effects) {
        bad_line(bad.word(), line, out);
        self.bad_lines = self.bad_lines.saturating_add(1);
        if self.bad_lines > limits::BAD_LINES {
            let most = limits::BAD_LINES;
            let said = format!("more than {most} lines on the agent's stdout were no messages");
            self.fault(said, out);
        }
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    fn cancel(&mut self, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.withdraw(out);
        out.push(Effect::Write(message::interrupt()));
    }

    /// Says goodbye, once.
    fn leave(&mut self, out: &mut Effects) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.withdraw(out);
        out.push(Effect::Write(message::shutdown()));
    }

    /// Whether the agent was told to end what it does.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.leaving
    }

    /// Ends every open request unanswered.
    fn withdraw(&mut self, out: &mut Effects) {
        let open = self.asks.close_all().into_iter();
        out.extend(open.map(|(key, ())| Effect::Withdrawn(key)));
    }

    fn end_turn(&mut self, end: End, out: &mut Effects) {
        self.withdraw(out);
        let named = match std::mem::take(&mut self.turn) {
            Turn::Running(id) => id,
            Turn::None | Turn::Sent => None,
        };
        self.last.id = named.or(end.turn);
        let asked = std::mem::take(&mut self.cancelling);
        let outcome = match end.outcome {
            TurnOutcome::Failed if asked => TurnOutcome::Cancelled,
            outcome => outcome,
        };
        out.push(Effect::Event(Event::TurnEnded {
            outcome,
            stop_reason: end.stop_reason,
            usage: end.usage,
            detail: end.detail,
        }));
    }

    /// Denies a request that nobody is asked about.
    fn deny_at_once(&mut self, id: &str, reason: &str, out: &mut Effects) {
        let open = self.asks.close(id);
        out.extend(open.map(|(key, ())| Effect::Withdrawn(key)));
        let answer = Answer::Deny(reason.to_owned());
        out.push(Effect::Write(message::permission_response(id, &answer)));
    }

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.withdraw(out);
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}

/// What is known of a turn's end.
struct End {
    /// The turn's id as the ending message gives it.
    turn: Option<String>,
    outcome: TurnOutcome,
    stop_reason: Option<Foreign>,
    usage: Usage,
    detail: Option<String>,
}

impl End {
    fn failed(detail: String) -> Self {
        Self {
            turn: None,
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(detail),
        }
    }
}
