//! `codex app-server`, from the client's side. Source: the JSON schema that the program writes of its
//! own protocol (`codex app-server generate-json-schema`) and what versions 0.166 and 0.169 did.
//!
//! Owns the order of the conversation: the version gate, the thread, one turn at a time. Must not
//! know how a message looks (`envelope`, `write`), or what becomes of an event.
//!
//! What the schema leaves open is decided so:
//!
//! - Nothing but `initialize` is written before the version in its reply is known to be ours.
//! - A thread that does not ask as it was told to, or that somebody else than us answers, is none
//!   that is used; a change into such a one ends the child.
//! - A turn's name is known with the reply to its request, or with `turn/started`: a cancel waits for
//!   it, and is said again if the turn had not begun for the agent when it was said first.
//! - A turn ends with `turn/completed` of its name, or with an error in the reply to its request.
//! - What would run is what the request for it says: its command and directory, read closed. A
//!   request to change files names no file: it is about the item of its id, whole, and is denied
//!   where that is not known.
//! - Permissions for what may come later, answers that a person would have to write, and requests
//!   that nobody here knows are refused with as little as the protocol takes.
//! - A request that the agent has no room for (-32001) is sent again, with growing waits.
//! - A version below 0.166, or from 1 on, parks the slot. So does a provider that wants a login when nobody
//!   is logged in (`needs_setup`). A thread that later asks otherwise, or has another sandbox, ends the child
//!   at once (`protocol_fault`).
//! - A request for another command than the one reported under its id, or of another thread or turn, is on
//!   record and denied. A member that nobody knows stays in what is judged: an unknown tool.
//! - Any other request is an `unknown` event, or gets the error -32601; nothing is granted.
//! - A request that was refused with -32001 is sent at most six times more (`alive.rs`). Messages of another
//!   turn do not end that wait.
//! - The end of a turn that is not the running one is a `report_bad_line` (`report_out_of_state`). One of our thread without
//!   a readable name ends the turn `failed`. The beginning of a call that runs already is a `tool_update`.

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

use serde_json::value::RawValue;

pub(super) use self::calls::parse_mcp_tool_call;

use self::approvals::OpenApproval;
use self::items::TurnItems;
use self::keepalive::{Keepalive, RetryQueue, RetryTarget};
use self::turns::Turn;
use self::usage::TurnUsage;
use super::envelope::{self, ErrorReply, Message};
use super::open_requests::{OpenRequests, RequestIds};
use super::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
    PendingDenials, report_bad_line,
};
use marshal_model::limits;
use marshal_model::{AgentInfo, UntrustedText};
use marshal_wire::json::{self, BadFrame};

/// The reason of a line that came when it could not.
const OUT_OF_STATE: &str = "out_of_state";

/// How far the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// It waits for the reply to `initialize`.
    #[default]
    Initializing,
    /// To `account/read`.
    Account,
    /// To `thread/start`.
    Starting,
    /// To `thread/resume`.
    Resuming,
    /// Prompts may be sent.
    Ready,
    /// Faulted or at its end: nothing is read or written any more.
    Closed,
}

/// The request of ours that the phase waits for.
#[derive(Debug, Clone, Copy)]
struct Control {
    id: u64,
    method: &'static str,
    sent: Option<Instant>,
}

/// One channel that speaks to `codex app-server`.
#[derive(Debug, Default)]
pub struct Codex {
    phase: Phase,
    /// The time of what is being handled.
    now: Option<Instant>,
    /// The id of the last request of ours.
    last_id: u64,
    opening: OpenParams,
    control: Option<Control>,
    info: AgentInfo,
    /// Set once the channel is ready.
    thread: Option<UntrustedText>,
    turn: Option<Turn>,
    /// The turn was cancelled.
    cancelling: bool,
    /// `turn/interrupt` waits for its reply.
    interrupt: Option<u64>,
    /// Requests of turns that are over, without their replies.
    late: VecDeque<u64>,
    is_shutting_down: bool,
    retries: RetryQueue,
    keepalive: Keepalive,
    /// The ids of everything that the agent asks.
    ids: RequestIds,
    open_requests: OpenRequests<OpenApproval>,
    items: TurnItems,
    tokens: TurnUsage,
    denials: PendingDenials,
    /// Lines that were no messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    excess_requests: u32,
}

impl Dialect for Codex {
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.opening = opening.clone();
        self.denials = std::mem::take(&mut self.opening.denials);
        self.send_request(Phase::Initializing, out);
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
                self.fail_protocol(
                    format!("the agent wrote a line of more than {cap} bytes"),
                    out,
                );
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
        if self.phase != Phase::Ready {
            return Err(DialectError::NotReady);
        }
        match command {
            Command::Prompt { .. } if self.turn.is_some() => return Err(DialectError::Busy),
            Command::Prompt { text, .. } => self.prompt(text, out),
            Command::Slash { .. } | Command::AnswerClientRequest { .. } => {
                return Err(DialectError::Unsupported);
            }
            Command::Cancel => self.cancel(out),
            Command::AnswerPermission { key, answer } => self.answer(&key, &answer, out)?,
            Command::Set(_) => {
                let why = "when this agent asks and its model stand in the configuration";
                return Err(DialectError::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.due()
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        self.now = Some(now);
        self.handle_due(now, out);
    }

    fn take_pending_denials(&mut self) -> PendingDenials {
        let untaken = turns::unsent_denials(self.turn.take());
        self.denials.restore(untaken);
        std::mem::take(&mut self.denials)
    }
}

impl Codex {
    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
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
        if !self.keepalive.take_reply(id) && !self.take_late_reply(id) {
            report_bad_line("unknown_id", line, out);
        }
    }

    /// Sends a request again that the agent had no room for.
    fn retry_request(&mut self, what: RetryTarget, out: &mut Effects) {
        match what {
            RetryTarget::Control => self.send_request(self.phase, out),
            RetryTarget::Turn => self.start_turn(out),
            RetryTarget::Interrupt => self.interrupt(out),
        }
    }

    /// Whether a request that was refused so will be sent again.
    fn schedule_retry(&mut self, error: &ErrorReply, what: RetryTarget) -> bool {
        let Some(now) = self.now.filter(|_| error.code == keepalive::OVERLOADED) else {
            return false;
        };
        self.retries.schedule(what, now)
    }

    /// Cancels the turn and closes the agent's stdin, at whose end it ends.
    fn shut_down(&mut self, out: &mut Effects) {
        if self.is_shutting_down {
            return;
        }
        self.cancel(out);
        self.cancel_requests(out);
        self.is_shutting_down = true;
        self.control = None;
        out.push(Effect::CloseInput);
    }

    /// Whether the agent was told to end what it does.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.is_shutting_down
    }

    /// Whether that is our thread.
    fn is_our_thread(&self, thread: &str) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|ours| ours.raw() == thread)
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

    /// Ends every open request; nobody is there to be answered.
    fn withdraw_requests(&mut self, out: &mut Effects) {
        let open = self.open_requests.close_all().into_iter();
        out.extend(open.map(|(key, _)| Effect::RequestWithdrawn(key)));
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
fn describe_error(error: &ErrorReply) -> String {
    let code = UntrustedText::from(error.code.as_str()).escape_for_display(40);
    let message = UntrustedText::from(error.message.as_str()).escape_for_display(300);
    format!("the agent reported error {code}: {message}")
}
