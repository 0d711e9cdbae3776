//! loaf's RPC, protocol 1, from the client's side. Source: its page "RPC mode", and the agent's
//! behaviour where that page is silent.
//!
//! Owns the order of the conversation: the version gate, the session, one turn at a time. Must not
//! know a message's format (`message`, `write`), or what happens to an event.
//!
//! Where the protocol is open, or agents differ, this module decides as follows:
//!
//! - Before the agent has answered `rpc.handshake` with a version of the major number 1, only that
//!   request is written. The handshake is strict. For an agent that rejects ours because its own
//!   minor version is later, it is repeated once, with the agent's version.
//! - Nothing in the protocol asks for permission. A tool call is reported when it begins and when
//!   it ends, and is evaluated then. Requests of the agent are not supported.
//! - The reply to `session.send` is not the turn's end: that is `session.completed`, `.interrupted`
//!   or `.error`. Events may come before it. The first of them names the turn. An agent that then
//!   gives it another name violates the protocol.
//! - A prompt is sent without queueing. If the agent queues it all the same, it has accepted the
//!   prompt when its turn begins; until then a cancel removes it from the queue.
//! - A turn that was interrupted before it had begun is interrupted again when it begins: the first
//!   interrupt had nothing to interrupt.
//! - `system.shutdown` does not end the agent, so its stdin is closed after the reply.
//! - A login needs a person at a browser, so the slot parks with the login's description.
//! - Another major version, none, or an error in the reply to `rpc.handshake` parks the slot. So do
//!   `auth.flow.url`, `.device_code` and `.failed` (`needs_setup`, with the address and the code).
//! - Text of another turn or session is a `bad_line` event (`out_of_state`) and dropped.
//! - An error in the reply to `session.send` (-32603: busy, unknown) ends the turn `failed`; the
//!   channel continues.
//! - An event that is not listed is an `unknown` event. A request gets the error -32601; before the
//!   version is known it is a `bad_line` event (`out_of_state`).
//! - No reply to a slash command within `timeouts.control` is an `agent_error`.

mod answer_text;
mod calls;
mod events;
mod handshake;
mod keepalive;
mod login;
mod message;
mod models;
mod turn;
mod write;

use std::time::Instant;

use self::answer_text::AnswerText;
use self::calls::ToolCalls;
use self::login::Login;
use self::models::{Model, Models};
use self::turn::Turn;
use super::driver::{ChannelState, Protocol};
use super::jsonrpc::{self, Message, Outcome, OwnRequests, RequestId, VERSIONED};
use super::{Command, DialectError, Effect, Effects, OUT_OF_STATE, OpenParams, report_bad_line};
use marshal_model::{AgentInfo, UntrustedText};
use marshal_wire::json::{self, BadFrame};

/// How many requests, beside the one that moves the channel on, may await replies. Beyond that the
/// oldest is forgotten.
const OPEN: usize = 32;

/// What the handshake waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Step {
    /// Waits for the reply to `rpc.handshake`.
    #[default]
    Handshaking,
    /// Waits for the reply to `session.create`.
    Creating,
    /// Waits for the reply to `session.get`.
    Loading,
    /// Waits for the reply to `model.list`.
    Listing,
    /// Waits for the reply to `model.select`.
    Selecting,
}

/// The purpose of any other open request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PendingReply {
    Send,
    Interrupt,
    Clear,
    Queue,
    Steer,
    /// A slash command, by its name.
    Command(String),
    Ping,
}

impl PendingReply {
    /// The method of a request whose reply somebody waits for, and which has no other deadline.
    const fn timed_method(&self) -> Option<&'static str> {
        match self {
            Self::Command(_) => Some("command.execute"),
            Self::Steer => Some("session.steer"),
            _ => None,
        }
    }
}

/// Such a request without a reply yet.
#[derive(Debug)]
struct OpenRequest {
    id: u64,
    pending: PendingReply,
    sent: Option<Instant>,
}

/// One channel that speaks loaf's RPC.
#[derive(Debug, Default)]
pub struct Loaf {
    channel: ChannelState,
    step: Step,
    requests: OwnRequests,
    opening: OpenParams,
    /// Whether the handshake was repeated with the agent's version.
    is_handshake_repeated: bool,
    /// The methods that the agent supports, if it lists them.
    methods: Option<Vec<String>>,
    /// The model that is being selected.
    selecting: Option<Model>,
    open_requests: Vec<OpenRequest>,
    info: AgentInfo,
    session: Option<UntrustedText>,
    models: Models,
    turn: Option<Turn>,
    /// The name of the turn that ended last, so that its late events are recognized.
    last: Option<String>,
    answer_text: AnswerText,
    calls: ToolCalls,
    login: Option<Login>,
}

