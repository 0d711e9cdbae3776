//! An agent's own slash commands: what may be sent, and the result of one.
//!
//! Must not know who sends a command, nor how a protocol writes it. The caller gets an error if the
//! reply is dropped.
//!
//! The path of a command: `engine/api/v1/sessions.rs` or `cli/daemon_commands.rs`, then this file,
//! then the pool (`pool/operator.rs`), then the session (`session/turn/commands.rs`), which journals
//! `command_sent`. When that is durable the dialect writes it, or refuses. The dialect reports the
//! result, an error, or that `timeouts.control` has expired (`dialect/slash.rs`; loaf's requests
//! have their timeout in `dialect/loaf/keepalive.rs`). The caller gets the reply when it is
//! durable.
//!
//! If an agent says that a command makes it exit, the stop ladder stops it; that is no crash. If
//! the agent switches to a mode in which it requests permission for less than before, the child is
//! ended at once (`dialect/mode_guard.rs`); a command can cause this. `DialectName::has_commands` lists the protocols that have commands.
//! Tests: `tests/drills/fleet/agent_commands.rs`.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::FleetHandle;
use crate::messages::PoolMsg;
use crate::pool::OperatorRequest;
use marshal_config::Pool;
use marshal_model::limits::{COMMAND_NAME_BYTES, TURN_BYTES};
use marshal_model::{PoolName, SessionId, UntrustedText};

/// A command for an agent, as a caller sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRequest {
    /// The command's name, without a slash.
    pub command: String,
    /// The rest of the line; at most [`TURN_BYTES`].
    pub args: String,
    /// The caller, for the journal.
    pub by: String,
}

impl CommandRequest {
    /// Checks name and arguments.
    ///
    /// # Errors
    /// A sentence that names the invalid field and what it accepts.
    pub fn check(&self) -> Result<(), String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let length = self.command.len();
        if !(1..=COMMAND_NAME_BYTES).contains(&length) || !self.command.chars().all(is_part) {
            return Err(format!(
                "command is not a name: give 1 to {COMMAND_NAME_BYTES} letters, digits, '-', '_', '.' or ':', without a slash"
            ));
        }
        if self.args.len() > TURN_BYTES {
            return Err(format!(
                "args has {} bytes; at most {TURN_BYTES} bytes are allowed",
                self.args.len()
            ));
        }
        let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        if self.args.contains(is_odd) {
            return Err(
                "args has a control character; only newline and tab are allowed".to_owned(),
            );
        }
        Ok(())
    }
}

/// The agent's reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// False if the agent reported a failure or an unknown command.
    pub ok: bool,
    /// The agent's text, with known secrets masked.
    pub text: UntrustedText,
    /// Whether the text was truncated.
    pub cut: bool,
}

/// Why a command got no reply from the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The pool's protocol has no commands.
    #[error("agents of pool {0} take no commands: {1}")]
    NoCommands(PoolName, &'static str),
    /// Name or arguments cannot be sent.
    #[error("{0}")]
    Bad(String),
    /// There is no such pool, or no slot of it has this session.
    #[error("the session is in no slot of the pool: it has ended, or is not resumed yet")]
    NotInPool,
    /// No child runs.
    #[error("no agent runs in the session now: its next prompt or task starts one")]
    NoAgent,
    /// The session is in a state that does not allow a command.
    #[error("{0}: try again")]
    Busy(String),
    /// The dialect refused the command; the agent did not get it.
    #[error("{0}")]
    Refused(String),
    /// The agent did not answer in time.
    #[error("{0}")]
    Unanswered(String),
    /// The child ended before it answered.
    #[error("the agent ended before it answered: {0}")]
    Ended(String),
    /// The journal cannot record the command, so it is not sent.
    #[error(
        "the journal cannot write now, and a command must be journalled first: try again later"
    )]
    ReadOnly,
    /// The fleet or the session is stopping.
    #[error("the session is ending")]
    Stopping,
}

/// The result of a command.
pub(crate) type CommandResult = Result<CommandOutput, CommandError>;
/// Where the result is sent.
pub(crate) type CommandReply = oneshot::Sender<CommandResult>;

/// Whether the protocol of a pool has commands, or why not.
fn takes_commands(pool: &Pool) -> Result<(), &'static str> {
    if !pool.dialect.has_commands() {
        return Err("their protocol has none");
    }
    let definition = pool.dialect_definition();
    if definition.is_some_and(|definition| definition.slash.is_none()) {
        return Err("the definition of their dialect has no [slash]");
    }
    Ok(())
}

impl FleetHandle {
    /// Sends a session's agent one of its own commands; returns when the reply is durable.
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
        let (reply, output) = oneshot::channel();
        let order = OperatorRequest::Command {
            session,
            order: Arc::new(order),
            reply,
        };
        let (done, accepted) = oneshot::channel();
        let sent = entry.actor.send_message(PoolMsg::Operator { order, done });
        sent.map_err(|_| CommandError::Stopping)?;
        match accepted.await {
            Ok(Ok(())) => output.await.unwrap_or(Err(CommandError::Stopping)),
            // The session left its slot before the pool got the order.
            Ok(Err(_)) => Err(CommandError::NotInPool),
            Err(_) => Err(CommandError::Stopping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, args: &str, expected: Option<&str>) {
        let order = CommandRequest {
            command: command.to_owned(),
            args: args.to_owned(),
            by: "owner".to_owned(),
        };
        let error = order.check().err();
        match (expected, error) {
            (None, None) => {}
            (Some(expected), Some(error)) if error.contains(expected) => {}
            (_, error) => panic!("{command:?} {args:?}: {error:?}"),
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
            check(bad, "", Some("not a name"));
        }
        check(&"x".repeat(COMMAND_NAME_BYTES + 1), "", Some("not a name"));
        check("x", &"y".repeat(TURN_BYTES + 1), Some("at most"));
        for bad in ["\0", "\u{1b}[2J", "\r", "\u{7f}", "\u{9b}"] {
            check("x", bad, Some("control character"));
        }
    }
}
