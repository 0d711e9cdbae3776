//! The fleet: pools of slots, their sessions and channels, and the tasks that they run.
//!
//! Layer 4. Owns the actors. An actor owns a decision; a plain task owns a descriptor or a
//! process. No actor awaits IO, a turn or a person inside a handler.
//!
//! Each pool is a ractor actor, [`pool::Pool`]. Each attempt at a task has a [`session`] and each
//! child a [`channel`]; each is an actor, linked to the one above it. A Channel also has plain tasks:
//! stdout pump, stdin pump, stderr ring and keeper. One task of the fleet measures homes and
//! copies. Mailboxes are unbounded. So output of a child enters them only with [`credit::Credits`],
//! and everything else is a bounded number of messages a task or a turn.

mod active_policies;
#[cfg(test)]
mod actor_probe;
mod ambient;
mod approval_registry;
mod approval_rules;
mod approver;
mod budgets;
mod channel;
mod clock;
mod credit;
mod delegate;
mod files;
pub mod fleet_event;
mod handle;
mod hooks;
mod live_actor;
mod messages;
mod notification;
mod path_lookup;
mod paused_runs;
mod pool;
mod pool_setup;
mod program_record;
mod report;
mod resource_usage;
mod resume_sessions;
mod run_history;
mod session;
mod setting_reply;
mod setup;
mod shadow;
mod slot_demand;
mod slot_history;
mod start_error;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use ractor::{Actor, ActorRef};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

pub use active_policies::{LoadedPolicy, Policies};
pub use ambient::Ambient;
pub use approver::{ApprovalRequest, ApprovalUpdate, ApproverReply};
pub use budgets::RunBounds;
pub use channel::stderr::LogTail;
pub use clock::day_time;
#[doc(hidden)]
pub use clock::simulate_stamps;
pub use files::{FileRead, FileWrite, FilesError, HostAccessError, Parents};
pub use fleet_event::{
    ChangeKind, FileChange, FleetEvent, LandedWork, RepoBundle, SlotView, TaskBranch, TaskReport,
};
pub use handle::approvals::{AnswerError, AnswerReceipt, AnswerRequest};
pub use handle::chats::STOPPED_UNSENT;
pub use handle::commands::{CommandError, CommandOutput, CommandRequest};
pub use handle::conversation::{
    Conversation, ConversationRequest, ConversationUpdate, OpenError, PromptError,
};
pub use handle::conversation_list::ConversationView;
pub use handle::exec::{
    ExecError, ExecInput, ExecOrder, ExecOutput, ExecTerminal, ExecUpdate, SlotExec,
};
pub use handle::keys::ChangedKey;
pub use handle::operator::OperatorError;
pub use handle::outage::Outages;
pub use handle::reload::{
    LastReload, PolicyReadResult, PolicyReader, PolicyStatus, PolicyView, ShadowView,
};
pub use handle::resume_run::{ResumeRunError, ResumedRun};
pub use handle::views::PoolView;
pub use path_lookup::path_enters_directory;
pub use report::ReportError;
pub use session::{
    LandRequest, Landing, LandingError, NotLanded, OwnCheck, PROMPT_NOT_WRITTEN, PullRequestError,
    PullRequestOrder, PushedBranch, STOPPED_BY_PERSON,
};
pub use setting_reply::SettingResult;
pub use setup::{ResumeScope, Setup};
pub use slot_demand::{SlotDemand, SlotRelease};
pub use slot_history::SlotHistoryError;

use crate::messages::PoolMsg;
use active_policies::ActivePolicies;
use clock::now_us;
use files::WorkspaceFiles;
use handle::commits::{BoundedCommit, submit_result};
use hooks::Hooks;
use marshal_config::{Config, SessionScope, WorkspaceMode};
use marshal_journal::{Journal, Refusal, TaskRow, Write};
use marshal_model::limits::POOL_QUEUE;
use marshal_model::{Amount, PoolName, RunId, SessionId, SlotId, SlotState, TaskId, TaskSpec};
use marshal_telemetry::event::child::SlotStateChanged;
use marshal_telemetry::event::task::{QueueRejected, TaskQueued};
use marshal_telemetry::exporter::{initialise_pool, initialise_routes};
use marshal_telemetry::labels::QueueRefusal;
use marshal_telemetry::{PoolSample, SlotUsage};
use pool::{ActiveTask, OpenTasks, Pool, PoolArgs};
use pool_setup::{build_pools, initial_slot_views};
use setup::{PoolShared, Shared, SlotTable};
pub use start_error::StartError;

