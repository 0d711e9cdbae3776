//! ScaiFlux serve mode, protocol 1, from the controller's side. Source: its page "Serve mode
//! protocol", revision 4 of 2026-05-18.
//!
//! Owns the order of the conversation: the version gate, one turn at a time, and the open requests.
//! Must not know a message's format (`message`), or what happens to an event.
//!
//! Where that page is open, this module decides as follows:
//!
//! - An `error` that names the running turn ends it `failed`. So does one without a turn while a
//!   prompt has no `turn_started` yet (the prompt was rejected). Any other is only reported. A
//!   `turn_complete` after such an end adds only its mutations.
//! - An unreadable `turn_complete` ends the turn `failed`, because no other will follow.
//! - An event of another turn, or outside of one, is out of state: text is dropped, tool calls are
//!   still passed on, so that they are evaluated.
//! - A permission request outside of a turn and of a slash command, an unreadable one, and one with
//!   a used id are denied at once. If a request of that id is still open, the denial answers it
//!   too, so it is withdrawn. While a turn is being cancelled a request gets no answer: the pending
//!   `interrupt` ends it.
//! - An `interrupt` that was written before `turn_started` is written again then: the first may
//!   have found no turn.
//! - A mode that asks for less than the mode at the start ends the child, whatever changed it. An
//!   agent that reports its exit accepts no more input.
//! - A slash command without a result in time is reported as unanswered. Until its result comes, no
//!   other command is accepted.
//! - The agent's session, not this module, decides what happens to a turn whose channel ends.
//! - Before `ready` any other message, known or not, fails the channel. So does a second `ready`. A
//!   `protocol` other than the number 1 parks the slot, and nothing is written to the child.
//! - A known message of a bad shape is a `bad_line` event (`bad_shape`). `ready` then fails the
//!   channel, and a request with a readable id is denied.
//! - An unknown `type` after `ready` is an `unknown` event with the whole message.

mod events;
mod message;

use std::time::Instant;

use super::driver::{ChannelState, Phase, Protocol};
use super::mode_guard::ModeGuard;
use super::named_turn::NamedTurn;
use super::open_requests::{OpenRequests, RequestIds};
use super::slash::{self, SlashReply, SlashTracker};
use super::turn_end::TurnEnd;
use super::{Command, DialectError, Effect, Effects, OpenParams};
use marshal_model::PermissionResponse;
use marshal_wire::json::{self, BadFrame};

/// Our protocol version, as `ready.protocol` writes it.
const PROTOCOL: &str = "1";

/// The permission modes, beginning with the one that asks the most.
const MODES: [&str; 4] = [
    "prompt",
    "read-only",
    "workspace-write",
    "danger-full-access",
];

/// One channel that speaks ScaiFlux.
#[derive(Debug, Default)]
pub struct Scaiflux {
    channel: ChannelState,
    turn: NamedTurn,
    /// Whether the turn was interrupted.
    cancelling: bool,
    slash: SlashTracker,
    mode_guard: ModeGuard,
    ids: RequestIds,
    open_requests: OpenRequests<()>,
}

impl Protocol for Scaiflux {
    const VERSION: &'static str = PROTOCOL;

    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    /// Writes nothing: the agent sends the first message.
    fn start(&mut self, opening: &OpenParams, _out: &mut Effects) {
        self.slash = SlashTracker::new(opening.control_timeout);
        self.mode_guard = ModeGuard::new(opening, &MODES);
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame> {
        let object = json::expect_object(line)?;
        let tag = json::read_tag(object)?;
        match message::read(&tag, object) {
            Err(BadFrame::Shape) => self.handle_bad_shape(&tag, object, out),
            message => self.handle_message(message?, line, out),
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError> {
        match command {
            Command::Prompt { .. } if !self.turn.is_none() => return Err(DialectError::Busy),
            Command::Prompt { text, .. } => {
                self.turn.start();
                out.push(Effect::Write(message::prompt(&text)));
            }
            Command::Slash { command, args } => {
                self.slash.start(!self.turn.is_none(), self.channel.now)?;
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
                let why = "this agent has no modes or options to set";
                return Err(DialectError::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn shut_down(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        out.push(Effect::Write(message::shutdown()));
    }

    fn on_close(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
    }

    fn due(&self) -> Option<Instant> {
        self.slash.due()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        self.slash.tick(now, out);
    }
}

impl Scaiflux {
    /// A known message of an unknown shape. Whatever waits for it must not wait forever.
    fn handle_bad_shape(&mut self, tag: &str, object: &str, out: &mut Effects) {
        self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        match tag {
            _ if self.channel.is_closed() => {}
            "ready" => {
                self.fail_protocol("the agent's ready message cannot be read".to_owned(), out);
            }
            "turn_complete" if !self.turn.is_none() => {
                let detail = "the agent's turn_complete cannot be read".to_owned();
                self.end_turn(TurnEnd::failure(detail), None, out);
            }
            "permission_request" if self.channel.is_ready() && !self.is_winding_down() => {
                if let Some(id) = message::parse_request_id(object) {
                    self.deny_at_once(&id, "the permission request cannot be read", out);
                }
            }
            "state_changed" | "slash_result" => {
                // The mode in it still counts.
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

    /// Cancels the running turn. Does nothing if none runs, or if it is already cancelled.
    fn cancel(&mut self, out: &mut Effects) {
        if self.turn.is_none() || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.open_requests.withdraw_all(out);
        out.push(Effect::Write(message::interrupt()));
    }

    /// Whether the agent is stopping or its turn is being cancelled.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.channel.is_shutting_down
    }

    /// Ends the turn; `id` is its name as the ending message gives it.
    fn end_turn(&mut self, end: TurnEnd, id: Option<&str>, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        self.turn.end(id);
        let was_cancelling = std::mem::take(&mut self.cancelling);
        out.push(Effect::Event(end.into_event(was_cancelling)));
    }

    /// Denies a request without asking anybody.
    fn deny_at_once(&mut self, id: &str, reason: &str, out: &mut Effects) {
        self.open_requests.withdraw(id, out);
        let answer = PermissionResponse::Deny(reason.to_owned());
        out.push(Effect::Write(message::permission_response(id, &answer)));
    }
}
