//! What a person may type.
//!
//! Owns the shape of the command line; only what does something is here. Must not know what the
//! commands do.
//!
//! A new command also touches `command.rs` and, if it is a client of the daemon, `engine/api/request.rs` and
//! `engine/api/control/`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, Subcommand};

use super::approvals::ApprovalsCommand;
use super::audit::AuditCommand;
use super::board::Verbosity;
use super::chat::ChatArgs;
use super::config_file::{self, LoadError, Loaded};
use super::events::EventsArgs;
use super::exit::Exit;
use super::policy::PolicyCommand;
use super::prompt::PromptArgs;
use super::report::ReportArgs;
use super::run_bounds::BoundArgs;
use super::sandbox_command::SandboxCommand;
use super::{agents, manual, overlay};
use marshal_model::{PoolName, RunId, SessionId, SlotId};

/// Runs many AI agents on one host, each in its own sandbox, judged by policy
#[derive(Debug, Parser)]
#[command(
    name = "marshal",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// The configuration; else ./supervisor.toml, else the built-in one
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// One JSON object a line on standard output, and nothing else there
    #[arg(long, global = true)]
    pub json: bool,

    /// Tell no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Tell more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Work a list of tasks with a fleet in this process, and show what became of them
    Run(RunArgs),
    /// Run the daemon: the same fleet with /metrics, /healthz, /readyz and a control socket
    Up,
    /// Show pools and slots of the supervisor that runs here, and where their walls are weak
    Ls,
    /// Show what a slot's child writes to its standard error
    Logs {
        /// The slot, for example demo/0
        #[arg(value_parser = SlotId::parse)]
        slot: SlotId,
        /// Go on as lines come
        #[arg(short, long)]
        follow: bool,
    },
    /// End a slot's child and unpark the slot; its next task starts a new one
    Restart {
        /// The slot, for example demo/0
        #[arg(value_parser = SlotId::parse)]
        slot: SlotId,
    },
    /// Begin no further task of a pool; running ones end, and children go that have nothing to do
    Drain {
        /// The pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Begin no further task of a pool; slots keep their children
    Pause {
        /// The pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Begin tasks of a pool again after `drain` or `pause`
    Resume {
        /// The pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Have only the first so many slots of a pool get tasks; until the daemon ends
    Resize {
        /// The pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
        /// How many, up to the size in the configuration
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        size: u16,
    },
    /// End a session, its turn first
    Stop {
        /// The session, as `ls` and `events` name it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: SessionId,
        /// Only the turn: the session goes on where it can
        #[arg(long)]
        turn: bool,
    },
    /// Give the agent of a session one of its own commands, and show its answer
    ///
    /// For agents whose protocol has them: ScaiFlux, loaf, and custom dialects whose table says how.
    Command {
        /// The session, as `ls` and `events` name it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: SessionId,
        /// The command's name, without its slash
        name: String,
        /// What follows it on its line
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        args: Vec<String>,
    },
    /// Have the daemon read its configuration and policies again, and say what needs a restart
    Reload,
    /// Send a message to a chat of the daemon, a new one or one that goes on, and show the answer
    ///
    /// The first Ctrl-C stops the turn, the second leaves.
    Prompt(PromptArgs),
    /// Talk with an agent of the daemon, message by message
    ///
    /// On a terminal there is an editor with a history; from a pipe each line is a message. Ctrl-C ends
    /// the turn, twice it leaves. What needs a person is asked in place.
    Chat(ChatArgs),
    /// Show what happened, from an event or a time on; reads the journal, beside whatever runs
    Events(EventsArgs),
    /// Look at what waits for a person, and answer it
    Approvals {
        /// What to do with it
        #[command(subcommand)]
        command: ApprovalsCommand,
    },
    /// Show one session: its task, requests with their verdicts, tool calls, exit
    Show {
        /// The session, as `events` and results name it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: SessionId,
    },
    /// Look at the verdicts on record, and prove that nobody changed them
    Audit {
        /// What to do with them
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Show what became of the last hours: outcomes, costs, denials, what waits for a person
    Report(ReportArgs),
    /// Try policies: on one request, on labelled ones, on those of the past
    Policy {
        /// What to do with them
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Show what a session wrote over its workspace (workspace mode overlay)
    Diff(overlay::DiffArgs),
    /// Put what a session wrote into its workspace: all of it, or nothing
    ///
    /// Refused are devices, fifos, set-id files, hard links, links that leave the workspace, what
    /// the pool's policy denies to its agents, and what was changed in the workspace meanwhile.
    Apply(overlay::ApplyArgs),
    /// Remove what a session wrote over its workspace
    Discard(overlay::DiscardArgs),
    /// Take the branch of a session that worked in a clone (mode "worktree") into its repository
    ///
    /// It becomes the branch marshal/SESSION there. Nothing is checked out or overwritten.
    Take {
        /// The session, as `run` and results name it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: SessionId,
    },
    /// Look at the configuration
    Config {
        /// What to do with it
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Describe the HTTP API
    Api {
        /// What of it
        #[command(subcommand)]
        command: ApiCommand,
    },
    /// Show which agents are built in, and which of them this host has
    Agents(agents::Args),
    /// Look at what this host has of what the walls are made of, and what is missing; exits with 1
    /// if a profile in use cannot be had
    Doctor {
        /// Only what this profile needs: standard, strict, or a [sandbox.NAME]
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
    },
    /// The walls around one command, without a fleet
    Sandbox {
        /// What to do with them
        #[command(subcommand)]
        command: SandboxCommand,
    },
    /// Print what a shell reads to complete this program's words
    ///
    /// For example: marshal completions bash > /etc/bash_completion.d/marshal
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one for each command
    Man(manual::ManArgs),
    /// Be an ACP agent on standard input and output, for editors: each of its sessions is one of the
    /// daemon's, or of a fleet that it starts itself
    Acp {
        /// The pool whose slots work the sessions
        #[arg(long, value_name = "NAME", value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Be the tool server `marshal` of an agent, inside its walls: copies between standard input and
    /// output and a socket of the supervisor
    #[command(hide = true)]
    Mcp {
        /// The socket
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,
    },
    /// Run a tool at a terminal, driven by the files of a session directory: SkillPilot's Runner
    Runner(marshal_skillpilot_runner::Args),
    #[cfg(feature = "rehearsal")]
    /// Be the script agent: a deterministic agent that works a prompt as a small script
    ScriptAgent(marshal_rehearsal::script_agent::Args),
    #[cfg(feature = "rehearsal")]
    /// Be the rehearsal model: a server that answers as model providers do, by a script in the prompt
    ScriptModel(marshal_rehearsal::script_model::Args),
}

/// `api …`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ApiCommand {
    /// Print the OpenAPI document of /api/v1
    Schema,
    /// Print its routes as a Markdown table, each with the least role that it needs
    Routes,
}

/// `config …`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ConfigCommand {
    /// Read the whole configuration and say what is wrong with it
    Check,
    /// Print the JSON Schema of the configuration, for editors
    Schema {
        /// That of the table of a custom dialect
        #[arg(long)]
        dialect: bool,
    },
    /// Print the configuration in use with all its defaults, and its secrets hidden
    Show,
}

/// `run …`
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Prompts, task files (an existing FILE.jsonl), - for tasks from standard input, or one plan
    /// (an existing FILE.md)
    ///
    /// A plan is a Markdown checklist: its open items are worked, and ticked when they are done.
    ///
    /// A task is one JSON object a line: {"id", "prompt", "pool", "workspace", "attempts",
    /// "check", "policy_layer", "priority"}, of which "prompt" is needed.
    #[arg(
        required_unless_present_any = ["goes_on", "plan"],
        conflicts_with = "goes_on",
        value_name = "TASK | FILE.jsonl | PLAN.md | -"
    )]
    pub tasks: Vec<OsString>,

    /// Work the open items of this Markdown checklist, whatever its name is
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tasks", "goes_on"])]
    pub plan: Option<PathBuf>,

    /// Work also what agents may have added to the plan, at most 100 items
    #[arg(long)]
    pub agent_items: bool,

    /// The pool that works the plan's items, where there are several
    #[arg(long, value_name = "NAME", value_parser = PoolName::new)]
    pub pool: Option<PoolName>,

    /// Finish a run that was left unfinished, without new tasks; without RUN the newest one
    ///
    /// What completed is not repeated. The table, --results and the exit code are of the whole run.
    #[arg(
        long = "continue",
        id = "goes_on",
        value_name = "RUN",
        num_args = 0..=1,
        conflicts_with = "local",
        value_parser = RunId::new
    )]
    pub goes_on: Option<Option<RunId>>,

    /// Write what became of each task, as JSON Lines
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,

    /// Put this [policy.NAME] (one with layer = true) on top of the pool's for each task that names
    /// none; it can only deny and ask
    #[arg(long, value_name = "NAME", conflicts_with = "goes_on", value_parser = layer)]
    pub policy_layer: Option<String>,

    /// Let what the policy wants a person to decide wait for `marshal approvals`; otherwise it is denied
    #[arg(long)]
    pub approvals: bool,

    /// Work here even if a daemon holds the state directory, in a state directory of its own
    #[arg(long)]
    pub local: bool,

    /// What bounds it
    #[command(flatten)]
    pub bounds: BoundArgs,
}