/// Why tasks were not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// A task cannot run in its pool, names an unknown pool, or names none of several.
    #[error("task {task}: {why}")]
    Pool {
        /// The task's id.
        task: String,
        /// The reason, and what to change.
        why: String,
    },
    /// The pool's queue is full.
    #[error(
        "a pool accepts at most {POOL_QUEUE} tasks at the same time: submit fewer, or wait until some end"
    )]
    TooMany,
    /// The journal accepts no writes.
    #[error("{0}")]
    Journal(Refusal),
    /// The journal rejected the commit: the run id is used already, or the journal is closed.
    #[error("the tasks were not journalled: {0}")]
    Rejected(String),
    /// The journal is locked or its disk is full, for longer than a client waits.
    #[error(
        "the journal is locked by another process, or its disk is full: nothing was accepted; try again later"
    )]
    Stalled,
    /// The disk does not answer.
    #[error(
        "the journal's disk does not answer: this may have been accepted; look before you send it again"
    )]
    Unknown,
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// Counts the tasks that the queues of their pools refuse for this reason.
fn reject(by_pool: &BTreeMap<PoolName, Vec<ActiveTask>>, error: SubmitError) -> SubmitError {
    let reason = match &error {
        SubmitError::TooMany => QueueRefusal::Full,
        SubmitError::Stopping => QueueRefusal::Draining,
        _ => QueueRefusal::Journal,
    };
    for (pool, tasks) in by_pool {
        for task in tasks {
            QueueRejected {
                pool,
                task: &task.spec.id,
                reason,
            }
            .emit();
        }
    }
    error
}

/// No slot has this id.
#[derive(Debug, thiserror::Error)]
#[error("there is no slot {0}")]
pub struct NoSuchSlot(pub SlotId);

/// How a fleet stops. In every case what was accepted and has not begun stays in the journal, for
/// the next start; so does a task whose turn is interrupted, if its pool has `restart.on_crash =
/// "retry"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Running turns may end within their pool's `stop.drain`. Then they are interrupted, as with
    /// [`Self::Interrupt`].
    Drain,
    /// Running turns are cancelled by the dialect, and children stopped by the stop ladder: an end
    /// of input, then signals, then a kill.
    Interrupt,
    /// Each child and all its descendants are killed.
    Kill,
}

/// Whether the fleet can run tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It accepts and runs tasks.
    Ready,
    /// It cannot; one sentence for each reason.
    NotReady(Vec<String>),
}

struct PoolEntry {
    actor: ActorRef<PoolMsg>,
    shared: Arc<PoolShared>,
}

struct Inner {
    shared: Arc<Shared>,
    pools: BTreeMap<PoolName, PoolEntry>,
    ended: tokio::sync::Mutex<Vec<JoinHandle<()>>>,
}

/// A handle to the running fleet. Clones refer to the same fleet.
#[derive(Clone)]
pub struct FleetHandle(Arc<Inner>);

impl std::fmt::Debug for FleetHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.pools.keys()).finish()
    }
}

