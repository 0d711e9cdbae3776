//! Runs a plan: its open items become runs, done items are ticked, and added items run later.
//!
//! Owns the order: the state file is written before a run, an item is ticked after its report, and
//! the plan is read again before an item is started or ticked. Must not know how output is shown.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::PlanJob;
use super::executor::{Executor, StartError, StreamResult};
use super::file::{FileError, PlanText};
use super::output::{ITEM_WIDTH, PlanOutput, Step};
use super::plan_state::{PlanStateFile, item_of, prefix};
use crate::cli::exit::Exit;
use crate::cli::policy_watch::Watch;
use crate::cli::run::{
    DaemonControl, ItemSource, LocalControl, Remainder, RunControl, RunDisplay, RunRequest,
    StartedRuns, run_with_signals,
};
use crate::cli::signals::Signals;
use crate::cli::streams::Streams;
use crate::cli::supervisor_client::{Client, ClientError};
use marshal_engine::api::Fleet;
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_engine::api::task_rules;
use marshal_fleet::{FleetEvent, FleetHandle, RunBounds, TaskReport};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, TaskId, TaskOutcome, TaskSpec, UntrustedText};
use marshal_wire::plan::checklist::AGENT_ITEMS;
use marshal_wire::plan::{ChecklistItem as PlanItem, ItemId, prompt};

/// Stream items of runs that wait to be handled.
const QUEUE: usize = 256;
/// How long a file that changes is left alone before it is read.
const SETTLE: Duration = Duration::from_millis(100);
/// The most waits for an unchanged file, one after the other.
const SETTLES: usize = 20;

/// The stage of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Waiting(RunId),
    Running(RunId),
    Done,
    /// It ran and is not done.
    Blocked,
    /// It does not run in this `marshal run`.
    HeldBack,
    /// It was removed from the plan or ticked before it began.
    Withdrawn,
}

/// An input of the plan's main loop.
enum PlanInput {
    Item(StreamResult),
    /// The file changed.
    FileChanged,
}

/// Why the plan's run ends early.
enum PlanRunError {
    Client(ClientError),
    Message(String),
}

impl From<StartError> for PlanRunError {
    fn from(refused: StartError) -> Self {
        match refused {
            StartError::Client(error) => Self::Client(error),
            StartError::Fleet(refusal) => Self::Message(refusal.to_string()),
        }
    }
}

struct PlanRun<F> {
    plan: PlanJob,
    state_file: PlanStateFile,
    state: PathBuf,
    executor: Executor<F>,
    bounds: RunBounds,
    started_runs: Arc<StartedRuns>,
    items: BTreeMap<ItemId, Stage>,
    sender: mpsc::Sender<StreamResult>,
    receiver: mpsc::Receiver<StreamResult>,
    streams: JoinSet<()>,
    /// Runs that are not complete.
    open: usize,
    /// All runs of the plan, also earlier ones that are not settled.
    runs: Vec<RunId>,
    watch: Option<Watch>,
    /// Whether an agent may have written the file since it was read.
    touched: bool,
    /// Whether a done item could not be ticked.
    unticked: bool,
    /// Whether the current error of the file was reported.
    is_fault_reported: bool,
    output: VecDeque<PlanOutput>,
}

impl<F: Fleet> PlanRun<F> {
    fn new(
        plan: PlanJob,
        state_file: PlanStateFile,
        state: &Path,
        executor: Executor<F>,
        bounds: RunBounds,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let watch = Watch::open().and_then(|mut watch| { watch.set(&[plan.file.path()].into())?; Ok(watch) }).inspect_err( |error| tracing::warn!(%error, "the plan file cannot be watched; it is read again when an item ends"), );
        Self {
            plan,
            state_file,
            state: state.to_owned(),
            executor,
            bounds,
            started_runs: Arc::default(),
            items: BTreeMap::new(),
            sender,
            receiver,
            streams: JoinSet::new(),
            open: 0,
            runs: Vec::new(),
            watch: watch.ok(),
            touched: false,
            unticked: false,
            is_fault_reported: false,
            output: VecDeque::new(),
        }
    }

