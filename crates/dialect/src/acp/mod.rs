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
//! - A line is a message if it is an object with a `method`, a `result` or an `error`. The channel is ready
//!   when the session is open and set as the pool wants it. An update before that is reported as after it.
//! - A login that is wanted parks the slot (`needs_setup`), with what the agent offers. So does a mode or option
//!   that is not offered, and a mode that skips permission requests. A later change into such a mode
//!   kills the child at once (`protocol_fault`).
//! - No reply to a request of ours within `timeouts.control`, or no word after three keepalives, fails the
//!   channel. So do more than `limits::EXCESS_PERMISSION_REQUESTS` requests beyond `limits::OPEN_PERMISSION_REQUESTS`.
//! - A permission request that cannot be read is a `report_bad_line` (`bad_shape`) and gets the error -32602.
//!   One outside of a turn, or with a used id, is denied; in a cancelled turn it is answered `cancelled`.
//! - A request that is not served gets the error -32601. A reply without a request of ours is a `report_bad_line`
//!   (`unknown_id`).
//! - An unknown notification is an `unknown` event, and nothing if its name begins with `_` or `$`. So is
//!   an update that is not typed here, and content that is no text.

mod auth;
mod calls;
mod client;
mod fast_path;
mod handshake;
mod keepalive;
mod mcp_tool_call;
mod message;
mod modes;
mod notices;
mod prompt;
mod requests;
mod resume;
mod settings;
mod setup;
mod shutdown;
mod updates;
mod user_settings;
mod write;

pub(super) use calls::is_input_omitted;
pub use client::parse_recorded_request;
pub(super) use mcp_tool_call::parse_mcp_tool_call;

use std::time::Instant;

use serde_json::value::RawValue;

use self::calls::ToolCalls;
use self::client::ClientRequests;
use self::envelope::{ErrorReply, Message};
use self::keepalive::Keepalive;
use self::message::{Capabilities, PermissionOptions};
use self::resume::Replay;
use self::setup::SetupState;
use self::shutdown::ShutdownState;
use super::lenient::parse_object;
use super::open_requests::{OpenRequests, RequestIds};
use super::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
    PendingDenials, envelope, report_bad_line,
};
use marshal_config::PermissionReply;
use marshal_model::limits;
use marshal_model::{AgentInfo, ErrorOrigin, Event, TurnOutcome, UntrustedText, Usage};
use marshal_wire::json::{self, BadFrame};

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
    Replaying,
    /// It waits for the replies to what the session is set to.
    Configuring,
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
    opening: OpenParams,
    capabilities: Capabilities,
    control: Option<Control>,
    /// Pages of `session/list` read so far.
    pages: u32,
    replay: Replay,
    info: AgentInfo,
    /// Set once the channel is ready.
    session: Option<UntrustedText>,
    setup: SetupState,
    turn: Turn,
    /// `session/cancel` was written for the turn.
    cancelling: bool,
    shutdown: ShutdownState,
    keepalive: Keepalive,
    /// The ids of everything that the agent asks, permissions and all else.
    ids: RequestIds,
    open_requests: OpenRequests<PermissionOptions>,
    calls: ToolCalls,
    client: ClientRequests,
    denials: PendingDenials,
    /// Those that the prompt tells of which nothing came yet.
    unconfirmed_denials: PendingDenials,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    excess_requests: u32,
}

impl Dialect for Acp {
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.denials = std::mem::take(&mut self.opening.denials);
        let offers = opening.client_capabilities;
        self.send_request(Phase::Initializing, "initialize", out, |id| {
            write::initialize(id, offers)
        });
    }

    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.phase == Phase::Closed {
            return;
        }
        self.now = Some(now);
        self.keepalive.record_activity(now);
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
        if self.shutdown != ShutdownState::NotStarted {
            return Err(DialectError::Closed);
        }
        if self.phase != Phase::Ready || self.session.is_none() {
            return Err(DialectError::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn != Turn::None => return Err(DialectError::Busy),
            Command::Prompt {
                text,
                attachments: attached,
            } => self.prompt(&text, &attached, out),
            Command::Slash { .. } => return Err(DialectError::Unsupported),
            Command::Cancel => self.cancel(out),
            Command::AnswerPermission { key, answer } => self.answer(&key, &answer, out)?,
            Command::AnswerClientRequest { key, answer } => {
                self.client_answer(&key, &answer, out)?;
            }
            Command::Set(setting) => self.apply_user_setting(&setting, out)?,
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
            self.on_control_timeout(out);
        } else if is_due(self.quiet_due()) {
            self.finish_replay(out);
        } else if is_due(self.keepalive_due()) {
            self.send_keepalive(now, out);
        }
    }

    fn take_pending_denials(&mut self) -> PendingDenials {
        let telling = std::mem::take(&mut self.unconfirmed_denials);
        self.denials.restore(telling);
        std::mem::take(&mut self.denials)
    }
}

impl Acp {
    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Writes a request whose reply moves the channel on.
    fn send_request(
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

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) {
        let object = match json::expect_object(line) {
            Ok(object) => object,
            Err(bad) => return self.count_bad_line(bad, line, out),
        };
        if self.try_fast_path(object, out) {
            return;
        }
        match envelope::read(object) {
            Ok(Message::Reply { id, outcome }) => self.handle_reply(id, outcome, line, out),
            Ok(Message::Request { id, method, params }) => {
                self.handle_request(&id, &method, params, line, out);
            }
            Ok(Message::Notification { method, params }) => {
                self.handle_notification(&method, params, object, out);
            }
            Err(bad) => self.count_bad_line(bad, line, out),
        }
    }

