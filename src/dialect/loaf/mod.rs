//! loaf's RPC, protocol 1, from the client's side. Source: its page "RPC mode", and what the agent
//! does where that page is silent.
//!
//! Owns the order of the conversation: the version gate, the session, one turn at a time. Must not
//! know how a message looks (`message`, `write`), or what becomes of an event.
//!
//! What the protocol leaves open, or what agents do differently, is decided so:
//!
//! - Before the agent has answered `rpc.handshake` with a version of the major number 1, nothing
//!   but that request is written. The handshake is strict; an agent that refuses ours because its
//!   own minor version is a later one is asked once more, by its own.
//! - Nothing in the protocol asks for permission. A tool call is told when it begins and when it
//!   ended, and is judged then; a request of the agent's is not served.
//! - The reply to `session.send` is no turn's end: that is `session.completed`, `.interrupted` or
//!   `.error`. Events may come before it. A turn goes by the name that the first of them gives it;
//!   an agent that then gives it another broke the protocol.
//! - A prompt is not sent to be queued. An agent that queues it all the same has it when its turn
//!   begins; until then a cancel takes it out of the queue.
//! - A turn that was interrupted before it had begun is interrupted again when it begins: the
//!   first found nothing to interrupt.
//! - `system.shutdown` does not end the agent, so its stdin is closed after the reply.
//! - A login wants a person at a browser: the slot parks with what the agent says of it.

mod alive;
mod calls;
mod events;
mod login;
mod message;
mod models;
mod opening;
mod said;
mod turn;
mod write;

use std::time::Instant;

use serde_json::value::RawValue;

use self::alive::Alive;
use self::calls::Calls;
use self::login::Login;
use self::models::{Model, Models};
use self::said::Said;
use self::turn::Turn;
use super::envelope::{self, ErrorReply, Message, RequestId};
use super::{Command, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line};
use crate::limits;
use crate::model::{AgentInfo, Foreign};
use crate::wire::json::{self, BadFrame};

/// Requests whose replies are awaited beside the one that moves the channel; of more the oldest is
/// not known any more.
const OPEN: usize = 32;

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// It waits for the reply to `rpc.handshake`.
    #[default]
    Handshaking,
    /// To `session.create`.
    Creating,
    /// To `session.get`.
    Loading,
    /// To `model.list`.
    Listing,
    /// To `model.select`.
    Selecting,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The request of ours that is open and moves the channel on: there is one at a time.
#[derive(Debug, Clone, Copy)]
struct Control {
    id: u64,
    method: &'static str,
    sent: Option<Instant>,
}

/// What the reply to another request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wait {
    Send,
    Interrupt,
    Clear,
    Queue,
    Steer,
    /// A slash command, by its name.
    Command(String),
    Ping,
}

impl Wait {
    /// The method of a request whose reply somebody waits for, and that nothing else bounds.
    const fn bounded(&self) -> Option<&'static str> {
        match self {
            Self::Command(_) => Some("command.execute"),
            Self::Steer => Some("session.steer"),
            _ => None,
        }
    }
}

/// Such a request that has no reply yet.
#[derive(Debug)]
struct Open {
    id: u64,
    wait: Wait,
    sent: Option<Instant>,
}

/// One channel that speaks loaf's RPC.
#[derive(Debug, Default)]
pub struct Loaf {
    phase: Phase,
    /// The time of what is being handled.
    now: Option<Instant>,
    /// The id of the last request of ours.
    last_id: u64,
    opening: Opening,
    /// The handshake was repeated by the agent's own version.
    asked_again: bool,
    /// The methods that the agent serves, if it says so.
    methods: Option<Vec<String>>,
    control: Option<Control>,
    /// The model that [`Loaf::control`] selects.
    selecting: Option<Model>,
    open: Vec<Open>,
    info: AgentInfo,
    session: Option<Foreign>,
    models: Models,
    turn: Option<Turn>,
    /// The name of the turn that ended last, to know its late events.
    last: Option<String>,
    said: Said,
    calls: Calls,
    login: Option<Login>,
    alive: Alive,
    /// `system.shutdown` was written, or our side of the pipe closed.
    leaving: bool,
    /// Lines that were no messages.
    bad_lines: u32,
}

impl Dialect for Loaf {
    fn open(&mut self, opening: &Opening, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.shake(write::VERSION, out);
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
                let said = format!("the agent wrote a line of more than {cap} bytes");
                self.fault(said, out);
            }
            Input::Eof => {
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
        let session = match &self.session {
            Some(session) if self.phase == Phase::Ready => session.clone(),
            _ => return Err(Refused::NotReady),
        };
        match command {
            Command::Prompt { text, .. } => self.prompt(&session, &text, out),
            Command::Slash { command, args } => self.slash(&session, command, &args, out),
            Command::Cancel => {
                self.cancel(&session, out);
                Ok(())
            }
            Command::Set(setting) => self.choose(&setting, out),
            Command::Answer { .. } => Err(Refused::UnknownAsk),
            Command::Client { .. } => Err(Refused::Unsupported),
            Command::Goodbye => Ok(()),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let due = [
            self.control_due(),
            self.send_due(),
            self.login_due(),
            self.command_due(),
            self.keepalive_due(),
        ];
        due.into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.control_due()) {
            self.unanswered(out);
        } else if is_due(self.send_due()) {
            self.not_acknowledged("session.send", out);
        } else if is_due(self.login_due()) {
            self.login_is_silent(out);
        } else if is_due(self.command_due()) {
            self.command_is_silent(now, out);
        } else if is_due(self.keepalive_due()) {
            self.keep_alive(now, out);
        }
    }
}