impl FleetHandle {
    /// Starts the pools. A child is started only when a task needs one.
    ///
    /// # Errors
    /// [`StartError`] if the setup is inconsistent or stored state cannot be read.
    pub async fn start(mut setup: Setup) -> Result<Self, StartError> {
        let in_force = ActivePolicies::new(&setup.config, &setup.policies)?;
        let parts = build_pools(&setup, &in_force)?;
        let mut histories = slot_history::load_slot_histories(
            &setup.journal,
            &setup.config.pools,
            &setup.resume_scope,
        )?;
        let history_of = |pool: &PoolShared| histories.get(&pool.config.name);
        let views = parts
            .iter()
            .flat_map(|pool| initial_slot_views(pool, history_of(pool)));
        let slots = SlotTable::new(views);
        let mut stored = resume_sessions::choose_stored_sessions(&setup).await;
        for (pool, sessions) in &stored {
            for (index, restored) in sessions {
                let slot = SlotId {
                    pool: pool.clone(),
                    index: *index,
                };
                slots.update(&slot, |view| view.session = Some(restored.session.clone()));
            }
        }
        let hooks = Hooks::start(&setup.config, &setup.host, &setup.ambient)?;
        let hooks = Arc::new(hooks);
        for pool in &parts {
            pool.ledger.set_hooks(&hooks);
        }
        let store = setup.store.take();
        let files = Box::pin(WorkspaceFiles::start(
            store,
            &setup.config,
            setup.state.path(),
            &setup.ambient,
        ))
        .await?;
        let shared = Arc::new(Shared::new(setup, in_force, slots, hooks, files));
        let mut pools = BTreeMap::new();
        let mut ended = Vec::new();
        for pool in parts {
            initialise_pool(&pool.config.name, pool.config.max_size);
            let routes: Vec<&str> = pool
                .config
                .routes
                .iter()
                .map(|route| route.name.as_str())
                .collect();
            initialise_routes(&pool.config.name, &routes);
            for view in shared.slots.of_pool(&pool.config.name) {
                SlotStateChanged {
                    slot: &view.slot,
                    from: None,
                    to: Some(view.state),
                }
                .emit();
            }
            let args = PoolArgs {
                memory: histories.remove(&pool.config.name).unwrap_or_default(),
                shared: Arc::clone(&shared),
                pool: Arc::clone(&pool),
                stored: stored.remove(&pool.config.name).unwrap_or_default(),
            };
            let (actor, end) = Pool::spawn(None, Pool, args)
                .await
                .map_err(|error| StartError::Actor(error.to_string()))?;
            ended.push(end);
            let name = pool.config.name.clone();
            pools.insert(
                name,
                PoolEntry {
                    actor,
                    shared: pool,
                },
            );
        }
        let actors = pools.values().map(|entry| entry.actor.clone());
        shared.dependencies.set_pools(actors.collect());
        let fleet = Self(Arc::new(Inner {
            shared,
            pools,
            ended: tokio::sync::Mutex::new(ended),
        }));
        fleet.restore_approvals().await;
        Ok(fleet)
    }

