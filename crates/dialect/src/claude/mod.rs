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
use super::open_requests::{OpenRequests, RequestIds};
use super::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
    report_bad_line,
};
use marshal_model::limits;
use marshal_model::{Event, TurnOutcome, UntrustedText, Usage};
use marshal_wire::json::{self, BadFrame};

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
struct AgentSession {
    /// What it should be called; `Idle`: nobody knows.
    id: Option<UntrustedText>,
    /// The agent called it so.
    is_confirmed: bool,
}

/// One channel that speaks stream-json.
#[derive(Debug, Default)]
pub struct Claude {
    phase: Phase,
    /// The time of what is being handled.
    now: Option<Instant>,
    opening: OpenParams,
    /// Requests of ours so far.
    requests: u64,
    /// The one that is open, if it is no interrupt: there is one at a time.
    control: Option<Control>,
    /// The interrupt that is open.
    interrupt: Option<String>,
    version: Option<UntrustedText>,
    settings: Settings,
    session: AgentSession,
    /// Prompts so far.
    prompts: u64,
    turn: Turn,
    /// When a turn ends without its result, of which the agent said by its prompt's state that it is over;
    /// and how.
    pending_end: Option<(Instant, TurnOutcome)>,
    /// The turn was interrupted.
    cancelling: bool,
    is_shutting_down: bool,
    streamed_blocks: StreamedBlocks,
    /// Tokens in the agent's context, by the last message of its model.
    context: u64,
    ids: RequestIds,
    /// Open requests, with the input that an allowance must repeat.
    open_requests: OpenRequests<Option<Box<RawValue>>>,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    excess_requests: u32,
}

