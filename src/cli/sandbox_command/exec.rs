//! `sandbox exec`: runs one command in a sandbox.
//!
//! Owns how the command is stopped: after the end of the input it may run on for `--eof-wait`, then
//! the stop ladder begins. If the parent process ends, the command is killed at once. Must not know
//! how a sandbox is built.

use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Signal as Death, getppid, set_parent_process_death_signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::preparation::{self, KeptCopy, PrepareError, PreparedSandbox};
use super::pump::{self, CommandPipes, OwnStreams, PumpEvent};
use super::{ExecArgs, NO_SANDBOX, NetworkArg, probe_ids};
use crate::cli::doctor::preflight::{self, LimitsError, PreflightError};
use crate::cli::signals::{Signal, Signals};
use crate::cli::streams::Streams;
use marshal_config::{Config, HOME_OF_CHILD, OWN_PROGRAM, StopTimeouts};
use marshal_launch::{
    self, ChildExit, KeeperHandle, LaunchPlan, LaunchedChild, RunError, SpawnError, Spawner, Step,
};
use marshal_model::limits::{COPY_BYTES, COPY_FILES, MEASURE_INTERVAL};
use marshal_sandbox as sandbox;
use marshal_sandbox::workspace::{Root, measure};

/// The command's PATH, without additions.
pub(in crate::cli) const PATH_INSIDE: &str = "/usr/local/bin:/usr/bin:/bin";

/// The waits of the stop ladder after the end of the input, as for every child.
const INT: Duration = Duration::from_secs(2);
const TERM: Duration = Duration::from_secs(5);

/// How long to wait for a reader of the outputs after all processes have ended.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

/// How long to wait for a pending start after a signal to stop.
const LAST_START: Duration = Duration::from_secs(5);

/// The exit codes for a command that is not executable, or not found.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

const ENOENT: i32 = 2;

/// Runs the command; returns the exit code.
pub(super) async fn exec(args: &ExecArgs, config: &Config, streams: &mut Streams) -> u8 {
    let parent = getppid();
    let mut fail = |why: &dyn std::fmt::Display| {
        streams.err.line(&format!("marshal: {why}"));
        NO_SANDBOX
    };
    // Before anything runs: a signal from here on stops the command.
    let mut signals = match Signals::install() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot install signal handlers: {error}")),
    };
    // Get SIGHUP when the parent ends: sshd sends it at a hangup, but not when it is killed itself.
    if set_parent_process_death_signal(Some(Death::HUP)).is_err() || getppid() != parent {
        return fail(&"the parent process has ended");
    }
    let spawner = match Spawner::start(crate::BUILD) {
        Ok(spawner) => spawner,
        Err(error) => return fail(&format!("cannot start the spawner: {error}")),
    };
    let prepared = tokio::select! {
        prepared = preparation::prepare(&args.sandbox, config, &spawner) => prepared,
        () = wait_for_signal(&mut signals) => return fail(&"stopped before the command ran"),
    };
    let sandbox = match prepared {
        Ok(sandbox) => sandbox,
        Err(PrepareError::Sandbox(error)) => return fail(&diagnose(args, config, &error).await),
        Err(error) => return fail(&error),
    };
    let profile = args.sandbox.profile();
    if let Some(settings) = config.sandboxes.get(profile) {
        let checked = tokio::select! {
        checked = preflight::check_limits(profile, settings, &spawner, sandbox.sandbox_spec()) => checked,
            () = wait_for_signal(&mut signals) => return fail(&"stopped before the command ran"),
        };
        match checked {
            Ok(()) => {}
            Err(LimitsError::Preflight(unready)) => return fail(&unready),
            Err(LimitsError::Sandbox(error)) => return fail(&diagnose(args, config, &error).await),
        }
    }
    let Some((launched, early)) = begin(&spawner, plan(args, &sandbox), &mut signals).await else {
        return fail(&"stopped before the command ran");
    };
    let launched = match launched {
        Ok(launched) => launched,
        Err(error @ (SpawnError::Exec(_) | SpawnError::InvalidCommand { .. })) => {
            fail(&error);
            return exit_code_of(&error);
        }
        Err(error) => return fail(&diagnose(args, config, &error.into()).await),
    };
    for note in &launched.notes {
        fail(note);
    }
    let copy = sandbox.copy.as_ref();
    let (ended, excess) = match watch(launched, args.eof_wait.0, copy, &mut signals, early).await {
        Ok(ended) => ended,
        Err(error) => return fail(&format!("cannot pass input and output through: {error}")),
    };
    if let Some(excess) = excess {
        fail(&format!("{excess}, so the command was killed"));
    }
    if let Some(copy) = copy {
        copy.mark_ended();
        let path = crate::cli::trust::display_path(&copy.path);
        fail(&format!("the copy of the workspace is kept in {path}"));
    }
    match ended {
        Some(ChildExit {
            status: Some(status),
            survivors_left: 0,
            ..
        }) => u8::try_from(status.shell_code()).unwrap_or(NO_SANDBOX),
        Some(ChildExit { survivors_left, .. }) if survivors_left > 0 => fail(&format!(
            "{survivors_left} processes of the command could not be killed"
        )),
        _ => fail(&"the connection to the sandbox was lost, and the command was killed"),
    }
}

