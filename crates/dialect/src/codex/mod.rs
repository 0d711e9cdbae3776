//! `codex app-server`, from the client's side. Source: the JSON schema that the program generates
//! of its own protocol (`codex app-server generate-json-schema`) and the observed behaviour of
//! versions 0.166 and 0.169.
//!
//! Owns the order of the conversation: the version gate, the thread, one turn at a time. Must not
//! know a message's format (`write`), or what happens to an event.
//!
//! Where the schema is open, this module decides as follows:
//!
//! - Only `initialize` is written before the version in its reply is known to be supported.
//! - A thread that does not ask as configured, or whose requests somebody else answers, is not
//!   used. A change into such a thread ends the child.
//! - A turn's name is known with the reply to its request, or with `turn/started`. A cancel waits
//!   for it, and is sent again if the turn had not begun for the agent at the first time.
//! - A turn ends with `turn/completed` of its name, or with an error in the reply to its request.
//! - What would run is what its request says: its command and directory, read closed. A request to
//!   change files names no file. It is about the whole item of its id, and is denied where that
//!   item is unknown.
//! - Permissions for later actions, answers that a person would have to write, and unknown requests
//!   are refused with the least that the protocol accepts.
//! - A request that an overloaded agent rejects (-32001) is sent again, with growing waits.
//! - A version below 0.166, or from 1 on, parks the slot. So does a provider that requires a login
//!   when nobody is logged in (`needs_setup`). A thread that later asks otherwise, or has another
//!   sandbox, ends the child at once (`protocol_fault`).
//! - A request for another command than the one reported under its id, or of another thread or
//!   turn, is recorded and denied. An unknown member stays in the evaluated input: an unknown tool.
//! - Any other request is an `unknown` event, or gets the error -32601; nothing is granted.
//! - A request that was rejected with -32001 is sent at most six times more (`keepalive.rs`).
//!   Messages of another turn do not end that wait.
//! - The end of a turn that is not the running one is a `bad_line` event (`out_of_state`). One of
//!   our thread without a readable name ends the turn `failed`. The beginning of a call that
//!   already runs is a `tool_update`.

mod approvals;
mod calls;
mod fast_path;
mod handshake;
mod items;
mod keepalive;
mod members;
mod notifications;
mod shell_words;
mod turns;
mod usage;
mod version;
mod write;

use std::collections::VecDeque;
use std::time::Instant;

pub(super) use self::calls::parse_mcp_tool_call;

use self::approvals::OpenApproval;
use self::items::TurnItems;
use self::keepalive::{RetryQueue, RetryTarget};
use self::turns::Turn;
use self::usage::TurnUsage;
use super::driver::{ChannelState, Protocol};
use super::jsonrpc::{self, ErrorReply, Message, Outcome, OwnRequests};
use super::open_requests::{OpenRequests, RequestIds};
use super::{Command, DialectError, Effect, Effects, OpenParams, PendingDenials, report_bad_line};
use marshal_model::{AgentInfo, UntrustedText};
use marshal_wire::json::{self, BadFrame};

/// What the handshake waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Step {
    /// Waits for the reply to `initialize`.
    #[default]
    Initializing,
    /// Waits for the reply to `account/read`.
    Account,
    /// Waits for the reply to `thread/start`.
    Starting,
    /// Waits for the reply to `thread/resume`.
    Resuming,
}

/// One channel that speaks to `codex app-server`.
#[derive(Debug, Default)]
pub struct Codex {
    channel: ChannelState,
    step: Step,
    requests: OwnRequests,
    opening: OpenParams,
    info: AgentInfo,
    /// The thread's id, once the channel is ready.
    thread: Option<UntrustedText>,
    turn: Option<Turn>,
    /// Whether the turn was cancelled.
    cancelling: bool,
    /// The id of the open `turn/interrupt` request.
    interrupt: Option<u64>,
    /// Requests of ended turns that have no reply yet.
    late: VecDeque<u64>,
    retries: RetryQueue,
    /// The ids of all requests of the agent.
    ids: RequestIds,
    open_requests: OpenRequests<OpenApproval>,
    items: TurnItems,
    tokens: TurnUsage,
    denials: PendingDenials,
}

impl Protocol for Codex {
    const VERSION: &'static str = version::SUPPORTED;

    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    fn start(&mut self, opening: &OpenParams, out: &mut Effects) {
        self.opening = opening.clone();
        self.denials = std::mem::take(&mut self.opening.denials);
        self.send_request(Step::Initializing, out);
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
            Command::Prompt { .. } if self.turn.is_some() => return Err(DialectError::Busy),
            Command::Prompt { text, .. } => self.prompt(text, out),
            Command::Slash { .. } | Command::AnswerClientRequest { .. } => {
                return Err(DialectError::Unsupported);
            }
            Command::Cancel => self.cancel(out),
            Command::AnswerPermission { key, answer } => self.answer(&key, &answer, out)?,
            Command::Set(_) => {
                let why = "this agent's approval mode and model are set in the configuration";
                return Err(DialectError::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn shut_down(&mut self, out: &mut Effects) {
        self.cancel(out);
        self.cancel_requests(out);
        self.requests.stop_waiting();
        out.push(Effect::CloseInput);
    }

    fn on_close(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
        self.requests.stop_waiting();
    }

    fn due(&self) -> Option<Instant> {
        let due = [
            self.channel.reply_due(self.requests.waits_since()),
            self.retry_due(),
            self.ping_due(),
        ];
        due.into_iter().flatten().min()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.channel.reply_due(self.requests.waits_since())) {
            self.on_control_timeout(out);
        } else if is_due(self.retry_due()) {
            if let Some(again) = self.retries.take(now) {
                self.retry_request(again, out);
            }
        } else if is_due(self.ping_due()) {
            // No version has this method: its error is the sign of life.
            self.send_ping(now, out, |codex, out| {
                codex.requests.write(out, write::ping)
            });
        }
    }

    fn unsent_denials(&mut self) -> PendingDenials {
        let untaken = turns::unsent_denials(self.turn.take());
        self.denials.restore(untaken);
        std::mem::take(&mut self.denials)
    }
}

impl Codex {
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
        if self
            .turn
            .as_ref()
            .is_some_and(|turn| turn.request == Some(id))
        {
            return self.on_turn_start_reply(outcome, out);
        }
        if self.interrupt == Some(id) {
            self.interrupt = None;
            return self.on_interrupt_reply(outcome.err().as_ref());
        }
        if !self.channel.keepalive.take_reply(id) && !self.take_late_reply(id) {
            report_bad_line("unknown_id", line, out);
        }
    }

    /// Sends a request again that an overloaded agent rejected.
    fn retry_request(&mut self, what: RetryTarget, out: &mut Effects) {
        match what {
            RetryTarget::Control => self.send_request(self.step, out),
            RetryTarget::Turn => self.start_turn(out),
            RetryTarget::Interrupt => self.interrupt(out),
        }
    }

    /// Schedules a retry if the agent was overloaded; returns whether it did.
    fn schedule_retry(&mut self, error: &ErrorReply, what: RetryTarget) -> bool {
        let Some(now) = self
            .channel
            .now
            .filter(|_| error.code == keepalive::OVERLOADED)
        else {
            return false;
        };
        self.retries.schedule(what, now)
    }

    /// Whether the agent is stopping or its turn is being cancelled.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.channel.is_shutting_down
    }

    /// Whether that is our thread.
    fn is_our_thread(&self, thread: &str) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|ours| ours.raw() == thread)
    }
}
