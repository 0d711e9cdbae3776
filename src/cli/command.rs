//! Runs each command: the wiring behind the arguments.
//!
//! Must not know how anything is done: configuration, fleet, listeners and progress are modules
//! beside it.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::args::{self, Cli, Command, ConfigCommand, RunArgs};
use super::audit;
use super::board::Verbosity;
use super::config_file::{self, LoadError, Loaded};
use super::continuing;
use super::daemon_commands::Flow;
use super::diagnostic::{self, RenderStyle};
use super::doctor;
use super::events;
use super::exec;
use super::exit::Exit;
use super::land;
use super::land_onto;
use super::listeners::{self, ListenConfig, Listeners};
use super::login;
use super::ls;
use super::passed_sockets::PassedSockets;
use super::plan;
use super::progress::Screen;
use super::project::lookup::{self, Need};
use super::project::{self, supervisors};
use super::report;
use super::results::Results;
use super::run::{self, Job, RunRequest};
use super::run_bounds;
#[cfg(feature = "rehearsal")]
use super::script_model;
use super::service_manager::ServiceManager;
use super::session_diff;
use super::short_ids;
use super::show as session;
use super::signals::Signals;
use super::sleep_lock::SleepLock;
use super::start::{self, StartFailure};
use super::state_dir::{self, StateDirError};
use super::streams::Streams;
use super::supervisor_client::{self, Hello};
use super::tasks::{self, TaskContext};
use super::terminal;
use super::trust;
use super::{
    agents, approvals, chat, config_command, daemon_commands, editor, init, manual, mcp, overlay,
    policy, prompt, run_results, sandbox_command, task_commands, trust_store, up,
};

use marshal_config::{Config, ConfigErrors, LogFormat};
use marshal_engine::api::{SupervisorKind, file_plane};
use marshal_engine::chat::Chats;
use marshal_fleet::ResumeScope;
use marshal_model::PoolName;
use marshal_telemetry::log::{self, LogStyle};

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Err(why) = trust::refuse_privilege() {
        let mut streams = Streams::standard(true);
        streams.err.line(&format!("error: {why}"));
        return Exit::NotPermitted.into();
    }
    let is_check = policy::is_check(&arguments);
    let cli = match args::parse(arguments) {
        Ok(cli) => cli,
        // A caller of `policy check` reads the exit code as a decision: wrong usage needs its own
        // code.
        Err(Exit::Usage) if is_check => return policy::NO_VERDICT.into(),
        Err(exit) => return exit.into(),
    };
    // A fleet starts many script agents: without a runtime each one starts faster.
    #[cfg(feature = "rehearsal")]
    if let Command::ScriptAgent(args) = cli.command {
        return marshal_rehearsal::script_agent::run(args, cli.verbose > 0);
    }
    if let Command::Runner(args) = cli.command {
        return marshal_skillpilot_runner::run(args);
    }
    if let Command::Terminal(args) = &cli.command {
        return terminal::run(args);
    }
    if let Command::Mcp { socket } = cli.command {
        return mcp::run(&socket);
    }
    let no_colour = has_no_color();
    let mut streams = Streams::standard(no_colour);
    if cli.project.is_some() && cli.command.need().is_none() {
        let text = "error: --project is for commands that read or control; run this in the directory of the project";
        streams.err.line(text);
        return Exit::Usage.into();
    }
    if let Command::Completions(_) | Command::Man(_) = &cli.command {
        return manual::main(&cli.command, streams).into();
    }
    // It exits with the code of the command in the sandbox.
    if let Command::Sandbox { command } = cli.command {
        return sandbox_command::main(command, cli.config.as_deref(), cli.json, streams);
    }
    if let Command::Policy { command } = &cli.command
        && !command.is_live()
    {
        return policy::main(command, cli.config.as_deref(), cli.json, streams);
    }
    // These start a process that must not outlive this thread, so they run before the runtime.
    let cli = match overlay::main(cli, &mut || Streams::standard(no_colour)) {
        Ok(exit) => return exit.into(),
        Err(other) => *other,
    };
    // Changes the environment: before there are threads.
    let passed = match &cli.command {
        Command::Up => PassedSockets::take(|name| std::env::var_os(name)),
        _ => Ok(PassedSockets::default()),
    };
    let passed = match passed {
        Ok(passed) => passed,
        Err(why) => {
            streams.err.line(&format!("error: {why}"));
            return Exit::CannotStart.into();
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(marshal_model::limits::BLOCKING_THREADS)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let exit = runtime.block_on(dispatch(cli, passed, streams));
            // A thread that blocks in a system call must not delay the exit.
            runtime.shutdown_background();
            exit.into()
        }
        Err(error) => {
            let mut streams = Streams::standard(no_colour);
            streams
                .err
                .line(&format!("error: cannot start the async runtime: {error}"));
            Exit::CannotStart.into()
        }
    }
}

