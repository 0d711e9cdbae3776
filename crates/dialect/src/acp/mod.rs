//! The Agent Client Protocol, version 1, from the client's side. Source: its schema and its pages
//! "Initialization", "Authentication", "Session setup", "Session modes", "Session config options",
//! "Prompt turn", "Tool calls", "Cancellation".
//!
//! Owns the order of the conversation: the version gate, the session, one turn at a time. Must not
//! know a message's format (`message`, `write`), or what happens to an event.
//!
//! Where the protocol is open, or agents differ, this module decides as follows:
//!
//! - Before the agent has answered `initialize` with the integer 1, only that request is written.
//!   Another version and an error are both a version fault.
//! - A session to resume is looked up by `session/list` where the agent has it: some agents answer
//!   `session/load` of an unknown id with success. The replayed messages are not reported, even
//!   where the agent sends them after its reply.
//! - Mode, model and options are set after every opening, before the first prompt. A mode that
//!   skips permission requests is a fault unless the configuration allows it.
//! - A turn begins, for the agent, with its first piece of text, thought, plan, tool call or
//!   permission request. It ends with the reply to its prompt. If the turn was cancelled, an error
//!   also ends it `cancelled`. A reply without a readable reason is a failed turn.
//! - Text and plans outside of a turn are out of state and dropped. Tool calls are still passed on,
//!   so that they are evaluated.
//! - A denial without an option to reject is answered `cancelled`. That means the turn, so the turn
//!   is cancelled too. So is an approval without an option to allow once: our answers never say
//!   "always".
//! - A request of another session is never allowed, and a call of another session shares nothing
//!   with ours: it is reported and evaluated by itself.
//! - A reply that belongs to no request of ours is counted and ignored: some agents answer messages
//!   that are not requests.
//! - A line is a message if it is an object with a `method`, a `result` or an `error`. The channel
//!   is ready when the session is open and has the pool's settings. An update before that is
//!   reported after it.
//! - A required login parks the slot (`needs_setup`), with the logins that the agent offers. So
//!   does a mode or option that is not offered, and a mode that skips permission requests. A later
//!   change into such a mode kills the child at once (`protocol_fault`).
//! - No reply to a request of ours within `timeouts.control`, or silence after three keepalives,
//!   fails the channel. So do more than `limits::EXCESS_PERMISSION_REQUESTS` requests beyond
//!   `limits::OPEN_PERMISSION_REQUESTS`.
//! - An unreadable permission request is a `bad_line` event (`bad_shape`) and gets the error
//!   -32602. One outside of a turn, or with a used id, is denied. In a cancelled turn it is
//!   answered `cancelled`.
//! - An unsupported request gets the error -32601. A reply without a request of ours is a
//!   `bad_line` event (`unknown_id`).
//! - An unknown notification is an `unknown` event, or nothing if its name begins with `_` or `$`.
//!   An update that is not typed here, and content that is not text, are `unknown` events too.

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

use self::calls::ToolCalls;
use self::client::ClientRequests;
use self::message::{Capabilities, PermissionOptions};
use self::resume::Replay;
use self::setup::SetupState;
use self::shutdown::ShutdownRequest;
use super::driver::{ChannelState, Protocol};
use super::jsonrpc::{self, Message, Outcome, OwnRequests};
use super::lenient::parse_object;
use super::open_requests::{OpenRequests, RequestIds};
use super::turn_end::TurnEnd;
use super::{Command, DialectError, Effect, Effects, OpenParams, PendingDenials, report_bad_line};
use marshal_config::PermissionReply;
use marshal_model::{AgentInfo, Event, UntrustedText};
use marshal_wire::json::{self, BadFrame};

/// What the handshake waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Step {
    /// Waits for the reply to `initialize`.
    #[default]
    Initializing,
    /// Waits for the reply to `authenticate`.
    Authenticating,
    /// Waits for the reply to `session/list`.
    Listing,
    /// Waits for the reply to `session/new`.
    Creating,
    /// Waits for the reply to `session/load` or `session/resume`.
    Loading,
    /// The session is loaded; the agent may still replay its history.
    Replaying,
    /// Waits for the replies to the session's settings.
    Configuring,
}

