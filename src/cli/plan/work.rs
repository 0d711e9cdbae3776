//! A plan that is worked: its open items become runs, what is done is ticked, what is added follows.
//!
//! Owns the order: the book before a run, the tick after its report, the file read anew before
//! anything of it is begun or ticked. Must not know how it is shown.

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
use crate::cli::control_client::{Client, ClientError};
use crate::cli::exit::Exit;
use crate::cli::policy_watch::Watch;
use crate::cli::run::{
    DaemonControl, ItemSource, LocalControl, RunControl, RunDisplay, RunRequest, StartedRuns,
    run_with_signals,
};
use crate::cli::signals::Signals;
use crate::cli::streams::Streams;
use marshal_engine::api::Fleet;
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_engine::api::task_rules;
use marshal_fleet::{FleetEvent, FleetHandle, RunBounds, TaskReport};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, TaskId, TaskOutcome, TaskSpec, UntrustedText};
use marshal_wire::plan::checklist::AGENT_ITEMS;
use marshal_wire::plan::{ChecklistItem as PlanItem, ItemId, prompt};

/// Items of runs that wait to be looked at.
const QUEUE: usize = 256;
/// How long a file that changes is left alone before it is read.
const SETTLE: Duration = Duration::from_millis(100);
/// So often it is waited for that.
const SETTLES: usize = 20;

/// How an item stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Waiting(RunId),
    Running(RunId),
    Done,
    /// It was worked and is not done.
    Blocked,
    /// It is not worked here.
    HeldBack,
    /// It went from the plan, or was ticked, before it began.
    Withdrawn,
}

/// What came.
enum PlanInput {
    Item(StreamResult),
    /// The file changed.
    FileChanged,
}

/// How the work ends before its end.
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
    /// All runs of this work.
    runs: Vec<RunId>,
    watch: Option<Watch>,
    /// An agent may have written the file since it was read.
    touched: bool,
    /// Something that is done could not be ticked.
    unticked: bool,
    /// What is wrong with the file was said.
    is_fault_reported: bool,
    output: VecDeque<PlanOutput>,
}

