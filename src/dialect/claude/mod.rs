//! Claude Code's stream-json, from the host's side. Source: the public Agent SDK for Python, which
//! drives the same program, and conversations with the program itself.
//!
//! Owns the order of the conversation: the version gate, what the session is set to, one turn at a
//! time. Must not know how a message looks (`message`, `write`), or what becomes of an event.
//!
//! What the protocol leaves open is decided so:
//!
//! - Nothing but `initialize` is written before its reply names a version of major 2. A program
//!   that names none is another version: the message that would name it comes after a prompt.
//! - The agent asks a hook of ours before every tool, and the hook says "ask", but for the few tools
//!   that change nothing outside of the agent; so also what the program would run unasked is asked about. Any other hook, and every request that is not served,
//!   is answered with an error.
//! - A call that is allowed is allowed with the input that was judged, byte for byte.
//! - Modes that skip questions are refused before the first prompt and end the child later, as in ACP.
//! - The session's id is ours, by an argument of the command; what the agent calls its session with the
//!   first turn must be that.
//! - A turn begins with the agent's word that it took our prompt, or with any message of a turn where
//!   it has no such word. What comes outside of it is out of state: text is dropped, tool calls are told
//!   all the same, so that they are judged, and requests are denied.
//! - While a turn is being interrupted, what was open is withdrawn and gets no answer; a request that
//!   comes later is denied.
//! - What an agent that the agent started says is told as thought.

mod blocks;
mod control;
mod message;
mod pieces;
mod requests;
mod streamed;
mod turns;
mod write;

use std::time::Instant;

use serde_json::value::RawValue;

pub(super) use self::requests::served;
pub(super) use self::write::arguments;

use self::control::{Control, Settings};
use self::message::{Message, Request, Wanted};
use self::streamed::Told;
use super::asks::{Asks, Ids};
use super::{Command, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::limits;
use crate::model::{Event, Foreign, TurnOutcome, Usage};
use crate::wire::json::{self, BadFrame};

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// The reply to `initialize`, or to what the session is set to, has not come.
    #[default]
    Handshaking,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    /// None runs.
    #[default]
    None,
    /// Its prompt was written.
    Sent,
    /// The agent said that the prompt waits: what comes before it begins is of something else.
    Queued,
    /// It runs.
    Running,
}

/// The session, as far as the agent named it.
#[derive(Debug, Default)]
struct Named {
    /// What it should be called; `None`: nobody knows.
    id: Option<Foreign>,
    /// The agent called it so.
    is_confirmed: bool,
}

/// One channel that speaks stream-json.
#[derive(Debug, Default)]
pub struct Claude {
    phase: Phase,
    /// The time of what is being handled.
    now: Option<Instant>,
    opening: Opening,
    /// Requests of ours so far.
    requests: u64,
    /// The one that is open, if it is no interrupt: there is one at a time.
    control: Option<Control>,
    /// The interrupt that is open.
    interrupt: Option<String>,
    version: Option<Foreign>,
    settings: Settings,
    session: Named,
    /// Prompts so far.
    prompts: u64,
    turn: Turn,
    /// When a turn ends without its result, of which the agent said by its prompt's state that it is over;
    /// and how.
    over: Option<(Instant, TurnOutcome)>,
    /// The turn was interrupted.
    cancelling: bool,
    leaving: bool,
    told: Told,
    /// Tokens in the agent's context, by the last message of its model.
    context: u64,
    ids: Ids,
    /// Open requests, with the input that an allowance must repeat.
    asks: Asks<Option<Box<RawValue>>>,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    asks_beyond: u32,
}

impl Dialect for Claude {
    fn open(&mut self, opening: &Opening, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.begin(out);
    }

    fn input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        self.now = Some(now);
        match input {
            Input::Frame(line) => self.line(line, out),
            Input::TooLong(head) => {
                bad_line("too_long", head, out);
                let cap = limits::LINE_BYTES;
                let said = format!("the agent wrote a line of more than {cap} bytes");
                self.fault(said, out);
            }
            Input::Eof => {
                self.withdraw(out);
                self.control = None;
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
        self.now = Some(now);
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
                self.prompts += 1;
                let uuid = self.prompt_id();
                out.push(Effect::Write(write::prompt(&text, uuid.as_deref())));
            }
            Command::Cancel => self.cancel(out),
            Command::Answer { key, answer } => {
                let input = self.asks.answered(&key).ok_or(Refused::UnknownAsk)?;
                let line = write::answer(&key.id, input.as_deref(), &answer);
                out.push(Effect::Write(line));
            }
            Command::Set(setting) => self.choose(&setting, out)?,
            Command::Slash { .. } | Command::Client { .. } => return Err(Refused::Unsupported),
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let due = [self.control_due(), self.result_due()];
        due.into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        if self.control_due().is_some_and(|due| due <= now) {
            self.unanswered(out);
        } else if self.result_due().is_some_and(|due| due <= now) {
            self.ends_without_result(out);
        }
    }
}

