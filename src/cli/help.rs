//! `marshal --help`: the commands, grouped by what they are for.
//!
//! Owns the groups. clap lists subcommands without groups, so its list is replaced here.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

use super::args::Cli;

/// The groups with their commands, in the order of a reader.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run agents", &["run", "up", "prompt", "chat", "acp"]),
    (
        "See what happens",
        &["ls", "open", "tasks", "logs", "events", "show", "report"],
    ),
    ("Decide and audit", &["approvals", "policy", "audit"]),
    (
        "Collect results",
        &["results", "diff", "apply", "discard", "land"],
    ),
    (
        "Control a daemon",
        &[
            "drain", "pause", "resume", "resize", "restart", "stop", "command", "exec", "reload",
        ],
    ),
    (
        "Set up",
        &[
            "init",
            "trust",
            "config",
            "agents",
            "login",
            "doctor",
            "sandbox",
            "api",
            "completions",
            "man",
        ],
    ),
    (
        "Programs for sandboxes and rehearsals",
        &["runner", "script-agent", "script-model"],
    ),
];

/// The command line, whose help shows the groups.
pub(super) fn command() -> Command {
    let command = Cli::command();
    let groups = groups_text(&command);
    command.before_help(groups).help_template(
        "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}",
    )
}

fn groups_text(command: &Command) -> String {
    let styles = command.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = String::new();
    for (title, names) in GROUPS {
        let found: Vec<&Command> = names
            .iter()
            .filter_map(|name| command.find_subcommand(name))
            .collect();
        // A build without the rehearsal has no script agent.
        if found.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{header}{title}:{header:#}");
        for subcommand in found {
            let about = subcommand.get_about().map(ToString::to_string);
            let _ = writeln!(
                text,
                "  {literal}{:<13}{literal:#}{}",
                subcommand.get_name(),
                about.unwrap_or_default()
            );
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_stands_in_one_group() {
        let command = Cli::command();
        let visible: BTreeSet<&str> = command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set())
            .map(Command::get_name)
            .collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let distinct: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(
            distinct.len(),
            grouped.len(),
            "a command stands in two groups"
        );
        let in_this_build: BTreeSet<&str> = distinct
            .into_iter()
            .filter(|name| cfg!(feature = "rehearsal") || !name.starts_with("script-"))
            .collect();
        assert_eq!(in_this_build, visible);
    }

    #[test]
    fn the_help_shows_every_group_and_the_options() {
        let help = super::command().render_help().to_string();
        for (title, _) in GROUPS.iter().take(6) {
            assert!(help.contains(&format!("{title}:\n")), "{title}: {help}");
        }
        assert!(
            help.contains("Options:\n") && help.contains("--config <FILE>"),
            "{help}"
        );
        assert!(!help.contains("Commands:"), "clap's own list: {help}");
    }
}
