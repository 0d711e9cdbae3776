//! What every agent protocol does alike: lines in, commands in, an end.
//!
//! A protocol implements [`Protocol`]; the driver makes it a [`Dialect`]. It decides what happens
//! before the protocol is asked: nothing reaches a closed channel, nothing but the shutdown reaches
//! one that is not ready, and a child that writes too much of what is no message is another program.

use std::time::Instant;

use super::{
    ChannelError, Command, Dialect, DialectError, Effect, Effects, Input, OpenParams,
    PendingDenials, report_bad_line,
};
use marshal_model::limits;
use marshal_wire::json::BadFrame;

/// An agent protocol of one message a line.
pub(crate) trait Protocol: Send {
    /// Who writes the lines, for people.
    const PEER: &'static str = "agent";

    /// The channel is open: writes the first message, if the protocol has one.
    fn start(&mut self, opening: &OpenParams, out: &mut Effects);

    /// Notes the time of what is being handled.
    fn set_now(&mut self, _now: Instant) {}

    /// Notes that the child wrote something.
    fn record_activity(&mut self, _now: Instant) {}

    /// Handles a line.
    fn handle_line(&mut self, line: &[u8], now: Instant, out: &mut Effects);

    /// Whether the protocol takes commands: its handshake is complete.
    fn is_ready(&self) -> bool;

    /// Whether it is shutting down.
    fn is_shutting_down(&self) -> bool;

    /// Whether the channel failed or ended: nothing is read or written any more.
    fn is_closed(&self) -> bool;

    /// Carries out a command other than the shutdown.
    ///
    /// # Errors
    /// [`DialectError`] if the protocol's state does not allow it; then nothing was written.
    fn carry_out(
        &mut self,
        command: Command,
        now: Instant,
        out: &mut Effects,
    ) -> Result<(), DialectError>;

    /// Starts the shutdown, once.
    fn shut_down(&mut self, out: &mut Effects);

    /// Closes the channel. Open requests end without an answer.
    fn close(&mut self, out: &mut Effects);

    /// When [`Protocol::handle_due`] must be called next.
    fn due(&self) -> Option<Instant>;

    /// Handles a passed deadline.
    fn handle_due(&mut self, now: Instant, out: &mut Effects);

    /// The denials that no prompt reported.
    fn unsent_denials(&mut self) -> PendingDenials {
        PendingDenials::default()
    }

    /// Lines so far that were not messages.
    fn bad_lines(&mut self) -> &mut u32;

    /// Counts a line that is not a message. Too many of them mean that this is another program.
    fn count_bad_line(&mut self, bad: BadFrame, line: &[u8], out: &mut Effects) {
        report_bad_line(bad.as_str(), line, out);
        let count = self.bad_lines();
        *count = count.saturating_add(1);
        if *count > limits::BAD_LINES {
            let (most, peer) = (limits::BAD_LINES, Self::PEER);
            let message =
                format!("more than {most} lines on the {peer}'s stdout were not messages");
            self.fail_protocol(message, out);
        }
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
}

impl<P: Protocol> Dialect for P {
    fn open(&mut self, opening: &OpenParams, now: Instant, out: &mut Effects) {
        self.set_now(now);
        self.start(opening, out);
    }

    fn handle_input(&mut self, input: Input<'_>, now: Instant, out: &mut Effects) {
        if self.is_closed() {
            return;
        }
        self.set_now(now);
        self.record_activity(now);
        match input {
            Input::Frame(line) => self.handle_line(line, now, out),
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
        self.set_now(now);
        if let Command::Goodbye = command {
            if !self.is_shutting_down() {
                self.shut_down(out);
            }
            return Ok(());
        }
        if self.is_shutting_down() {
            return Err(DialectError::Closed);
        }
        if !self.is_ready() {
            return Err(DialectError::NotReady);
        }
        self.carry_out(command, now, out)
    }

    fn deadline(&self) -> Option<Instant> {
        self.due().filter(|_| !self.is_closed())
    }

    fn tick(&mut self, now: Instant, out: &mut Effects) {
        if !self.is_closed() {
            self.set_now(now);
            self.handle_due(now, out);
        }
    }

    fn take_pending_denials(&mut self) -> PendingDenials {
        self.unsent_denials()
    }
}
