//! Slash commands: they are no turns, and `slash_result` answers them at once.
//!
//! Must not know prompts or tools.

use serde_json::{Value, json};

use super::messages::Outbound;
use crate::script_agent::agent::{Agent, CONTEXT_WINDOW, Halt};

/// All commands with their descriptions, in the order of `/help` and of the documentation.
pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("/model [NAME]", "shows or sets the model"),
    ("/mode [MODE]", "shows or sets the permission mode"),
    ("/context", "shows how full the context is"),
    ("/clear", "begins a new session"),
    ("/exit", "ends the agent"),
    ("/help", "lists these commands"),
];

/// The permission modes.
pub(crate) const MODES: [&str; 4] = [
    "prompt",
    "read-only",
    "workspace-write",
    "danger-full-access",
];

/// The result of a command.
#[derive(Debug, Default)]
struct Outcome {
    text: String,
    data: Option<Value>,
    clear_session: bool,
    exit: bool,
}

impl Outcome {
    fn with_text(text: impl Into<String>, data: Option<Value>) -> Self {
        Self {
            text: text.into(),
            data,
            ..Self::default()
        }
    }
}

impl Agent {
    /// Runs one command.
    pub(super) fn run_slash_command(&mut self, command: &str, args: &str) -> Result<(), Halt> {
        self.log(format_args!("/{command} {args}"));
        let args = args.trim();
        let outcome = match command {
            "model" => self.slash_model(args),
            "mode" => self.slash_mode(args),
            "context" => self.slash_context(),
            "clear" => self.slash_clear()?,
            "exit" => Outcome {
                exit: true,
                ..Outcome::with_text("Goodbye.", None)
            },
            "help" => Outcome::with_text(help(), None),
            _ => Outcome::with_text(
                format!("There is no command /{command}; /help lists them."),
                None,
            ),
        };
        self.out.send(&Outbound::SlashResult {
            command,
            text: &outcome.text,
            data: outcome.data,
            clear_session: outcome.clear_session,
            exit: outcome.exit,
        })?;
        if outcome.exit {
            self.close_session("/exit");
        }
        Ok(())
    }

    fn slash_model(&mut self, args: &str) -> Outcome {
        if !args.is_empty() {
            args.clone_into(&mut self.model);
        }
        Outcome::with_text(
            format!("Model: {}", self.model),
            Some(json!({"model": self.model})),
        )
    }

    fn slash_mode(&mut self, args: &str) -> Outcome {
        if !args.is_empty() {
            if !MODES.contains(&args) {
                return Outcome::with_text(
                    format!("There is no mode {args}; there are {}.", MODES.join(", ")),
                    None,
                );
            }
            args.clone_into(&mut self.mode);
        }
        Outcome::with_text(
            format!("Mode: {}", self.mode),
            Some(json!({"mode": self.mode})),
        )
    }

    fn slash_context(&mut self) -> Outcome {
        let pct = self.context_pct();
        Outcome::with_text(
            format!(
                "Context: {} of {CONTEXT_WINDOW} tokens, {pct} %",
                self.session.context
            ),
            Some(json!({
                "context_tokens": self.session.context,
                "context_window": CONTEXT_WINDOW,
                "context_pct": pct,
            })),
        )
    }

    fn slash_clear(&mut self) -> Result<Outcome, Halt> {
        if self.turn.is_some() {
            return Ok(Outcome::with_text(
                "A turn is in flight; interrupt it first.",
                None,
            ));
        }
        let session = self.begin_session(self.session.cwd.clone());
        self.session = session;
        self.log_to_ledger("session", || json!({"how": "clear"}))?;
        Ok(Outcome {
            clear_session: true,
            ..Outcome::with_text(
                "A new session begins.",
                Some(json!({"session_id": self.session.id})),
            )
        })
    }
}

fn help() -> String {
    COMMANDS
        .iter()
        .flat_map(|(usage, does)| [usage, "  ", does, "\n"])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_slash_command_and_no_other() {
        let page = include_str!("../../../../../docs/script-agent.md");
        let rows: Vec<&str> = page
            .lines()
            .filter_map(|line| {
                line.strip_prefix("| `/")?
                    .split_once('`')
                    .map(|(usage, _)| usage)
            })
            .collect();
        let commands: Vec<&str> = COMMANDS.iter().map(|(usage, _)| &usage[1..]).collect();
        assert_eq!(rows, commands);
    }
}