async fn dispatch(mut cli: Cli, passed: PassedSockets, mut streams: Streams) -> Exit {
    if let Command::Config {
        command: ConfigCommand::Schema { dialect },
    } = cli.command
    {
        return config_command::schema(dialect, cli.json, &mut streams);
    }
    if let Command::Api { command } = cli.command {
        return config_command::api(command, &mut streams);
    }
    #[cfg(feature = "rehearsal")]
    if let Command::ScriptModel(args) = cli.command {
        return script_model::run(args, cli.json, cli.quiet, streams).await;
    }
    let Ok(directory) = std::env::current_dir() else {
        streams
            .err
            .line("error: the current directory cannot be read");
        return Exit::Usage;
    };
    if let Command::Init(args) = &cli.command {
        return init::run(args, &directory, &mut streams);
    }
    if let Command::Trust(args) = &cli.command {
        return trust_store::run(args, &directory, &mut streams);
    }
    if let Command::Agents(args) = cli.command {
        return agents::run(args, cli.json, &directory, streams).await;
    }
    if let Some(need) = cli.command.need() {
        return match ClientContext::find(&cli, need, directory, &mut streams) {
            Ok(mut client) => match short_ids::complete(&mut cli.command, &client.state) {
                Ok(state) => {
                    client.state = state;
                    run_client_command(&cli, &client, &mut streams).await
                }
                Err(error) => {
                    streams.err.line(&format!("error: {error}"));
                    Exit::Usage
                }
            },
            Err(exit) => exit,
        };
    }
    let loaded = match config_file::load(cli.config.as_deref(), &directory) {
        Ok(loaded) => loaded,
        Err(error) => return report_load_error(&error, cli.json, &mut streams),
    };
    match &cli.command {
        Command::Config { command } => match command {
            ConfigCommand::Check => config_command::check(&loaded, cli.json, &mut streams),
            ConfigCommand::Show => config_command::effective(loaded, cli.json, &mut streams),
            ConfigCommand::Schema { .. } => Exit::Usage, // handled above
        },
        Command::Run(args) => Box::pin(run(&cli, args, loaded, &directory, streams)).await,
        Command::Up => Box::pin(daemon(&cli, loaded, passed, streams)).await,
        Command::Acp { pool } => Box::pin(editor::run(&cli, pool, loaded, streams)).await,
        Command::Login(args) => match find_state(&loaded, &mut streams) {
            Ok(state) => Box::pin(login::run(args, &loaded, &state, &mut streams)).await,
            Err(exit) => exit,
        },
        Command::Doctor { profile } => {
            match state_dir::path(&loaded.config, &loaded.project, |name| {
                std::env::var_os(name)
            }) {
                Ok(state) => {
                    let (config, profile) = (&loaded.config, profile.as_deref());
                    doctor::run(config, &state, profile, cli.json, &mut streams)
                }
                Err(error) => {
                    streams.err.line(&format!("error: {error}"));
                    Exit::Usage
                }
            }
        }
        // Handled before the runtime starts or before the configuration is loaded.
        _ => Exit::Usage,
    }
}

/// What a command has that reads records or controls a supervisor.
pub(super) struct ClientContext {
    /// The state directory.
    pub(super) state: PathBuf,
    /// The configuration file that is named, if any.
    config: Option<PathBuf>,
    /// The directory in which a configuration is searched.
    directory: PathBuf,
}

