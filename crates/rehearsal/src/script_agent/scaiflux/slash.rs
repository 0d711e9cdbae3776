//! Slash commands: they are no turns, and `slash_result` answers them at once.
//!
//! Must not know prompts or tools.

use serde_json::{Value, json};

use crate::script_agent::agent::{Agent, CONTEXT_WINDOW, Halt};
use crate::script_agent::template::fields;

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

/// The result of a command: its text and its data.
type Outcome = (String, Option<Value>);

impl Agent {
    /// Runs one command.
    pub(super) fn run_slash_command(&mut self, command: &str, args: &str) -> Result<(), Halt> {
        self.log(format_args!("/{command} {args}"));
        let args = args.trim();
        let (text, data) = match command {
            "model" => self.slash_model(args),
            "mode" => self.slash_mode(args),
            "context" => self.slash_context(),
            "clear" => self.slash_clear()?,
            "exit" => ("Goodbye.".to_owned(), None),
            "help" => (help(), None),
            _ => {
                let text = format!("There is no command /{command}; /help lists them.");
                (text, None)
            }
        };
        let (clears, exits) = (command == "clear" && data.is_some(), command == "exit");
        self.send("slash_result", fields![command, text, data, clears, exits])?;
        if exits {
            self.close_session("/exit");
        }
        Ok(())
    }

    fn slash_model(&mut self, args: &str) -> Outcome {
        if !args.is_empty() {
            args.clone_into(&mut self.model);
        }
        let data = json!({"model": self.model});
        (format!("Model: {}", self.model), Some(data))
    }

    fn slash_mode(&mut self, args: &str) -> Outcome {
        if !args.is_empty() {
            if !MODES.contains(&args) {
                let modes = MODES.join(", ");
                return (format!("There is no mode {args}; there are {modes}."), None);
            }
            args.clone_into(&mut self.mode);
        }
        (
            format!("Mode: {}", self.mode),
            Some(json!({"mode": self.mode})),
        )
    }

    fn slash_context(&self) -> Outcome {
        let (tokens, pct) = (self.session.context, self.context_pct());
        let data = json!({
            "context_tokens": tokens, "context_window": CONTEXT_WINDOW, "context_pct": pct,
        });
        let text = format!("Context: {tokens} of {CONTEXT_WINDOW} tokens, {pct} %");
        (text, Some(data))
    }

    fn slash_clear(&mut self) -> Result<Outcome, Halt> {
        if self.turn.is_some() {
            let text = "A turn is in flight; interrupt it first.";
            return Ok((text.to_owned(), None));
        }
        self.session = self.begin_session(self.session.cwd.clone());
        self.log_to_ledger("session", || json!({"how": "clear"}))?;
        let data = json!({"session_id": self.session.id});
        Ok(("A new session begins.".to_owned(), Some(data)))
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