/// Starts the command. Also returns a signal that arrived meanwhile: the caller forwards it,
/// because the command may already run before its start is known here. `None` if it did not start
/// in time.
async fn begin(
    spawner: &Spawner,
    plan: LaunchPlan,
    signals: &mut Signals,
) -> Option<(Result<LaunchedChild, SpawnError>, Option<Signal>)> {
    let start = spawner.spawn(plan);
    tokio::pin!(start);
    tokio::select! {
        launched = &mut start => Some((launched, None)),
        signal = signals.next() => {
            let launched = tokio::time::timeout(LAST_START, start).await.ok()?;
            Some((launched, Some(signal)))
        }
    }
}

/// Why the sandbox could not be built: the table of what is missing.
async fn diagnose(args: &ExecArgs, config: &Config, error: &RunError) -> PreflightError {
    let sandbox = &args.sandbox;
    let own_network = sandbox.network == NetworkArg::None;
    let ids = probe_ids();
    preflight::diagnose_command(config, sandbox.profile(), ids, own_network, error).await
}

/// Passes input and output through until the command ends; returns how it ended, and the limit of the
/// copy that it exceeded.
async fn watch(
    launched: LaunchedChild,
    eof_wait: Option<Duration>,
    copy: Option<&KeptCopy>,
    signals: &mut Signals,
    early: Option<Signal>,
) -> io::Result<(Option<ChildExit>, Option<String>)> {
    let waits = StopTimeouts {
        goodbye: Duration::ZERO,
        eof: eof_wait.unwrap_or_default(),
        int: INT,
        term: TERM,
    };
    let (keeper, ended) = marshal_launch::keep(launched.process, waits);
    let ends = CommandPipes {
        stdin: launched.stdin.into_blocking_fd()?,
        stdout: launched.stdout.into_blocking_fd()?,
        stderr: launched.stderr.into_blocking_fd()?,
    };
    let mut watched = RunningCommand {
        keeper,
        events: pump::start(OwnStreams::take()?, ends)?,
        outputs: 2,
        eof_wait,
        until: None,
        excess: None,
    };
    if let Some(signal) = early {
        watched.handle_signal(signal, signals.is_insistent());
    }
    let ended = watched.wait_end(ended, copy, signals).await;
    watched.drain_outputs(signals).await;
    Ok((ended, watched.excess))
}

/// Passes input and output through until a command without a copy ends; returns how it ended.
pub(in crate::cli) async fn pass_through(
    launched: LaunchedChild,
    signals: &mut Signals,
) -> io::Result<Option<ChildExit>> {
    let watched = watch(launched, None, None, signals, None).await;
    watched.map(|(ended, _)| ended)
}

/// Waits for any signal.
async fn wait_for_signal(signals: &mut Signals) {
    signals.next().await;
}

fn exit_code_of(error: &SpawnError) -> u8 {
    match error {
        SpawnError::Exec(failure) if failure.errno == Some(ENOENT) => NOT_FOUND,
        SpawnError::Exec(_) => NOT_EXECUTABLE,
        _ => NO_SANDBOX,
    }
}

fn plan(args: &ExecArgs, prepared: &PreparedSandbox) -> LaunchPlan {
    let mut argv = args.command.clone();
    if let Some(program) = argv.first_mut().filter(|word| *word == OWN_PROGRAM) {
        *program = sandbox::MARSHAL_INSIDE.to_owned();
    }
    LaunchPlan {
        argv,
        env: environment(args),
        cwd: sandbox::WORKSPACE_INSIDE.to_owned(),
        limits: prepared.limits,
        sandbox: prepared.sandbox_spec(),
        preamble: Vec::new(),
    }
}

