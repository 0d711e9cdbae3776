//! Claude Code's stream-json, from the host's side. Source: the public Agent SDK for Python, which
//! drives the same program, and recorded conversations with the program.
//!
//! Owns the order of the conversation: the version gate, the session's settings, one turn at a
//! time. Must not know a message's format (`message`, `write`), or what happens to an event.
//!
//! Where the protocol is open, this module decides as follows:
//!
//! - Only `initialize` is written before its reply names a version of major 2. A program that names
//!   none counts as another version: the message that would name it comes after a prompt.
//! - The agent calls a hook of ours before every tool, and the hook answers "ask", except for the
//!   few tools that change nothing outside of the agent. So the agent also asks about calls that
//!   the program would run without asking. Any other hook, and every unsupported request, is
//!   answered with an error.
//! - An allowed call is allowed with the input that was evaluated, byte for byte.
//! - Modes that skip questions are refused before the first prompt, and end the child later, as in
//!   ACP.
//! - The session's id is ours, passed as an argument of the command. The session name that the
//!   agent reports with the first turn must be that id.
//! - A turn begins when the agent reports that it accepted our prompt, or with any message of a
//!   turn where it does not report that. Messages outside of it are out of state: text is dropped,
//!   tool calls are still reported, so that they are evaluated, and requests are denied.
//! - While a turn is being interrupted, open requests are withdrawn and get no answer. A request
//!   that comes later is denied.
//! - A subagent's text is reported as thought.

mod blocks;
mod control;
mod fast_path;
mod message;
mod requests;
mod stream_dedup;
mod turns;
mod write;

use std::time::Instant;

use serde_json::value::RawValue;

pub(super) use self::requests::parse_mcp_tool_call;
pub(super) use self::write::extra_arguments;

use self::control::{Control, Settings};
use self::message::{Message, Request, RequestKind};
use self::stream_dedup::StreamedBlocks;
use super::driver::{ChannelState, Phase, Protocol};
use super::open_requests::{OpenRequests, RequestIds};
use super::turn_end::TurnEnd;
use super::{Command, DialectError, Effect, Effects, OUT_OF_STATE, OpenParams, report_bad_line};
use marshal_model::{Event, TurnOutcome, UntrustedText};
use marshal_wire::json::{self, BadFrame};

/// The turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    /// No turn.
    #[default]
    None,
    /// The prompt was written.
    Sent,
    /// The agent reported that the prompt is queued: messages before it begins belong to something
    /// else.
    Queued,
    /// The turn runs.
    Running,
}

/// The session's id, as far as it is known.
#[derive(Debug, Default)]
struct AgentSession {
    /// The expected id; `None` if it is unknown.
    id: Option<UntrustedText>,
    /// Whether the agent has reported this id.
    is_confirmed: bool,
}

/// One channel that speaks stream-json.
#[derive(Debug, Default)]
pub struct Claude {
    channel: ChannelState,
    opening: OpenParams,
    /// Number of our requests so far.
    requests: u64,
    /// Our open request, if it is not an interrupt. There is one at a time.
    control: Option<Control>,
    /// The id of the open interrupt request.
    interrupt: Option<String>,
    version: Option<UntrustedText>,
    settings: Settings,
    session: AgentSession,
    /// Number of prompts so far.
    prompts: u64,
    turn: Turn,
    /// When a turn ends without its result, after the agent reported that the turn's prompt has
    /// ended, and with which outcome.
    pending_end: Option<(Instant, TurnOutcome)>,
    /// Whether the turn was interrupted.
    cancelling: bool,
    streamed_blocks: StreamedBlocks,
    /// Tokens in the agent's context, by the last message of its model.
    context: u64,
    ids: RequestIds,
    /// Open requests, with the input that an allowing answer must repeat.
    open_requests: OpenRequests<Option<Box<RawValue>>>,
}

