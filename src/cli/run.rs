//! `run`: submits tasks to a fleet, in this process or in a daemon, and shows their progress.
//!
//! Owns the order: the results file is opened before the work starts, the fleet is watched before
//! the tasks are submitted, and reports come before the table. Also owns what the first and the
//! second signal do. Must not know how a fleet is started.
//!
//! A separate task writes the output, so that a blocked terminal or pipe delays no signal.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::board::Verbosity;
use super::exit::Exit;
use super::plan::{self, PlanJob, PlanOutput};
use super::progress::{Progress, Screen};
use super::results::{Results, ResultsError};
use super::short_ids::short;
use super::signals::{Signal, Signals};
use super::streams::Streams;
use super::supervisor_client::{Client, ClientError};
use super::table;
use marshal_config::show_duration;
use marshal_engine::api::run_stream::{Ledger, RunStream, RunStreamItem, new_run_id};
use marshal_engine::api::{Fleet, Refusal, json_lines};
use marshal_fleet::{FleetEvent, RunBounds, Stop, TaskReport};
use marshal_model::limits;
use marshal_model::{RunId, TaskId, TaskOutcome, TaskSpec};

/// A job, and how it is shown.
#[derive(Debug)]
pub struct RunRequest {
    /// The job.
    pub job: Job,
    /// The limits of the run.
    pub bounds: RunBounds,
    /// The file of `--results`.
    pub results: Option<Results>,
    /// Write JSON Lines to standard output, instead of progress and table.
    pub json: bool,
    /// How much progress is shown.
    pub verbosity: Verbosity,
    /// The terminal for live bars; `None` for plain lines.
    pub screen: Option<Screen>,
}

/// The tasks of a run.
#[derive(Debug, Clone)]
pub enum Job {
    /// New tasks, checked, at least one.
    New(Vec<TaskSpec>),
    /// The remaining tasks of an earlier run.
    Continue {
        /// The run's id.
        run: RunId,
        /// All of its tasks, in order.
        tasks: Vec<TaskId>,
    },
    /// The open items of a plan.
    Plan(Box<PlanJob>),
}

impl Job {
    /// The ids of its tasks, in order.
    fn ids(&self) -> Vec<TaskId> {
        match self {
            Self::New(tasks) => tasks.iter().map(|task| task.id.clone()).collect(),
            Self::Continue { tasks, .. } => tasks.clone(),
            // They are added when they begin.
            Self::Plan(_) => Vec::new(),
        }
    }
}

/// Runs the tasks with a fleet of this process, and stops the fleet.
pub async fn run_local<F: Fleet>(
    fleet: F,
    order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let taken = unless_signalled(submit_job(&fleet, &order.job, order.bounds), signals).await;
    let exit = match taken {
        Ok(Ok(stream)) => {
            let run = stream.run().clone();
            let runs = StartedRuns::with_run(run.clone());
            let mut show = RunDisplay::new(order, streams, Some(&run));
            let next = format!("marshal run --continue {}", short(run.as_str()));
            show.remainder = Some(Remainder::Command(next));
            let control = LocalControl {
                fleet: fleet.clone(),
                runs,
            };
            let source = ItemSource::Local(Box::new(stream));
            run_until_done(source, show, control, signals).await
        }
        Ok(Err(refusal)) => {
            streams.err.line(&format!("error: {refusal}"));
            match refusal {
                Refusal::Tasks(_) => Exit::Usage,
                Refusal::Fleet(_) | Refusal::Full(_) => Exit::CannotStart,
            }
        }
        Err(_) => {
            let text = "error: interrupted before the tasks were accepted; none of them has begun";
            streams.err.line(text);
            Exit::Failures
        }
    };
    stop_unless_signalled(&fleet, exit, signals).await
}

/// The same for a plan; its record is in the state directory.
pub async fn run_plan_local<F: Fleet>(
    fleet: F,
    plan: PlanJob,
    state: &Path,
    order: RunRequest,
    streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let exit = plan::run_local(fleet.clone(), plan, state, order, streams, signals).await;
    stop_unless_signalled(&fleet, exit, signals).await
}

async fn stop_unless_signalled<F: Fleet>(fleet: &F, exit: Exit, signals: &mut Signals) -> Exit {
    match exit {
        Exit::Interrupted | Exit::Terminated => exit,
        exit => {
            let second = stop(fleet, Stop::Drain, signals).await;
            second.map_or(exit, Signal::exit)
        }
    }
}

