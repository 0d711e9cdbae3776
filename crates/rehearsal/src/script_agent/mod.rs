//! The script agent: a real, deterministic agent that speaks ScaiFlux's serve mode, the Agent
//! Client Protocol, loaf's RPC, Claude Code's stream-json or Codex' own protocol on stdio.
//!
//! It is the embedded default, the load generator and the fault injector. One thread, blocking
//! pipes, no runtime. It shares no code with the dialects of the supervisor, so that each checks
//! the other. Steps, turns and tools are the same for all protocols; each protocol's differences
//! are in a folder. `docs/script-agent.md` documents it. Must not know the supervisor.
//!
//! A new step goes into `script.rs` and `step.rs`, then into `turn.rs` or `drills.rs`. A new
//! protocol is a folder beside `acp/`: its `messages.txt` with the form of every message, its lines
//! for the events of `agent_event.rs`, and its handler of the client's messages. Tests:
//! `tests/script_agent/`.

mod acp;
mod agent;
mod agent_event;
mod bash;
mod claim;
mod claude;
mod codex;
mod drills;
mod form;
mod handler;
mod ledger;
mod loaf;
mod login;
mod memory;
mod operands;
mod pipes;
mod quirk;
mod rpc;
mod scaiflux;
mod script;
mod step;
mod template;
mod tools;
mod turn;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

pub use script::{VERBS, Verb};

use agent::{Agent, Halt, Settings};
use claim::VersionClaim;
pub use claude::ClaudeFlags;
use ledger::Ledger;
use memory::{Memory, Session, SessionError};
use pipes::{Inbox, Outbox};
pub use quirk::Quirk;
use scaiflux::slash;
use step::ToolCall;
use template::Templates;

/// The agent's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentDialect {
    /// ScaiFlux's serve mode, protocol version 1.
    Scaiflux,
    /// The Agent Client Protocol, version 1.
    Acp,
    /// loaf's RPC, protocol 1.
    Loaf,
    /// Claude Code's stream-json, version 2.
    Claude,
    /// The protocol of `codex app-server`, version 0.169.
    Codex,
}

impl AgentDialect {
    /// Whether the protocol has permission requests.
    const fn has_permission_requests(self) -> bool {
        !matches!(self, Self::Loaf)
    }

    /// Whether it has a message that withdraws a request.
    const fn has_request_withdrawal(self) -> bool {
        matches!(self, Self::Claude | Self::Codex)
    }

    /// Whether a turn gets its id when its prompt is accepted, before it begins.
    const fn names_turns_early(self) -> bool {
        matches!(self, Self::Loaf | Self::Codex)
    }

    /// Converts a tool call to the form in which an agent of that protocol makes it.
    fn translate_call(self, call: &ToolCall) -> Cow<'_, ToolCall> {
        match self {
            Self::Codex => codex::translate_call(call),
            _ => Cow::Borrowed(call),
        }
    }

    /// The templates of the agent's messages.
    const fn templates(self) -> Templates {
        Templates(match self {
            Self::Scaiflux => include_str!("scaiflux/messages.txt"),
            Self::Acp => include_str!("acp/messages.txt"),
            Self::Loaf => include_str!("loaf/messages.txt"),
            Self::Claude => include_str!("claude/messages.txt"),
            Self::Codex => include_str!("codex/messages.txt"),
        })
    }

    /// The protocol version that the agent claims by default.
    const fn version(self) -> &'static str {
        match self {
            Self::Claude => claude::VERSION,
            Self::Codex => codex::VERSION,
            Self::Scaiflux | Self::Acp | Self::Loaf => "1",
        }
    }

    /// The permission modes of the protocol; the agent begins in the last one.
    const fn modes(self) -> &'static [&'static str] {
        match self {
            Self::Claude => &claude::MODES,
            _ => &slash::MODES,
        }
    }
}

/// The arguments of the script agent.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The protocol to speak
    #[arg(long, value_enum, default_value = "scaiflux")]
    pub dialect: AgentDialect,
    /// The directory to work in
    #[arg(long, short = 'w', value_name = "DIR", default_value = ".")]
    pub workspace: PathBuf,
    /// The id of the session to resume
    #[arg(long, value_name = "ID")]
    pub resume: Option<String>,
    /// Store no sessions, so that none can be resumed
    #[arg(long)]
    pub forget: bool,
    /// The protocol version to claim: a number, a text, or `none` to claim nothing. All dialects
    /// except ScaiFlux also accept `error` to refuse. ACP and loaf also accept `echo` for the
    /// requested version, and `v2` to behave like version 2
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub protocol: Option<String>,
    /// Append every received message and every next action to FILE, durably, before acting on it
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// The model to claim
    #[arg(long, short = 'm', value_name = "M", default_value = "script")]
    pub model: String,
    /// The permission mode to report; every tool asks in every mode
    #[arg(long, value_name = "MODE")]
    pub permission_mode: Option<String>,
    /// The pause before each step and before each request of `ask`, in microseconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub think_us: u64,
    /// ACP: send permission requests that contain only the id of their tool call
    #[arg(long)]
    pub bare_asks: bool,
    /// Behave like an agent with this quirk; may be repeated
    #[arg(long, value_enum, value_name = "WAY")]
    pub quirk: Vec<Quirk>,
    /// Log in at the terminal: ask for a key, and store it in the home
    #[arg(long)]
    pub set_up: bool,
    /// Generate load: no narration, no log, no memory, large writes
    #[arg(long)]
    pub loader: bool,
    /// Arguments that a host of Claude Code adds to its command.
    #[command(flatten)]
    pub words: ClaudeFlags,
}

