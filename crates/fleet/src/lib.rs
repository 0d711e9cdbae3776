//! The fleet: pools of slots, their sessions and channels, and the tasks that they work.
//!
//! Floor 4. Owns the actors. An actor owns a decision; a plain task owns a descriptor or a
//! process. No actor awaits IO, a turn or a person inside a handler.
//!
//! Actors: one [`pool::Pool`] a pool, of ractor's; one [`session`] an attempt at a task and one
//! [`channel`] a child, tasks with a [`mailbox`]. Plain tasks of a Channel: stdout pump, stdin pump,
//! stderr ring, keeper; one for the fleet measures homes and copies. Mailboxes are unbounded, so
//! what a child writes enters them only against [`credit::Credits`]; all else is a bounded number of
//! messages a task or a turn.

mod active_policies;
mod ambient;
mod approval_registry;
mod approval_rules;
mod approvals;
mod approver;
mod budgets;
mod channel;
mod chat_plans;
mod chats;
mod clock;
mod commands;
mod conversation;
mod conversation_list;
mod credit;
mod delegate;
mod files;
pub mod fleet_event;
mod hooks;
mod mailbox;
mod notification;
mod operator;
mod path_lookup;
mod pool;
mod pool_setup;
mod reload;
mod report;
mod resource_usage;
mod resume_run;
mod resume_sessions;
mod run_bounds;
mod run_history;
mod session;
mod session_subscriptions;
mod setting_reply;
mod setup;
mod shadow;
mod slot_history;
mod start_error;
mod task_dependencies;
mod views;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ractor::{Actor, ActorRef};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

pub use active_policies::{LoadedPolicy, Policies};
pub use ambient::Ambient;
pub use approvals::{AnswerError, AnswerReceipt, AnswerRequest};
pub use approver::{ApprovalRequest, ApprovalUpdate, ApproverReply};
pub use budgets::RunBounds;
pub use channel::stderr::LogTail;
pub use chats::STOPPED_UNSENT;
pub use clock::day_time;
#[doc(hidden)]
pub use clock::simulate_stamps;
pub use commands::{CommandError, CommandOutput, CommandRequest};
pub use conversation::{
    Conversation, ConversationRequest, ConversationUpdate, OpenError, PromptError,
};
pub use conversation_list::ConversationView;
pub use files::{FileRead, FileWrite, FilesError, HostAccessError, Parents};
pub use fleet_event::{ChangeKind, FileChange, FleetEvent, SlotView, TaskReport};
pub use operator::OperatorError;
pub use path_lookup::path_enters_directory;
pub use reload::{
    LastReload, PolicyReadResult, PolicyReader, PolicyStatus, PolicyView, ShadowView,
};
pub use report::ReportError;
pub use resume_run::{ResumeRunError, ResumedRun};
pub use session::{PROMPT_NOT_WRITTEN, STOPPED_BY_PERSON};
pub use setting_reply::SettingResult;
pub use setup::{ResumeScope, Setup};
pub use slot_history::SlotHistoryError;
pub use views::PoolView;

use active_policies::ActivePolicies;
use clock::now_us;
use files::WorkspaceFiles;
use hooks::Hooks;
use marshal_config::{Config, SessionScope, WorkspaceMode};
use marshal_journal::{Commit, CommitResult, Journal, Refusal, TaskRow, Write};
use marshal_model::limits::POOL_QUEUE;
use marshal_model::{PoolName, RunId, SessionId, SlotId, SlotState, TaskSpec};
use marshal_telemetry::SlotUsage;
use marshal_telemetry::event::child::SlotStateChanged;
use marshal_telemetry::event::task::{QueueRejected, TaskQueued};
use marshal_telemetry::exporter::{initialise_pool, initialise_routes};
use marshal_telemetry::labels::QueueRefusal;
use pool::{ActiveTask, OpenTasks, Pool, PoolArgs, PoolMsg};
use pool_setup::{build_pools, initial_slot_views};
use setup::{PoolShared, Shared, SlotTable};
pub use start_error::StartError;

/// Why tasks were not taken in.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// A task names a pool that does not exist, or none where there are several.
    #[error("task {task}: {why}")]
    Pool {
        /// The task's id.
        task: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// The queue would be longer than it may.
    #[error("more than {POOL_QUEUE} tasks of one pool at the same time: submit fewer, or wait")]
    TooMany,
    /// The journal takes nothing new.
    #[error("{0}")]
    Journal(Refusal),
    /// The journal could not take them: a run twice under the same id, or its end.
    #[error("the tasks were not journalled: {0}")]
    Rejected(String),
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// No such slot.
#[derive(Debug, thiserror::Error)]
#[error("there is no slot {0}")]
pub struct NoSuchSlot(pub SlotId);

/// How children are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// By the stop ladder.
    Graceful,
    /// By a kill of their whole trees.
    Now,
}

/// Whether the fleet can work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It cannot, and why.
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

/// The running fleet. Clones are the same fleet.
#[derive(Clone)]
pub struct FleetHandle(Arc<Inner>);

impl std::fmt::Debug for FleetHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.pools.keys()).finish()
    }
}