    /// Ticks items that are done, resumes unfinished runs, and starts open items.
    async fn begin(&mut self) -> Result<(), PlanRunError> {
        let left = self.plan.leftovers.clone();
        self.state_file.state.pool = Some(self.plan.pool.to_string());
        self.state_file
            .state
            .policy_layer
            .clone_from(&self.plan.policy_layer);
        self.state_file.state.land.clone_from(&self.plan.land);
        let written = self.state_file.write();
        written.map_err(|error| PlanRunError::Message(error.to_string()))?;
        for item in left.done {
            self.items.insert(item, Stage::Done);
            self.tick(item).await;
        }
        self.runs.extend(left.ended);
        for (run, tasks) in left.open {
            let source = self.executor.resume(&run, self.bounds).await?;
            for task in &tasks {
                if let Some((_, item)) = item_of(task.as_str()) {
                    let stage = Stage::Waiting(run.clone());
                    self.items.entry(item).or_insert(stage);
                }
            }
            self.follow(run, tasks, source);
        }
        for item in self.plan.read.list.clone().items() {
            self.step(item, if item.done { "done" } else { "pending" });
        }
        self.reread().await
    }

    fn follow(&mut self, run: RunId, tasks: Vec<TaskId>, mut source: ItemSource) {
        if self.started_runs.add(run.clone()) {
            self.executor.cancel(&run);
        }
        self.runs.push(run.clone());
        self.output.push_back(PlanOutput::RunStarted(run, tasks));
        self.open += 1;
        let sender = self.sender.clone();
        self.streams.spawn(async move {
            loop {
                let item = source.next().await;
                let is_last = matches!(item, Err(_) | Ok((Some(RunStreamItem::Complete), _)));
                if sender.send(item).await.is_err() || is_last {
                    return;
                }
            }
        });
    }

    /// The next input. Cancel-safe.
    async fn next_input(&mut self) -> PlanInput {
        tokio::select! {
            item = self.receiver.recv() => match item {
            Some(item) => PlanInput::Item(item),
                None => PlanInput::FileChanged,
            },
            () = wait_for_change(&mut self.watch) => PlanInput::FileChanged,
        }
    }

    /// Handles an input; `false` when no run is open any more.
    async fn handle_input(&mut self, input: PlanInput) -> Result<bool, PlanRunError> {
        match input {
            PlanInput::Item(Err(error)) => return Err(PlanRunError::Client(error)),
            PlanInput::Item(Ok((Some(RunStreamItem::Complete), _))) => {
                self.open -= 1;
                if self.open == 0 {
                    self.reread().await?;
                }
                return Ok(self.open > 0);
            }
            PlanInput::Item(Ok((item, line))) => self.handle_item(item, line).await?,
            PlanInput::FileChanged => {
                self.wait_settled().await;
                self.reread().await?;
            }
        }
        Ok(true)
    }

    async fn handle_item(
        &mut self,
        item: Option<RunStreamItem>,
        line: Option<String>,
    ) -> Result<(), PlanRunError> {
        match &item {
            Some(RunStreamItem::Notice(FleetEvent::TaskAssigned { task, run, .. })) => {
                self.touched = true;
                if let Some(id) = self.item_of(task) {
                    self.items.insert(id, Stage::Running(run.clone()));
                    if let Some(item) = self.plan.read.list.item(id).cloned() {
                        self.step(&item, "running");
                    }
                }
            }
            Some(RunStreamItem::Ended(report)) => {
                let report = Arc::clone(report);
                self.output.push_back(PlanOutput::Item(item, line));
                self.touched = true;
                self.task_ended(&report).await;
                return self.reread().await;
            }
            _ => {}
        }
        self.output.push_back(PlanOutput::Item(item, line));
        Ok(())
    }

    fn item_of(&self, task: &TaskId) -> Option<ItemId> {
        let (digest, item) = item_of(task.as_str())?;
        (digest == self.plan.file.digest()).then_some(item)
    }