impl ClientContext {
    /// Finds the state directory; prints the error if there is none.
    pub(super) fn find(
        cli: &Cli,
        need: Need,
        directory: PathBuf,
        streams: &mut Streams,
    ) -> Result<Self, Exit> {
        let request = lookup::Request {
            project: cli.project.as_deref(),
            config: cli.config.as_deref(),
            cwd: &directory,
            need,
        };
        let found = match lookup::find(&request, |name| std::env::var_os(name)) {
            Ok(found) => found,
            Err(error) => {
                streams.err.line(&format!("error: {error}"));
                return Err(error.exit());
            }
        };
        if let Some(note) = found.note.filter(|_| !cli.quiet) {
            streams.err.line(&note);
        }
        let last = supervisors::last_of(&found.state);
        // The state of another project is read with the configuration of that project.
        let other = last.filter(|last| {
            cli.config.is_none() && last.project != project::of_directory(&directory)
        });
        let (config, directory) = match other {
            Some(other) => (other.configuration, other.project),
            None => (cli.config.clone(), directory),
        };
        Ok(Self {
            state: found.state,
            config,
            directory,
        })
    }

    /// Loads the configuration of the project.
    pub(super) fn load(&self) -> Result<Loaded, LoadError> {
        config_file::load(self.config.as_deref(), &self.directory)
    }

    /// The configuration of the project, for commands that can do without it. A note says why it
    /// cannot be used.
    fn load_or_note(&self, streams: &mut Streams) -> Option<Config> {
        match self.load() {
            Ok(loaded) => Some(loaded.config),
            Err(error) => {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default();
                let text = format!("note: the configuration cannot be used: {why}");
                streams.err.line(&text);
                None
            }
        }
    }
}

/// Runs the commands that read a state directory or call its supervisor.
async fn run_client_command(cli: &Cli, client: &ClientContext, streams: &mut Streams) -> Exit {
    let state = &*client.state;
    match &cli.command {
        Command::Ls => ls::run(state, cli.json, streams).await,
        Command::Logs { slot, follow } => {
            supervisor_client::logs(state, slot.clone(), *follow, cli.json, streams).await
        }
        Command::Restart { slot } => supervisor_client::restart(state, slot.clone(), streams).await,
        Command::Drain { pool } => {
            daemon_commands::flow(state, pool, Flow::Drain, cli.json, streams).await
        }
        Command::Pause { pool } => {
            daemon_commands::flow(state, pool, Flow::Pause, cli.json, streams).await
        }
        Command::Resume { pool } => {
            daemon_commands::flow(state, pool, Flow::Resume, cli.json, streams).await
        }
        Command::Resize { pool, size } => {
            daemon_commands::resize(state, pool, *size, cli.json, streams).await
        }
        Command::Stop {
            session: None, now, ..
        } => daemon_commands::stop_supervisor(state, *now, cli.json, streams).await,
        Command::Stop {
            session: Some(session),
            turn,
            ..
        } => daemon_commands::stop(state, session, *turn, cli.json, streams).await,
        Command::Command {
            session,
            name,
            args,
        } => daemon_commands::command(state, session, name, args, cli.json, streams).await,
        Command::Exec { target, command } => exec::run(state, target, command, streams).await,
        Command::Reload => daemon_commands::reload(state, cli.json, streams).await,
        Command::Prompt(args) => prompt::run(state, args, cli.json, cli.quiet, streams).await,
        Command::Chat(args) => {
            let config = client.load().ok().map(|loaded| loaded.config);
            let style = (cli.json, cli.quiet);
            chat::run(state, config.as_ref(), args, style, streams).await
        }
        Command::Events(args) => events::events(state, args, cli.json, streams),
        Command::Approvals { command } => approvals::run(state, command, cli.json, streams).await,
        Command::Tasks { command } => task_commands::run(state, command, cli.json, streams).await,
        Command::Policy { command } => policy::live(command, state, cli.json, streams).await,
        Command::Show { session: name } => session::show(state, name, cli.json, streams),
        Command::Audit { command } => audit::run(state, command, cli.json, streams),
        Command::Results(args) => run_results::show(state, args, cli.json, streams),
        Command::Report(args) => {
            let config = client.load_or_note(streams);
            let sources = policy::source::PolicySources {
                config: client.config.as_deref(),
                directory: client.directory.clone(),
            };
            report::report(state, config.as_ref(), &sources, args, cli.json, streams)
        }
        Command::Diff(args) => {
            let wanted = (&args.session, &*args.paths);
            if let Some(exit) = Box::pin(land::show_diff(client, wanted, streams)).await {
                return exit;
            }
            let config = client.load_or_note(streams);
            let shown = session_diff::show(state, config.as_ref(), wanted, cli.json, streams);
            shown.unwrap_or_else(|| {
                let session = &args.session;
                streams.err.line(&format!(
                    "error: no task of the session {session} has ended, so its changes are not known yet"
                ));
                Exit::Usage
            })
        }
        Command::Land(args) => Box::pin(land_onto::run(client, args, cli.json, streams)).await,
        _ => Exit::Usage,
    }
}