impl Dialect for Claude {
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.begin(out);
    }

    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        self.now = Some(now);
        match input {
            Input::Frame(line) => self.handle_line(line, out),
            Input::TooLong(head) => {
                report_bad_line("too_long", head, out);
                let cap = limits::LINE_BYTES;
                let said = format!("the agent wrote a line of more than {cap} bytes");
                self.fail_protocol(said, out);
            }
            Input::Eof => {
                self.withdraw_requests(out);
                self.control = None;
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
        self.now = Some(now);
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

    fn deadline(&self) -> Option<Instant> {
        let due = [self.control_due(), self.result_due()];
        due.into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        if self.control_due().is_some_and(|due| due <= now) {
            self.on_control_timeout(out);
        } else if self.result_due().is_some_and(|due| due <= now) {
            self.end_turn_without_result(out);
        }
    }
}

impl Claude {
    fn handle_line(&mut self, line: &[u8], out: &mut Effects) {
        let object = match json::expect_object(line) {
            Ok(object) => object,
            Err(bad) => return self.count_bad_line(bad, line, out),
        };
        if self.try_fast_path(object, out) {
            return;
        }
        let tag = match json::read_tag(object) {
            Ok(tag) => tag,
            Err(bad) => return self.count_bad_line(bad, line, out),
        };
        match message::read(&tag, object) {
            Ok(message) => self.handle_message(message, object, out),
            Err(BadFrame::Shape) => self.handle_bad_shape(&tag, object, out),
            Err(bad) => self.count_bad_line(bad, line, out),
        }
    }

    fn handle_message(&mut self, message: Message<'_>, object: &str, out: &mut Effects) {
        let line = object.as_bytes();
        match message {
            Message::Reply(reply) => self.handle_reply(&reply, line, out),
            // Nothing is written before the agent's version is known.
            Message::Request(_) if self.is_version_unknown() => {
                report_bad_line("out_of_state", line, out);
            }
            Message::Request(request) => self.handle_request(&request, line, out),
            Message::CancelRequest(withdrawal) => {
                let open = self.open_requests.close(&withdrawal.request_id.0);
                out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
            }
            Message::Lifecycle(prompt) => self.lifecycle(&prompt, out),
            Message::Result(result) if self.phase == Phase::Handshaking => {
                self.on_early_result(&result, out);
            }
            Message::Result(result) => self.result(&result, line, out),
            Message::System(system) => self.system(&system, object, out),
            Message::Assistant(spoken) => self.assistant(&spoken, line, out),
            Message::User(spoken) => self.user(&spoken, line, out),
            Message::StreamEvent(piece) => self.handle_stream_event(&piece, line, out),
            Message::Reset if self.phase == Phase::Handshaking => {
                report_bad_line("out_of_state", line, out);
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
        // Its answer would be one to an open request of that id, too.
        let open = self.open_requests.close(id);
        out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
        match wanted {
            RequestKind::Hook(hook) => requests::answer_hook(id, &hook, out),
            RequestKind::Other(word) => requests::refuse_unsupported(id, &word, line, out),
            RequestKind::Permission(_) | RequestKind::Unreadable => {
                self.reject_unreadable(id, line, out);
            }
        }
    }

    /// A message that we know, with a shape that we do not: what waits for it must not wait on.
    fn handle_bad_shape(&mut self, tag: &str, object: &str, out: &mut Effects) {
        self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
        match tag {
            _ if self.phase == Phase::Closed => {}
            "result" if matches!(self.turn, Turn::Sent | Turn::Running) => {
                self.end_turn(TurnEnd::failure("the end of the turn cannot be read"), out);
            }
            "control_request" if !self.is_version_unknown() => {
                if let Some(id) = message::parse_request_id(object) {
                    self.answer_unreadable(&id, out);
                }
            }
            _ => {}
        }
    }

    /// Whether the agent has not named a version that is ours.
    const fn is_version_unknown(&self) -> bool {
        self.version.is_none()
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

    /// The id of the prompt that was written last: that of the channel, with its number at the end. The agent
    /// leaves out a prompt whose id its session has had.
    fn prompt_id(&self) -> Option<String> {
        let begin = self.opening.fresh_id.get(..24)?;
        Some(format!("{begin}{:012x}", self.prompts))
    }

    /// Ends the running turn from our side. Nothing to do if none runs, or if that was said.
    fn cancel(&mut self, out: &mut Effects) {
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        self.withdraw_requests(out);
        self.write_interrupt(out);
    }

    fn write_interrupt(&mut self, out: &mut Effects) {
        let id = self.next_request_id();
        out.push(Effect::Write(write::interrupt(&id)));
        self.interrupt = Some(id);
    }

    /// Says goodbye, once: the agent ends with its input.
    fn shut_down(&mut self, out: &mut Effects) {
        if self.is_shutting_down {
            return;
        }
        self.is_shutting_down = true;
        self.withdraw_requests(out);
        out.push(Effect::CloseInput);
    }

    /// Ends every open request unanswered.
    fn withdraw_requests(&mut self, out: &mut Effects) {
        let open = self.open_requests.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
    }

    fn end_turn(&mut self, end: TurnEnd, out: &mut Effects) {
        // An interrupt ends what is open; nothing else does.
        let is_ended = self.cancelling || self.is_shutting_down;
        for (key, _) in self.open_requests.close_all() {
            let denial = (!is_ended).then(|| write::deny(&key.id, "the turn is over"));
            out.push(Effect::RequestWithdrawn(key));
            out.extend(denial.map(Effect::Write));
        }
        self.turn = Turn::None;
        self.pending_end = None;
        self.streamed_blocks = StreamedBlocks::default();
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

    fn fail_protocol(&mut self, said: String, out: &mut Effects) {
        self.fail_channel(ChannelError::Protocol(said), out);
    }

    fn fail_channel(&mut self, fault: ChannelError, out: &mut Effects) {
        self.withdraw_requests(out);
        self.control = None;
        self.phase = Phase::Closed;
        out.push(Effect::ChannelFailed(fault));
    }
}

/// What is known of a turn's end.
struct TurnEnd {
    outcome: TurnOutcome,
    stop_reason: Option<UntrustedText>,
    usage: Usage,
    detail: Option<String>,
}

impl TurnEnd {
    fn failure(detail: &str) -> Self {
        Self {
            outcome: TurnOutcome::Failed,
            stop_reason: None,
            usage: Usage::default(),
            detail: Some(detail.to_owned()),
        }
    }
}