    /// Accepts the tasks of a new run; returns when they are durable. Each task is reported once.
    ///
    /// # Errors
    /// [`SubmitError`]; none of the tasks was accepted.
    pub async fn submit(
        &self,
        run: RunId,
        command: &'static str,
        tasks: Vec<TaskSpec>,
    ) -> Result<mpsc::Receiver<Arc<TaskReport>>, SubmitError> {
        if tasks.len() > POOL_QUEUE {
            return Err(SubmitError::TooMany);
        }
        let (report_sender, reports) = mpsc::channel(tasks.len().max(1));
        let bounds = self.0.shared.run_bounds.take(&run);
        let limits = self.start_run_limits(&run, bounds, Amount::default());
        let pause_after = self.0.shared.config.supervisor.pause_after_denied();
        let open = OpenTasks::with_limits(tasks.len(), false, limits, pause_after);
        let mut writes = vec![Write::RunBegun {
            run: run.clone(),
            command,
            at_us: now_us(),
        }];
        writes.extend(
            bounds
                .is_set()
                .then(|| handle::run_bounds::to_row(&run, &bounds)),
        );
        let mut by_pool: BTreeMap<PoolName, Vec<ActiveTask>> = BTreeMap::new();
        let mut queued = Vec::with_capacity(tasks.len());
        for (place, mut spec) in tasks.into_iter().enumerate() {
            let entry = self.pool_of(&spec)?;
            if spec.workspace.is_some() && entry.shared.config.options.session == SessionScope::Slot
            {
                return Err(SubmitError::Pool {
                    task: spec.id.to_string(),
                    why: "a task of a pool with session = \"slot\" works in the session's workspace: remove workspace from the task".to_owned(),
                });
            }
            if spec.workspace.is_some() && entry.shared.config.ssh.is_some() {
                return Err(SubmitError::Pool {
                    task: spec.id.to_string(),
                    why: "a task of a pool with launcher = \"ssh\" works in ssh.workspace on the remote host: remove workspace from the task".to_owned(),
                });
            }
            entry.shared.check_prompt_files(&spec)?;
            entry.shared.check_policy_layer(&spec)?;
            entry.shared.check_landing(&spec)?;
            self.check_cost_is_known(&entry.shared, &spec, &bounds)?;
            if let Some(path) = spec.workspace.take() {
                let path = self.resolve_workspace(&spec, path).await?;
                self.check_no_trusted_files(&entry.shared, &spec, &path)
                    .await?;
                spec.workspace = Some(path);
            }
            let name = entry.shared.config.name.clone();
            writes.push(Write::TaskQueued(TaskRow {
                run: run.clone(),
                spec: spec.clone(),
                pool: name.clone(),
                place: u32::try_from(place).unwrap_or(u32::MAX),
                at_us: now_us(),
            }));
            queued.push((spec.id.clone(), name.clone()));
            let attempts = spec
                .attempts
                .unwrap_or(entry.shared.config.options.attempts);
            let (open, needs) = (
                Arc::clone(&open),
                self.resolve_dependencies(&spec, true).await?,
            );
            let task = ActiveTask::new(run.clone(), spec, attempts, report_sender.clone(), open);
            by_pool
                .entry(name)
                .or_default()
                .push(task.with_dependencies(needs));
        }
        self.reserve_queue_places(&by_pool)?;
        match self.commit_bounded(writes).await {
            BoundedCommit::Ended(Ok(())) => self.enqueue(&run, queued, by_pool)?,
            BoundedCommit::Ended(Err(error)) => {
                self.release_all(&by_pool);
                return Err(reject(&by_pool, error));
            }
            // If they become durable after all, they are work like any other.
            BoundedCommit::Unknown(late) => {
                let fleet = self.clone();
                tokio::spawn(async move {
                    if submit_result(late.await).is_ok() {
                        let _ = fleet.enqueue(&run, queued, by_pool);
                    } else {
                        fleet.release_all(&by_pool);
                    }
                });
                return Err(SubmitError::Unknown);
            }
        }
        Ok(reports)
    }

    /// Gives durable tasks to their pools.
    fn enqueue(
        &self,
        run: &RunId,
        queued: Vec<(TaskId, PoolName)>,
        by_pool: BTreeMap<PoolName, Vec<ActiveTask>>,
    ) -> Result<(), SubmitError> {
        for (task, pool) in queued {
            let run = run.clone();
            TaskQueued {
                pool: &pool,
                task: &task,
            }
            .emit();
            self.0
                .shared
                .notify_subscribers(FleetEvent::TaskQueued { run, task, pool });
        }
        for (pool, tasks) in by_pool {
            if let Some(entry) = self.0.pools.get(&pool) {
                entry
                    .actor
                    .send_message(PoolMsg::Submit(tasks))
                    .map_err(|_| SubmitError::Stopping)?;
            }
        }
        Ok(())
    }

    fn release_all(&self, by_pool: &BTreeMap<PoolName, Vec<ActiveTask>>) {
        for (pool, tasks) in by_pool {
            self.release_queue_places(pool, tasks.len());
        }
    }

    /// Resolves the links of a task's own workspace before an agent runs, because an agent could
    /// change them later. Inside a workspace that agents write, a path with a link is rejected.
    async fn resolve_workspace(
        &self,
        spec: &TaskSpec,
        path: PathBuf,
    ) -> Result<PathBuf, SubmitError> {
        let bad = |why: String| SubmitError::Pool {
            task: spec.id.to_string(),
            why,
        };
        let shown = marshal_model::untrusted::escape_for_display(&path.to_string_lossy(), 300);
        let is_agent_writable = |path: &Path| {
            let mut pools = self.0.pools.values();
            pools.any(|entry| {
                entry.shared.config.workspace.mode == WorkspaceMode::Rw
                    && path.starts_with(&entry.shared.workspace)
            })
        };
        let is_writable = is_agent_writable(&path);
        let requested = path.clone();
        let ambient = &self.0.shared.ambient;
        let resolved = ambient
            .run_blocking(move || std::fs::canonicalize(requested))
            .await
            .map_err(|_| SubmitError::Stopping)?
            .map_err(|error| bad(format!("workspace {shown}: {error}")))?;
        if is_writable && resolved != path {
            return Err(bad(format!(
                "workspace {shown} has a symbolic link or `..` inside a directory that agents can write: give the resolved path"
            )));
        }
        Ok(resolved)
    }

