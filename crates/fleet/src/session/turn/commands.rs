//! The agent's own commands in a session: one at a time, recorded before it is sent, and answered
//! when the agent's output is durable.
//!
//! A prompt waits for the answer of a command that was given before it. Must not know which
//! commands there are.

use std::sync::Arc;

use crate::handle::commands::{CommandError, CommandOutput, CommandReply, CommandRequest};
use crate::session::outbox::OnDurable;
use crate::session::state::{Phase, SessionState};
use marshal_dialect::{Command, SlashOutcome};
use marshal_model::limits::COMMAND_TEXT_BYTES;
use marshal_model::{ErrorOrigin, Event, UntrustedText};

/// The command state of a session.
#[derive(Debug, Default)]
pub(crate) struct CommandState {
    open: Option<OpenCommand>,
    /// A durable prompt waits until no command is open.
    holds_prompt: bool,
    /// The child is to be unloaded once no command is open.
    holds_unload: bool,
}

#[derive(Debug)]
struct OpenCommand {
    order: Arc<CommandRequest>,
    reply: CommandReply,
}

impl SessionState {
    /// Handles a command for the agent.
    pub(crate) fn handle_command(&mut self, order: Arc<CommandRequest>, reply: CommandReply) {
        if let Err(error) = self.check_command_allowed(&order) {
            let _ = reply.send(Err(error));
            return;
        }
        self.outbox.push_event(Event::CommandSent {
            command: order.command.clone(),
            args: UntrustedText::from(order.args.as_str()),
            by: order.by.clone(),
        });
        self.outbox
            .on_durable(OnDurable::SendCommand(Arc::clone(&order)));
        self.agent.commands.open = Some(OpenCommand { order, reply });
    }

    fn check_command_allowed(&self, order: &CommandRequest) -> Result<(), CommandError> {
        let busy = |why: &str| Err(CommandError::Busy(why.to_owned()));
        if self.outbox.is_broken() {
            return Err(CommandError::Stopping);
        }
        if self.shared.journal.health().borrow().is_read_only() {
            return Err(CommandError::ReadOnly);
        }
        let steers = self.pool.config.dialect.is_steering_command(&order.command);
        match self.phase {
            Phase::Closing { .. } => return Err(CommandError::Stopping),
            Phase::Preparing | Phase::Opening => return busy("the agent is starting"),
            Phase::Prompting => return busy("its next turn is about to begin"),
            Phase::Ending
            | Phase::Checking { .. }
            | Phase::Surveying { .. }
            | Phase::Landing { .. } => {
                return busy("the workspace is being examined after its last turn");
            }
            Phase::Idle { .. } if self.agent.channel.is_none() => {
                return Err(CommandError::NoAgent);
            }
            Phase::Idle { .. } if steers => {
                let why = "no turn is running, so there is nothing to steer";
                return Err(CommandError::Refused(why.to_owned()));
            }
            Phase::Turn if !steers => return busy("a turn is running"),
            Phase::Turn if self.task.as_ref().is_some_and(|task| task.ending.is_some()) => {
                return busy("its turn is being ended");
            }
            Phase::Idle { .. } | Phase::Turn => {}
        }
        if self.agent.commands.open.is_some() {
            return busy("the agent has not answered the previous command");
        }
        Ok(())
    }

    /// The command is durable: sends it, unless the child has gone in the meantime.
    pub(crate) fn send_durable_command(&mut self, order: &Arc<CommandRequest>) {
        let is_it = |open: &&OpenCommand| Arc::ptr_eq(&open.order, order);
        let Some(open) = self.agent.commands.open.as_ref().filter(is_it) else {
            return;
        };
        if self.phase.is_idle() {
            self.budget.start_command();
        }
        let open = open.order.as_ref();
        let (command, args) = (open.command.clone(), open.args.clone());
        self.send_command(Command::Slash { command, args });
    }

    /// Handles the end of the open command. A later end of one that was given up is only
    /// journalled.
    pub(crate) fn command_ended(&mut self, end: SlashOutcome) {
        let Some(open) = self.agent.commands.open.take() else {
            return;
        };
        let result = match end {
            SlashOutcome::Answered { ok, mut text } => {
                self.shared.mask.load().mask_foreign(&mut text);
                let (text, cut) = truncate_text(text);
                Ok(CommandOutput { ok, text, cut })
            }
            SlashOutcome::Unanswered(why) => Err(CommandError::Unanswered(why)),
            SlashOutcome::Rejected(refused) => {
                let why = refused.to_string();
                self.outbox.push_event(Event::AgentError {
                    code: "refused".into(),
                    message: format!("/{} was not sent: {why}", open.order.command).into(),
                    origin: ErrorOrigin::Local,
                });
                Err(CommandError::Refused(why))
            }
        };
        // The events of the command become durable before its reply is sent.
        self.outbox
            .on_durable(OnDurable::ReplyToCommand(open.reply, result));
        if std::mem::take(&mut self.agent.commands.holds_prompt) {
            self.run_durable_step(OnDurable::SendPrompt);
        }
        if self.phase.is_idle() {
            self.become_idle();
        }
        if std::mem::take(&mut self.agent.commands.holds_unload) {
            self.unload_child(self.task_number);
        }
    }

    /// The child is gone: the open command gets no answer.
    pub(crate) fn command_lost(&mut self, why: &str) {
        self.agent.commands.holds_prompt = false;
        self.agent.commands.holds_unload = false;
        if let Some(open) = self.agent.commands.open.take() {
            let why = self.shared.mask.load().mask_text(why).into_owned();
            let result = Err(CommandError::Ended(why));
            self.outbox
                .on_durable(OnDurable::ReplyToCommand(open.reply, result));
        }
    }

    /// Whether the prompt, which may be sent now, must wait for a command's answer.
    pub(crate) const fn delay_prompt(&mut self) -> bool {
        self.agent.commands.holds_prompt = self.agent.commands.open.is_some();
        self.agent.commands.holds_prompt
    }

    /// Unloads the child when the command is answered.
    pub(crate) const fn delay_unload(&mut self) {
        self.agent.commands.holds_unload = true;
    }

    /// Whether a command is open.
    pub(crate) const fn has_open_command(&self) -> bool {
        self.agent.commands.open.is_some()
    }

    /// The agent announced that this command makes it exit. If it stays nevertheless, the stop
    /// ladder ends it.
    pub(crate) fn stop_after_exit_command(&mut self) {
        self.stop(false);
    }
}

/// Cuts a text to what a reply may hold; `true` if it was cut.
fn truncate_text(text: UntrustedText) -> (UntrustedText, bool) {
    if text.len() <= COMMAND_TEXT_BYTES {
        return (text, false);
    }
    let mut at = COMMAND_TEXT_BYTES;
    while !text.raw().is_char_boundary(at) {
        at -= 1;
    }
    (UntrustedText::from(&text.raw()[..at]), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_is_cut_between_two_characters() {
        let short = UntrustedText::new("x".repeat(COMMAND_TEXT_BYTES));
        assert_eq!(truncate_text(short.clone()), (short, false));
        let long = UntrustedText::new("\u{20ac}".repeat(COMMAND_TEXT_BYTES));
        let (text, cut) = truncate_text(long);
        assert!(cut && text.len() <= COMMAND_TEXT_BYTES && text.len() > COMMAND_TEXT_BYTES - 3);
    }
}