    /// The reply to a request of ours that is open, or one that nobody waits for.
    fn handle_reply(
        &mut self,
        id: Option<u64>,
        outcome: Result<&RawValue, ErrorReply>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let Some(id) = id else {
            return report_bad_line("unknown_id", line, out);
        };
        if self.control.is_some_and(|control| control.id == id) {
            self.control = None;
            return self.on_control_reply(outcome, out);
        }
        match self.turn {
            Turn::Sent(prompt) | Turn::Running(prompt) if prompt == id => {
                self.on_prompt_reply(outcome, line, out);
            }
            _ if self.keepalive.take_reply(id) => {}
            _ => report_bad_line("unknown_id", line, out),
        }
    }

    /// The reply to the request of [`Acp::ask`].
    fn on_control_reply(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        match self.phase {
            Phase::Initializing => self.on_initialize_reply(outcome, out),
            Phase::Authenticating => self.on_authenticate_reply(outcome, out),
            Phase::Listing => self.on_session_list_reply(outcome, out),
            Phase::Creating => self.on_session_new_reply(outcome, out),
            Phase::Loading => self.on_session_load_reply(outcome, out),
            Phase::Configuring => self.on_setting_reply(outcome, out),
            Phase::Ready if self.shutdown == ShutdownState::NotStarted => {
                self.on_user_setting_reply(outcome, out);
            }
            Phase::Ready => self.on_shutdown_reply(out),
            Phase::Replaying | Phase::Closed => {}
        }
    }

    /// The turn's end.
    fn on_prompt_reply(
        &mut self,
        outcome: Result<&RawValue, ErrorReply>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let telling = std::mem::take(&mut self.unconfirmed_denials);
        if outcome.is_err() {
            self.denials.restore(telling);
        }
        let end = match outcome {
            Ok(result) => {
                let read = parse_object::<message::PromptResult<'_>>(result);
                let read = read.and_then(|prompted| Some((prompted.stop_reason()?, prompted)));
                if let Some((stop_reason, prompted)) = read {
                    Event::TurnEnded {
                        outcome: message::outcome(stop_reason.raw()),
                        stop_reason: Some(stop_reason),
                        usage: prompted.usage(),
                        detail: None,
                    }
                } else {
                    report_bad_line("bad_shape", line, out);
                    self.failed_turn_end("the end of the turn cannot be read".to_owned())
                }
            }
            Err(error) => {
                let said = describe_error(&error);
                out.push(Effect::Event(Event::AgentError {
                    code: error.code.into(),
                    message: error.message.into(),
                    origin: ErrorOrigin::Unknown,
                }));
                self.failed_turn_end(said)
            }
        };
        self.turn = Turn::None;
        self.cancelling = false;
        self.calls.clear();
        self.cancel_requests(out);
        out.push(Effect::Event(end));
    }

    /// The end of a turn that failed; if we cancelled it, that is what the agent failed at.
    fn failed_turn_end(&self, detail: String) -> Event {
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
    fn note_turn_activity(&mut self, out: &mut Effects) -> bool {
        if let Turn::Sent(id) = self.turn {
            self.turn = Turn::Running(id);
            self.unconfirmed_denials = PendingDenials::default();
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
        self.cancel_requests(out);
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

    /// The form that answers to permission requests have.
    fn reply_format(&self) -> PermissionReply {
        self.opening.acp.permission_reply
    }

    /// Ends every open request with the answer that the protocol has for a cancelled turn.
    fn cancel_requests(&mut self, out: &mut Effects) {
        for (key, _) in self.open_requests.close_all() {
            let answer = write::cancel_permission(self.reply_format(), &key.id);
            out.push(Effect::RequestWithdrawn(key));
            out.push(Effect::Write(answer));
        }
    }

    /// Ends every open request; nobody is there to be answered.
    fn withdraw_requests(&mut self, out: &mut Effects) {
        let open = self.open_requests.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
        let wanted = self.client.close_all().into_iter();
        out.extend(wanted.map(Effect::RequestWithdrawn));
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

/// An error of the agent as a sentence of ours.
pub(super) fn describe_error(error: &ErrorReply) -> String {
    let code = UntrustedText::from(error.code.as_str()).escape_for_display(40);
    let message = UntrustedText::from(error.message.as_str()).escape_for_display(300);
    let data = error.data.as_deref().map(UntrustedText::from);
    let data = data.map_or_else(String::new, |data| {
        format!(" ({})", data.escape_for_display(200))
    });
    format!("the agent reported error {code}: {message}{data}")
}

/// Texts of an agent as a list for a person: shown safely, the rest of a long list only counted.
pub(super) fn join_for_display<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let mut texts = texts.into_iter();
    let shown = texts.by_ref().take(SHOWN);
    let shown: Vec<String> = shown
        .map(|text| UntrustedText::from(text).escape_for_display(60))
        .collect();
    if shown.is_empty() {
        return "none".to_owned();
    }
    match texts.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
