//! The script agent: a real, deterministic agent that speaks ScaiFlux's serve mode on stdio.
//!
//! It is the embedded default, the load generator and the fault injector. One thread, blocking
//! pipes, no runtime; it shares no code with the dialect that talks to it, so that each checks the
//! other. `docs/script-agent.md` is its page. Must not know the supervisor.

mod agent;
mod bash;
mod drills;
mod hearing;
mod ledger;
mod messages;
mod operands;
mod pipes;
mod script;
mod slash;
mod step;
mod tools;
mod turn;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

pub use script::{VERBS, Verb};

use agent::{Agent, Halt, Parts, Settings};
use ledger::Ledger;
use messages::Claim;
use pipes::{Inbox, Outbox};

/// The agent's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentDialect {
    /// ScaiFlux's serve mode, protocol version 1.
    Scaiflux,
}

/// What the agent is started with.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The protocol to speak
    #[arg(long, value_enum, default_value = "scaiflux")]
    pub dialect: AgentDialect,
    /// The directory to work in
    #[arg(long, short = 'w', value_name = "DIR", default_value = ".")]
    pub workspace: PathBuf,
    /// The session to go on with
    #[arg(long, value_name = "ID")]
    pub resume: Option<String>,
    /// The protocol version to claim: a number, a text, or `none` to claim nothing
    #[arg(
        long,
        value_name = "N|TEXT|none",
        default_value = "1",
        allow_hyphen_values = true
    )]
    pub protocol: String,
    /// Appends what was received and what is about to be done, each on the disk first
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// The model to claim
    #[arg(long, short = 'm', value_name = "M", default_value = "script")]
    pub model: String,
    /// The permission mode to report; every tool asks, whatever it is
    #[arg(long, value_name = "MODE", default_value = "danger-full-access", value_parser = slash::MODES)]
    pub permission_mode: String,
    /// Microseconds to think before each step, and before each request of `ask`
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub think_us: u64,
    /// Makes load: no narration, no log, large writes
    #[arg(long)]
    pub loader: bool,
}

/// Runs the agent until its controller is done. Exit codes: 0 after a goodbye or the end of
/// stdin, 2 if it could not start, 1 if its pipes or its ledger failed, else what `exit N` said.
pub fn run(args: Args) -> ExitCode {
    let claim = Claim::read(&args.protocol);
    let mut agent = match prepare(args) {
        Ok(agent) => agent,
        Err(message) => {
            complain(&message);
            return ExitCode::from(2);
        }
    };
    match agent.serve(&claim) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Halt::Exit(code)) => ExitCode::from(code),
        Err(Halt::Io(error)) => {
            complain(&error.to_string());
            ExitCode::from(1)
        }
    }
}

fn prepare(args: Args) -> Result<Agent, String> {
    let session = match args.resume {
        // What follows stands in arguments and file names of others.
        Some(id) if plain_id(&id) => id,
        Some(_) => return Err("--resume needs a session's id; nothing else is kept".to_owned()),
        None => uuid::Uuid::new_v4().to_string(),
    };
    // Before the directory changes: the path is the caller's.
    let ledger = Ledger::open(args.ledger.as_deref())
        .map_err(|error| format!("the ledger cannot be opened: {error}"))?;
    std::env::set_current_dir(&args.workspace)
        .map_err(|error| format!("the workspace cannot be entered: {error}"))?;
    let pipes = |error: io::Error| format!("stdin or stdout cannot be used: {error}");
    Ok(Agent::new(Parts {
        settings: Settings {
            think: Duration::from_micros(args.think_us),
            loader: args.loader,
        },
        inbox: Inbox::stdin().map_err(pipes)?,
        out: Outbox::stdout().map_err(pipes)?,
        ledger,
        session,
        model: args.model,
        mode: args.permission_mode,
    }))
}

/// Whether an id may be resumed by name: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`, and not `latest`.
fn plain_id(id: &str) -> bool {
    let bytes = id.as_bytes();
    id != "latest"
        && bytes.len() <= 128
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
}

fn complain(message: &str) {
    // Nobody may read it; the exit code says the rest.
    drop(writeln!(io::stderr(), "script-agent: {message}"));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_documentation_lists_every_flag_and_no_other() {
        let page = include_str!("../../../docs/script-agent.md");
        let rows: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `--")?.split_once('`'))
            .map(|(flag, _)| flag.split(' ').next().unwrap_or(flag))
            .collect();
        let command = Line::command();
        let flags: Vec<&str> = command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .collect();
        assert_eq!(rows, flags);
    }

    #[test]
    fn only_plain_ids_are_resumed() {
        for id in ["a", "0b5d-1", "A.b_c-d"] {
            assert!(plain_id(id), "{id}");
        }
        for id in ["", "latest", "-a", ".a", "a/b", "a b", &"a".repeat(129)] {
            assert!(!plain_id(id), "{id}");
        }
    }
}