/// Waits for the work, or gives up at the first signal: the work may never end.
pub(super) async fn unless_signalled<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
) -> Result<T, Signal> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            signal = signals.next() => match signal {
                Signal::Hangup => {}
                signal => return Err(signal),
            },
        }
    }
}

/// Waits for the work, or gives up at the second signal.
pub(super) async fn unless_insisted<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
) -> Result<T, Signal> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            signal = signals.next() => {
                if signals.is_insistent() {
                    return Err(signal);
                }
            }
        }
    }
}

async fn submit_job<F: Fleet>(
    fleet: &F,
    job: &Job,
    bounds: RunBounds,
) -> Result<RunStream, Refusal> {
    // Subscribe before the tasks are submitted, so that no notice of them is missed.
    let notices = fleet.subscribe();
    let ledger = match job {
        Job::New(tasks) => {
            let run = new_run_id().map_err(|error| Refusal::Fleet(error.to_string()))?;
            fleet.set_run_bounds(&run, bounds);
            let reports = fleet.submit(run.clone(), "run", tasks.clone()).await?;
            Ledger::collect(run, tasks.len(), reports)
        }
        Job::Continue { run, .. } => {
            fleet.set_run_bounds(run, bounds);
            resume_run(fleet, run.clone()).await?
        }
        Job::Plan(_) => return Err(plan_not_submittable()),
    };
    Ok(RunStream::new(notices, ledger, fleet.history()))
}

/// A plan's items are submitted one run at a time: see [`run_plan_local`].
fn plan_not_submittable() -> Refusal {
    Refusal::Tasks("a plan cannot be submitted as one run".to_owned())
}

/// Resumes a run, and collects its reports.
///
/// # Errors
/// [`Refusal`]; nothing was changed then.
pub(super) async fn resume_run<F: Fleet>(fleet: &F, run: RunId) -> Result<Arc<Ledger>, Refusal> {
    let taken = fleet.resume_run(run.clone()).await?;
    let total = taken.tasks.len();
    Ok(Ledger::resume(run, total, taken.ended, taken.reports))
}

/// Stops the fleet, or kills at once at the second signal, which is returned then.
pub(super) async fn stop<F: Fleet>(fleet: &F, how: Stop, signals: &mut Signals) -> Option<Signal> {
    let mut stopping = std::pin::pin!(fleet.stop(how));
    loop {
        let signal = tokio::select! {
            () = &mut stopping => return None,
            signal = signals.next() => signal,
        };
        if signals.is_insistent() {
            // Poll both: the first call may hold a lock that the second one waits for.
            tokio::select! {
                () = &mut stopping => {}
                () = kill(fleet) => {}
            }
            return Some(signal);
        }
    }
}

async fn kill<F: Fleet>(fleet: &F) {
    if timeout(limits::KILLED_REPORT_TIMEOUT, fleet.stop(Stop::Kill))
        .await
        .is_err()
    {
        tracing::error!("the children were killed, but not all of them could be reaped");
    }
}

/// Submits new tasks to a daemon, or watches a run that it resumes, and shows the run as if it were
/// in this process.
pub async fn run_on_daemon(
    mut client: Client,
    mut order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    if let Job::Plan(plan) = order.job {
        order.job = Job::New(Vec::new());
        return plan::run_on_daemon(client, *plan, order, streams, signals).await;
    }
    if let (Job::Continue { run, .. }, true) = (&order.job, order.bounds.is_set()) {
        let text = format!(
            "error: the daemon resumes run {run} with its original limits; leave out --until, --max-cost, --max-tokens and --jobs"
        );
        streams.err.line(&text);
        return Exit::Usage;
    }
    let submitted = async {
        match &order.job {
            Job::New(tasks) => client.submit(tasks, order.bounds).await,
            Job::Continue { run, .. } => client.watch(run).await.map(|()| run.clone()),
            Job::Plan(_) => Err(ClientError::Lost(plan_not_submittable().to_string())),
        }
    };
    let run = match unless_signalled(submitted, signals).await {
        Ok(Ok(run)) => run,
        Ok(Err(error)) => return error.report(&mut streams),
        Err(_) => {
            let text = "error: interrupted before the daemon answered; it may run the tasks";
            streams.err.line(text);
            return Exit::Failures;
        }
    };
    let control = DaemonControl(
        client.state_dir().to_owned(),
        StartedRuns::with_run(run.clone()),
    );
    let mut show = RunDisplay::new(order, streams, Some(&run));
    show.remainder = Some(Remainder::Daemon);
    let source = ItemSource::Daemon(Box::new(client));
    run_until_done(source, show, control, signals).await
}

