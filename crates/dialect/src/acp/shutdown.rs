//! The graceful end: the protocol's own requests, then the end of the agent's stdin.
//!
//! Must not know the steps that follow when the agent does not exit.

use super::{Acp, Phase, write};
use crate::{Effect, Effects};

/// The phase of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ShutdownState {
    /// Not started.
    #[default]
    NotStarted,
    /// `session/close` waits for its reply.
    ClosingSession,
    /// `logout` waits for its reply.
    LoggingOut,
    /// Our side of the pipe is closed, or about to be.
    Done,
}

impl Acp {
    /// Cancels the turn, closes the session where the agent supports that, logs out where the
    /// configuration says so, and closes the agent's stdin.
    pub(super) fn begin_shutdown(&mut self, out: &mut Effects) {
        self.cancel(out);
        self.cancel_requests(out);
        if self.phase == Phase::Ready {
            self.shutdown = ShutdownState::ClosingSession;
            if self.capabilities.close
                && let Some(session) = self.session.clone()
            {
                return self.send_request(Phase::Ready, "session/close", out, |id| {
                    write::close(id, &session)
                });
            }
            return self.log_out(out);
        }
        // An agent that still works at a request of ours can stop.
        if let Some(control) = self.control.take()
            && self.phase != Phase::Initializing
        {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        self.close_input(out);
    }

    /// Handles the reply to a request of the shutdown, or its timeout.
    pub(super) fn on_shutdown_reply(&mut self, out: &mut Effects) {
        match self.shutdown {
            ShutdownState::ClosingSession => self.log_out(out),
            ShutdownState::LoggingOut => self.close_input(out),
            ShutdownState::NotStarted | ShutdownState::Done => {}
        }
    }

    fn log_out(&mut self, out: &mut Effects) {
        if self.opening.acp.logout && self.capabilities.logout {
            self.shutdown = ShutdownState::LoggingOut;
            return self.send_request(Phase::Ready, "logout", out, write::logout);
        }
        self.close_input(out);
    }

    fn close_input(&mut self, out: &mut Effects) {
        self.shutdown = ShutdownState::Done;
        out.push(Effect::CloseInput);
    }
}