impl Protocol for Claude {
    const VERSION: &'static str = control::SUPPORTED;

    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    fn start(&mut self, opening: &OpenParams, out: &mut Effects) {
        self.opening = opening.clone();
        self.begin(out);
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame> {
        let object = json::expect_object(line)?;
        if self.try_fast_path(object, out) {
            return Ok(());
        }
        let tag = json::read_tag(object)?;
        match message::read(&tag, object) {
            Err(BadFrame::Shape) => self.handle_bad_shape(&tag, object, out),
            message => self.handle_message(message?, object, out),
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError> {
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(DialectError::Busy),
            Command::Prompt { text, .. } => {
                self.turn = Turn::Sent;
                self.prompts += 1;
                let uuid = self.prompt_id();
                out.push(Effect::Write(write::prompt(&text, uuid.as_deref())));
            }
            Command::Cancel => self.cancel(out),
            Command::AnswerPermission { key, answer } => {
                let input = self
                    .open_requests
                    .close_by_key(&key)
                    .ok_or(DialectError::UnknownRequest)?;
                let line = write::answer(&key.id, input.as_deref(), &answer);
                out.push(Effect::Write(line));
            }
            Command::Set(setting) => self.apply_user_setting(&setting, out)?,
            Command::Slash { .. } | Command::AnswerClientRequest { .. } => {
                return Err(DialectError::Unsupported);
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn shut_down(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        out.push(Effect::CloseInput);
    }

    fn on_close(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        self.control = None;
    }

    fn due(&self) -> Option<Instant> {
        let due = [self.control_due(), self.result_due()];
        due.into_iter().flatten().min()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        if self.control_due().is_some_and(|due| due <= now) {
            self.on_control_timeout(out);
        } else if self.result_due().is_some_and(|due| due <= now) {
            self.end_turn_without_result(out);
        }
    }
}

impl Claude {
    fn handle_message(&mut self, message: Message<'_>, object: &str, out: &mut Effects) {
        let line = object.as_bytes();
        match message {
            Message::Reply(reply) => self.handle_reply(&reply, line, out),
            // Nothing is written before the agent's version is known.
            Message::Request(_) if self.is_version_unknown() => {
                report_bad_line(OUT_OF_STATE, line, out);
            }
            Message::Request(request) => self.handle_request(&request, line, out),
            Message::CancelRequest(withdrawal) => {
                self.open_requests.withdraw(&withdrawal.request_id.0, out);
            }
            Message::Lifecycle(prompt) => self.lifecycle(&prompt, out),
            Message::Result(result) if self.channel.phase == Phase::Handshaking => {
                self.on_early_result(&result, out);
            }
            Message::Result(result) => self.result(&result, line, out),
            Message::System(system) => self.system(&system, object, out),
            Message::Assistant(spoken) => self.assistant(&spoken, line, out),
            Message::User(spoken) => self.user(&spoken, line, out),
            Message::StreamEvent(piece) => self.handle_stream_event(&piece, line, out),
            Message::Reset if self.channel.phase == Phase::Handshaking => {
                report_bad_line(OUT_OF_STATE, line, out);
            }
            Message::Reset => {
                self.session = AgentSession::default();
                out.push(Effect::SessionCleared);
            }
            Message::Ignored => {}
            Message::Unknown(tag, raw) => out.push(Effect::Event(Event::Unknown {
                tag,
                raw: raw.to_owned(),
            })),
        }
    }

    fn handle_request(&mut self, request: &Request<'_>, line: &[u8], out: &mut Effects) {
        let id = request.id.0.as_ref();
        let wanted = request.read();
        if let RequestKind::Permission(ask) = &wanted {
            return self.handle_permission_request(id, ask, line, out);
        }
        // An answer would also answer an open request of that id.
        self.open_requests.withdraw(id, out);
        match wanted {
            RequestKind::Hook(hook) => requests::answer_hook(id, &hook, out),
            RequestKind::Other(word) => requests::refuse_unsupported(id, &word, line, out),
            RequestKind::Permission(_) | RequestKind::Unreadable => {
                self.reject_unreadable(id, line, out);
            }
        }
    }

    /// A known message of an unknown shape. Whatever waits for it must not wait forever.
    fn handle_bad_shape(&mut self, tag: &str, object: &str, out: &mut Effects) {
        self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        match tag {
            _ if self.channel.is_closed() => {}
            "result" if matches!(self.turn, Turn::Sent | Turn::Running) => {
                let detail = "the end of the turn cannot be read".to_owned();
                self.end_turn(TurnEnd::failure(detail), out);
            }
            "control_request" if !self.is_version_unknown() => {
                if let Some(id) = message::parse_request_id(object) {
                    self.answer_unreadable(&id, out);
                }
            }
            _ => {}
        }
    }

    /// Whether the agent has not yet named a supported version.
    const fn is_version_unknown(&self) -> bool {
        self.version.is_none()
    }

    /// The id of the last prompt: the channel's id with the prompt's number at the end. The agent
    /// skips a prompt whose id its session already has.
    fn prompt_id(&self) -> Option<String> {
        let begin = self.opening.fresh_id.get(..24)?;
        Some(format!("{begin}{:012x}", self.prompts))
    }

    /// Cancels the running turn. Does nothing if none runs, or if it is already cancelled.
    fn cancel(&mut self, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.open_requests.withdraw_all(out);
        self.write_interrupt(out);
    }

    fn write_interrupt(&mut self, out: &mut Effects) {
        let id = self.next_request_id();
        out.push(Effect::Write(write::interrupt(&id)));
        self.interrupt = Some(id);
    }

    fn end_turn(&mut self, end: TurnEnd, out: &mut Effects) {
        // An interrupt ends the open requests; nothing else does.
        let is_ended = self.cancelling || self.channel.is_shutting_down;
        for (key, _) in self.open_requests.close_all() {
            let denial = (!is_ended).then(|| write::deny(&key.id, "the turn has ended"));
            out.push(Effect::RequestWithdrawn(key));
            out.extend(denial.map(Effect::Write));
        }
        self.turn = Turn::None;
        self.pending_end = None;
        self.streamed_blocks = StreamedBlocks::default();
        let was_cancelling = std::mem::take(&mut self.cancelling);
        out.push(Effect::Event(end.into_event(was_cancelling)));
    }
}