/// Where a run's items come from.
pub(super) enum ItemSource {
    Local(Box<RunStream>),
    Daemon(Box<Client>),
}

impl ItemSource {
    /// The next item; from a daemon, with the line that it was sent as.
    pub(super) async fn next(
        &mut self,
    ) -> Result<(Option<RunStreamItem>, Option<String>), ClientError> {
        match self {
            Self::Local(stream) => Ok((Some(stream.next().await), None)),
            Self::Daemon(client) => {
                let (item, line) = client.next().await?;
                Ok((item, Some(line)))
            }
        }
    }
}

/// The runs that were started, and whether they are cancelled.
#[derive(Debug, Default)]
pub(super) struct StartedRuns(Mutex<(Vec<RunId>, bool)>);

impl StartedRuns {
    fn with_run(run: RunId) -> Arc<Self> {
        Arc::new(Self(Mutex::new((vec![run], false))))
    }

    fn with_lock<T>(&self, action: impl FnOnce(&mut (Vec<RunId>, bool)) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a run; `true` if it must be cancelled at once.
    pub(super) fn add(&self, run: RunId) -> bool {
        self.with_lock(|(runs, is_cancelled)| {
            runs.push(run);
            *is_cancelled
        })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.with_lock(|(_, is_cancelled)| *is_cancelled)
    }

    /// Allows no further run, and returns the runs that were started.
    fn cancel(&self) -> Vec<RunId> {
        self.with_lock(|(runs, is_cancelled)| {
            *is_cancelled = true;
            runs.clone()
        })
    }
}

/// Stops runs.
pub(super) trait RunControl {
    /// Starts to end the runs at the first signal, without waiting. Tells `notes` how, and errors.
    fn end(&self, notes: &mpsc::Sender<String>);

    /// Handles that a run is paused because its tasks are denied.
    fn paused(&self) {}

    /// Looks whether a run is paused, because notices were skipped.
    fn look_for_pause(&self) {}

    /// Kills everything at once. `false` if this process has nothing to kill.
    async fn kill(&self) -> bool;
}

/// Controls runs of a fleet in this process.
pub(super) struct LocalControl<F> {
    pub(super) fleet: F,
    pub(super) runs: Arc<StartedRuns>,
}

impl<F: Fleet> LocalControl<F> {
    fn suspend(&self) {
        for run in self.runs.cancel() {
            self.fleet.suspend(&run);
        }
    }
}

impl<F: Fleet> RunControl for LocalControl<F> {
    fn end(&self, notes: &mpsc::Sender<String>) {
        let _ = notes.try_send(draining(&self.fleet));
        self.runs.cancel();
        self.fleet.drain();
    }

    fn paused(&self) {
        // Nobody is there who could load the policies again.
        self.suspend();
    }

    fn look_for_pause(&self) {
        let runs = self.runs.with_lock(|(runs, _)| runs.clone());
        if runs.iter().any(|run| self.fleet.is_paused(run)) {
            self.suspend();
        }
    }

    async fn kill(&self) -> bool {
        kill(&self.fleet).await;
        true
    }
}

/// What a person is told when a fleet of this process begins to stop.
pub(super) fn draining<F: Fleet>(fleet: &F) -> String {
    let time = show_duration(fleet.drain_time());
    format!(
        "stopping: no further task begins, and running ones may end within {time} (stop.drain); a second signal kills them"
    )
}

/// Controls runs of the daemon of a state directory.
pub(super) struct DaemonControl(pub(super) PathBuf, pub(super) Arc<StartedRuns>);

impl RunControl for DaemonControl {
    fn end(&self, notes: &mpsc::Sender<String>) {
        let cancelling = "cancelling; the results follow; a second signal exits";
        let _ = notes.try_send(cancelling.to_owned());
        let (state_dir, runs, notes) = (self.0.clone(), self.1.cancel(), notes.clone());
        tokio::spawn(async move {
            for run in runs {
                if let Err(error) = Client::new(&state_dir).cancel(&run).await {
                    let _ = notes.try_send(format!("the daemon did not cancel the run: {error}"));
                }
            }
        });
    }