/// The turn, with the id of its prompt's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    /// No turn.
    #[default]
    None,
    /// The prompt was written; the agent has sent nothing for it yet.
    Sent(u64),
    /// The turn runs.
    Running(u64),
}

/// One channel that speaks ACP.
#[derive(Debug, Default)]
pub struct Acp {
    channel: ChannelState,
    step: Step,
    requests: OwnRequests,
    opening: OpenParams,
    capabilities: Capabilities,
    /// Pages of `session/list` read so far.
    pages: u32,
    replay: Replay,
    info: AgentInfo,
    /// The session's id, once the channel is ready.
    session: Option<UntrustedText>,
    setup: SetupState,
    turn: Turn,
    /// Whether `session/cancel` was written for the turn.
    cancelling: bool,
    shutdown: Option<ShutdownRequest>,
    /// The ids of all requests of the agent, permission requests and others.
    ids: RequestIds,
    open_requests: OpenRequests<PermissionOptions>,
    calls: ToolCalls,
    client: ClientRequests,
    denials: PendingDenials,
    /// The denials that the current prompt reports, until the agent has accepted it.
    unconfirmed_denials: PendingDenials,
}

impl Protocol for Acp {
    const VERSION: &'static str = write::VERSION;

    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    fn start(&mut self, opening: &OpenParams, out: &mut Effects) {
        self.opening = opening.clone();
        self.denials = std::mem::take(&mut self.opening.denials);
        let offers = opening.client_capabilities;
        self.send_request("initialize", out, |id| write::initialize(id, offers));
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame> {
        let object = json::expect_object(line)?;
        if self.try_fast_path(object, out) {
            return Ok(());
        }
        match jsonrpc::read(object)? {
            Message::Reply { id, outcome } => self.handle_reply(id, outcome, line, out),
            Message::Request { id, method, params } => {
                self.handle_request(&id, &method, params, line, out);
            }
            Message::Notification { method, params } => {
                self.handle_notification(&method, params, object, out);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError> {
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

    fn shut_down(&mut self, out: &mut Effects) {
        self.begin_shutdown(out);
    }

    fn on_close(&mut self, out: &mut Effects) {
        self.withdraw_requests(out);
        self.requests.stop_waiting();
    }

    fn due(&self) -> Option<Instant> {
        let due = [
            self.channel.reply_due(self.requests.waits_since()),
            self.quiet_due(),
            self.ping_due(),
        ];
        due.into_iter().flatten().min()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.channel.reply_due(self.requests.waits_since())) {
            self.on_control_timeout(out);
        } else if is_due(self.quiet_due()) {
            self.finish_replay(out);
        } else if is_due(self.ping_due()) {
            // No agent has this method: its error is the sign of life.
            self.send_ping(now, out, |acp, out| acp.requests.write(out, write::ping));
        }
    }

    fn unsent_denials(&mut self) -> PendingDenials {
        let unconfirmed = std::mem::take(&mut self.unconfirmed_denials);
        self.denials.restore(unconfirmed);
        std::mem::take(&mut self.denials)
    }
}

impl Acp {
    /// Writes a request whose reply moves the conversation on.
    fn send_request(
        &mut self,
        method: &'static str,
        out: &mut Effects,
        line: impl FnOnce(u64) -> Vec<u8>,
    ) {
        self.requests
            .write_awaited(method, self.channel.now, out, line);
    }

    /// Handles a reply: to our open request, or to one that is no longer awaited.
    fn handle_reply(
        &mut self,
        id: Option<u64>,
        outcome: Outcome<'_>,
        line: &[u8],
        out: &mut Effects,
    ) {
        let Some(id) = id else {
            return report_bad_line("unknown_id", line, out);
        };
        if self.requests.take_reply(id) {
            return self.on_control_reply(outcome, out);
        }
        match self.turn {
            Turn::Sent(prompt) | Turn::Running(prompt) if prompt == id => {
                self.on_prompt_reply(outcome, line, out);
            }
            _ if self.channel.keepalive.take_reply(id) => {}
            _ => report_bad_line("unknown_id", line, out),
        }
    }

    /// Handles the reply to such a request.
    fn on_control_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        if self.channel.is_ready() {
            return if self.channel.is_shutting_down {
                self.on_shutdown_reply(out);
            } else {
                self.on_user_setting_reply(outcome, out);
            };
        }
        match self.step {
            Step::Initializing => self.on_initialize_reply(outcome, out),
            Step::Authenticating => self.on_authenticate_reply(outcome, out),
            Step::Listing => self.on_session_list_reply(outcome, out),
            Step::Creating => self.on_session_new_reply(outcome, out),
            Step::Loading => self.on_session_load_reply(outcome, out),
            Step::Configuring => self.on_setting_reply(outcome, out),
            Step::Replaying => {}
        }
    }

    /// The turn's end.
    fn on_prompt_reply(&mut self, outcome: Outcome<'_>, line: &[u8], out: &mut Effects) {
        let unconfirmed = std::mem::take(&mut self.unconfirmed_denials);
        if outcome.is_err() {
            self.denials.restore(unconfirmed);
        }
        let end = match outcome {
            Ok(result) => {
                let read = parse_object::<message::PromptResult<'_>>(result)
                    .and_then(|prompted| Some((prompted.stop_reason()?, prompted)));
                if let Some((stop_reason, prompted)) = read {
                    TurnEnd {
                        outcome: message::outcome(stop_reason.raw()),
                        stop_reason: Some(stop_reason),
                        usage: Some(prompted.usage()),
                        detail: None,
                    }
                } else {
                    report_bad_line("bad_shape", line, out);
                    TurnEnd::failure("the end of the turn cannot be read".to_owned())
                }
            }
            Err(error) => {
                let text = error.describe();
                out.push(Effect::Event(error.into_event()));
                TurnEnd::failure(text)
            }
        };
        self.turn = Turn::None;
        let was_cancelling = std::mem::take(&mut self.cancelling);
        self.calls.clear();
        self.cancel_requests(out);
        out.push(Effect::Event(end.into_event(was_cancelling)));
    }

    /// Records that the running turn has output; `false` if none runs.
    fn note_turn_activity(&mut self, out: &mut Effects) -> bool {
        if let Turn::Sent(id) = self.turn {
            self.turn = Turn::Running(id);
            self.unconfirmed_denials = PendingDenials::default();
            out.push(Effect::Event(Event::TurnStarted { turn: None }));
        }
        self.turn != Turn::None
    }

    /// Cancels the running turn. Does nothing if none runs, or if it is already cancelled.
    fn cancel(&mut self, out: &mut Effects) {
        let Some(session) = &self.session else { return };
        if self.turn == Turn::None || self.cancelling {
            return;
        }
        self.cancelling = true;
        out.push(Effect::Write(write::cancel(session)));
        self.cancel_requests(out);
    }

    /// The format of our replies to permission requests.
    fn reply_format(&self) -> PermissionReply {
        self.opening.acp.permission_reply
    }

    /// Ends every open request with the protocol's answer for a cancelled turn.
    fn cancel_requests(&mut self, out: &mut Effects) {
        for (key, _) in self.open_requests.close_all() {
            let answer = write::cancel_permission(self.reply_format(), &key.id);
            out.push(Effect::RequestWithdrawn(key));
            out.push(Effect::Write(answer));
        }
    }

    /// Ends every open request without an answer, because the agent is gone.
    fn withdraw_requests(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        let wanted = self.client.close_all().into_iter();
        out.extend(wanted.map(Effect::RequestWithdrawn));
    }
}

/// Joins texts of an agent into a list for a person: escaped, with the rest of a long list only
/// counted.
pub(super) fn join_for_display<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    const MAX_SHOWN: usize = 20;
    let mut texts = texts.into_iter();
    let shown = texts.by_ref().take(MAX_SHOWN);
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
