//! The Agent Client Protocol, version 1, from the client's side. Source: its schema and its pages
//! "Initialization", "Session setup", "Prompt turn", "Tool calls".
//!
//! Owns the order of the conversation: the version gate, the session, one turn at a time. Must not
//! know how a message looks (`envelope`, `message`, `write`), or what becomes of an event.
//!
//! What the protocol leaves open, or what agents do differently, is decided so:
//!
//! - Before the agent has answered `initialize` with the integer 1, nothing but that request is
//!   written. Another version and an error are both a version fault.
//! - A session to be gone on with is looked up by `session/list` where the agent has it: some
//!   agents answer `session/load` of an unknown id like a success. What the agent replays is not
//!   reported.
//! - A turn has begun, for the agent, with its first piece of text, thought, plan, tool call or
//!   permission request; it ends with the reply to its prompt. While it was cancelled, an error
//!   ends it `cancelled`, too. A reply without a reason that can be read is a failed turn.
//! - Text and plans outside of a turn are out of state and dropped; tool calls are passed on all
//!   the same, so that they are judged.
//! - A denial without an option to reject is `cancelled`, which means the turn: it is cancelled,
//!   too. So is a permission that has no option to allow once: no answer of ours says "always".
//! - A request of another session than ours is never allowed, and a call of one lends nothing to
//!   ours: what runs there is told and judged by itself.
//! - A reply that belongs to no request of ours is counted and ignored: some agents answer what
//!   was no request.

mod calls;
mod client;
mod envelope;
mod handshake;
mod message;
mod pieces;
mod requests;
mod updates;
mod write;

use std::time::Instant;

use serde_json::value::RawValue;

use self::calls::Calls;
use self::client::Client;
use self::envelope::{ErrorReply, Message};
use self::message::{Capabilities, Options};
use super::asks::Asks;
use super::lenient::members;
use super::{Command, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::limits;
use crate::model::{AgentInfo, AskKey, Event, Foreign, Origin, TurnOutcome, Usage};
use crate::wire::json::{self, BadFrame};

/// How far the channel is; with the id of the request that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// `initialize`.
    Initializing(u64),
    /// `session/list`.
    Listing(u64),
    /// `session/new`.
    Creating(u64),
    /// `session/load` or `session/resume`.
    Loading(u64),
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The turn, with the id of its prompt's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    /// None runs.
    #[default]
    None,
    /// Its prompt was written; nothing came of it yet.
    Sent(u64),
    /// It runs.
    Running(u64),
}

/// One channel that speaks ACP.
#[derive(Debug)]
pub struct Acp {
    phase: Phase,
    /// The id of the last request of ours.
    last_id: u64,
    opening: Opening,
    can: Capabilities,
    /// Pages of `session/list` read so far.
    pages: u32,
    info: AgentInfo,
    /// Set once the channel is ready.
    session: Option<Foreign>,
    turn: Turn,
    /// `session/cancel` was written for the turn.
    cancelling: bool,
    /// Our side of the pipe is closed, or about to be.
    leaving: bool,
    asks: Asks<Options>,
    calls: Calls,
    client: Client,
    /// Lines that were no messages.
    bad_lines: u32,
}

impl Default for Acp {
    fn default() -> Self {
        Self {
            phase: Phase::Initializing(0),
            last_id: 0,
            opening: Opening::default(),
            can: Capabilities::default(),
            pages: 0,
            info: AgentInfo::default(),
            session: None,
            turn: Turn::None,
            cancelling: false,
            leaving: false,
            asks: Asks::default(),
            calls: Calls::default(),
            client: Client::default(),
            bad_lines: 0,
        }
    }
}

impl Dialect for Acp {
    fn open(&mut self, opening: &Opening, _now: Instant, out: &mut Effects) {
        self.opening = opening.clone();
        let id = self.fresh_id();
        self.phase = Phase::Initializing(id);
        out.push(Effect::Write(write::initialize(id, opening.offers)));
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
                let said = format!("the agent wrote a line of more than {cap} bytes");
                self.fault(said, out);
            }
            Input::Eof => {
                self.drop_asks(out);
                self.phase = Phase::Closed;
            }
        }
    }

    fn command(
        &mut self,
        command: Command,
        _now: Instant,
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
        let (Phase::Ready, Some(session)) = (self.phase, &self.session) else {
            return Err(Refused::NotReady);
        };
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(Refused::Busy),
            Command::Prompt { text } => {
                self.last_id += 1;
                self.turn = Turn::Sent(self.last_id);
                out.push(Effect::Write(write::prompt(self.last_id, session, &text)));
            }
            Command::Slash { .. } => return Err(Refused::Unsupported),
            Command::Cancel => self.cancel(out),
            Command::Answer { key, answer } => self.answer(&key, &answer, out)?,
            Command::Client { key, answer } => self.client_answer(&key, &answer, out)?,
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant, _out: &mut Effects) {}
}