    async fn kill(&self) -> bool {
        false
    }
}

/// Shows the run until its end, and handles signals.
async fn run_until_done(
    source: ItemSource,
    show: RunDisplay,
    control: impl RunControl + Send + Sync + 'static,
    signals: &mut Signals,
) -> Exit {
    /// Notes that wait to be shown; further ones are dropped, as they would repeat the same.
    const NOTES: usize = 8;
    let (sender, notes) = mpsc::channel(NOTES);
    let control = Arc::new(control);
    let following = show_items(source, show, notes, Arc::clone(&control));
    run_with_signals(following, &sender, &*control, signals).await
}

/// Waits until `following` ends, and handles signals.
pub(super) async fn run_with_signals(
    following: impl Future<Output = Exit> + Send + 'static,
    notes: &mpsc::Sender<String>,
    control: &impl RunControl,
    signals: &mut Signals,
) -> Exit {
    let mut following = tokio::spawn(following);
    let mut first = None;
    loop {
        let signal = tokio::select! {
            ended = &mut following => {
                let exit = join_exit(ended);
                return match (exit, first) {
                    (Exit::Done, Some(_)) => Exit::Failures,
                    (exit, _) => exit,
                };
            }
            signal = signals.next() => signal,
        };
        match (signal, first) {
            // `run` continues without its terminal.
            (Signal::Hangup, _) => {}
            (signal, None) => {
                first = Some(signal);
                control.end(notes);
            }
            (signal, Some(_)) => {
                let _ = notes.try_send("killing".to_owned());
                if control.kill().await {
                    // The fleet reports the killed tasks: give the results file time to record them.
                    let _ = timeout(limits::KILLED_REPORT_TIMEOUT, &mut following).await;
                }
                following.abort();
                return signal.exit();
            }
        }
    }
}

/// The exit code of the task; a panic of it is resumed here.
fn join_exit(ended: Result<Exit, tokio::task::JoinError>) -> Exit {
    match ended {
        Ok(exit) => exit,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Exit::Failures,
        },
    }
}

async fn show_items(
    mut source: ItemSource,
    mut show: RunDisplay,
    mut notes: mpsc::Receiver<String>,
    control: Arc<impl RunControl>,
) -> Exit {
    loop {
        let next = tokio::select! {
        next = source.next() => next,
        Some(note) = notes.recv() => {
                show.note(&note);
                continue;
            }
        };
        let (item, line) = match next {
            Ok(next) => next,
            Err(error) => return show.connection_lost(&error),
        };
        let complete = matches!(item, Some(RunStreamItem::Complete));
        if let Some(RunStreamItem::Notice(FleetEvent::RunPaused { .. })) = &item {
            control.paused();
        } else if let Some(RunStreamItem::Lagged(_)) = &item {
            control.look_for_pause();
        }
        show.item(item.as_ref(), line);
        if complete {
            return show.finish();
        }
    }
}

/// What goes on with the tasks that a stop leaves.
pub(super) enum Remainder {
    /// This command.
    Command(String),
    /// The next start of the daemon.
    Daemon,
}

/// All output of a run: for a person, for a program and for the results file.
pub(super) struct RunDisplay {
    streams: Streams,
    progress: Progress,
    json: bool,
    results: Option<Results>,
    results_failed: bool,
    /// The tasks, in order.
    tasks: Vec<TaskId>,
    reports: HashMap<TaskId, Arc<TaskReport>>,
    /// The tasks that need not succeed.
    excused: HashSet<TaskId>,
    begun: Instant,
    /// What goes on with tasks that a stop leaves.
    pub(super) remainder: Option<Remainder>,
}

impl RunDisplay {
    /// `run` is the run of the tasks; without it, the tasks are added later.
    pub(super) fn new(order: RunRequest, mut streams: Streams, run: Option<&RunId>) -> Self {
        let tasks = order.job.ids();
        let total = tasks.len();
        let verbosity = if order.json {
            Verbosity::Quiet
        } else {
            order.verbosity
        };
        if let (true, Some(run)) = (order.json, run) {
            streams.out.json(&json_lines::run_started_json(run, total));
        }
        let mut show = Self {
            progress: Progress::new(total, verbosity, order.screen.as_ref()),
            streams,
            json: order.json,
            results: order.results,
            results_failed: false,
            tasks,
            reports: HashMap::new(),
            excused: HashSet::new(),
            begun: Instant::now(),
            remainder: None,
        };
        let emptied = show.results.as_mut().map_or(Ok(()), Results::begin);
        show.record_write(emptied);
        show
    }

