//! The definition of the command line: commands, options and their help.
//!
//! Must not know what the commands do.
//!
//! A new command also touches `command.rs` and, if it is a client of the daemon,
//! `engine/api/v1/routes.rs` and its handler.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, FromArgMatches as _, Parser, Subcommand};

use super::approvals::ApprovalsCommand;
use super::audit::AuditCommand;
use super::board::Verbosity;
use super::chat::ChatArgs;
use super::events::EventsArgs;
use super::exec::ExecTarget;
use super::exit::Exit;
use super::init::InitArgs;
use super::policy::PolicyCommand;
use super::project::lookup::Need;
use super::prompt::PromptArgs;
use super::report::ReportArgs;
use super::run_bounds::BoundArgs;
use super::run_results::ResultsArgs;
use super::sandbox_command::SandboxCommand;
use super::task_commands::TasksCommand;
use super::trust_store::TrustArgs;
use super::{agents, login, manual, overlay, terminal};
use marshal_model::{PoolName, RunId, SessionId, SlotId};

/// Runs many AI agents on one host, each in its own sandbox and under a policy
#[derive(Debug, Parser)]
#[command(name = "marshal", version, max_term_width = 100)]
pub struct Cli {
    /// Configuration file (default: ./supervisor.toml if it exists, else the built-in
    /// configuration)
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// For commands that read or control: a directory of the project, or the project's name as
    /// `ls` lists it (default: the project of this directory, else the only one that is running)
    #[arg(
        long,
        global = true,
        value_name = "DIR | NAME",
        conflicts_with = "config"
    )]
    pub project: Option<PathBuf>,

    /// Write only JSON to standard output, one object per line
    #[arg(long, global = true)]
    pub json: bool,

    /// Show no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Show more details; may be repeated
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// The command to run
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run tasks and show how each one ended
    ///
    /// If a daemon uses the state directory, it runs the tasks. Otherwise a fleet in this process
    /// does.
    Run(RunArgs),
    /// Run the daemon: a fleet with an HTTP API and metrics
    Up,
    /// List the pools and slots of the running supervisor, and what weakens their sandboxes
    Ls,
    /// Print a one-time code that logs a browser in to the dashboard
    ///
    /// The code is valid once, for 2 minutes. The browser then has the role of the token.
    Open {
        /// Name of the token whose role the browser gets (default: the owner's)
        #[arg(long = "as", value_name = "TOKEN")]
        token: Option<String>,
    },
    /// Show the standard error of a slot's agent process
    Logs {
        /// The slot, for example demo/0
        #[arg(value_parser = SlotId::parse)]
        slot: SlotId,
        /// Wait for new lines and show them
        #[arg(short, long)]
        follow: bool,
    },
    /// Stop a slot's agent process and unpark the slot; the next task starts a new process
    Restart {
        /// The slot, for example demo/0
        #[arg(value_parser = SlotId::parse)]
        slot: SlotId,
    },
    /// Start no more tasks of a pool, finish the running ones, and stop idle agent processes
    Drain {
        /// Name of the pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Start no more tasks of a pool; agent processes stay up
    Pause {
        /// Name of the pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Start tasks of a pool again after `drain` or `pause`
    Resume {
        /// Name of the pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Change how many slots of a pool receive tasks; lasts until the daemon ends
    ///
    /// Only the first SIZE slots receive tasks.
    Resize {
        /// Name of the pool
        #[arg(value_parser = PoolName::new)]
        pool: PoolName,
        /// Number of slots, at most the pool's size in the configuration
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        size: u16,
    },
    /// Stop the running supervisor and wait until it has ended; or close one session
    ///
    /// Nothing starts any more, and running turns have `stop.drain` of their pool to end. Tasks, chats
    /// and plans that wait go on at the next start.
    Stop {
        /// Close only this session, and cancel its turn; its id is as `ls` and `events` show it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: Option<SessionId>,
        /// Cancel only the session's turn; the session stays open if the agent supports it
        #[arg(long, requires = "session")]
        turn: bool,
        /// Interrupt running turns at once
        #[arg(long, conflicts_with = "session")]
        now: bool,
    },
    /// Run one of the agent's own slash commands in a session, and show its answer
    ///
    /// Works for agents whose protocol has such commands: ScaiFlux, loaf, and custom dialects whose
    /// table defines them.
    Command {
        /// Id of the session, as `ls` and `events` show it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: SessionId,
        /// Name of the command, without its slash
        name: String,
        /// Arguments of the command
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        args: Vec<String>,
    },
    /// Run a command in the sandbox of a running agent, at this terminal or with pipes
    ///
    /// Works with launcher = "unshare". The command gets the agent's user, limits, working directory
    /// and environment, without its secrets. If input and output are a terminal, it gets a terminal of
    /// the sandbox, which the agent can read and write. The exit code is the command's.
    Exec {
        /// The slot, for example demo/0, or the id of a session
        #[arg(value_name = "SLOT", value_parser = ExecTarget::parse)]
        target: ExecTarget,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Make the daemon reload its configuration and policies, and show what needs a restart
    Reload,
    /// Send one message to a new or existing chat of the daemon, and show the answer
    ///
    /// The first Ctrl-C cancels the turn; the second one exits.
    Prompt(PromptArgs),
    /// Chat interactively with an agent of the daemon
    ///
    /// On a terminal, an editor with a history reads the messages. From a pipe, each line is a
    /// message. The first Ctrl-C cancels the turn; the second one exits. Permission requests that
    /// need a person are shown in the chat and answered there.
    Chat(ChatArgs),
    /// Show recorded events, starting at an event or a time
    ///
    /// Reads the journal directly, so it works with and without a running supervisor.
    Events(EventsArgs),
    /// List, show and answer permission requests that wait for a person
    Approvals {
        /// The subcommand
        #[command(subcommand)]
        command: ApprovalsCommand,
    },
    /// List, show and cancel the tasks of the daemon
    Tasks {
        /// The subcommand
        #[command(subcommand)]
        command: TasksCommand,
    },
    /// Show one session: task, permission requests with their verdicts, tool calls and exit
    Show {
        /// Id of the session, as `events` and results show it
        #[arg(value_parser = |text: &str| SessionId::new(text))]
        session: SessionId,
    },
    /// Show recorded verdicts, and verify that nobody changed them
    Audit {
        /// The subcommand
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Summarize the last hours: outcomes, cost, denials and pending approvals
    Report(ReportArgs),
    /// Show what the tasks of a run came to: branch, changed files, cost, and who changed the same files
    Results(ResultsArgs),
    /// Test a policy on one request, on labelled requests or on recorded ones
    Policy {
        /// The subcommand
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Show the changes that a session made (workspace modes "overlay" and "worktree")
    Diff(overlay::DiffArgs),
    /// Apply a session's changes to its workspace: all of them or none
    ///
    /// Refuses devices, fifos, set-id files, hard links and links that leave the workspace. Also
    /// refuses writes that the pool's policy denies, and files that changed in the workspace
    /// meanwhile.
    Apply(overlay::ApplyArgs),
    /// Discard the changes that a session made in its overlay
    Discard(overlay::DiscardArgs),
    /// Bring the work of sessions onto a branch of their repository (workspace mode "worktree")
    ///
    /// One after the other, each is put onto what landed before, the pool's check runs on the
    /// result, and the branch is moved. What conflicts or fails the check does not land. Refuses
    /// changes of files that other programs run or obey, unless each is allowed. Nothing is checked
    /// out.
    Land(super::land_onto::LandArgs),
    /// Check or print the configuration
    Config {
        /// The subcommand
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Describe the HTTP API
    Api {
        /// The subcommand
        #[command(subcommand)]
        command: ApiCommand,
    },
    /// Write a first configuration for the project of this directory, and trust it
    ///
    /// Finds the repository, the installed agents and what this host can hold.
    Init(InitArgs),
    /// Trust the configuration of this directory as it is now, so that it need not be named with
    /// --config
    ///
    /// Any change of the file revokes it. An untrusted file that is only found may not use the
    /// network, your keys or files outside of its directory.
    Trust(TrustArgs),
    /// List the built-in agents, and which of them are installed on this host
    Agents(agents::Args),
    /// Check which sandbox features this host has, and which are missing
    ///
    /// Exits with 1 if this host cannot provide a profile that is in use.
    Doctor {
        /// Check only what this profile needs: standard, strict or a [sandbox.NAME]
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
    },
    /// Run one command in a sandbox, without a fleet
    Sandbox {
        /// The subcommand
        #[command(subcommand)]
        command: SandboxCommand,
    },
    /// Print a shell completion script
    ///
    /// For example: marshal completions bash > /etc/bash_completion.d/marshal
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one page for each command
    Man(manual::ManArgs),
    /// Log the agent of a pool in, by a login that it offers, for all sessions of the pool
    ///
    /// The agent runs in its sandbox, with an empty home and the network of this host. What it leaves
    /// in the home is kept, and new sessions of the pool get it.
    Login(login::Args),
    /// Run a program at a pseudo-terminal, inside a sandbox
    #[command(hide = true)]
    Terminal(terminal::Args),
    /// Serve an editor as an ACP agent on standard input and output
    ///
    /// Its sessions run in the daemon if there is one, otherwise in a fleet of this process.
    Acp {
        /// The pool whose slots run the sessions
        #[arg(long, value_name = "NAME", value_parser = PoolName::new)]
        pool: PoolName,
    },
    /// Serve as the MCP server `marshal` of an agent, inside its sandbox: copies between standard
    /// input and output and a socket of the supervisor
    #[command(hide = true)]
    Mcp {
        /// Path of the socket
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,
    },
    /// Run a tool at a terminal, driven by the files of a session directory (SkillPilot's Runner)
    Runner(marshal_skillpilot_runner::Args),
    #[cfg(feature = "rehearsal")]
    /// Run the script agent: a deterministic agent that executes its prompt as a small script
    ScriptAgent(marshal_rehearsal::script_agent::Args),
    #[cfg(feature = "rehearsal")]
    /// Run the rehearsal model: a server that answers like a model provider, by a script in the
    /// prompt
    ScriptModel(marshal_rehearsal::script_model::Args),
}

/// `api …`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ApiCommand {
    /// Print the OpenAPI document of /api/v1
    Schema,
    /// Print the routes as a Markdown table, each with the lowest role that may call it
    Routes,
}

/// `config …`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ConfigCommand {
    /// Check the whole configuration and report every error
    Check,
    /// Print the JSON Schema of the configuration, for editors
    Schema {
        /// Print the schema of a custom dialect's definition instead
        #[arg(long)]
        dialect: bool,
    },
    /// Print the configuration in use, with all defaults and with secrets hidden
    Show,
}

/// `run …`
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Prompts, task files (an existing FILE.jsonl), - for tasks on standard input, or one plan (an
    /// existing FILE.md)
    ///
    /// A plan is a Markdown checklist. Its open items run as tasks, and are ticked when they are
    /// done.
    ///
    /// A task file has one JSON object per line: {"id", "prompt", "pool", "workspace", "attempts",
    /// "check", "policy_layer", "land", "priority"}. Only "prompt" is required.
    #[arg(
        required_unless_present_any = ["goes_on", "plan"],
        conflicts_with = "goes_on",
        value_name = "TASK | FILE.jsonl | PLAN.md | -"
    )]
    pub tasks: Vec<OsString>,

    /// Run the open items of this Markdown checklist; its name need not end in .md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tasks", "goes_on"])]
    pub plan: Option<PathBuf>,

    /// Also run items that agents may have added to the plan, at most 100
    #[arg(long)]
    pub agent_items: bool,

    /// The pool of a plan's items, and of tasks that name none; required if the configuration has
    /// several pools
    #[arg(long, value_name = "NAME", value_parser = PoolName::new)]
    pub pool: Option<PoolName>,

    /// Finish an unfinished run, without new tasks; without RUN, the newest one
    ///
    /// Completed tasks are not repeated. The table, --results and the exit code cover the whole
    /// run.
    #[arg(
        long = "continue",
        id = "goes_on",
        value_name = "RUN",
        num_args = 0..=1,
        conflicts_with = "local",
        value_parser = RunId::new
    )]
    pub goes_on: Option<Option<RunId>>,

    /// Write the result of each task to this file, as JSON Lines
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,

    /// Add this [policy.NAME] (with layer = true) on top of the pool's policy, for tasks that name
    /// no layer; a layer can only deny and ask
    #[arg(long, value_name = "NAME", conflicts_with = "goes_on", value_parser = layer)]
    pub policy_layer: Option<String>,

    /// Land the work of each task that is done on this branch of its repository, one after the other;
    /// for tasks that name no branch
    ///
    /// Needs a pool with workspace mode "worktree". A task whose work conflicts with what landed
    /// before, or fails the check with it, goes back to its agent, at most three times.
    #[arg(long, value_name = "BRANCH", conflicts_with = "goes_on", value_parser = branch)]
    pub land: Option<String>,

    /// Let permission requests that need a person wait for `marshal approvals`, instead of denying
    /// them
    #[arg(long)]
    pub approvals: bool,

    /// Run in this process with a separate state directory, even if a daemon is running
    #[arg(long)]
    pub local: bool,

    /// The limits of the run
    #[command(flatten)]
    pub bounds: BoundArgs,
}

