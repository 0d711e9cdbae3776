//! The slash command without a result yet, in protocols that allow one at a time and set no time
//! limit for it.
//!
//! Must not know what a command does, or how it is written.

use std::time::{Duration, Instant};

use super::{DialectError, Effect, Effects, SlashOutcome};
use marshal_model::limits::COMMAND_TIMEOUT;
use marshal_model::{ErrorOrigin, Event, UntrustedText};

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct SlashTracker {
    state: SlashState,
    /// How long a command may take.
    timeout: Duration,
}

#[derive(Debug, Default)]
enum SlashState {
    /// No command.
    #[default]
    Idle,
    /// A command waits for its result, until that time.
    Pending(Option<Instant>),
    /// The command has timed out. Its result may still come, and would be mistaken for the next
    /// one's, so no other command is accepted before it.
    Late,
}

/// The command that a result belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlashReply {
    /// No command.
    Unsolicited,
    /// The command that somebody waits for.
    Expected,
    /// A command that timed out. Its result is not reported, so that it is not mistaken for the
    /// next one's.
    Late,
}

impl SlashTracker {
    /// A state in which each command has that much time.
    pub(super) fn new(control: Option<Duration>) -> Self {
        Self {
            state: SlashState::Idle,
            timeout: control.unwrap_or(COMMAND_TIMEOUT),
        }
    }

    /// Whether a command has no result yet.
    pub(super) const fn is_open(&self) -> bool {
        !matches!(self.state, SlashState::Idle)
    }

    /// Records that a command is about to be written.
    ///
    /// # Errors
    /// [`DialectError`] while a turn runs, and while another command has no result.
    pub(super) fn start(
        &mut self,
        in_turn: bool,
        now: Option<Instant>,
    ) -> Result<(), DialectError> {
        if in_turn {
            return Err(DialectError::Busy);
        }
        if self.is_open() {
            return Err(DialectError::CommandPending);
        }
        self.state = SlashState::Pending(now.and_then(|now| now.checked_add(self.timeout)));
        Ok(())
    }

    /// Records the result of the command.
    pub(super) fn finish(&mut self) -> SlashReply {
        match std::mem::take(&mut self.state) {
            SlashState::Idle => SlashReply::Unsolicited,
            SlashState::Pending(_) => SlashReply::Expected,
            SlashState::Late => SlashReply::Late,
        }
    }

    /// When the open command times out.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.state {
            SlashState::Pending(due) => due,
            SlashState::Idle | SlashState::Late => None,
        }
    }

    /// Ends the wait for a command after its time limit.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Effects) {
        if self.due().is_some_and(|due| due <= now) {
            self.state = SlashState::Late;
            report_timeout("the command", self.timeout, out);
        }
    }
}

/// Reports that something a person waits for was not answered.
pub(super) fn report_timeout(what: &str, most: Duration, out: &mut Effects) {
    let text = format!("the agent did not answer {what} within {most:?} (timeouts.control)");
    out.push(Effect::Event(Event::AgentError {
        code: "unanswered".into(),
        message: text.as_str().into(),
        origin: ErrorOrigin::Local,
    }));
    out.push(Effect::SlashEnded(SlashOutcome::Unanswered(text)));
}

/// The event for the agent's answer to a command, or for its failure.
pub(super) fn answer_effect(ok: bool, text: &UntrustedText) -> Effect {
    Effect::SlashEnded(SlashOutcome::Answered {
        ok,
        text: text.clone(),
    })
}