impl Acp {
    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn line(&mut self, line: &[u8], out: &mut Effects) {
        let object = match json::object(line) {
            Ok(object) => object,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        if self.read_piece(object, out) {
            return;
        }
        match envelope::read(object) {
            Ok(Message::Reply { id, outcome }) => self.reply(id, outcome, line, out),
            Ok(Message::Request { id, method, params }) => {
                self.request(&id, &method, params, line, out);
            }
            Ok(Message::Notification { method, params }) => {
                self.notification(&method, params, object, out);
            }
            Err(bad) => self.count_bad(bad, line, out),
        }
    }

    /// The reply to the one request of ours that is open, or one that nobody waits for.
    fn reply(
        &mut self,
        id: Option<u64>,
        outcome: Result<&RawValue, ErrorReply>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let waiting = match (self.phase, self.turn) {
            (
                Phase::Initializing(id)
                | Phase::Listing(id)
                | Phase::Creating(id)
                | Phase::Loading(id),
                _,
            )
            | (Phase::Ready, Turn::Sent(id) | Turn::Running(id)) => Some(id),
            (Phase::Ready, Turn::None) | (Phase::Closed, _) => None,
        };
        if id.is_none() || id != waiting {
            return bad_line("unknown_id", line, out);
        }
        match self.phase {
            Phase::Initializing(_) => self.initialized(outcome, out),
            Phase::Listing(_) => self.listed(outcome, out),
            Phase::Creating(_) => self.created(outcome, out),
            Phase::Loading(_) => self.loaded(outcome, out),
            Phase::Ready => self.prompted(outcome, line, out),
            Phase::Closed => {}
        }
    }

    /// The turn's end.
    fn prompted(&mut self, outcome: Result<&RawValue, ErrorReply>, line: &[u8], out: &mut Effects) {
        let end = match outcome {
            Ok(result) => {
                let read = members::<message::Prompted<'_>>(result);
                let read = read.and_then(|prompted| Some((prompted.stop_reason()?, prompted)));
                if let Some((stop_reason, prompted)) = read {
                    Event::TurnEnded {
                        outcome: message::outcome(stop_reason.raw()),
                        stop_reason: Some(stop_reason),
                        usage: prompted.usage(),
                        detail: None,
                    }
                } else {
                    bad_line("bad_shape", line, out);
                    self.failed("the end of the turn cannot be read".to_owned())
                }
            }
            Err(error) => {
                let said = reported(&error);
                out.push(Effect::Event(Event::AgentError {
                    code: error.code.into(),
                    message: error.message.into(),
                    origin: Origin::Unknown,
                }));
                self.failed(said)
            }
        };
        self.turn = Turn::None;
        self.cancelling = false;
        self.calls.clear();
        self.cancel_asks(out);
        out.push(Effect::Event(end));
    }

    /// The end of a turn that failed; if we cancelled it, that is what the agent failed at.
    fn failed(&self, detail: String) -> Event {
        Event::TurnEnded {
            outcome: if self.cancelling {
                TurnOutcome::Cancelled
            } else {
                TurnOutcome::Failed
            },
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(detail),
        }
    }

    /// Notes that something of the running turn came; `false` if none runs.
    fn turn_goes_on(&mut self, out: &mut Effects) -> bool {
        if let Turn::Sent(id) = self.turn {
            self.turn = Turn::Running(id);
            out.push(Effect::Event(Event::TurnStarted { turn: None }));
        }
        self.turn != Turn::None
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    fn cancel(&mut self, out: &mut Effects) {
        let Some(session) = &self.session else { return };
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        out.push(Effect::Write(write::cancel(session)));
        self.cancel_asks(out);
    }

    /// There is no goodbye in the protocol: the end of its stdin is one.
    fn leave(&mut self, out: &mut Effects) {
        if self.leaving {
            return;
        }
        self.cancel(out);
        self.cancel_asks(out);
        self.leaving = true;
        out.push(Effect::CloseInput);
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

    /// Ends every open request with the answer that the protocol has for a cancelled turn.
    fn cancel_asks(&mut self, out: &mut Effects) {
        for (AskKey(id), _) in self.asks.close_all() {
            let answer = write::permission(&id, None);
            out.push(Effect::Withdrawn(AskKey(id)));
            out.push(Effect::Write(answer));
        }
    }

    /// Ends every open request; nobody is there to be answered.
    fn drop_asks(&mut self, out: &mut Effects) {
        let open = self.asks.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        let wanted = self.client.close_all().into_iter();
        out.extend(wanted.map(Effect::Withdrawn));
    }

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.drop_asks(out);
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}

/// An error of the agent as a sentence of ours.
fn reported(error: &ErrorReply) -> String {
    let code = Foreign::from(error.code.as_str()).show(40);
    let message = Foreign::from(error.message.as_str()).show(300);
    let data = error.data.as_deref().map(Foreign::from);
    let data = data.map_or_else(String::new, |data| format!(" ({})", data.show(200)));
    format!("the agent reported error {code}: {message}{data}")
}