impl<F: Fleet> PlanRun<F> {
    fn new(
        plan: PlanJob,
        book: PlanStateFile,
        state: &Path,
        hands: Executor<F>,
        bounds: RunBounds,
    ) -> Self {
        let (tell, came) = mpsc::channel(QUEUE);
        let watch = Watch::open().and_then(|mut watch| {
            watch.set(&[plan.file.path()].into())?;
            Ok(watch)
        });
        let watch = watch.inspect_err(
            |error| tracing::warn!(%error, "the plan is not watched: it is read when an item ends"),
        );
        Self {
            plan,
            state_file: book,
            state: state.to_owned(),
            executor: hands,
            bounds,
            started_runs: Arc::default(),
            items: BTreeMap::new(),
            sender: tell,
            receiver: came,
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

    /// Carries what is done into the file, goes on with what is left, begins what is open.
    async fn begin(&mut self) -> Result<(), PlanRunError> {
        let left = self.plan.leftovers.clone();
        self.state_file.state.pool = Some(self.plan.pool.to_string());
        self.state_file
            .state
            .policy_layer
            .clone_from(&self.plan.policy_layer);
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
        let tell = self.sender.clone();
        self.streams.spawn(async move {
            loop {
                let got = source.next().await;
                let is_last = matches!(got, Err(_) | Ok((Some(RunStreamItem::Complete), _)));
                if tell.send(got).await.is_err() || is_last {
                    return;
                }
            }
        });
    }

    /// What comes next. Cancel-safe.
    async fn next_input(&mut self) -> PlanInput {
        tokio::select! {
            got = self.receiver.recv() => match got {
                Some(got) => PlanInput::Item(got),
                None => PlanInput::FileChanged,
            },
            () = wait_for_change(&mut self.watch) => PlanInput::FileChanged,
        }
    }

    /// Everything that follows from it; `false` when nothing comes any more.
    async fn handle_input(&mut self, came: PlanInput) -> Result<bool, PlanRunError> {
        match came {
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
                    if let Some(of) = self.plan.read.list.item(id).cloned() {
                        self.step(&of, "running");
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
                // What else is new in it is looked at next.
                if let Some(item) = read.list.item(id).cloned() {
                    self.plan.read.list.clone_from(&read.list);
                    self.step(&item, "done");
                }
            }
            Ok(Err(FileError::Checklist {
                source: marshal_wire::plan::ChecklistError::ItemRemoved(_),
                ..
            })) => {
                let text = "plan: an item is done that is not in the plan any more: it was removed, or its text was changed";
                self.output.push_back(PlanOutput::Note(text.to_owned()));
            }
            other => {
                self.unticked = true;
                let why = match other {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the supervisor ends".to_owned(),
                };
                let text = format!("error: an item is done and not ticked: {why}");
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

    /// Waits until the file is left alone for a moment, but not for ever.
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

    /// Reads the file anew, and follows it.
    async fn reread(&mut self) -> Result<(), PlanRunError> {
        let file = self.plan.file.clone();
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        let read: PlanText = match read {
            Ok(Ok(read)) => {
                self.is_fault_reported = false;
                read
            }
            Ok(Err(error)) => {
                // As editors put a new file in the place of an old one, it may be away for a moment.
                if !std::mem::replace(&mut self.is_fault_reported, true) {
                    let text =
                        format!("{error}: nothing further of it is begun until it can be read");
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
        // Nobody knows who wrote what came while an agent could have.
        let by_agents = self.plan.agents_write && (is_running || self.touched);
        self.touched = is_running;
        self.plan.read = read;
        self.cancel_withdrawn().await;
        if self.started_runs.is_cancelled() {
            return Ok(());
        }
        self.begin_new(by_agents).await
    }

    /// Items that wait and are gone, or were ticked by somebody else, are not worked.
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
            let text = "these come with the next `marshal run`: this one has bounds, which are of the items that it began with";
            self.hold_back(&new, text);
            return Ok(());
        }
        if by_agents && !self.plan.agent_items {
            self.hold_back(&new, "agents may have added these: without --agent-items they are not worked before the next `marshal run`");
            return Ok(());
        }
        if by_agents {
            let added = self.state_file.state.added.saturating_add(new.len());
            if added > AGENT_ITEMS {
                let text = format!(
                    "agents may add {AGENT_ITEMS} items to a plan: these are not worked before the next `marshal run`"
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
                self.hold_back(
                    std::slice::from_ref(item),
                    &format!("what stands beneath it {why}"),
                );
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
            let text = format!("plan: not worked: {content}: {why}");
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
            priority: 0,
            depends_on: Vec::new(),
        }
    }

    /// Everything is over: the book says so. How many items are open, and whether all is kept.
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

/// Returns when the file may be another one. Cancel-safe.
async fn wait_for_change(watch: &mut Option<Watch>) {
    match watch {
        Some(of) => {
            if let Err(error) = of.changed().await {
                tracing::warn!(%error, "the plan is not watched any more");
                *watch = None;
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

/// Works a plan with a fleet of this process.
pub(in crate::cli) async fn run_local<F: Fleet>(
    fleet: F,
    plan: PlanJob,
    state: &Path,
    order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let book = match PlanStateFile::open(state, &plan.file) {
        Ok(book) => book,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::CannotStart;
        }
    };
    let hands = Executor::Local(fleet.clone());
    let work = PlanRun::new(plan, book, state, hands, order.bounds);
    let reins = LocalControl(fleet, Arc::clone(&work.started_runs));
    run(work, RunDisplay::new(order, streams, None), &reins, signals).await
}

/// Works a plan with the daemon of a state directory.
pub(in crate::cli) async fn run_on_daemon(
    client: Client,
    mut plan: PlanJob,
    order: RunRequest,
    mut streams: Streams,
    signals: &mut Signals,
) -> Exit {
    let state = client.state_dir().to_owned();
    drop(client);
    let opened = PlanStateFile::open(&state, &plan.file).and_then(|book| {
        // Now nobody else changes it.
        plan.leftovers = super::plan_state::find_leftovers(&state, &plan.file)?;
        Ok(book)
    });
    let book = match opened {
        Ok(book) => book,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return Exit::CannotStart;
        }
    };
    if let (Some(run), true) = (plan.resumed_run(), order.bounds.is_set()) {
        let text = format!(
            "error: the daemon goes on with run {run} under the bounds that it began with: leave out --until, --max-cost and --jobs"
        );
        streams.err.line(&text);
        return Exit::Usage;
    }
    let hands = Executor::<FleetHandle>::Daemon(state.clone());
    let work = PlanRun::new(plan, book, &state, hands, order.bounds);
    let reins = DaemonControl(state, Arc::clone(&work.started_runs));
    run(work, RunDisplay::new(order, streams, None), &reins, signals).await
}

async fn run<F: Fleet>(
    work: PlanRun<F>,
    show: RunDisplay,
    reins: &impl RunControl,
    signals: &mut Signals,
) -> Exit {
    /// Sentences that wait to be shown; more would say nothing new.
    const SENTENCES: usize = 8;
    let (say, said) = mpsc::channel(SENTENCES);
    run_with_signals(follow(work, show, said), &say, reins, signals).await
}

async fn follow<F: Fleet>(
    mut work: PlanRun<F>,
    mut show: RunDisplay,
    mut said: mpsc::Receiver<String>,
) -> Exit {
    let mut goes_on = work.begin().await.map(|()| work.open > 0);
    loop {
        while let Some(told) = work.output.pop_front() {
            show.show_plan_output(told);
        }
        match goes_on {
            Ok(true) => {}
            Ok(false) => break,
            Err(PlanRunError::Client(error)) => return show.connection_lost(&error),
            Err(PlanRunError::Message(why)) => return show.fail(&why),
        }
        let came = tokio::select! {
            came = work.next_input() => came,
            Some(note) = said.recv() => {
                show.note(&note);
                continue;
            }
        };
        goes_on = work.handle_input(came).await;
    }
    let (open, is_kept) = work.finish();
    while let Some(told) = work.output.pop_front() {
        show.show_plan_output(told);
    }
    let exit = show.finish();
    if open > 0 || !is_kept {
        return exit.or_failures();
    }
    exit
}