impl Protocol for Loaf {
    const VERSION: &'static str = write::VERSION;

    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    fn start(&mut self, opening: &OpenParams, out: &mut Effects) {
        self.opening = opening.clone();
        self.send_handshake(write::VERSION, out);
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame> {
        let object = json::expect_object(line)?;
        if let Some((about, chunk)) = message::parse_chunk_line(object) {
            self.chunk(&about, chunk, line, out);
            return Ok(());
        }
        match jsonrpc::read(object)? {
            Message::Reply { id, outcome } => self.handle_reply(id, outcome, line, out),
            Message::Request { id, .. } => self.handle_request(&id, line, out),
            Message::Notification { method, params } => {
                self.handle_notification(&method, params, object, out);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError> {
        let Some(session) = self.session.clone() else {
            return Err(DialectError::NotReady);
        };
        match command {
            Command::Prompt { text, .. } => self.prompt(&session, &text, out),
            Command::Slash { command, args } => self.slash(&session, command, &args, out),
            Command::Cancel => {
                self.cancel(&session, out);
                Ok(())
            }
            Command::Set(setting) => self.apply_user_setting(&setting, out),
            Command::AnswerPermission { .. } => Err(DialectError::UnknownRequest),
            Command::AnswerClientRequest { .. } => Err(DialectError::Unsupported),
            Command::Goodbye => Ok(()),
        }
    }

    fn shut_down(&mut self, out: &mut Effects) {
        if let Some(turn) = &mut self.turn {
            turn.is_cancelled = true;
        }
        if self.channel.is_ready() && self.selecting.take().is_some() {
            let why = "the session ends before the agent said whether it accepts the model";
            out.push(Effect::SettingResult(Err(why.to_owned())));
        }
        if self.channel.is_ready() && self.has_method("system.shutdown") {
            return self.send_request("system.shutdown", out, write::shutdown);
        }
        self.requests.stop_waiting();
        out.push(Effect::CloseInput);
    }

    fn on_close(&mut self, _out: &mut Effects) {
        self.requests.stop_waiting();
    }

    fn due(&self) -> Option<Instant> {
        let due = [
            self.channel.reply_due(self.requests.waits_since()),
            self.send_due(),
            self.login_due(),
            self.command_due(),
            self.ping_due(),
        ];
        due.into_iter().flatten().min()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.channel.reply_due(self.requests.waits_since())) {
            self.on_control_timeout(out);
        } else if is_due(self.send_due()) {
            self.fail_unanswered("session.send", out);
        } else if is_due(self.login_due()) {
            self.on_login_timeout(out);
        } else if is_due(self.command_due()) {
            self.on_command_timeout(now, out);
        } else if is_due(self.ping_due()) {
            self.send_ping(now, out, |loaf, out| {
                loaf.send_side_request(PendingReply::Ping, out, write::ping)
            });
        }
    }
}

impl Loaf {
    /// Whether the agent supports a method, as far as it lists them.
    fn has_method(&self, method: &str) -> bool {
        let methods = self.methods.as_ref();
        methods.is_none_or(|methods| methods.iter().any(|item| item == method))
    }

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

    /// Writes a request whose reply does not; returns its id.
    fn send_side_request(
        &mut self,
        wait: PendingReply,
        out: &mut Effects,
        line: impl FnOnce(u64) -> Vec<u8>,
    ) -> u64 {
        let id = self.requests.write(out, line);
        if self.open_requests.len() >= OPEN {
            self.open_requests.remove(0);
        }
        self.open_requests.push(OpenRequest {
            id,
            pending: wait,
            sent: self.channel.now,
        });
        id
    }

    /// Handles a request of the agent: the protocol has none.
    fn handle_request(&self, id: &RequestId, line: &[u8], out: &mut Effects) {
        // Nothing is written before the agent's version is known.
        if self.step == Step::Handshaking {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        out.push(Effect::Write(VERSIONED.method_not_found(id.json())));
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
        let Some(at) = self.open_requests.iter().position(|open| open.id == id) else {
            return report_bad_line("unknown_id", line, out);
        };
        match self.open_requests.remove(at).pending {
            PendingReply::Send => self.on_send_reply(id, outcome, line, out),
            PendingReply::Interrupt => self.on_interrupt_reply(outcome, out),
            PendingReply::Clear => self.on_queue_clear_reply(outcome, out),
            PendingReply::Queue => self.on_queue_list_reply(outcome, out),
            PendingReply::Steer => turn::on_steer_reply(outcome, out),
            PendingReply::Command(command) => self.on_command_reply(command, outcome, out),
            // Any reply shows that the agent is alive.
            PendingReply::Ping => {}
        }
    }

    /// Handles the reply to the request that moves the conversation on.
    fn on_control_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        if self.channel.is_ready() {
            return if self.channel.is_shutting_down {
                // Any reply to the shutdown request completes it.
                out.push(Effect::CloseInput);
            } else {
                self.on_user_setting_reply(outcome, out);
            };
        }
        match self.step {
            Step::Handshaking => self.on_handshake_reply(outcome, out),
            Step::Creating => self.on_session_create_reply(outcome, out),
            Step::Loading => self.on_session_get_reply(outcome, out),
            Step::Listing => self.on_model_list_reply(outcome, out),
            Step::Selecting => self.on_model_select_reply(outcome, out),
        }
    }
}