impl FleetHandle {
    /// Starts the pools. No child is started before a task needs one.
    ///
    /// # Errors
    /// [`StartError`] if the parts do not fit together.
    pub async fn start(mut setup: Setup) -> Result<Self, StartError> {
        let in_force = ActivePolicies::new(&setup.config, &setup.policies)?;
        let parts = build_pools(&setup, &in_force)?;
        let mut memories = slot_history::load_slot_histories(
            &setup.journal,
            &setup.config.pools,
            &setup.resume_scope,
        )?;
        let memory_of = |pool: &PoolShared| memories.get(&pool.config.name);
        let views = parts
            .iter()
            .flat_map(|pool| initial_slot_views(pool, memory_of(pool)));
        let slots = SlotTable::new(views);
        let mut stored = resume_sessions::choose_stored_sessions(&setup).await;
        for (pool, sessions) in &stored {
            for (index, of) in sessions {
                let slot = SlotId {
                    pool: pool.clone(),
                    index: *index,
                };
                slots.update(&slot, |view| view.session = Some(of.session.clone()));
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
                .map(|of| of.name.as_str())
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
                memory: memories.remove(&pool.config.name).unwrap_or_default(),
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

    /// Takes tasks in; returns when they are durable. Each of them will be reported once.
    ///
    /// # Errors
    /// [`SubmitError`]; none of the tasks was taken in then.
    pub async fn submit(
        &self,
        run: RunId,
        command: &'static str,
        tasks: Vec<TaskSpec>,
    ) -> Result<mpsc::Receiver<Arc<TaskReport>>, SubmitError> {
        if tasks.len() > POOL_QUEUE {
            return Err(SubmitError::TooMany);
        }
        let (tell, reports) = mpsc::channel(tasks.len().max(1));
        let bounds = self.0.shared.run_bounds.take(&run);
        let limits = self.start_run_limits(&run, bounds, 0);
        let open = OpenTasks::with_limits(tasks.len(), false, limits);
        let mut writes = vec![Write::RunBegun {
            run: run.clone(),
            command,
            at_us: now_us(),
        }];
        writes.extend(bounds.is_set().then(|| run_bounds::to_row(&run, &bounds)));
        let mut by_pool: BTreeMap<PoolName, Vec<ActiveTask>> = BTreeMap::new();
        let mut queued = Vec::with_capacity(tasks.len());
        for (place, mut spec) in tasks.into_iter().enumerate() {
            let entry = self.pool_of(&spec)?;
            if spec.workspace.is_some() && entry.shared.config.session == SessionScope::Slot {
                return Err(SubmitError::Pool {
                    task: spec.id.to_string(),
                    why: "a task of a pool with session = \"slot\" works in the session's workspace: leave out its own".to_owned(),
                });
            }
            if spec.workspace.is_some() && entry.shared.config.ssh.is_some() {
                return Err(SubmitError::Pool {
                    task: spec.id.to_string(),
                    why: "a task of a pool with launcher = \"ssh\" works in ssh.workspace at the far end: leave out its own".to_owned(),
                });
            }
            entry.shared.check_prompt_files(&spec)?;
            entry.shared.check_policy_layer(&spec)?;
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
            let attempts = spec.attempts.unwrap_or(entry.shared.config.attempts);
            let (open, needs) = (
                Arc::clone(&open),
                self.resolve_dependencies(&spec, true).await?,
            );
            let task = ActiveTask::new(run.clone(), spec, attempts, tell.clone(), open);
            by_pool
                .entry(name)
                .or_default()
                .push(task.with_dependencies(needs));
        }
        self.reserve_queue_places(&by_pool)?;
        if let Err(error) = self.commit_durably(writes).await {
            for (pool, tasks) in &by_pool {
                self.release_queue_places(pool, tasks.len());
            }
            return Err(error);
        }
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
        Ok(reports)
    }

    /// Resolves a task's own workspace now, before an agent works: later no link is followed. In a
    /// workspace that agents write, none is followed at all.
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
        let written = |path: &Path| {
            let mut pools = self.0.pools.values();
            pools.any(|entry| {
                entry.shared.config.workspace.mode == WorkspaceMode::Rw
                    && path.starts_with(&entry.shared.workspace)
            })
        };
        let is_written = written(&path);
        let asked = path.clone();
        let ambient = &self.0.shared.ambient;
        let resolved = ambient
            .run_blocking(move || std::fs::canonicalize(asked))
            .await;
        let resolved = resolved
            .map_err(|_| SubmitError::Stopping)?
            .map_err(|error| bad(format!("workspace {shown}: {error}")))?;
        if is_written && resolved != path {
            return Err(bad(format!(
                "workspace {shown} leads through a link, or `..`, in a directory that agents write: name it directly"
            )));
        }
        Ok(resolved)
    }

    /// Takes places in the queues of all pools, or in none.
    fn reserve_queue_places(
        &self,
        by_pool: &BTreeMap<PoolName, Vec<ActiveTask>>,
    ) -> Result<(), SubmitError> {
        let mut taken = Vec::new();
        for (pool, tasks) in by_pool {
            let entry = self.0.pools.get(pool);
            if entry.is_some_and(|entry| entry.shared.reserve_tasks(tasks.len())) {
                taken.push((pool, tasks.len()));
                continue;
            }
            for (pool, count) in taken {
                self.release_queue_places(pool, count);
            }
            if let Some(first) = tasks.first() {
                QueueRejected {
                    pool,
                    task: &first.spec.id,
                    reason: QueueRefusal::Full,
                }
                .emit();
            }
            return Err(SubmitError::TooMany);
        }
        Ok(())
    }

    fn release_queue_places(&self, pool: &PoolName, count: usize) {
        if let Some(entry) = self.0.pools.get(pool) {
            entry.shared.release_tasks(count);
        }
    }

    /// Brings the gauges up to date that only change with time.
    pub fn update_gauges(&self) {
        for entry in self.0.pools.values() {
            entry.shared.update_gauges();
        }
    }

    /// What each slot's children used, as it is now: reads a handful of small files for each child
    /// that runs.
    #[must_use]
    pub fn slot_usage(&self) -> Vec<SlotUsage> {
        self.0.shared.slots.sample_usage()
    }

    pub(crate) async fn commit_durably(&self, writes: Vec<Write>) -> Result<(), SubmitError> {
        let (done, durable) = oneshot::channel();
        let commit = Commit::new(writes).with_callback(move |result| {
            let _ = done.send(result);
        });
        let submitted = self.0.shared.journal.submit(commit);
        submitted.map_err(|refused| SubmitError::Journal(refused.reason))?;
        match durable.await {
            Ok(CommitResult::Durable { .. }) => Ok(()),
            Ok(CommitResult::Rejected(why)) => Err(SubmitError::Rejected(why.to_string())),
            Err(_) => Err(SubmitError::Stopping),
        }
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
            Some(name) => self
                .0
                .pools
                .get(name)
                .ok_or_else(|| bad(format!("there is no pool {name}; there are: {}", names()))),
            None if self.0.pools.len() == 1 => {
                let only = self.0.pools.values().next();
                only.ok_or_else(|| bad("there is no pool".to_owned()))
            }
            None => Err(bad(format!(
                "there are several pools, say which one works it: {}",
                names()
            ))),
        }
    }

    /// Everything that happens from now on. A watcher that lags is told so by the channel.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<FleetEvent> {
        self.0.shared.subscribers.subscribe()
    }

