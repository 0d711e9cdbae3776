//! What every agent protocol does alike: lines in, commands in, an end.
//!
//! A protocol implements [`Protocol`]; the driver makes it a [`Dialect`]. It decides what happens
//! before the protocol is asked: nothing reaches a closed channel, nothing but the shutdown reaches
//! one that is not ready, and a child that writes too much of what is no message is another program.

use std::time::{Duration, Instant};

use super::keepalive::Keepalive;
use super::open_requests::RejectReason;
use super::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
    PendingDenials, report_bad_line,
};
use marshal_model::limits;
use marshal_wire::json::BadFrame;

/// The phase of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// The handshake is not complete.
    #[default]
    Handshaking,
    /// Prompts may be sent.
    Ready,
    /// Failed or ended: nothing is read or written any more.
    Closed,
}

/// What every protocol knows of its channel.
#[derive(Debug, Default)]
pub(crate) struct ChannelState {
    pub(crate) phase: Phase,
    /// The time of what is being handled.
    pub(crate) now: Option<Instant>,
    /// Whether the shutdown has begun, or the agent ends by itself.
    pub(crate) is_shutting_down: bool,
    /// The agent's last sign of life, and the pings of a protocol that has them.
    pub(crate) keepalive: Keepalive,
    /// How long the agent may take to answer a request that is not a prompt; `None`: no limit.
    pub(crate) control_timeout: Option<Duration>,
    /// Lines so far that were not messages.
    bad_lines: u32,
    /// Requests that were denied because too many were open.
    excess_requests: u32,
}

impl ChannelState {
    /// Whether prompts may be sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether the channel failed or ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// When a request that was sent then must have its reply.
    pub(crate) fn reply_due(&self, sent: Option<Instant>) -> Option<Instant> {
        sent?.checked_add(self.control_timeout?)
    }

    /// When a silent agent gets a ping: only while nothing runs and nothing is awaited.
    pub(crate) fn ping_due(&self, is_idle: bool) -> Option<Instant> {
        let waits = is_idle && self.is_ready() && !self.is_shutting_down;
        self.keepalive.due().filter(|_| waits)
    }
}

/// An agent protocol of one message a line.
pub(crate) trait Protocol: Send {
    /// Who writes the lines, for people.
    const PEER: &'static str = "agent";

    /// The version that we speak, for people; empty where a table defines it.
    const VERSION: &'static str = "";

    /// The state of the channel.
    fn channel(&self) -> &ChannelState;

    /// The same, to be changed.
    fn channel_mut(&mut self) -> &mut ChannelState;

    /// The channel is open: writes the first message, if the protocol has one.
    fn start(&mut self, opening: &OpenParams, out: &mut Effects);

    /// Handles a line.
    ///
    /// # Errors
    /// The line is not a message. It is counted.
    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame>;

    /// Whether nothing is read or written any more.
    fn is_closed(&self) -> bool {
        self.channel().is_closed()
    }

    /// Carries out a command other than the shutdown.
    ///
    /// # Errors
    /// [`DialectError`] if the protocol's state does not allow it; then nothing was written.
    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError>;

    /// Starts the shutdown, once.
    fn shut_down(&mut self, out: &mut Effects);

    /// The channel ends. Open requests end without an answer.
    fn on_close(&mut self, out: &mut Effects);

    /// When [`Protocol::handle_due`] must be called next.
    fn due(&self) -> Option<Instant>;

    /// Handles a passed deadline.
    fn handle_due(&mut self, now: Instant, out: &mut Effects);

    /// The denials that no prompt reported.
    fn unsent_denials(&mut self) -> PendingDenials {
        PendingDenials::default()
    }

    /// Counts a line that is not a message. Too many of them mean that this is another program.
    fn count_bad_line(&mut self, bad: BadFrame, line: &[u8], out: &mut Effects) {
        report_bad_line(bad.as_str(), line, out);
        let count = self.channel().bad_lines.saturating_add(1);
        self.channel_mut().bad_lines = count;
        if count > limits::BAD_LINES {
            let (most, peer) = (limits::BAD_LINES, Self::PEER);
            let message =
                format!("more than {most} lines on the {peer}'s stdout were not messages");
            self.fail_protocol(message, out);
        }
    }