impl Command {
    /// What the command needs, if it only reads records or controls a supervisor.
    pub(super) fn need(&self) -> Option<Need> {
        match self {
            Self::Ls
            | Self::Open { .. }
            | Self::Logs { .. }
            | Self::Restart { .. }
            | Self::Drain { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Resize { .. }
            | Self::Stop { .. }
            | Self::Command { .. }
            | Self::Exec { .. }
            | Self::Reload
            | Self::Prompt(_)
            | Self::Chat(_)
            | Self::Approvals { .. }
            | Self::Tasks { .. } => Some(Need::Supervisor),
            Self::Policy { command } if command.is_live() => Some(Need::Supervisor),
            Self::Events(_)
            | Self::Show { .. }
            | Self::Audit { .. }
            | Self::Report(_)
            | Self::Results(_)
            | Self::Diff(_)
            | Self::Apply(_)
            | Self::Discard(_)
            | Self::Land(_) => Some(Need::Records),
            _ => None,
        }
    }
}

fn layer(name: &str) -> Result<String, String> {
    marshal_engine::api::task_rules::check_policy_layer(name)?;
    Ok(name.to_owned())
}

pub(super) fn branch(name: &str) -> Result<String, String> {
    marshal_engine::api::task_rules::check_branch(name)?;
    Ok(name.to_owned())
}

impl Cli {
    /// How much progress is shown.
    #[must_use]
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, _) => Verbosity::Verbose,
        }
    }
}

/// Parses the arguments, the program's name first. Prints help and errors.
///
/// # Errors
/// [`Exit::Usage`] if they are wrong, [`Exit::Done`] after help or version.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Exit> {
    let mut command = super::help::command();
    let parsed = command
        .try_get_matches_from_mut(arguments)
        .and_then(|matches| {
            Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
        });
    parsed.map_err(|error| {
        // A failed write cannot be reported anywhere else.
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