pub(super) fn report_load_error(error: &LoadError, json: bool, streams: &mut Streams) -> Exit {
    match error {
        LoadError::Faulty(errors) => show(errors, json, streams),
        other => streams.err.line(&format!("error: {other}")),
    }
    Exit::Usage
}

pub(super) fn show(errors: &ConfigErrors, json: bool, streams: &mut Streams) {
    if json {
        for object in diagnostic::json(errors) {
            streams.out.json(&object.to_string());
        }
        return;
    }
    let look = RenderStyle {
        colour: streams.err.is_terminal() && streams.coloured,
        width: streams.width,
    };
    streams.err.text(&diagnostic::render(errors, look));
}

pub(super) fn find_state(loaded: &Loaded, streams: &mut Streams) -> Result<PathBuf, Exit> {
    let found = state_dir::find(&loaded.config, &loaded.project, |name| {
        std::env::var_os(name)
    });
    found.map_err(|error| {
        match &error {
            StateDirError::InWorkspace(errors) => show(errors, false, streams),
            other @ StateDirError::Nowhere => streams.err.line(&format!("error: {other}")),
        }
        Exit::Usage
    })
}

/// Whether the user wants no colours (no-color.org).
fn has_no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Starts logging to standard error, beside the progress: warnings and errors, more with `-v`.
pub(super) fn start_log(cli: &Cli, config: &Config, screen: Option<&Screen>, is_daemon: bool) {
    let is_terminal = std::io::stderr().is_terminal();
    let form = match config.supervisor.log {
        LogFormat::Json => LogStyle::Json,
        LogFormat::Auto if !is_terminal && is_daemon => LogStyle::Json,
        LogFormat::Human | LogFormat::Auto if is_terminal && !has_no_color() => LogStyle::Coloured,
        LogFormat::Human | LogFormat::Auto => LogStyle::Plain,
    };
    let filter = match (is_daemon, cli.quiet, cli.verbose) {
        (_, true, _) => "error",
        (true, _, 0) | (false, _, 1) => "info",
        (true, _, 1) | (false, _, 2) => "debug",
        (false, _, 0) => "warn",
        _ => "trace",
    };
    // The progress tells of each child that ended, once.
    let is_told = !is_daemon && !cli.quiet && cli.verbose == 0 && form != LogStyle::Json;
    let told = if is_told {
        ",marshal_telemetry::event::child=off"
    } else {
        ""
    };
    let filter = format!("warn,marshal={filter}{told}");
    let started = match screen {
        Some(screen) => {
            let screen = screen.clone();
            log::init(form, &filter, move || screen.writer())
        }
        None => log::init(form, &filter, std::io::stderr),
    };
    if let Err(error) = started {
        tracing::warn!(%error, "logging could not be set up");
    }
}

/// Prints the configuration in use and its notes, as `run` and `up` do first.
pub(super) fn announce(loaded: &Loaded, streams: &mut Streams) {
    streams.err.line(&start::describe_source(&loaded.source));
    for note in &loaded.config.notes {
        streams.err.line(&format!("note: {note}"));
    }
}

