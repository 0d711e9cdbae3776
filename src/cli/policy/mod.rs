//! `policy`: what a policy says of a request, of labelled requests, and of those of the past.
//!
//! Owns the exit codes of `check`: 0 allow, 1 ask, 2 deny, 3 everything that is no verdict. Must not
//! know how a policy judges, and starts nothing.

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

/// What `policy check` ends with where there is no verdict.
pub const NO_VERDICT: u8 = 3;

/// `policy …`
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Judge one request; exits with 0 for allow, 1 for ask, 2 for deny, 3 for anything else
    Check(check::CheckArgs),
    /// Show how one request is judged: its parts, what is known of them, the rules that apply
    Explain(check::CheckArgs),
    /// Judge labelled requests (JSON Lines) and count what is allowed or stopped wrongly
    Test(cases::TestArgs),
    /// Judge the requests on record again by another policy, and show what would change
    Replay(replay::ReplayArgs),
    /// Propose rules from what people allowed, the narrowest first; none would allow what was denied
    Learn(learn::LearnArgs),
    /// Look for rules that do less, or allow more, than they seem to
    Lint(lint::LintArgs),
    /// Print the text of a policy: one to start from, or to read
    Show(show::ShowArgs),
    /// Show what judges each pool of the running supervisor, and what came of the last reload
    Status,
    /// Have the running supervisor read its policies again: all of them come into force, or none
    Reload,
}

impl PolicyCommand {
    /// Whether a running supervisor is asked.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Status | Self::Reload)
    }
}

/// Asks the supervisor of a state directory.
pub async fn live(
    command: &PolicyCommand,
    state: &Path,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let reload = matches!(command, PolicyCommand::Reload);
    status::run(state, reload, json, streams).await
}

/// Why a command gave no result.
#[derive(Debug)]
pub(in crate::cli) enum PolicyCommandError {
    /// It was told already.
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
    let around = PolicySources { config, directory };
    match command {
        PolicyCommand::Check(args) => check::check(args, &around, json, streams),
        PolicyCommand::Explain(args) => check::explain(args, &around, json, streams),
        PolicyCommand::Test(args) => cases::test(args, &around, json, streams),
        PolicyCommand::Replay(args) => replay::replay(args, &around, json, streams),
        PolicyCommand::Learn(args) => learn::learn(args, &around, json, streams),
        PolicyCommand::Lint(args) => lint::lint(args, &around, json, streams),
        PolicyCommand::Show(args) => show::show(args, &around, json, streams),
        PolicyCommand::Status | PolicyCommand::Reload => Ok(NO_VERDICT), // asked before
    }
}

/// Whether the arguments, the program's name first, are for `policy check`, which has a code of its
/// own for wrong usage.
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
