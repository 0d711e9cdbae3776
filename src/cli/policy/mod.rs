//! `policy`: evaluates one request, labelled requests and recorded requests.
//!
//! Owns the exit codes of `check`: 0 allow, 1 ask, 2 deny, 3 for any error. Must not know how a
//! policy decides. Starts nothing.

mod cases;
mod check;
pub(super) mod learn;
mod lint;
pub(super) mod place;
pub(super) mod recorded;
pub(super) mod replay;
mod show;
pub(super) mod source;
mod status;
mod tree;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use super::exit::Exit;
use super::streams::Streams;
use source::PolicySources;

/// The exit code of `policy check` without a decision.
pub const NO_VERDICT: u8 = 3;

/// `policy …`
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Evaluate one request; exits with 0 for allow, 1 for ask, 2 for deny, 3 for an error
    Check(check::CheckArgs),
    /// Show how one request is evaluated: its parts, their facts and the rules that apply
    Explain(check::CheckArgs),
    /// Evaluate labelled requests (JSON Lines), and count the wrong decisions
    Test(cases::TestArgs),
    /// Evaluate recorded requests again by another policy, and show what would change
    Replay(replay::ReplayArgs),
    /// Propose rules from what people allowed, the narrowest first; none allows what was denied
    Learn(learn::LearnArgs),
    /// Find rules that do less, or allow more, than they seem to
    Lint(lint::LintArgs),
    /// Print the text of a policy
    Show(show::ShowArgs),
    /// Show the policies in force in the running supervisor, and the result of the last reload
    Status,
    /// Make the running supervisor reload its policies: all of them or none
    Reload,
}

impl PolicyCommand {
    /// Whether the command needs a running supervisor.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Status | Self::Reload)
    }
}

/// Runs a command that needs the supervisor of a state directory.
pub async fn live(
    command: &PolicyCommand,
    state: &Path,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let reload = matches!(command, PolicyCommand::Reload);
    status::run(state, reload, json, streams).await
}

/// Why a command failed.
#[derive(Debug)]
pub(in crate::cli) enum PolicyCommandError {
    /// The error was printed already.
    Reported(Exit),
    /// Wrong usage, or a policy or file that cannot be used.
    Usage(String),
    /// Something failed.
    Failed(String),
}

impl PolicyCommandError {
    pub(in crate::cli) fn exit(&self) -> Exit {
        match self {
            Self::Reported(exit) => *exit,
            Self::Usage(_) => Exit::Usage,
            Self::Failed(_) => Exit::Failures,
        }
    }
}

/// Runs the command.
pub fn main(
    command: &PolicyCommand,
    config: Option<&Path>,
    json: bool,
    mut streams: Streams,
) -> ExitCode {
    let is_check = matches!(command, PolicyCommand::Check(_));
    let done = run(command, config, json, &mut streams);
    match done {
        Ok(code) => code.into(),
        Err(fault) => {
            if let PolicyCommandError::Usage(text) | PolicyCommandError::Failed(text) = &fault {
                streams.err.line(&format!("error: {text}"));
            }
            if is_check {
                NO_VERDICT.into()
            } else {
                fault.exit().into()
            }
        }
    }
}

fn run(
    command: &PolicyCommand,
    config: Option<&Path>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let directory = std::env::current_dir().map_err(|_| {
        PolicyCommandError::Usage("the current directory cannot be read".to_owned())
    })?;
    let sources = PolicySources { config, directory };
    match command {
        PolicyCommand::Check(args) => check::check(args, &sources, json, streams),
        PolicyCommand::Explain(args) => check::explain(args, &sources, json, streams),
        PolicyCommand::Test(args) => cases::test(args, &sources, json, streams),
        PolicyCommand::Replay(args) => replay::replay(args, &sources, json, streams),
        PolicyCommand::Learn(args) => learn::learn(args, &sources, json, streams),
        PolicyCommand::Lint(args) => lint::lint(args, &sources, json, streams),
        PolicyCommand::Show(args) => show::show(args, &sources, json, streams),
        PolicyCommand::Status | PolicyCommand::Reload => Ok(NO_VERDICT), // handled by `live`
    }
}

/// Whether the arguments, the program's name first, are for `policy check`, which has its own exit
/// code for wrong usage.
#[must_use]
pub fn is_check(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().skip(1);
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if word == "--config" {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            found.push(word);
            if found.len() == 2 {
                break;
            }
        }
    }
    found == ["policy", "check"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_known_by_its_words() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, expect) in [
            ("marshal policy check", true),
            ("marshal --config a --json policy -q check --bad", true),
            ("marshal --config policy check", false),
            ("marshal policy test check", false),
            ("marshal run policy check", false),
            ("marshal", false),
        ] {
            assert_eq!(is_check(&words(line)), expect, "{line}");
        }
    }
}