    /// Counts a request that was denied at once, if too many are open.
    fn count_rejection(&mut self, clash: RejectReason, out: &mut Effects) {
        if clash != RejectReason::TooMany {
            return;
        }
        let count = self.channel().excess_requests.saturating_add(1);
        self.channel_mut().excess_requests = count;
        if count > limits::EXCESS_PERMISSION_REQUESTS {
            let most = limits::OPEN_PERMISSION_REQUESTS;
            let message = format!("the agent keeps sending requests while {most} of them are open");
            self.fail_protocol(message, out);
        }
    }

    /// Sends a ping by `send`, which returns its id. Any reply shows that the agent is alive. No
    /// reply at all to several pings is a fault.
    fn send_ping(
        &mut self,
        now: Instant,
        out: &mut Effects,
        send: impl FnOnce(&mut Self, &mut Effects) -> u64,
    ) {
        if let Err(fault) = self.channel().keepalive.check_missed() {
            return self.fail_channel(fault, out);
        }
        let id = send(self, out);
        self.channel_mut().keepalive.record_ping(id, now);
    }

    /// A request of ours has no reply in time.
    fn fail_unanswered(&mut self, method: &str, out: &mut Effects) {
        let wait = self.channel().control_timeout.unwrap_or_default();
        let message =
            format!("the agent did not answer {method} within {wait:?} (timeouts.control)");
        self.fail_channel(ChannelError::Unanswered(message), out);
    }

    /// The agent speaks another version: nothing more is written to it.
    fn fail_version(&mut self, theirs: String, out: &mut Effects) {
        let ours = Self::VERSION;
        self.fail_channel(ChannelError::Version { theirs, ours }, out);
    }

    /// The child broke its protocol.
    fn fail_protocol(&mut self, message: String, out: &mut Effects) {
        self.fail_channel(ChannelError::Protocol(message), out);
    }

    /// The channel cannot go on.
    fn fail_channel(&mut self, fault: ChannelError, out: &mut Effects) {
        self.close(out);
        out.push(Effect::ChannelFailed(fault));
    }

    /// Closes the channel.
    fn close(&mut self, out: &mut Effects) {
        self.on_close(out);
        self.channel_mut().phase = Phase::Closed;
    }
}

impl<P: Protocol> Dialect for P {
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects) {
        let channel = self.channel_mut();
        channel.now = Some(now);
        channel.control_timeout = opening.control_timeout;
        channel.keepalive = Keepalive::new(opening.keepalive_interval);
        self.start(opening, out);
    }

    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.is_closed() {
            return;
        }
        let channel = self.channel_mut();
        channel.now = Some(now);
        channel.keepalive.record_activity(now);
        match input {
            Input::Frame(line) => {
                if let Err(bad) = self.handle_line(line, out) {
                    self.count_bad_line(bad, line, out);
                }
            }
            Input::TooLong(head) => {
                report_bad_line("too_long", head, out);
                let (cap, peer) = (limits::LINE_BYTES, P::PEER);
                let message = format!("the {peer} wrote a line of more than {cap} bytes");
                self.fail_protocol(message, out);
            }
            Input::Eof => self.close(out),
        }
    }

    fn handle_command(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        if self.is_closed() {
            return Err(DialectError::Closed);
        }
        self.channel_mut().now = Some(now);
        let is_shutting_down = self.channel().is_shutting_down;
        if let Command::Goodbye = command {
            if !is_shutting_down {
                self.shut_down(out);
                self.channel_mut().is_shutting_down = true;
            }
            return Ok(());
        }
        if is_shutting_down {
            return Err(DialectError::Closed);
        }
        if !self.channel().is_ready() {
            return Err(DialectError::NotReady);
        }
        self.carry_out(command, out)
    }

    fn deadline(&self) -> Option<Instant> {
        self.due().filter(|_| !self.is_closed())
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        if !self.is_closed() {
            self.channel_mut().now = Some(now);
            self.handle_due(now, out);
        }
    }

    fn take_pending_denials(&mut self) -> PendingDenials {
        self.unsent_denials()
    }
}