impl Command {
    /// Loads the configuration, as far as the command needs it.
    ///
    /// # Errors
    /// [`LoadError`]
    pub fn load(&self, named: Option<&Path>, cwd: &Path) -> Result<Loaded, LoadError> {
        match self {
            Self::Ls
            | Self::Logs { .. }
            | Self::Restart { .. }
            | Self::Drain { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Resize { .. }
            | Self::Stop { .. }
            | Self::Command { .. }
            | Self::Reload
            | Self::Prompt(_)
            | Self::Chat(_)
            | Self::Approvals { .. }
            | Self::Policy { .. } => config_file::load_for_client(named, cwd),
            _ => config_file::load(named, cwd),
        }
    }
}

fn layer(name: &str) -> Result<String, String> {
    marshal_engine::api::task_rules::check_policy_layer(name).map(|()| name.to_owned())
}

impl Cli {
    /// How much progress is told.
    #[must_use]
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, _) => Verbosity::Verbose,
        }
    }
}

/// Reads the arguments, the program's name first. Help and errors are printed.
///
/// # Errors
/// [`Exit::Usage`] if they are wrong, [`Exit::ChangeOutcome`] after help or version.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Exit> {
    Cli::try_parse_from(arguments).map_err(|error| {
        // Where nobody reads, nothing can be said.
        let _ = error.print();
        if error.use_stderr() {
            Exit::Usage
        } else {
            Exit::Done
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::error::ErrorKind> {
        let words = std::iter::once("marshal").chain(line.split_whitespace());
        Cli::try_parse_from(words).map_err(|error| error.kind())
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_and_options_are_read_in_any_order() {
        let cli = parsed("run a - --results out.jsonl --json -q").expect("read");
        assert!(cli.json && cli.verbosity() == Verbosity::Quiet);
        let Command::Run(run) = cli.command else {
            panic!("run");
        };
        assert_eq!(run.tasks, ["a", "-"]);
        assert_eq!(run.results, Some("out.jsonl".into()));
        let cli = parsed("--config x.toml -v logs demo/0 -f").expect("read");
        assert_eq!(cli.config, Some("x.toml".into()));
        assert_eq!(cli.verbosity(), Verbosity::Verbose);
        assert!(matches!(cli.command, Command::Logs { follow: true, .. }));
        assert!(matches!(parsed("up").expect("read").command, Command::Up));
        let cli = parsed("config check").expect("read");
        let command = ConfigCommand::Check;
        assert!(matches!(cli.command, Command::Config { command: c } if c == command));
        assert!(parsed("run --local -- -x").is_ok());
        for (line, run) in [
            ("run --continue", None),
            ("run --continue r-1 --results x", Some("r-1")),
            ("run --results x --continue", None),
        ] {
            let Command::Run(args) = parsed(line).expect(line).command else {
                panic!("run");
            };
            let given = args.goes_on.expect("given");
            assert_eq!(given.as_ref().map(RunId::as_str), run, "{line}");
            assert!(args.tasks.is_empty());
        }
    }

    #[test]
    fn what_does_nothing_is_refused() {
        for line in [
            "",
            "run",
            "approvals",
            "approvals approve",
            "approvals approve ../x",
            "approvals reject a --remember long",
            "run --continue a b",
            "run a --continue",
            "run a --continue r",
            "run --continue --local",
            "run --continue ../x",
            "logs",
            "logs demo",
            "restart demo/x",
            "config",
            "config fly",
            "-q -v up",
            "ls demo",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(parse(words("marshal fly")).err(), Some(Exit::Usage));
    }
}
