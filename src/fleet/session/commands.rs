//! The agent's own commands in a session: one at a time, on record before it is sent, answered when
//! what the agent says is durable.
//!
//! A prompt waits for the answer of a command that was given before it. Must not know which commands
//! there are.

use std::sync::Arc;

use super::outbox::After;
use super::state::{Phase, SessionState};
use crate::dialect::{Command, CommandEnd};
use crate::fleet::commands::{CommandError, CommandOrder, CommandReply, CommandSaid};
use crate::limits::COMMAND_TEXT_BYTES;
use crate::model::{Event, Foreign, Origin};

/// What a session knows of them.
#[derive(Debug, Default)]
pub(super) struct Commands {
    open: Option<Open>,
    /// A prompt that is durable waits until none is open.
    holds_prompt: bool,
    /// The child would be unloaded by now.
    holds_unload: bool,
}

#[derive(Debug)]
struct Open {
    order: Arc<CommandOrder>,
    reply: CommandReply,
}

impl SessionState {
    /// Somebody gives the agent a command.
    pub(super) fn commanded(&mut self, order: Arc<CommandOrder>, reply: CommandReply) {
        if let Err(error) = self.takes_command(&order) {
            let _ = reply.send(Err(error));
            return;
        }
        self.outbox.event(Event::CommandGiven {
            command: order.command.clone(),
            args: Foreign::from(order.args.as_str()),
            by: order.by.clone(),
        });
        self.outbox.after(After::Command(Arc::clone(&order)));
        self.commands.open = Some(Open { order, reply });
    }

    fn takes_command(&self, order: &CommandOrder) -> Result<(), CommandError> {
        let busy = |why: &str| Err(CommandError::Busy(why.to_owned()));
        if self.closing.is_some() || self.broken {
            return Err(CommandError::Stopping);
        }
        if self.shared.journal.health().borrow().is_read_only() {
            return Err(CommandError::ReadOnly);
        }
        let steers = self.pool.config.dialect.steers_by(&order.command);
        match self.phase {
            Phase::Closing => return Err(CommandError::Stopping),
            Phase::Preparing | Phase::Opening => return busy("the agent is starting"),
            Phase::Prompting => return busy("its next turn is about to begin"),
            Phase::Ending | Phase::Checking | Phase::Surveying => {
                return busy("what its last turn left is being looked over");
            }
            Phase::Idle if self.channel.is_none() => return Err(CommandError::NoAgent),
            Phase::Idle if steers => {
                let why = "no turn is running that could be steered";
                return Err(CommandError::Refused(why.to_owned()));
            }
            Phase::Turn if !steers => return busy("a turn is running"),
            Phase::Turn if self.ending.is_some() => return busy("its turn is told to end"),
            Phase::Idle | Phase::Turn => {}
        }
        if self.commands.open.is_some() {
            return busy("the agent has not answered the command before");
        }
        Ok(())
    }

    /// It is on record: it goes out, unless the child has gone meanwhile.
    pub(super) fn command_durable(&mut self, order: &Arc<CommandOrder>) {
        let is_it = |open: &&Open| Arc::ptr_eq(&open.order, order);
        let Some(open) = self.commands.open.as_ref().filter(is_it) else {
            return;
        };
        if self.phase == Phase::Idle {
            self.budget.command_begins();
        }
        let open = open.order.as_ref();
        let (command, args) = (open.command.clone(), open.args.clone());
        self.command(Command::Slash { command, args });
    }

    /// What came of the open one. A later word of one that was given up is only in the journal.
    pub(super) fn command_ended(&mut self, end: CommandEnd) {
        let Some(open) = self.commands.open.take() else {
            return;
        };
        let result = match end {
            CommandEnd::Said { ok, mut text } => {
                self.shared.mask.foreign(&mut text);
                let (text, cut) = beginning(text);
                Ok(CommandSaid { ok, text, cut })
            }
            CommandEnd::Unanswered(why) => Err(CommandError::Unanswered(why)),
            CommandEnd::Refused(refused) => {
                let why = refused.to_string();
                self.outbox.event(Event::AgentError {
                    code: "refused".into(),
                    message: format!("/{} was not sent: {why}", open.order.command).into(),
                    origin: Origin::Local,
                });
                Err(CommandError::Refused(why))
            }
        };
        // What it brought about is told first.
        self.outbox.after(After::Commanded(open.reply, result));
        if std::mem::take(&mut self.commands.holds_prompt) {
            self.durable(After::Prompt);
        }
        if self.phase == Phase::Idle {
            self.unload_when_idle();
        }
        if std::mem::take(&mut self.commands.holds_unload) {
            self.unload(self.task_number);
        }
    }

    /// The child is gone, and nothing more will come of it.
    pub(super) fn command_lost(&mut self, why: &str) {
        self.commands.holds_prompt = false;
        self.commands.holds_unload = false;
        if let Some(open) = self.commands.open.take() {
            let why = self.shared.mask.text(why).into_owned();
            let result = Err(CommandError::Ended(why));
            self.outbox.after(After::Commanded(open.reply, result));
        }
    }

    /// Whether the prompt, which may be sent now, waits for a command's answer.
    pub(super) const fn holds_prompt(&mut self) -> bool {
        self.commands.holds_prompt = self.commands.open.is_some();
        self.commands.holds_prompt
    }

    /// The child is unloaded when the command is answered.
    pub(super) const fn unload_is_held(&mut self) {
        self.commands.holds_unload = true;
    }

    /// Whether the agent is at a command.
    pub(super) const fn has_command(&self) -> bool {
        self.commands.open.is_some()
    }

    /// By a command's result the agent exits: that is wanted, and it gets nothing more. One that stays
    /// all the same is ended.
    pub(super) fn exits_by_command(&mut self) {
        self.stop(false);
    }
}

/// As much of a text as is told, and whether there is more.
fn beginning(text: Foreign) -> (Foreign, bool) {
    if text.len() <= COMMAND_TEXT_BYTES {
        return (text, false);
    }
    let mut at = COMMAND_TEXT_BYTES;
    while !text.raw().is_char_boundary(at) {
        at -= 1;
    }
    (Foreign::from(&text.raw()[..at]), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_is_cut_between_two_characters() {
        let short = Foreign::new("x".repeat(COMMAND_TEXT_BYTES));
        assert_eq!(beginning(short.clone()), (short, false));
        let long = Foreign::new("\u{20ac}".repeat(COMMAND_TEXT_BYTES));
        let (text, cut) = beginning(long);
        assert!(cut && text.len() <= COMMAND_TEXT_BYTES && text.len() > COMMAND_TEXT_BYTES - 3);
    }
}
