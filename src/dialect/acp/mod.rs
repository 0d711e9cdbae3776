//! The Agent Client Protocol, version 1, from the client's side. Source: its schema and its pages
//! "Initialization", "Authentication", "Session setup", "Session modes", "Session config options",
//! "Prompt turn", "Tool calls", "Cancellation".
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
//!   reported, also where it does so only after its reply.
//! - Mode, model and options are set after every opening, before the first prompt. A mode that
//!   skips permission requests is a fault unless the configuration says that it is meant.
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

mod alive;
mod auth;
mod calls;
mod chosen;
mod client;
mod farewell;
mod handshake;
mod message;
mod modes;
mod notices;
mod pieces;
mod pins;
mod prompt;
mod requests;
mod resume;
mod served;
mod settings;
mod updates;
mod write;

pub(super) use calls::is_cut;
pub use client::recorded_wish;
pub(super) use served::served;

use std::time::Instant;

use serde_json::value::RawValue;

use self::alive::Alive;
use self::calls::Calls;
use self::client::Client;
use self::envelope::{ErrorReply, Message};
use self::farewell::Leaving;
use self::message::{Capabilities, Options};
use self::pins::Pins;
use self::resume::Replay;
use super::asks::{Asks, Ids};
use super::lenient::members;
use super::{
    Command, Denials, Dialect, Effect, Effects, Fault, Input, Opening, Refused, bad_line, envelope,
};
use crate::config::PermissionReply;
use crate::limits;
use crate::model::{AgentInfo, Event, Foreign, Origin, TurnOutcome, Usage};
use crate::wire::json::{self, BadFrame};

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// It waits for the reply to `initialize`.
    #[default]
    Initializing,
    /// To `authenticate`.
    Authenticating,
    /// To `session/list`.
    Listing,
    /// To `session/new`.
    Creating,
    /// To `session/load` or `session/resume`.
    Loading,
    /// The session is loaded; the agent may still be telling its past.
    Settling,
    /// It waits for the replies to what the session is set to.
    Pinning,
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

/// The request of ours that is open, if it is no prompt: there is one at a time.
#[derive(Debug, Clone, Copy)]
struct Control {
    id: u64,
    method: &'static str,
    sent: Option<Instant>,
}

/// One channel that speaks ACP.
#[derive(Debug, Default)]
pub struct Acp {
    phase: Phase,
    /// The time of what is being handled.
    now: Option<Instant>,
    /// The id of the last request of ours.
    last_id: u64,
    opening: Opening,
    can: Capabilities,
    control: Option<Control>,
    /// Pages of `session/list` read so far.
    pages: u32,
    replay: Replay,
    info: AgentInfo,
    /// Set once the channel is ready.
    session: Option<Foreign>,
    pins: Pins,
    turn: Turn,
    /// `session/cancel` was written for the turn.
    cancelling: bool,
    leaving: Leaving,
    alive: Alive,
    /// The ids of everything that the agent asks, permissions and all else.
    ids: Ids,
    asks: Asks<Options>,
    calls: Calls,
    client: Client,
    denials: Denials,
    /// Those that the prompt tells of which nothing came yet.
    telling: Denials,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    asks_beyond: u32,
}

impl Dialect for Acp {
    fn open(&mut self, opening: &Opening, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.denials = std::mem::take(&mut self.opening.denials);
        let offers = opening.offers;
        self.ask(Phase::Initializing, "initialize", out, |id| {
            write::initialize(id, offers)
        });
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
        if self.leaving != Leaving::No {
            return Err(Refused::Closed);
        }
        if self.phase != Phase::Ready || self.session.is_none() {
            return Err(Refused::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(Refused::Busy),
            Command::Prompt { text, attached } => self.prompt(&text, &attached, out),
            Command::Slash { .. } => return Err(Refused::Unsupported),
            Command::Cancel => self.cancel(out),
            Command::Answer { key, answer } => self.answer(&key, &answer, out)?,
            Command::Client { key, answer } => self.client_answer(&key, &answer, out)?,
            Command::Set(setting) => self.choose(&setting, out)?,
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let due = [self.control_due(), self.quiet_due(), self.keepalive_due()];
        due.into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.control_due()) {
            self.unanswered(out);
        } else if is_due(self.quiet_due()) {
            self.settled(out);
        } else if is_due(self.keepalive_due()) {
            self.keep_alive(now, out);
        }
    }

    fn untold(&mut self) -> Denials {
        let telling = std::mem::take(&mut self.telling);
        self.denials.told_in_vain(telling);
        std::mem::take(&mut self.denials)
    }
}

impl Acp {
    fn fresh_id(&mut self) -> u64 {
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
        match self.turn {
            Turn::Sent(prompt) | Turn::Running(prompt) if prompt == id => {
                self.prompted(outcome, line, out);
            }
            _ if self.alive.answered(id) => {}
            _ => bad_line("unknown_id", line, out),
        }
    }

    /// The reply to the request of [`Acp::ask`].
    fn controlled(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        match self.phase {
            Phase::Initializing => self.initialized(outcome, out),
            Phase::Authenticating => self.authenticated(outcome, out),
            Phase::Listing => self.listed(outcome, out),
            Phase::Creating => self.created(outcome, out),
            Phase::Loading => self.loaded(outcome, out),
            Phase::Pinning => self.pinned(outcome, out),
            Phase::Ready if self.leaving == Leaving::No => self.was_chosen(outcome, out),
            Phase::Ready => self.said_goodbye(out),
            Phase::Settling | Phase::Closed => {}
        }
    }

    /// The turn's end.
    fn prompted(&mut self, outcome: Result<&RawValue, ErrorReply>, line: &[u8], out: &mut Effects) {
        let telling = std::mem::take(&mut self.telling);
        if outcome.is_err() {
            self.denials.told_in_vain(telling);
        }
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
            self.telling = Denials::default();
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

    /// The form that answers to permission requests have.
    fn form(&self) -> PermissionReply {
        self.opening.acp.permission_reply
    }

    /// Ends every open request with the answer that the protocol has for a cancelled turn.
    fn cancel_asks(&mut self, out: &mut Effects) {
        for (key, _) in self.asks.close_all() {
            let answer = write::cancelled(self.form(), &key.id);
            out.push(Effect::Withdrawn(key));
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
        self.control = None;
        self.phase = Phase::Closed;
        out.push(Effect::Fault(fault));
    }
}

/// An error of the agent as a sentence of ours.
pub(super) fn reported(error: &ErrorReply) -> String {
    let code = Foreign::from(error.code.as_str()).show(40);
    let message = Foreign::from(error.message.as_str()).show(300);
    let data = error.data.as_deref().map(Foreign::from);
    let data = data.map_or_else(String::new, |data| format!(" ({})", data.show(200)));
    format!("the agent reported error {code}: {message}{data}")
}

/// Texts of an agent as a list for a person: shown safely, the rest of a long list only counted.
pub(super) fn listed_for_people<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let mut texts = texts.into_iter();
    let shown = texts.by_ref().take(SHOWN);
    let shown: Vec<String> = shown.map(|text| Foreign::from(text).show(60)).collect();
    if shown.is_empty() {
        return "none".to_owned();
    }
    match texts.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