async fn run(
    cli: &Cli,
    args: &RunArgs,
    loaded: Loaded,
    directory: &Path,
    mut streams: Streams,
) -> Exit {
    let state = match find_state(&loaded, &mut streams) {
        Ok(state) => state,
        Err(exit) => return exit,
    };
    let (job, notes) = match job(args, &loaded.config, directory, &state) {
        Ok(found) => found,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::Usage;
        }
    };
    let bounds = match args.bounds.bounds() {
        Ok(bounds) => bounds,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::Usage;
        }
    };
    let results = match args.results.as_deref().map(Results::open).transpose() {
        Ok(results) => results,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::Usage;
        }
    };
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    let wants_screen = streams.err.is_terminal() && !cli.json && !cli.quiet;
    let screen = wants_screen.then(Screen::stderr);
    start_log(cli, &loaded.config, screen.as_ref(), false);
    if !cli.quiet {
        announce(&loaded, &mut streams);
        for note in &notes {
            streams.err.line(&format!("note: {note}"));
        }
    }
    // Also with --quiet: a run without a cost limit may be noticed only hours later, by its bill.
    for warning in run_bounds::warnings(&loaded.config, &job, &bounds) {
        streams.err.line(&warning);
    }
    if let Job::Plan(plan) = &job
        && plan.is_done()
    {
        streams.err.line("every item of the plan is done");
        return Exit::Done;
    }
    let is_new = matches!(job, Job::New(_));
    let order = RunRequest {
        job,
        bounds,
        results,
        json: cli.json,
        verbosity: if cli.json {
            Verbosity::Quiet
        } else {
            cli.verbosity()
        },
        screen,
    };
    let mut is_beside = args.local;
    if !args.local {
        let digest = loaded.config.digest();
        match supervisor_client::supervisor(&state).await {
            Ok(Some((client, hello))) => match run_place(&hello, &digest, &order.job) {
                RunPlace::Supervisor => {
                    return run::run_on_daemon(client, order, streams, &mut signals).await;
                }
                RunPlace::Here => {}
                RunPlace::Beside(why) => {
                    is_beside = true;
                    streams
                        .err
                        .line(&format!("note: {why}, so the tasks run beside it"));
                }
            },
            Ok(None) => {}
            Err(error) => return error.report(&mut streams),
        }
        let note = continuing::note(&state);
        if let Some(note) = note.filter(|_| is_new && !is_beside && !cli.quiet) {
            streams.err.line(&note);
        }
    }
    Box::pin(run_here(
        loaded,
        &state,
        (is_beside, args.approvals),
        order,
        streams,
        &mut signals,
    ))
    .await
}

/// Where the tasks of `run` run if a supervisor uses the state directory.
enum RunPlace {
    /// The supervisor runs them.
    Supervisor,
    /// This process does.
    Here,
    /// This process does, with a state directory of its own; the reason.
    Beside(String),
}

/// A daemon takes tasks only if it would do with them what this process would.
fn run_place(hello: &Hello, digest: &str, job: &Job) -> RunPlace {
    let pid = hello.pid;
    match (hello.kind, job) {
        // The daemon has resumed the run already: there is nothing to hand over.
        (SupervisorKind::Daemon, Job::Continue { .. }) => RunPlace::Supervisor,
        (SupervisorKind::Daemon, _) if hello.configuration == digest => RunPlace::Supervisor,
        (SupervisorKind::Daemon, _) => RunPlace::Beside(format!(
            "the daemon of this project (process {pid}) has another configuration (`marshal reload` or a restart changes that)"
        )),
        // What it continues is in that state directory, which is in use: the start says so.
        (SupervisorKind::Run | SupervisorKind::Editor, Job::Continue { .. } | Job::Plan(_)) => {
            RunPlace::Here
        }
        (SupervisorKind::Run | SupervisorKind::Editor, Job::New(_)) => RunPlace::Beside(format!(
            "process {pid} uses the state directory of this project"
        )),
    }
}

