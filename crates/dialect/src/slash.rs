//! The slash command that has no result yet, in protocols that have one at a time and say nothing of
//! how long it may take.
//!
//! Must not know what a command is, or how it is written.

use std::time::{Duration, Instant};

use super::{DialectError, Effect, Effects, SlashOutcome};
use marshal_model::limits::COMMAND_TIMEOUT;
use marshal_model::{ErrorOrigin, Event, UntrustedText};

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct SlashTracker {
    state: SlashState,
    /// How long it may take.
    timeout: Duration,
}

#[derive(Debug, Default)]
enum SlashState {
    /// There is none.
    #[default]
    Idle,
    /// It is waited for, until then.
    Pending(Option<Instant>),
    /// Nobody waits for it any more. Its result may come all the same, and would be taken for that of
    /// the next one: there is none before.
    Late,
}

/// Of which command a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlashReply {
    /// Of none.
    Unsolicited,
    /// Of the one that somebody waits for.
    Expected,
    /// Of one that was given up: nobody is told, lest it be taken for the answer to the next one.
    Late,
}

impl SlashTracker {
    /// With that much time for each.
    pub(super) fn new(control: Option<Duration>) -> Self {
        Self {
            state: SlashState::Idle,
            timeout: control.unwrap_or(COMMAND_TIMEOUT),
        }
    }

    /// Whether one has no result yet.
    pub(super) const fn is_open(&self) -> bool {
        !matches!(self.state, SlashState::Idle)
    }

    /// One is about to be written.
    ///
    /// # Errors
    /// [`Refused`] while a turn runs, and while another has no result.
    pub(super) fn start(&mut self, in_turn: bool, now: Instant) -> Result<(), DialectError> {
        if in_turn {
            return Err(DialectError::Busy);
        }
        if self.is_open() {
            return Err(DialectError::CommandPending);
        }
        self.state = SlashState::Pending(now.checked_add(self.timeout));
        Ok(())
    }

    /// Its result came.
    pub(super) fn finish(&mut self) -> SlashReply {
        match std::mem::take(&mut self.state) {
            SlashState::Idle => SlashReply::Unsolicited,
            SlashState::Pending(_) => SlashReply::Expected,
            SlashState::Late => SlashReply::Late,
        }
    }

    /// When it was waited for long enough.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.state {
            SlashState::Pending(due) => due,
            SlashState::Idle | SlashState::Late => None,
        }
    }

    /// Nobody waits for longer than the bound.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Effects) {
        if self.due().is_some_and(|due| due <= now) {
            self.state = SlashState::Late;
            report_timeout("the command", self.timeout, out);
        }
    }
}

/// Tells that something a person waits for was not answered.
pub(super) fn report_timeout(what: &str, most: Duration, out: &mut Effects) {
    let said = format!("the agent did not answer {what} within {most:?} (timeouts.control)");
    out.push(Effect::Event(Event::AgentError {
        code: "unanswered".into(),
        message: said.as_str().into(),
        origin: ErrorOrigin::Local,
    }));
    out.push(Effect::SlashEnded(SlashOutcome::Unanswered(said)));
}

/// What the agent says to a command, or why it does not do it.
pub(super) fn answer_effect(ok: bool, text: &UntrustedText) -> Effect {
    Effect::SlashEnded(SlashOutcome::Answered {
        ok,
        text: text.clone(),
    })
}