    async fn task_ended(&mut self, report: &TaskReport) {
        let Some(id) = self.item_of(&report.task) else {
            return;
        };
        if self.items.get(&id) == Some(&Stage::Withdrawn) && report.outcome != TaskOutcome::Done {
            self.output
                .push_back(PlanOutput::Excused(report.task.clone()));
            return;
        }
        if report.outcome == TaskOutcome::Done {
            self.items.insert(id, Stage::Done);
            self.tick(id).await;
            return;
        }
        self.items.insert(id, Stage::Blocked);
        if let Some(item) = self.plan.read.list.item(id).cloned() {
            let began = report.outcome != TaskOutcome::Skipped;
            self.step(&item, if began { "blocked" } else { "pending" });
        }
    }

    async fn tick(&mut self, id: ItemId) {
        let file = self.plan.file.clone();
        let ticked = tokio::task::spawn_blocking(move || file.tick(id)).await;
        match ticked {
            Ok(Ok(read)) => {
                // Other changes of the file are handled by the next `reread`.
                if let Some(item) = read.list.item(id).cloned() {
                    self.plan.read.list.clone_from(&read.list);
                    self.step(&item, "done");
                }
            }
            Ok(Err(FileError::Checklist {
                source: marshal_wire::plan::ChecklistError::ItemRemoved(_),
                ..
            })) => {
                let text = "plan: a done item is no longer in the plan: it was removed, or its text was changed";
                self.output.push_back(PlanOutput::Note(text.to_owned()));
            }
            other => {
                self.unticked = true;
                let why = match other {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the supervisor is stopping".to_owned(),
                };
                let text = format!("error: an item is done but could not be ticked: {why}");
                self.output.push_back(PlanOutput::Note(text));
            }
        }
    }

    fn step(&mut self, item: &PlanItem, status: &'static str) {
        let list = &self.plan.read.list;
        let progress = list.progress();
        let place = list.items().iter().position(|other| other.id == item.id);
        self.output.push_back(PlanOutput::Step(Step {
            v: 1,
            r#type: "plan_step",
            place: place.map_or(0, |place| place + 1),
            status,
            content: item.text.clone(),
            task: self.task(item.id),
            done: progress.done,
            total: progress.total,
        }));
    }

    fn task(&self, item: ItemId) -> String {
        format!("{}{item}", prefix(&self.plan.file.digest()))
    }