/// Runs the agent until its controller disconnects. Exit codes: 0 after a regular end or the end of
/// stdin; 2 if it could not start; 1 if the session to resume does not exist, if its pipes or its
/// ledger failed or, in some protocols, if its controller broke the protocol; else the code of
/// `exit N`. `is_verbose`: `--verbose` was given, which Claude Code's protocol requires.
pub fn run(args: Args, is_verbose: bool) -> ExitCode {
    if args.set_up {
        return login::set_up();
    }
    let mut agent = match build_agent(args, is_verbose) {
        Ok(agent) => agent,
        Err(failure) => {
            print_error(&failure.to_string());
            return ExitCode::from(failure.code());
        }
    };
    let why = match agent.serve() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Halt::Exit(code)) => return ExitCode::from(code),
        Err(Halt::ProtocolError(what)) => format!("the controller broke the protocol: {what}"),
        Err(Halt::Io(error)) => error.to_string(),
    };
    print_error(&why);
    ExitCode::from(1)
}

/// An error that prevents the agent's start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("the ledger cannot be opened: {0}")]
    Ledger(io::Error),
    #[error("cannot change to the workspace: {0}")]
    Workspace(io::Error),
    #[error("stdin or stdout cannot be used: {0}")]
    Pipes(io::Error),
    #[error(
        "--resume works only with the dialects scaiflux and claude; clients of the others send session/load, session/resume, session.get or thread/resume"
    )]
    ResumeByFlag,
    #[error("unknown permission mode: use one of {}", .0.join(", "))]
    Mode(&'static [&'static str]),
    #[error(transparent)]
    Words(#[from] claude::FlagError),
    #[error("session `{id}` cannot be resumed: {why}")]
    Resume { id: String, why: SessionError },
}

impl StartError {
    /// The exit code. A missing session is no usage error.
    const fn code(&self) -> u8 {
        match self {
            Self::Resume { .. } | Self::Words(claude::FlagError::SessionIdTaken(_)) => 1,
            _ => 2,
        }
    }
}

fn build_agent(args: Args, is_verbose: bool) -> Result<Agent, StartError> {
    // Before the directory changes: a relative path refers to the caller's directory.
    let ledger = Ledger::open(args.ledger.as_deref()).map_err(StartError::Ledger)?;
    std::env::set_current_dir(&args.workspace).map_err(StartError::Workspace)?;
    let memory = if args.forget {
        Memory::Disabled("--forget")
    } else if args.loader {
        Memory::Disabled("--loader")
    } else {
        Memory::in_home(std::env::var_os("HOME"))
    };
    let claude = claude::Conversation::new(args.dialect, &args.words, is_verbose)?;
    let modes = args.dialect.modes();
    let mode = args
        .permission_mode
        .as_deref()
        .or(modes.last().copied())
        .unwrap_or_default();
    if !modes.contains(&mode) {
        return Err(StartError::Mode(modes));
    }
    let mode = mode.to_owned();
    let version = args.protocol.as_deref();
    let mut out = Outbox::stdout().map_err(StartError::Pipes)?;
    let ids = (args.resume, args.words.session_id);
    let session = first_session(&memory, args.dialect, ids, &mut out)?;
    let inbox = Inbox::stdin().map_err(StartError::Pipes)?;
    let settings = Settings {
        dialect: args.dialect,
        claim: VersionClaim::parse(version.unwrap_or(args.dialect.version())),
        think: Duration::from_micros(args.think_us),
        loader: args.loader,
        bare_requests: args.bare_asks,
        quirks: args.quirk,
    };
    Ok(Agent::new(
        settings,
        (inbox, out),
        ledger,
        (memory, session),
        (args.model, mode),
        claude,
    ))
}

/// The session that the agent begins with; empty in protocols where the client opens sessions.
/// `new_id` is the id of a new session.
fn first_session(
    memory: &Memory,
    dialect: AgentDialect,
    (resume, new_id): (Option<String>, Option<String>),
    out: &mut Outbox,
) -> Result<Session, StartError> {
    if !matches!(dialect, AgentDialect::Scaiflux | AgentDialect::Claude) {
        return match resume {
            Some(_) => Err(StartError::ResumeByFlag),
            None => Ok(Session::unsaved(String::new())),
        };
    }
    let cwd = || std::env::current_dir().map_err(StartError::Workspace);
    let Some(id) = resume else {
        let named = new_id.map(|id| claude::check_new_session_id(memory, id));
        let (session, failed) = match named {
            Some(id) => memory.begin_as(id?, cwd()?),
            None => memory.begin(cwd()?),
        };
        if let Some(error) = failed {
            print_error(&format!("the session is not kept: {error}"));
        }
        return Ok(session);
    };
    match memory.load(&id) {
        Ok(mut session) => {
            session.cwd = cwd()?;
            Ok(session)
        }
        Err(why) => {
            if dialect == AgentDialect::Claude {
                // A host that reads this ends the agent; the exit code reports the same.
                drop(claude::report_missing_session(out, &id));
            }
            let id = rpc::shorten(id);
            Err(StartError::Resume { id, why })
        }
    }
}

fn print_error(message: &str) {
    // If nobody reads stderr, the exit code still reports the failure.
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
        let page = include_str!("../../../../docs/script-agent.md");
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
}