/// The tasks or the plan of `run`, and notes about how they were read. The error is safe to show.
fn job(
    args: &RunArgs,
    config: &Config,
    directory: &Path,
    state: &Path,
) -> Result<(Job, Vec<String>), String> {
    let named = match &args.plan {
        Some(plan) => Some(directory.join(plan)),
        None => plan::plan_argument(&args.tasks, directory)?,
    };
    let options = plan::PlanOptions {
        config,
        state,
        pool: args.pool.as_ref(),
        policy_layer: args.policy_layer.as_ref(),
        land: args.land.as_ref(),
        agent_items: args.agent_items,
        local: args.local,
    };
    if let Some(path) = named {
        return plan::job_of(&path, options);
    }
    if let Some(wanted) = &args.goes_on {
        return plan::resume_job(wanted.as_ref(), options);
    }
    if args.agent_items {
        let text = "--agent-items is for a plan: name one, as FILE.md or with --plan";
        return Err(text.to_owned());
    }
    let pools: Vec<PoolName> = config.pools.iter().map(|pool| pool.name.clone()).collect();
    if let Some(pool) = args.pool.as_ref().filter(|pool| !pools.contains(pool)) {
        let names: Vec<&str> = pools.iter().map(PoolName::as_str).collect();
        return Err(format!(
            "--pool {pool}: there is no such pool; the pools are {}",
            names.join(", ")
        ));
    }
    let context = TaskContext {
        pools: &pools,
        pool: args.pool.as_ref(),
        directory,
        stdin: &mut std::io::stdin(),
    };
    let mut tasks = tasks::read(&args.tasks, context).map_err(|error| error.to_string())?;
    for spec in &mut tasks {
        let layer = spec.policy_layer.take();
        spec.policy_layer = layer.or_else(|| args.policy_layer.clone());
        let land = spec.land.take();
        spec.land = land.or_else(|| args.land.clone());
    }
    Ok((Job::New(tasks), Vec::new()))
}

async fn run_here(
    loaded: Loaded,
    state: &Path,
    (local, approval): (bool, bool),
    mut order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let plan = ListenConfig::new(&loaded);
    let go_on = match &order.job {
        Job::New(_) => ResumeScope::None,
        Job::Continue { run, .. } => ResumeScope::Run(run.clone()),
        Job::Plan(plan) => plan
            .resumed_run()
            .map_or(ResumeScope::None, |run| ResumeScope::Run(run.clone())),
    };
    let place = FleetPlace {
        state,
        is_local: local,
        kind: SupervisorKind::Run,
    };
    let started = match start_fleet(loaded, place, (go_on, approval), &mut streams).await {
        Ok(started) => started,
        Err(exit) => return exit,
    };
    let http = listeners::listen(&plan, SupervisorKind::Run, &mut streams.err).await;
    let within = listeners::open_in_state_dir(
        started.state.path(),
        &plan,
        &started.fleet,
        SupervisorKind::Run,
        None,
        &mut streams.err,
    );
    let (http, within) = match (http, within) {
        (Ok(http), Ok(within)) => (http, within),
        (Err(exit), _) | (_, Err(exit)) => return exit,
    };
    let (fleet, metrics, runs) = (&started.fleet, started.metrics.clone(), Arc::default());
    let listeners = Listeners::open(fleet, http, metrics, within, runs);
    let (fleet, job) = (
        started.fleet.clone(),
        std::mem::replace(&mut order.job, Job::New(Vec::new())),
    );
    let _awake = SleepLock::take();
    let exit = if let Job::Plan(plan) = job {
        let state = started.state.path();
        run::run_plan_local(fleet, *plan, state, order, streams, signals).await
    } else {
        order.job = job;
        run::run_local(fleet, order, streams, signals).await
    };
    listeners.close().await;
    finish(started, exit, signals).await
}