impl Loaf {
    /// Whether the agent serves a method, as far as it says.
    fn has(&self, method: &str) -> bool {
        let methods = self.methods.as_ref();
        methods.is_none_or(|methods| methods.iter().any(|of| of == method))
    }

    const fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Writes a request whose reply moves the channel on.
    fn ask(
        &mut self,
        phase: Phase,
        method: &'static str,
        out: &mut Effects,
        line: impl FnOnce(u64) -> Vec<u8>,
    ) {
        let id = self.fresh_id();
        self.phase = phase;
        self.control = Some(Control {
            id,
            method,
            sent: self.now,
        });
        out.push(Effect::Write(line(id)));
    }

    /// Writes a request whose reply does not; gives its id.
    fn ask_beside(
        &mut self,
        wait: Wait,
        out: &mut Effects,
        line: impl FnOnce(u64) -> Vec<u8>,
    ) -> u64 {
        let id = self.fresh_id();
        if self.open.len() >= OPEN {
            self.open.remove(0);
        }
        self.open.push(Open {
            id,
            wait,
            sent: self.now,
        });
        out.push(Effect::Write(line(id)));
        id
    }

    fn line(&mut self, line: &[u8], out: &mut Effects) {
        let object = match json::object(line) {
            Ok(object) => object,
            Err(bad) => return self.count_bad(bad, line, out),
        };
        if let Some((about, chunk)) = message::piece(object) {
            return self.chunk(&about, chunk, line, out);
        }
        match envelope::read(object) {
            Ok(Message::Reply { id, outcome }) => self.reply(id, outcome, line, out),
            Ok(Message::Request { id, .. }) => self.request(&id, line, out),
            Ok(Message::Notification { method, params }) => {
                self.notification(&method, params, object, out);
            }
            Err(bad) => self.count_bad(bad, line, out),
        }
    }

    /// The protocol has no requests of the agent's.
    fn request(&self, id: &RequestId, line: &[u8], out: &mut Effects) {
        // Nothing is written before the agent's version is known.
        if self.phase == Phase::Handshaking {
            return bad_line("out_of_state", line, out);
        }
        out.push(Effect::Write(write::not_served(id.json())));
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
        let Some(at) = self.open.iter().position(|open| open.id == id) else {
            return bad_line("unknown_id", line, out);
        };
        match self.open.remove(at).wait {
            Wait::Send => self.sent(id, outcome, line, out),
            Wait::Interrupt => self.interrupted(outcome, out),
            Wait::Clear => self.cleared(outcome, out),
            Wait::Queue => self.told_queue(outcome, out),
            Wait::Steer => turn::steered(outcome, out),
            Wait::Command(command) => self.executed(command, outcome, out),
            // Whatever it says, it lives.
            Wait::Ping => {}
        }
    }

    /// The reply to the request of [`Loaf::ask`].
    fn controlled(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        match self.phase {
            Phase::Handshaking => self.shaken(outcome, out),
            Phase::Creating => self.created(outcome, out),
            Phase::Loading => self.loaded(outcome, out),
            Phase::Listing => self.listed(outcome, out),
            Phase::Selecting => self.selected(outcome, out),
            // Whatever it says of the goodbye: it was said.
            Phase::Ready if self.leaving => out.push(Effect::CloseInput),
            Phase::Ready => self.was_chosen(outcome, out),
            Phase::Closed => {}
        }
    }

    /// Says goodbye, once. What runs in the agent ends by it; the agent itself does not.
    fn leave(&mut self, out: &mut Effects) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        if let Some(turn) = &mut self.turn {
            turn.is_cancelled = true;
        }
        if self.phase == Phase::Ready && self.selecting.take().is_some() {
            let why = "the session ends before the agent said whether it takes the model";
            out.push(Effect::Set(Err(why.to_owned())));
        }
        if self.phase == Phase::Ready && self.has("system.shutdown") {
            return self.ask(Phase::Ready, "system.shutdown", out, write::shutdown);
        }
        self.control = None;
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

    fn fault(&mut self, said: String, out: &mut Effects) {
        self.refuse(Fault::Protocol(said), out);
    }

    fn refuse(&mut self, fault: Fault, out: &mut Effects) {
        self.control = None;
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}