/// The command's whole environment. Variables that every sandbox sets cannot be overridden.
fn environment(args: &ExecArgs) -> Vec<(String, String)> {
    let home = sandbox::HOME_INSIDE;
    let mut path = String::new();
    for directory in &args.path_add {
        match directory.strip_prefix(HOME_OF_CHILD) {
            Some(below) => path.extend([home, below]),
            None => path.push_str(directory),
        }
        path.push(':');
    }
    path.push_str(PATH_INSIDE);
    let passed = args
        .pass
        .iter()
        .filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
    let mut env: std::collections::BTreeMap<String, String> =
        passed.chain(args.set.iter().cloned()).collect();
    let fixed = [
        ("HOME", home),
        ("PATH", &path),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        ("SHELL", "/bin/sh"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", sandbox::WORKSPACE_INSIDE),
    ];
    env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.remove("TERM");
    env.into_iter().collect()
}

/// A running command.
struct RunningCommand {
    keeper: KeeperHandle,
    events: mpsc::Receiver<PumpEvent>,
    /// Outputs that have not ended.
    outputs: u32,
    eof_wait: Option<Duration>,
    /// When the stop ladder begins; `None` for never.
    until: Option<Instant>,
    /// The limit of the copy that the command exceeded.
    excess: Option<String>,
}

impl RunningCommand {
    async fn wait_end(
        &mut self,
        ended: oneshot::Receiver<ChildExit>,
        copy: Option<&KeptCopy>,
        signals: &mut Signals,
    ) -> Option<ChildExit> {
        let excess = wait_for_excess(copy);
        tokio::pin!(ended, excess);
        loop {
            tokio::select! {
                ended = &mut ended => return ended.ok(),
                event = next(&mut self.events) => self.handle_event(event),
                signal = signals.next() => self.handle_signal(signal, signals.is_insistent()),
                () = at(self.until) => {
                    self.until = None;
                    self.keeper.stop_from(Step::Int);
                }
                excess = &mut excess, if self.excess.is_none() => {
                    self.excess = Some(excess);
                    self.keeper.kill();
                }
            }
        }
    }

    fn handle_event(&mut self, event: PumpEvent) {
        match event {
            PumpEvent::InputEnded => self.until = self.eof_wait.map(|wait| Instant::now() + wait),
            PumpEvent::OutputEnded => self.outputs -= 1,
            // The reader of the output is gone, so the command has no more use.
            PumpEvent::OutputLost => {
                self.outputs -= 1;
                self.keeper.kill();
            }
        }
    }

    fn handle_signal(&self, signal: Signal, insists: bool) {
        match signal {
            Signal::Hangup => self.keeper.kill(),
            _ if insists => self.keeper.kill(),
            Signal::Interrupt => self.keeper.signal(Step::Int),
            Signal::Terminate => self.keeper.stop_from(Step::Term),
        }
    }

    /// After all processes have ended: passes on the rest in the pipes, if there is a reader.
    async fn drain_outputs(&mut self, signals: &mut Signals) {
        let until = Instant::now() + LAST_OUTPUT;
        while self.outputs > 0 {
            tokio::select! {
                event = next(&mut self.events) => self.handle_event(event),
                _ = signals.next() => return,
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }
}

async fn next(events: &mut mpsc::Receiver<PumpEvent>) -> PumpEvent {
    match events.recv().await {
        Some(event) => event,
        None => pending().await,
    }
}

/// Measures the copy from time to time: no quota limits it. Returns how it exceeds its limit.
async fn wait_for_excess(copy: Option<&KeptCopy>) -> String {
    let Some(copy) = copy else {
        return pending().await;
    };
    loop {
        tokio::time::sleep(MEASURE_INTERVAL).await;
        let path = copy.path.clone();
        let measured = tokio::task::spawn_blocking(move || describe_excess(&path)).await;
        if let Ok(Some(excess)) = measured {
            return excess;
        }
    }
}

/// A copy may grow to twice its maximum size at the start, as a session's copy.
fn describe_excess(copy: &Path) -> Option<String> {
    let size = measure(&Root::open(copy).ok()?).ok()?;
    let describe = |value: u64, unit: &str, max: u64| {
        (value > max).then(|| {
            format!("the copy of the workspace has {value} {unit}, more than its limit of {max}")
        })
    };
    describe(size.bytes, "bytes", 2 * COPY_BYTES)
        .or_else(|| describe(size.files, "files", 2 * COPY_FILES))
}

async fn at(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => pending().await,
    }
}
