//! An agent's own commands: what may be ordered, and what came of one.
//!
//! Must not know who orders, nor how a protocol writes a command. A reply that is lost on the way says
//! so itself.
//!
//! The path of a command: `engine/api/v1/sessions.rs` or `cli/daemon_commands.rs`, then this file, then the pool
//! (`pool/operator.rs`), then the session (`session/commands.rs`), which journals `command_sent`. When that
//! is durable the dialect writes it, or refuses. The dialect reports the result, an error, or that
//! `timeouts.control` is over (`dialect/slash.rs`; loaf's requests have their time in
//! `dialect/loaf/keepalive.rs`). Whoever ordered it hears that when it is durable.
//!
//! An agent that says it exits by a command is stopped by the ladder; that is no crash. A command after
//! which the agent asks for less ends the child at once (`dialect/mode_guard.rs`). Which protocols have commands
//! says `DialectName::has_commands`. Tests: `tests/drills/fleet/agent_commands.rs`.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::FleetHandle;
use super::pool::{OperatorRequest, PoolMsg};
use marshal_config::Pool;
use marshal_model::limits::{COMMAND_NAME_BYTES, TURN_BYTES};
use marshal_model::{PoolName, SessionId, UntrustedText};

/// A command as somebody gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRequest {
    /// Its name, without a slash.
    pub command: String,
    /// The rest of the line.
    pub args: String,
    /// Who gives it.
    pub by: String,
}

impl CommandRequest {
    /// Looks at name and arguments.
    ///
    /// # Errors
    /// What is wrong, in a sentence that names it.
    pub fn check(&self) -> Result<(), String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let length = self.command.len();
        if !(1..=COMMAND_NAME_BYTES).contains(&length) || !self.command.chars().all(is_part) {
            return Err(format!(
                "command is no name: give 1 to {COMMAND_NAME_BYTES} letters, digits, '-', '_', '.' or ':', without a slash"
            ));
        }
        if self.args.len() > TURN_BYTES {
            return Err(format!(
                "args has {} bytes; at most {TURN_BYTES} fit",
                self.args.len()
            ));
        }
        let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        if self.args.contains(is_odd) {
            return Err(
                "args has a control character; of these only newline and tab are taken".to_owned(),
            );
        }
        Ok(())
    }
}

/// What the agent said to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// It did not say that it failed, or that it does not know it.
    pub ok: bool,
    /// Its words, without secrets.
    pub text: UntrustedText,
    /// They go on.
    pub cut: bool,
}

/// Why a command has no answer of the agent's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The pool's protocol has none.
    #[error("agents of pool {0} take no commands: {1}")]
    NoCommands(PoolName, &'static str),
    /// Name or arguments cannot be sent.
    #[error("{0}")]
    Bad(String),
    /// Nothing of this name is in a slot of the pool.
    #[error("it is in no slot now: it has ended, or is not taken up yet")]
    NotInPool,
    /// No child runs.
    #[error("no agent runs in the session now: its next prompt or task starts one")]
    NoAgent,
    /// What the session does does not allow it now.
    #[error("{0}: try again")]
    Busy(String),
    /// The agent was not told.
    #[error("{0}")]
    Refused(String),
    /// The agent does not answer.
    #[error("{0}")]
    Unanswered(String),
    /// The child ended first.
    #[error("the agent ended before it answered: {0}")]
    Ended(String),
    /// What was ordered cannot be put on record.
    #[error("the journal takes nothing now: no command is given that would not be on record")]
    ReadOnly,
    /// The fleet is stopping, or the session is.
    #[error("the session is ending")]
    Stopping,
}

/// What came of a command.
pub(crate) type CommandResult = Result<CommandOutput, CommandError>;
/// Where that is told.
pub(crate) type CommandReply = oneshot::Sender<CommandResult>;

/// Whether the protocol of a pool has commands, or why not.
fn takes_commands(pool: &Pool) -> Result<(), &'static str> {
    if !pool.dialect.has_commands() {
        return Err("their protocol has none");
    }
    let table = pool.dialect_table();
    if table.is_some_and(|table| table.slash.is_none()) {
        return Err("the table of their dialect has no [slash]");
    }
    Ok(())
}

impl FleetHandle {
    /// Gives a session's agent one of its own commands; returns when its answer is durable.
    ///
    /// # Errors
    /// [`CommandError`]
    pub async fn send_command(
        &self,
        pool: &PoolName,
        session: SessionId,
        order: CommandRequest,
    ) -> Result<CommandOutput, CommandError> {
        let entry = self.0.pools.get(pool).ok_or(CommandError::NotInPool)?;
        takes_commands(&entry.shared.config)
            .map_err(|why| CommandError::NoCommands(pool.clone(), why))?;
        order.check().map_err(CommandError::Bad)?;
        let (reply, heard) = oneshot::channel();
        let order = OperatorRequest::Command {
            session,
            order: Arc::new(order),
            reply,
        };
        let (done, followed) = oneshot::channel();
        let sent = entry.actor.send_message(PoolMsg::Operator { order, done });
        sent.map_err(|_| CommandError::Stopping)?;
        match followed.await {
            Ok(Ok(())) => heard.await.unwrap_or(Err(CommandError::Stopping)),
            // Whoever it was for is there no more.
            Ok(Err(_)) => Err(CommandError::NotInPool),
            Err(_) => Err(CommandError::Stopping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, args: &str, says: Option<&str>) {
        let order = CommandRequest {
            command: command.to_owned(),
            args: args.to_owned(),
            by: "owner".to_owned(),
        };
        let said = order.check().err();
        match (says, said) {
            (None, None) => {}
            (Some(says), Some(said)) if said.contains(says) => {}
            (_, said) => panic!("{command:?} {args:?}: {said:?}"),
        }
    }

    #[test]
    fn names_and_arguments_have_their_bounds() {
        check("compact", "", None);
        check("mcp__x:re-view.1", "a\n\tb", None);
        check(
            &"x".repeat(COMMAND_NAME_BYTES),
            &"y".repeat(TURN_BYTES),
            None,
        );
        for bad in ["", "/compact", "a b", "a\n", "\u{e4}"] {
            check(bad, "", Some("no name"));
        }
        check(&"x".repeat(COMMAND_NAME_BYTES + 1), "", Some("no name"));
        check("x", &"y".repeat(TURN_BYTES + 1), Some("at most"));
        for bad in ["\0", "\u{1b}[2J", "\r", "\u{7f}", "\u{9b}"] {
            check("x", bad, Some("control character"));
        }
    }
}
