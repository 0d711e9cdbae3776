//! The graceful end: the protocol's own requests, then the end of the agent's stdin.
//!
//! Must not know the steps that follow when the agent does not exit.

use super::{Acp, Step, write};
use crate::{Effect, Effects};

/// The request of the shutdown that waits for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShutdownRequest {
    /// `session/close`.
    CloseSession,
    /// `logout`.
    LogOut,
}

impl Acp {
    /// Cancels the turn, closes the session where the agent supports that, logs out where the
    /// configuration says so, and closes the agent's stdin.
    pub(super) fn begin_shutdown(&mut self, out: &mut Effects) {
        self.cancel(out);
        self.cancel_requests(out);
        if self.channel.is_ready() {
            if self.capabilities.close
                && let Some(session) = self.session.clone()
            {
                self.shutdown = Some(ShutdownRequest::CloseSession);
                return self.send_request("session/close", out, |id| write::close(id, &session));
            }
            return self.log_out(out);
        }
        // An agent that still works at a request of ours can stop.
        if let Some(control) = self.requests.stop_waiting()
            && self.step != Step::Initializing
        {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        out.push(Effect::CloseInput);
    }

    /// Handles the reply to a request of the shutdown, or its timeout.
    pub(super) fn on_shutdown_reply(&mut self, out: &mut Effects) {
        match self.shutdown.take() {
            Some(ShutdownRequest::CloseSession) => self.log_out(out),
            Some(ShutdownRequest::LogOut) => out.push(Effect::CloseInput),
            None => {}
        }
    }

    fn log_out(&mut self, out: &mut Effects) {
        if self.opening.acp.logout && self.capabilities.logout {
            self.shutdown = Some(ShutdownRequest::LogOut);
            return self.send_request("logout", out, write::logout);
        }
        out.push(Effect::CloseInput);
    }
}
