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
//! - Before `ready` any other message, known or not, fails the channel; so does a second `ready`. A
//!   `protocol` other than the number 1 parks the slot, and nothing is written to the child.
//! - A known message of a bad shape is a `report_bad_line` (`bad_shape`). `ready` then fails the channel, and a
//!   request with a readable id is denied.
//! - An unknown `type` after `ready` is an `unknown` event with the whole message.

mod events;
mod message;

use std::time::Instant;

use super::mode_guard::ModeGuard;
use super::open_requests::{OpenRequests, RequestIds};
use super::slash::{self, SlashReply, SlashTracker};
use super::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
    report_bad_line,
};
use marshal_model::limits;
use marshal_model::{Event, PermissionResponse, TurnOutcome, UntrustedText, Usage};
use marshal_wire::json::{self, BadFrame};

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
    ended_by_error: bool,
}

/// One channel that speaks ScaiFlux.
#[derive(Debug, Default)]
pub struct Scaiflux {
    phase: Phase,
    turn: Turn,
    /// The turn was interrupted.
    cancelling: bool,
    last: LastTurn,
    slash: SlashTracker,
    mode_guard: ModeGuard,
    /// `shutdown` was written.
    is_shutting_down: bool,
    ids: RequestIds,
    open_requests: OpenRequests<()>,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    excess_requests: u32,
}

impl Dialect for Scaiflux {
    /// Says nothing: the agent speaks first.
    fn open(&mut self, opening: &OpenParams, _now: Instant, _out: &mut Effects) {
        self.slash = SlashTracker::new(opening.control_timeout);
        self.mode_guard = ModeGuard::new(opening, &MODES);
    }

    fn handle_input(&mut self, input: Input<'_>, _now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        match input {
            Input::Frame(line) => self.handle_line(line, out),
            Input::TooLong(head) => {
                report_bad_line("too_long", head, out);
                let cap = limits::LINE_BYTES;
                self.fail_protocol(
                    format!("the agent wrote a line of more than {cap} bytes"),
                    out,
                );
            }
            Input::Eof => {
                self.withdraw_requests(out);
                self.phase = Phase::Closed;
            }
        }
    }

    fn handle_command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        if self.phase == Phase::Closed {
            return Err(DialectError::Closed);
        }
        if let Command::Goodbye = command {
            self.shut_down(out);
            return Ok(());
        }
        if self.is_shutting_down {
            return Err(DialectError::Closed);
        }
        if self.phase == Phase::Handshaking {
            return Err(DialectError::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(DialectError::Busy),
            Command::Prompt { text, .. } => {
                self.turn = Turn::Sent;
                self.last.ended_by_error = false;
                out.push(Effect::Write(message::prompt(&text)));
            }
            Command::Slash { command, args } => {
                self.slash.start(self.turn != Turn::None, now)?;
                out.push(Effect::Write(message::slash(&command, &args)));
            }
            Command::Cancel => self.cancel(out),
            Command::AnswerPermission { key, answer } => {
                self.open_requests
                    .close_by_key(&key)
                    .ok_or(DialectError::UnknownRequest)?;
                let answer = message::permission_response(&key.id, &answer);
                out.push(Effect::Write(answer));
            }
            Command::AnswerClientRequest { .. } => return Err(DialectError::Unsupported),
            Command::Set(_) => {
                let why = "this agent has neither modes nor options that could be set";
                return Err(DialectError::NotOffered(why.to_owned()));
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
    fn handle_line(&mut self, line: &[u8], out: &mut Effects) {
        let (object, tag) =
            match json::expect_object(line).and_then(|o| Ok((o, json::read_tag(o)?))) {
                Ok(found) => found,
                Err(bad) => return self.count_bad_line(bad, line, out),
            };
        match message::read(&tag, object) {
            Ok(message) => self.handle_message(message, line, out),
            Err(BadFrame::Shape) => self.handle_bad_shape(&tag, object, out),
            Err(bad) => self.count_bad_line(bad, line, out),
        }
    }

    /// A message that we know, with a shape that we do not: what waits for it must not wait on.
    fn handle_bad_shape(&mut self, tag: &str, object: &str, out: &mut Effects) {
        self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        match tag {
            _ if self.phase == Phase::Closed => {}
            "ready" => {
                self.fail_protocol("the agent's ready message cannot be read".to_owned(), out);
            }
            "turn_complete" if self.turn != Turn::None => {
                let detail = "the agent's turn_complete cannot be read".to_owned();
                self.end_turn(TurnEnd::failure(detail), out);
            }
            "permission_request" if self.phase == Phase::Ready && !self.is_winding_down() => {
                if let Some(id) = message::parse_request_id(object) {
                    self.deny_at_once(&id, "the permission request cannot be read", out);
                }
            }
            "state_changed" | "slash_result" => {
                // What it says of the mode counts all the same.
                let is_safe = message::StateChanged::from_mode(object)
                    .is_none_or(|state| self.update_state(state, out));
                if is_safe && tag == "slash_result" && self.slash.finish() == SlashReply::Expected {
                    let why = "the agent's slash_result cannot be read";
                    out.push(slash::answer_effect(false, &why.into()));
                }
            }
            _ => {}
        }
    }

    /// Counts a line that is no message; too many of them are another program.
    fn count_bad_line(&mut self, bad: BadFrame, line: &[u8], out: &mut Effects) {
        report_bad_line(bad.as_str(), line, out);
        self.bad_lines = self.bad_lines.saturating_add(1);
        if self.bad_lines > limits::BAD_LINES {
            let most = limits::BAD_LINES;
            let said = format!("more than {most} lines on the agent's stdout were no messages");
            self.fail_protocol(said, out);
        }
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    fn cancel(&mut self, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.withdraw_requests(out);
        out.push(Effect::Write(message::interrupt()));
    }

    /// Says goodbye, once.
    fn shut_down(&mut self, out: &mut Effects) {
        if self.is_shutting_down {
            return;
        }
        self.is_shutting_down = true;
        self.withdraw_requests(out);
        out.push(Effect::Write(message::shutdown()));
    }

    /// Whether the agent was told to end what it does.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.is_shutting_down
    }

    /// Ends every open request unanswered.
    fn withdraw_requests(&mut self, out: &mut Effects) {
        let open = self.open_requests.close_all().into_iter();
        out.extend(open.map(|(key, ())| Effect::RequestWithdrawn(key)));
    }

    fn end_turn(&mut self, end: TurnEnd, out: &mut Effects) {
        self.withdraw_requests(out);
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
        let open = self.open_requests.close(id);
        out.extend(open.map(|(key, ())| Effect::RequestWithdrawn(key)));
        let answer = PermissionResponse::Deny(reason.to_owned());
        out.push(Effect::Write(message::permission_response(id, &answer)));
    }

    fn fail_protocol(&mut self, said: String, out: &mut Effects) {
        self.fail_channel(ChannelError::Protocol(said), out);
    }

    fn fail_channel(&mut self, fault: ChannelError, out: &mut Effects) {
        self.withdraw_requests(out);
        self.phase = Phase::Closed;
        out.push(Effect::ChannelFailed(fault));
    }
}

/// What is known of a turn's end.
struct TurnEnd {
    /// The turn's id as the ending message gives it.
    turn: Option<String>,
    outcome: TurnOutcome,
    stop_reason: Option<UntrustedText>,
    usage: Usage,
    detail: Option<String>,
}

impl TurnEnd {
    fn failure(detail: String) -> Self {
        Self {
            turn: None,
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(detail),
        }
    }
}
