//! The goodbye: what the protocol has of one, then the end of the agent's stdin.
//!
//! Must not know the steps that follow when the agent stays.

use super::{Acp, Phase, write};
use crate::dialect::{Effect, Effects};

/// How far the goodbye is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Leaving {
    /// Nobody said it.
    #[default]
    No,
    /// `session/close` waits for its reply.
    Closing,
    /// `logout` does.
    LoggingOut,
    /// Our side of the pipe is closed, or about to be.
    Done,
}

impl Acp {
    /// Cancels the turn, closes the session where the agent takes that, logs out where the
    /// configuration says so, and closes its stdin.
    pub(super) fn leave(&mut self, out: &mut Effects) {
        if self.leaving != Leaving::No {
            return;
        }
        self.cancel(out);
        self.cancel_asks(out);
        if self.phase == Phase::Ready {
            self.leaving = Leaving::Closing;
            if self.can.close
                && let Some(session) = self.session.clone()
            {
                return self.ask(Phase::Ready, "session/close", out, |id| {
                    write::close(id, &session)
                });
            }
            return self.log_out(out);
        }
        // Whoever still works at a request of ours need not.
        if let Some(control) = self.control.take()
            && self.phase != Phase::Initializing
        {
            out.push(Effect::Write(write::cancel_request(control.id)));
        }
        self.close_input(out);
    }

    /// The reply to a request of the goodbye, or its time is over.
    pub(super) fn said_goodbye(&mut self, out: &mut Effects) {
        match self.leaving {
            Leaving::Closing => self.log_out(out),
            Leaving::LoggingOut => self.close_input(out),
            Leaving::No | Leaving::Done => {}
        }
    }

    fn log_out(&mut self, out: &mut Effects) {
        if self.opening.acp.logout && self.can.logout {
            self.leaving = Leaving::LoggingOut;
            return self.ask(Phase::Ready, "logout", out, write::logout);
        }
        self.close_input(out);
    }

    fn close_input(&mut self, out: &mut Effects) {
        self.leaving = Leaving::Done;
        out.push(Effect::CloseInput);
    }
}