    /// Reports a failed write. Nothing more is written after it: a gap in the file would look like
    /// a task that has not ended.
    fn record_write(&mut self, written: Result<(), ResultsError>) {
        if let Err(error) = written {
            self.results = None;
            self.results_failed = true;
            self.progress.finish();
            self.streams.err.line(&format!("error: {error}"));
        }
    }

    /// Shows an output of a plan.
    pub(super) fn show_plan_output(&mut self, output: PlanOutput) {
        match output {
            PlanOutput::Item(item, line) => self.item(item.as_ref(), line),
            PlanOutput::RunStarted(run, tasks) => {
                if self.json {
                    self.streams
                        .out
                        .json(&json_lines::run_started_json(&run, tasks.len()));
                }
                self.progress.grow(tasks.len());
                self.tasks.extend(tasks);
            }
            PlanOutput::Step(step) if self.json => self.streams.out.json(&step.json()),
            PlanOutput::Step(step) => {
                if let Some(text) = step.text() {
                    self.note(&text);
                }
            }
            PlanOutput::Note(text) => self.note(&text),
            PlanOutput::Excused(task) => {
                self.excused.insert(task);
            }
        }
    }

    /// Ends with an error: no further task can be started.
    pub(super) fn fail(mut self, why: &str) -> Exit {
        self.summary();
        self.streams.err.line(&format!("error: {why}"));
        Exit::Failures
    }

    pub(super) fn note(&mut self, text: &str) {
        self.progress.note(text, &mut self.streams.err);
    }

    /// Shows an item; `None` is one whose kind this version does not know. `line` is its text from
    /// a daemon.
    fn item(&mut self, item: Option<&RunStreamItem>, line: Option<String>) {
        if self.json {
            let text = line
                .or_else(|| item.map(json_lines::item_json))
                .unwrap_or_default();
            text.lines().for_each(|line| self.streams.out.json(line));
        }
        let Some(item) = item else { return };
        self.progress.item(item, &mut self.streams.err);
        if let RunStreamItem::Ended(report) = item {
            let written = self.results.as_mut().map(|results| results.write(report));
            self.record_write(written.unwrap_or(Ok(())));
            self.reports.insert(report.task.clone(), Arc::clone(report));
        }
    }

    /// Ends because the daemon is gone: shows the tasks that have ended.
    pub(super) fn connection_lost(mut self, error: &ClientError) -> Exit {
        self.summary();
        let exit = error.report(&mut self.streams);
        self.tell_left();
        exit
    }

    pub(super) fn finish(mut self) -> Exit {
        self.summary();
        let missing = self.missing();
        self.tell_left();
        let done = |report: &Arc<TaskReport>| {
            report.outcome == TaskOutcome::Done || self.excused.contains(&report.task)
        };
        if missing == 0 && !self.results_failed && self.reports.values().all(done) {
            Exit::Done
        } else {
            Exit::Failures
        }
    }

    /// Says what goes on with the tasks without a report.
    fn tell_left(&mut self) {
        let missing = self.missing();
        if missing > 0 {
            let tasks = if missing == 1 {
                "1 task is"
            } else {
                &format!("{missing} tasks are")
            };
            let text = match &self.remainder {
                Some(Remainder::Command(next)) => format!("{tasks} left; to go on: {next}"),
                Some(Remainder::Daemon) => {
                    format!("{tasks} left, and will go on when the supervisor is started again")
                }
                None => format!("error: {missing} tasks ended without a report; see the log"),
            };
            self.streams.err.line(&text);
        }
    }

    fn missing(&self) -> usize {
        self.tasks.len().saturating_sub(self.reports.len())
    }

    fn summary(&mut self) {
        self.progress.finish();
        let synced = self.results.as_ref().map_or(Ok(()), Results::finish);
        self.record_write(synced);
        if self.json {
            return;
        }
        let rows = self.tasks.iter().filter_map(|task| self.reports.get(task));
        let rows: Vec<&TaskReport> = rows.map(Arc::as_ref).collect();
        let style = table::Style {
            width: self.streams.width,
            coloured: self.streams.coloured,
        };
        let took: Duration = self.begun.elapsed();
        let text = table::render(&rows, self.missing(), took, style);
        self.streams.out.prose(&text);
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