    /// Waits until the file is unchanged for a moment, but not forever.
    async fn wait_settled(&mut self) {
        for _ in 0..SETTLES {
            if timeout(SETTLE, wait_for_change(&mut self.watch))
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// Reads the file again, and handles its changes.
    async fn reread(&mut self) -> Result<(), PlanRunError> {
        let file = self.plan.file.clone();
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        let read: PlanText = match read {
            Ok(Ok(read)) => {
                self.is_fault_reported = false;
                read
            }
            Ok(Err(error)) => {
                // Editors replace a file, so it may be missing for a moment: report only the first
                // error.
                if !std::mem::replace(&mut self.is_fault_reported, true) {
                    let text =
                        format!("{error}; no further item starts until the plan can be read");
                    self.output.push_back(PlanOutput::Note(text));
                }
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let is_running = self
            .items
            .values()
            .any(|stage| matches!(stage, Stage::Running(_)));
        // It is not known who added items while an agent could write the file.
        let by_agents = self.plan.agents_write && (is_running || self.touched);
        self.touched = is_running;
        self.plan.read = read;
        self.cancel_withdrawn().await;
        if self.started_runs.is_cancelled() {
            return Ok(());
        }
        self.begin_new(by_agents).await
    }

    /// Cancels waiting items that were removed from the plan or ticked by someone else.
    async fn cancel_withdrawn(&mut self) {
        let list = &self.plan.read.list;
        let waiting = self.items.iter().filter_map(|(id, stage)| match stage {
            Stage::Waiting(run) if list.item(*id).is_none_or(|item| item.done) => {
                Some((*id, run.clone()))
            }
            _ => None,
        });
        for (id, run) in waiting.collect::<Vec<_>>() {
            self.items.insert(id, Stage::Withdrawn);
            if let Ok(task) = TaskId::new(&self.task(id)) {
                self.executor.cancel_task(&self.plan, &run, &task).await;
            }
        }
    }

    async fn begin_new(&mut self, by_agents: bool) -> Result<(), PlanRunError> {
        let list = self.plan.read.list.clone();
        let is_new = |item: &&PlanItem| !item.done && !self.items.contains_key(&item.id);
        let new: Vec<PlanItem> = list.items().iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        if !self.runs.is_empty() && self.bounds.is_set() {
            let text = "the limits of this `marshal run` are for the items that it began with; the next one runs this item";
            self.hold_back(&new, text);
            return Ok(());
        }
        if by_agents && !self.plan.agent_items {
            self.hold_back(&new, "an agent may have added it; the next `marshal run`, or one with --agent-items, runs it");
            return Ok(());
        }
        if by_agents {
            let added = self.state_file.state.added.saturating_add(new.len());
            if added > AGENT_ITEMS {
                let text = format!(
                    "agents may add at most {AGENT_ITEMS} items to a plan; the next `marshal run` runs this item"
                );
                self.hold_back(&new, &text);
                return Ok(());
            }
            self.state_file.state.added = added;
            let written = self.state_file.write();
            written.map_err(|error| PlanRunError::Message(error.to_string()))?;
        }
        let mut specs = Vec::with_capacity(new.len());
        for item in &new {
            let text = prompt::item_prompt(
                &self.plan.file.shown,
                &self.plan.read.text,
                &list,
                item,
                self.plan.agent_items && self.plan.agents_write,
            );
            if let Err(why) = task_rules::check_prompt(&text) {
                self.hold_back(std::slice::from_ref(item), &format!("its prompt {why}"));
                continue;
            }
            if let Ok(id) = TaskId::new(&self.task(item.id)) {
                specs.push((item.id, self.spec(id, text)));
            }
        }
        if specs.is_empty() {
            return Ok(());
        }
        let tasks: Vec<TaskSpec> = specs.iter().map(|(_, spec)| spec.clone()).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id.clone()).collect();
        let (run, source) = self.executor.submit(tasks, self.bounds).await?;
        for (item, _) in specs {
            self.items.insert(item, Stage::Waiting(run.clone()));
        }
        self.follow(run, ids, source);
        Ok(())
    }

    fn hold_back(&mut self, items: &[PlanItem], why: &str) {
        for item in items {
            self.items.insert(item.id, Stage::HeldBack);
            let content = escape_for_display(&item.text, ITEM_WIDTH);
            let text = format!("plan: item not started: {content}: {why}");
            self.output.push_back(PlanOutput::Note(text));
        }
    }

    fn spec(&self, id: TaskId, text: String) -> TaskSpec {
        TaskSpec {
            id,
            prompt: UntrustedText::new(text),
            pool: Some(self.plan.pool.clone()),
            workspace: None,
            attempts: None,
            check: None,
            files: Vec::new(),
            embedded_files: Vec::new(),
            policy_layer: self.plan.policy_layer.clone(),
            land: self.plan.land.clone(),
            priority: 0,
            depends_on: Vec::new(),
        }
    }

    /// Marks the runs as settled in the state file. Returns the number of open items, and whether
    /// every result was recorded.
    fn finish(&mut self) -> (usize, bool) {
        let progress = self.plan.read.list.progress();
        let open = progress.total - progress.done;
        if self.unticked {
            // The next start ticks them.
            return (open, false);
        }
        if open == 0 {
            self.state_file.state.added = 0;
        }
        // What a stop left is done by the next start.
        let left = self.items.values().filter_map(|stage| match stage {
            Stage::Waiting(run) | Stage::Running(run) => Some(run),
            _ => None,
        });
        let left: Vec<&RunId> = left.collect();
        self.runs.retain(|run| !left.contains(&run));
        match self.state_file.settle(&self.runs, &self.state) {
            Ok(()) => (open, true),
            Err(error) => {
                self.output
                    .push_back(PlanOutput::Note(format!("error: {error}")));
                (open, false)
            }
        }
    }
}

/// Returns when the file may have changed. Cancel-safe.
async fn wait_for_change(watch: &mut Option<Watch>) {
    match watch {
        Some(active) => {
            if let Err(error) = active.changed().await {
                tracing::warn!(%error, "the plan file is no longer watched");
                *watch = None;
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

/// Runs a plan with a fleet of this process.
pub(in crate::cli) async fn run_local<F: Fleet>(
    fleet: F,
    plan: PlanJob,
    state: &Path,
    order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let state_file = match PlanStateFile::open(state, &plan.file) {
        Ok(state_file) => state_file,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::CannotStart;
        }
    };
    let executor = Executor::Local(fleet.clone());
    let next = format!("marshal run --plan {}", plan.file.shown);
    let work = PlanRun::new(plan, state_file, state, executor, order.bounds);
    let control = LocalControl {
        fleet,
        runs: Arc::clone(&work.started_runs),
    };
    let mut show = RunDisplay::new(order, streams, None);
    show.remainder = Some(Remainder::Command(next));
    run(work, show, &control, signals).await
}

/// Runs a plan with the daemon of a state directory.
pub(in crate::cli) async fn run_on_daemon(
    client: Client,
    mut plan: PlanJob,
    order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let state = client.state_dir().to_owned();
    drop(client);
    let opened = PlanStateFile::open(&state, &plan.file).and_then(|state_file| {
        // Read after the lock is taken: no other process changes the state now.
        plan.leftovers = super::plan_state::find_leftovers(&state, &plan.file)?;
        Ok(state_file)
    });
    let state_file = match opened {
        Ok(state_file) => state_file,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::CannotStart;
        }
    };
    if let (Some(run), true) = (plan.resumed_run(), order.bounds.is_set()) {
        let text = format!(
            "error: the daemon resumes run {run} with its original limits; leave out --until, --max-cost and --jobs"
        );
        streams.err.line(&text);
        return Exit::Usage;
    }
    let executor = Executor::<FleetHandle>::Daemon(state.clone());
    let work = PlanRun::new(plan, state_file, &state, executor, order.bounds);
    let control = DaemonControl(state, Arc::clone(&work.started_runs));
    let mut show = RunDisplay::new(order, streams, None);
    show.remainder = Some(Remainder::Daemon);
    run(work, show, &control, signals).await
}

async fn run<F: Fleet>(
    work: PlanRun<F>,
    show: RunDisplay,
    control: &impl RunControl,
    signals: &mut Signals,
) -> Exit {
    /// Notes that wait to be shown; further ones are dropped, as they would repeat the same.
    const NOTES: usize = 8;
    let (sender, notes) = mpsc::channel(NOTES);
    run_with_signals(follow(work, show, notes), &sender, control, signals).await
}

async fn follow<F: Fleet>(
    mut work: PlanRun<F>,
    mut show: RunDisplay,
    mut notes: mpsc::Receiver<String>,
) -> Exit {
    let mut goes_on = work.begin().await.map(|()| work.open > 0);
    loop {
        while let Some(output) = work.output.pop_front() {
            show.show_plan_output(output);
        }
        match goes_on {
            Ok(true) => {}
            Ok(false) => break,
            Err(PlanRunError::Client(error)) => return show.connection_lost(&error),
            // A run was refused, because a signal arrived.
            Err(PlanRunError::Message(_)) if work.started_runs.is_cancelled() => break,
            Err(PlanRunError::Message(why)) => return show.fail(&why),
        }
        let input = tokio::select! {
        input = work.next_input() => input,
        Some(note) = notes.recv() => {
                show.note(&note);
                continue;
            }
        };
        goes_on = work.handle_input(input).await;
    }
    let (open, is_kept) = work.finish();
    while let Some(output) = work.output.pop_front() {
        show.show_plan_output(output);
    }
    let exit = show.finish();
    if open > 0 || !is_kept {
        return exit.or_failures();
    }
    exit
}