    /// The journal that everything durable is in.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.0.shared.journal
    }

    /// The slots, as they are now.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotView> {
        self.0.shared.slots.views()
    }

    /// Whether a session is being worked on now.
    #[must_use]
    pub fn is_session_active(&self, session: &SessionId) -> bool {
        self.0.shared.slots.has_session(session)
    }

    /// The configuration that the fleet runs with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.shared.config
    }

    /// The stderr of a slot's children: the last lines, and what follows.
    #[must_use]
    pub fn logs(&self, slot: &SlotId) -> Option<LogTail> {
        self.0
            .shared
            .slots
            .log(slot)
            .map(channel::stderr::StderrLog::follow)
    }

    /// Ends a slot's child, if one runs, and unparks the slot; returns when the child and its
    /// whole tree are gone.
    ///
    /// # Errors
    /// [`NoSuchSlot`].
    pub async fn restart(&self, slot: SlotId) -> Result<(), NoSuchSlot> {
        let known = self.0.pools.get(&slot.pool);
        let Some(entry) = known.filter(|entry| slot.index < entry.shared.config.max_size) else {
            return Err(NoSuchSlot(slot));
        };
        let (done, gone) = oneshot::channel();
        let index = slot.index;
        if entry
            .actor
            .send_message(PoolMsg::Restart { index, done })
            .is_ok()
        {
            let _ = gone.await;
        }
        Ok(())
    }

    /// Whether the journal takes new work and every pool has a slot that is not parked.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        let health = self.0.shared.journal.health().borrow().clone();
        if let Some(why) = health.reason() {
            reasons.push(format!("the journal is not writable: {why}"));
        }
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

    /// Starts no further task of this run and cancels its running turns. Every task is still
    /// reported.
    pub fn cancel(&self, run: &RunId) {
        self.send_cancel(Some(run));
    }

    /// Starts no new task of any run any more and cancels running turns. Every task is still
    /// reported.
    pub fn cancel_all(&self) {
        self.send_cancel(None);
    }

    fn send_cancel(&self, run: Option<&RunId>) {
        for entry in self.0.pools.values() {
            let _ = entry.actor.send_message(PoolMsg::Cancel(run.cloned()));
        }
    }

    /// Stops every child and ends the fleet; returns when nothing of it is left, and hooks have told
    /// what waited or their time is over. `Now` waits for no hook.
    pub async fn stop(&self, how: Stop) {
        let now = how == Stop::Now;
        if now {
            self.0.shared.hooks.abandon();
        }
        for entry in self.0.pools.values() {
            let _ = entry.actor.send_message(PoolMsg::Stop { now });
        }
        let mut ended = self.0.ended.lock().await;
        for end in ended.drain(..) {
            let _ = end.await;
        }
        self.0.shared.hooks.finish().await;
    }
}
