//! `codex app-server`, from the client's side. Source: the JSON schema that the program writes of its
//! own protocol (`codex app-server generate-json-schema`) and what versions 0.166 and 0.169 did.
//!
//! Owns the order of the conversation: the version gate, the thread, one turn at a time. Must not
//! know how a message looks (`envelope`, `write`), or what becomes of an event.
//!
//! What the schema leaves open is decided so:
//!
//! - Nothing but `initialize` is written before the version in its reply is known to be ours.
//! - A thread that does not ask as it was told to, or that somebody else than us answers, is none
//!   that is used; a change into such a one ends the child.
//! - A turn's name is known with the reply to its request, or with `turn/started`: a cancel waits for
//!   it, and is said again if the turn had not begun for the agent when it was said first.
//! - A turn ends with `turn/completed` of its name, or with an error in the reply to its request.
//! - What would run is what the request for it says: its command and directory, read closed. A
//!   request to change files names no file: it is about the item of its id, whole, and is denied
//!   where that is not known.
//! - Permissions for what may come later, answers that a person would have to write, and requests
//!   that nobody here knows are refused with as little as the protocol takes.
//! - A request that the agent has no room for (-32001) is sent again, with growing waits.

mod alive;
mod approvals;
mod calls;
mod handshake;
mod items;
mod members;
mod notices;
mod pieces;
mod turns;
mod usage;
mod version;
mod words;
mod write;

use std::collections::VecDeque;
use std::time::Instant;

use serde_json::value::RawValue;

pub(super) use self::calls::served;

use self::alive::{Again, Alive, Overload};
use self::approvals::Wish;
use self::items::Items;
use self::turns::Turn;
use self::usage::Tokens;
use super::asks::{Asks, Ids};
use super::envelope::{self, ErrorReply, Message};
use super::{Command, Denials, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::limits;
use crate::model::{AgentInfo, Foreign};
use crate::wire::json::{self, BadFrame};

/// The reason of a line that came when it could not.
const OUT_OF_STATE: &str = "out_of_state";

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// It waits for the reply to `initialize`.
    #[default]
    Initializing,
    /// To `account/read`.
    Account,
    /// To `thread/start`.
    Starting,
    /// To `thread/resume`.
    Resuming,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The request of ours that the phase waits for.
#[derive(Debug, Clone, Copy)]
struct Control {
    id: u64,
    method: &'static str,
    sent: Option<Instant>,
}

/// One channel that speaks to `codex app-server`.
#[derive(Debug, Default)]
pub struct Codex {
    phase: Phase,
    /// The time of what is being handled.
    now: Option<Instant>,
    /// The id of the last request of ours.
    last_id: u64,
    opening: Opening,
    control: Option<Control>,
    info: AgentInfo,
    /// Set once the channel is ready.
    thread: Option<Foreign>,
    turn: Option<Turn>,
    /// The turn was cancelled.
    cancelling: bool,
    /// `turn/interrupt` waits for its reply.
    interrupt: Option<u64>,
    /// Requests of turns that are over, without their replies.
    late: VecDeque<u64>,
    leaving: bool,
    overload: Overload,
    alive: Alive,
    /// The ids of everything that the agent asks.
    ids: Ids,
    asks: Asks<Wish>,
    items: Items,
    tokens: Tokens,
    denials: Denials,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    asks_beyond: u32,
}

impl Dialect for Codex {
    fn open(&mut self, opening: &Opening, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.denials = std::mem::take(&mut self.opening.denials);
        self.ask(Phase::Initializing, out);
    }

    fn input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        self.now = Some(now);
        self.alive.heard(now);
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
                self.drop_asks(out);
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
        if self.phase != Phase::Ready {
            return Err(Refused::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn.is_some() => return Err(Refused::Busy),
            Command::Prompt { text, .. } => self.prompt(text, out),
            Command::Slash { .. } | Command::Client { .. } => return Err(Refused::Unsupported),
            Command::Cancel => self.cancel(out),
            Command::Answer { key, answer } => self.answer(&key, &answer, out)?,
            Command::Set(_) => {
                let why = "when this agent asks and its model stand in the configuration";
                return Err(Refused::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.due()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.at(now, out);
    }

    fn untold(&mut self) -> Denials {
        let untaken = turns::untaken(self.turn.take());
        self.denials.told_in_vain(untaken);
        std::mem::take(&mut self.denials)
    }
}

impl Codex {
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

    /// The reply to a request of ours that is open, or one that nobody waits for.
    fn reply(
        &mut self,
        id: Option<u64>,
        outcome: Result<&RawValue, ErrorReply>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let Some(id) = id else {
            return bad_line("unknown_id", line, out);
        };
        if self.control.is_some_and(|control| control.id == id) {
            self.control = None;
            return self.controlled(outcome, out);
        }
        if self
            .turn
            .as_ref()
            .is_some_and(|turn| turn.request == Some(id))
        {
            return self.turn_replied(outcome, out);
        }
        if self.interrupt == Some(id) {
            self.interrupt = None;
            return self.interrupt_replied(outcome.err().as_ref());
        }
        if !self.alive.answered(id) && !self.was_late(id) {
            bad_line("unknown_id", line, out);
        }
    }

    /// Sends a request again that the agent had no room for.
    fn send_again(&mut self, what: Again, out: &mut Effects) {
        match what {
            Again::Control => self.ask(self.phase, out),
            Again::Turn => self.start_turn(out),
            Again::Interrupt => self.interrupt(out),
        }
    }

    /// Whether a request that was refused so will be sent again.
    fn comes_again(&mut self, error: &ErrorReply, what: Again) -> bool {
        let Some(now) = self.now.filter(|_| error.code == alive::OVERLOADED) else {
            return false;
        };
        self.overload.refused(what, now)
    }

    /// Cancels the turn and closes the agent's stdin, at whose end it ends.
    fn leave(&mut self, out: &mut Effects) {
        if self.leaving {
            return;
        }
        self.cancel(out);
        self.cancel_asks(out);
        self.leaving = true;
        self.control = None;
        out.push(Effect::CloseInput);
    }

    /// Whether the agent was told to end what it does.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.leaving
    }

    /// Whether that is our thread.
    fn is_ours(&self, thread: &str) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|ours| ours.raw() == thread)
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

    /// Ends every open request; nobody is there to be answered.
    fn drop_asks(&mut self, out: &mut Effects) {
        let open = self.asks.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
    }

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.drop_asks(out);
        self.control = None;
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}

/// An error of the agent as a sentence of ours.
fn reported(error: &ErrorReply) -> String {
    let code = Foreign::from(error.code.as_str()).show(40);
    let message = Foreign::from(error.message.as_str()).show(300);
    format!("the agent reported error {code}: {message}")
}