impl Claude {
    fn line(&mut self, line: &[u8], out: &mut Effects) {
        let object = match json::object(line) {
            Ok(object) => object,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        if self.read_piece(object, out) {
            return;
        }
        let tag = match json::tag(object) {
            Ok(tag) => tag,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        match message::read(&tag, object) {
            Ok(message) => self.message(message, object, out),
            Err(BadFrame::Shape) => self.misshapen(&tag, object, out),
            Err(bad) => self.count_bad(bad, line, out),
        }
    }

    fn message(&mut self, message: Message<'_>, object: &str, out: &mut Effects) {
        let line = object.as_bytes();
        match message {
            Message::Reply(reply) => self.reply(&reply, line, out),
            // Nothing is written before the agent's version is known.
            Message::Request(_) if self.is_unknown() => bad_line("out_of_state", line, out),
            Message::Request(request) => self.request(&request, line, out),
            Message::Withdrawal(withdrawal) => {
                let open = self.asks.close(&withdrawal.request_id.0);
                out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
            }
            Message::Lifecycle(prompt) => self.lifecycle(&prompt, out),
            Message::Result(result) if self.phase == Phase::Handshaking => {
                self.ended_early(&result, out);
            }
            Message::Result(result) => self.result(&result, line, out),
            Message::System(system) => self.system(&system, object, out),
            Message::Assistant(spoken) => self.assistant(&spoken, line, out),
            Message::User(spoken) => self.user(&spoken, line, out),
            Message::Piece(piece) => self.piece(&piece, line, out),
            Message::Reset if self.phase == Phase::Handshaking => {
                bad_line("out_of_state", line, out);
            }
            Message::Reset => {
                self.session = Named::default();
                out.push(Effect::SessionCleared);
            }
            Message::Ignored => {}
            Message::Unknown(tag, raw) => out.push(Effect::Event(Event::Unknown {
                tag,
                raw: raw.to_owned(),
            })),
        }
    }

    fn request(&mut self, request: &Request<'_>, line: &[u8], out: &mut Effects) {
        let id = request.id.0.as_ref();
        let wanted = request.read();
        if let Wanted::Permission(ask) = &wanted {
            return self.permission(id, ask, line, out);
        }
        // Its answer would be one to an open request of that id, too.
        let open = self.asks.close(id);
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        match wanted {
            Wanted::Hook(hook) => requests::hook(id, &hook, out),
            Wanted::Other(word) => requests::refused(id, &word, line, out),
            Wanted::Permission(_) | Wanted::Unreadable => self.unreadable(id, line, out),
        }
    }

    /// A message that we know, with a shape that we do not: what waits for it must not wait on.
    fn misshapen(&mut self, tag: &str, object: &str, out: &mut Effects) {
        self.count_bad(BadFrame::Shape, object.as_bytes(), out);
        match tag {
            _ if self.phase == Phase::Closed => {}
            "result" if matches!(self.turn, Turn::Sent | Turn::Running) => {
                self.end_turn(End::failed("the end of the turn cannot be read"), out);
            }
            "control_request" if !self.is_unknown() => {
                if let Some(id) = message::request_id(object) {
                    self.cannot_read(&id, out);
                }
            }
            _ => {}
        }
    }

    /// Whether the agent has not named a version that is ours.
    const fn is_unknown(&self) -> bool {
        self.version.is_none()
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

    /// The id of the prompt that was written last: that of the channel, with its number at the end. The agent
    /// leaves out a prompt whose id its session has had.
    fn prompt_id(&self) -> Option<String> {
        let begin = self.opening.fresh.get(..24)?;
        Some(format!("{begin}{:012x}", self.prompts))
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    fn cancel(&mut self, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.withdraw(out);
        self.write_interrupt(out);
    }

    fn write_interrupt(&mut self, out: &mut Effects) {
        let id = self.request_id();
        out.push(Effect::Write(write::interrupt(&id)));
        self.interrupt = Some(id);
    }

    /// Says goodbye, once: the agent ends with its input.
    fn leave(&mut self, out: &mut Effects) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.withdraw(out);
        out.push(Effect::CloseInput);
    }

    /// Ends every open request unanswered.
    fn withdraw(&mut self, out: &mut Effects) {
        let open = self.asks.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
    }

    fn end_turn(&mut self, end: End, out: &mut Effects) {
        // An interrupt ends what is open; nothing else does.
        let is_ended = self.cancelling || self.leaving;
        for (key, _) in self.asks.close_all() {
            let denial = (!is_ended).then(|| write::deny(&key.id, "the turn is over"));
            out.push(Effect::Withdrawn(key));
            out.extend(denial.map(Effect::Write));
        }
        self.turn = Turn::None;
        self.over = None;
        self.told = Told::default();
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

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.withdraw(out);
        self.control = None;
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}

/// What is known of a turn's end.
struct End {
    outcome: TurnOutcome,
    stop_reason: Option<Foreign>,
    usage: Usage,
    detail: Option<String>,
}

impl End {
    fn failed(detail: &str) -> Self {
        Self {
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(detail.to_owned()),
        }
    }
}