async fn daemon(cli: &Cli, loaded: Loaded, passed: PassedSockets, mut streams: Streams) -> Exit {
    let state = match find_state(&loaded, &mut streams) {
        Ok(state) => state,
        Err(exit) => return exit,
    };
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    start_log(cli, &loaded.config, None, true);
    announce(&loaded, &mut streams);
    let plan = ListenConfig::new(&loaded);
    let manager = ServiceManager::from_env(&loaded.config, |name| std::env::var_os(name));
    let manager = match manager {
        Ok(manager) => manager,
        Err(why) => {
            streams.err.line(&format!("error: {why}"));
            return Exit::CannotStart;
        }
    };
    // Before anything is started: an address in use must leave nothing behind.
    let http = match passed.http {
        Some(passed) => listeners::adopt(&plan, passed, &mut streams.err),
        None => listeners::listen(&plan, SupervisorKind::Daemon, &mut streams.err).await,
    };
    let http = match http {
        Ok(http) => http,
        Err(exit) => return exit,
    };
    let planes = match file_plane::open(&loaded.config) {
        Ok(planes) => planes,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::CannotStart;
        }
    };
    let go_on = (ResumeScope::All, true);
    let place = FleetPlace {
        state: &state,
        is_local: false,
        kind: SupervisorKind::Daemon,
    };
    let started = match start_fleet(loaded, place, go_on, &mut streams).await {
        Ok(started) => started,
        Err(exit) => return exit,
    };
    let within = listeners::open_in_state_dir(
        started.state.path(),
        &plan,
        &started.fleet,
        SupervisorKind::Daemon,
        passed.control,
        &mut streams.err,
    );
    let mut within = match within {
        Ok(within) => within,
        Err(exit) => return exit,
    };
    // Before the listeners open: a client that asks for one of these runs must find it.
    let unfinished = up::unfinished(&started.journal);
    let chats = Chats::new(started.fleet.clone());
    within.chats = Some(chats.clone());
    let (fleet, metrics) = (&started.fleet, started.metrics.clone());
    let runs = Arc::new(up::pending_runs(&unfinished));
    let work = |plane: file_plane::OpenedPlane| plane.into_worker(fleet.clone(), Arc::clone(&runs));
    within.planes = planes.into_iter().map(work).collect();
    let listeners = Listeners::open(fleet, http, metrics, within, runs);
    chats.resume().await;
    if !unfinished.is_empty() {
        let count = unfinished.len();
        let text = format!("resuming unfinished runs: {count}");
        streams.err.line(&text);
    }
    manager.ready().await;
    manager.attend(&started.fleet);
    let taking = tokio::spawn(up::resume_runs(
        started.fleet.clone(),
        listeners.runs(),
        unfinished,
    ));
    let exit = up::serve(
        started.fleet.clone(),
        listeners,
        &manager,
        &mut streams.err,
        &mut signals,
    )
    .await;
    taking.abort();
    finish(started, exit, &mut signals).await
}

/// Where a fleet keeps its state, and for what it is used.
pub(super) struct FleetPlace<'a> {
    /// The state directory of the project.
    pub(super) state: &'a Path,
    /// Whether it uses a separate one below it.
    pub(super) is_local: bool,
    /// What kind of supervisor it is.
    pub(super) kind: SupervisorKind,
}

/// Locks the state directory, starts the fleet and registers it; prints the error if it cannot.
pub(super) async fn start_fleet(
    loaded: Loaded,
    place: FleetPlace<'_>,
    (go_on, asks_people): (ResumeScope, bool),
    streams: &mut Streams,
) -> Result<start::RunningFleet, Exit> {
    let taken = start::lock_state_dir(&loaded.config, place.state, place.is_local);
    let taken = match taken {
        Ok(taken) => taken,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Err(Exit::CannotStart);
        }
    };
    let file = loaded.config.file.as_deref();
    let registration = supervisors::register(&loaded.project, &taken, file, place.kind);
    match start::start(loaded.config, taken, go_on, asks_people).await {
        Ok(mut started) => {
            started.registration = registration;
            Ok(started)
        }
        Err(failure) => {
            match &failure {
                StartFailure::Config(errors) => show(errors, false, streams),
                other => streams.err.line(&format!("error: {other}")),
            }
            Err(failure.exit())
        }
    }
}

/// Closes the fleet's parts, the journal last: every other part may still write to it.
///
/// A signal ends the wait for a disk that does not respond. The next start reports what was lost.
pub(super) async fn finish(
    started: start::RunningFleet,
    exit: Exit,
    signals: &mut Signals,
) -> Exit {
    match run::unless_insisted(started.close(), signals).await {
        Err(signal) => {
            tracing::error!("interrupted before the journal was written completely");
            signal.exit()
        }
        Ok(Ok(())) => exit,
        Ok(Err(why)) => {
            tracing::error!(why, "the journal was not closed cleanly");
            if exit == Exit::Done {
                Exit::Failures
            } else {
                exit
            }
        }
    }
}
