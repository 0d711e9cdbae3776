//! The slash command that has no result yet, in protocols that have one at a time and say nothing of
//! how long it may take.
//!
//! Must not know what a command is, or how it is written.

use std::time::{Duration, Instant};

use super::{CommandEnd, Effect, Effects, Refused};
use crate::limits::COMMAND_WAIT;
use crate::model::{Event, Foreign, Origin};

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Slash {
    open: Open,
    /// How long it may take.
    most: Duration,
}

#[derive(Debug, Default)]
enum Open {
    /// There is none.
    #[default]
    None,
    /// It is waited for, until then.
    Waits(Option<Instant>),
    /// Nobody waits for it any more. Its result may come all the same, and would be taken for that of
    /// the next one: there is none before.
    Late,
}

/// Of which command a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Of none.
    Unasked,
    /// Of the one that somebody waits for.
    Awaited,
    /// Of one that was given up: nobody is told, lest it be taken for the answer to the next one.
    Late,
}

impl Slash {
    /// With that much time for each.
    pub(super) fn within(control: Option<Duration>) -> Self {
        Self {
            open: Open::None,
            most: control.unwrap_or(COMMAND_WAIT),
        }
    }

    /// Whether one has no result yet.
    pub(super) const fn is_open(&self) -> bool {
        !matches!(self.open, Open::None)
    }

    /// One is about to be written.
    ///
    /// # Errors
    /// [`Refused`] while a turn runs, and while another has no result.
    pub(super) fn begin(&mut self, in_turn: bool, now: Instant) -> Result<(), Refused> {
        if in_turn {
            return Err(Refused::Busy);
        }
        if self.is_open() {
            return Err(Refused::Commanded);
        }
        self.open = Open::Waits(now.checked_add(self.most));
        Ok(())
    }

    /// Its result came.
    pub(super) fn end(&mut self) -> Heard {
        match std::mem::take(&mut self.open) {
            Open::None => Heard::Unasked,
            Open::Waits(_) => Heard::Awaited,
            Open::Late => Heard::Late,
        }
    }

    /// When it was waited for long enough.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.open {
            Open::Waits(due) => due,
            Open::None | Open::Late => None,
        }
    }

    /// Nobody waits for longer than the bound.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Effects) {
        if self.due().is_some_and(|due| due <= now) {
            self.open = Open::Late;
            unanswered("the command", self.most, out);
        }
    }
}

/// Tells that something a person waits for was not answered.
pub(super) fn unanswered(what: &str, most: Duration, out: &mut Effects) {
    let said = format!("the agent did not answer {what} within {most:?} (timeouts.control)");
    out.push(Effect::Event(Event::AgentError {
        code: "unanswered".into(),
        message: said.as_str().into(),
        origin: Origin::Local,
    }));
    out.push(Effect::Commanded(CommandEnd::Unanswered(said)));
}

/// What the agent says to a command, or why it does not do it.
pub(super) fn said(ok: bool, text: &Foreign) -> Effect {
    Effect::Commanded(CommandEnd::Said {
        ok,
        text: text.clone(),
    })
}