    /// Reserves queue places in all pools, or in none.
    fn reserve_queue_places(
        &self,
        by_pool: &BTreeMap<PoolName, Vec<ActiveTask>>,
    ) -> Result<(), SubmitError> {
        if self.0.shared.is_draining() {
            return Err(reject(by_pool, SubmitError::Stopping));
        }
        let mut reserved = Vec::new();
        for (pool, tasks) in by_pool {
            let entry = self.0.pools.get(pool);
            if entry.is_some_and(|entry| entry.shared.reserve_tasks(tasks.len())) {
                reserved.push((pool, tasks.len()));
                continue;
            }
            for (pool, count) in reserved {
                self.release_queue_places(pool, count);
            }
            return Err(reject(by_pool, SubmitError::TooMany));
        }
        Ok(())
    }

    fn release_queue_places(&self, pool: &PoolName, count: usize) {
        if let Some(entry) = self.0.pools.get(pool) {
            entry.shared.release_tasks(count);
        }
    }

    /// Updates the gauges that change with time alone, and returns what the metrics page needs of
    /// each pool.
    #[must_use]
    pub fn sample_pools(&self) -> Vec<PoolSample<'_>> {
        let entries = self.0.pools.values();
        entries
            .map(|entry| {
                entry.shared.update_gauges();
                entry.shared.sample()
            })
            .collect()
    }

    /// The resource usage of each slot's children now. Reads a few small files for each running
    /// child.
    #[must_use]
    pub fn slot_usage(&self) -> Vec<SlotUsage> {
        self.0.shared.slots.sample_usage()
    }

    fn pool_of(&self, spec: &TaskSpec) -> Result<&PoolEntry, SubmitError> {
        let bad = |why: String| SubmitError::Pool {
            task: spec.id.to_string(),
            why,
        };
        let names = || {
            let names: Vec<_> = self.0.pools.keys().map(PoolName::as_str).collect();
            names.join(", ")
        };
        match &spec.pool {
            Some(name) => self.0.pools.get(name).ok_or_else(|| {
                bad(format!(
                    "there is no pool {name}; the pools are: {}",
                    names()
                ))
            }),
            None if self.0.pools.len() == 1 => {
                let only = self.0.pools.values().next();
                only.ok_or_else(|| bad("there is no pool".to_owned()))
            }
            None => Err(bad(format!(
                "there are several pools, and the task names none: set its pool to one of {}",
                names()
            ))),
        }
    }

    /// Subscribes to all events from now on. The channel reports a lag to a slow subscriber.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<FleetEvent> {
        self.0.shared.subscribers.subscribe()
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.0.shared.journal
    }

    /// The current state of all slots.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotView> {
        self.0.shared.slots.views()
    }

    /// The current state of one slot, and the resident memory of its child in bytes, where its control
    /// group counts it; `None` if there is no such slot. Reads a few small files if a child runs.
    #[must_use]
    pub fn slot(&self, slot: &SlotId) -> Option<(SlotView, Option<u64>)> {
        let slots = &self.0.shared.slots;
        let view = slots.view(slot)?;
        let [resident, ..] = slots.usage(slot).sample(slot).memory;
        Some((view, resident))
    }

    /// Whether a slot has this session now, or a check or a setup works under this id.
    #[must_use]
    pub fn is_session_active(&self, session: &SessionId) -> bool {
        let shared = &self.0.shared;
        shared.slots.has_session(session) || shared.program_clones.contains(session)
    }

    /// The configuration with which the fleet was started.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.shared.config
    }

    /// The digest of the configuration in force, reloads included.
    #[must_use]
    pub fn config_digest(&self) -> String {
        self.config_digest_lock().clone()
    }

    /// Sets the digest of the configuration in force, after a reload that applied all of it.
    pub fn set_config_digest(&self, digest: String) {
        *self.config_digest_lock() = digest;
    }

    /// Sets what one session may write to the journal, in bytes. A session that was stopped for the
    /// old limit goes on with its next prompt.
    pub fn set_session_quota(&self, bytes: u64) {
        let quota = &self.0.shared.session_quota;
        quota.store(bytes, Ordering::Relaxed);
    }

    fn config_digest_lock(&self) -> MutexGuard<'_, String> {
        let digest = &self.0.shared.config_digest;
        digest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stderr of a slot's children: the last lines, then new ones; `None` if there is no such
    /// slot.
    #[must_use]
    pub fn logs(&self, slot: &SlotId) -> Option<LogTail> {
        self.0
            .shared
            .slots
            .log(slot)
            .map(channel::stderr::StderrLog::follow)
    }

    /// Stops a slot's child, if one runs, and unparks the slot. Returns when the child and all its
    /// descendants have ended.
    ///
    /// # Errors
    /// [`NoSuchSlot`]
    pub async fn restart(&self, slot: SlotId) -> Result<(), NoSuchSlot> {
        let pool = self.0.pools.get(&slot.pool);
        let Some(entry) = pool.filter(|entry| slot.index < entry.shared.config.max_size) else {
            return Err(NoSuchSlot(slot));
        };
        let (done, ended) = oneshot::channel();
        let index = slot.index;
        if entry
            .actor
            .send_message(PoolMsg::Restart { index, done })
            .is_ok()
        {
            let _ = ended.await;
        }
        Ok(())
    }

    /// Whether the journal is writable and every pool has a slot that is not parked.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        if self.0.shared.is_draining() {
            reasons.push("the supervisor is stopping".to_owned());
        }
        reasons.extend(self.storage_faults());
        let slots = self.slots();
        for name in self.0.pools.keys() {
            let mut own = slots.iter().filter(|view| view.slot.pool == *name);
            if own.all(|view| view.state == SlotState::Parked) {
                reasons.push(format!("every slot of pool {name} is parked"));
            }
        }
        if reasons.is_empty() {
            Readiness::Ready
        } else {
            Readiness::NotReady(reasons)
        }
    }

    /// Starts no further task of this run, and cancels its running turns. Every task is still
    /// reported.
    pub fn cancel(&self, run: &RunId) {
        for entry in self.0.pools.values() {
            let _ = entry.actor.send_message(PoolMsg::Cancel(run.clone()));
        }
    }

    /// Starts nothing any more, and accepts nothing: the first part of [`Stop::Drain`]. What has not
    /// begun stays in the journal, for the next start, and the channels of its reports close.
    pub fn drain(&self) {
        self.0.shared.start_draining();
        for entry in self.0.pools.values() {
            let _ = entry.actor.send_message(PoolMsg::Drain);
        }
    }

    /// Whether this run is paused, because its last tasks were denied.
    #[must_use]
    pub fn is_paused(&self, run: &RunId) -> bool {
        self.0.shared.paused_runs.has(run)
    }

    /// Starts no further task of this run, and lets its running ones end. What has not begun stays
    /// in the journal, so the run can be resumed by a later start. Once the running tasks have
    /// ended, the channel of the run's reports closes.
    pub fn suspend(&self, run: &RunId) {
        for entry in self.0.pools.values() {
            let _ = entry.actor.send_message(PoolMsg::Suspend(run.clone()));
        }
    }

    /// Stops every child and ends the fleet. Returns when all actors have ended and the hooks have
    /// sent their pending messages or timed out. [`Stop::Kill`] does not wait for hooks. A later call
    /// may only be more urgent.
    pub async fn stop(&self, how: Stop) {
        if how == Stop::Kill {
            self.0.shared.hooks.abandon();
        }
        self.0.shared.start_draining();
        for entry in self.0.pools.values() {
            let _ = entry.actor.send_message(PoolMsg::Stop(how));
        }
        let mut ended = self.0.ended.lock().await;
        for end in ended.drain(..) {
            let _ = end.await;
        }
        self.0.shared.hooks.finish().await;
    }
}
