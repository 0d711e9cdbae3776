//! What the fleet is made of, and what every actor shares.
//!
//! Plain data and handles, built once at start. Must not decide anything.
//!
//! `ResumeScope` says what a start goes on with. `super::FleetHandle::start` first reads the failures and
//! parks of the slots (`slot_history.rs`), then their sessions (`resume_sessions.rs`). Runs are taken up only after that
//! (`resume_run.rs`). The configuration is that of the new start: the journal keeps only the names of the
//! pools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, broadcast};

use super::SubmitError;
use super::active_policies::{ActivePolicies, Policies, PoolPolicy};
use super::ambient::Ambient;
use super::approval_registry::ApprovalRegistry;
use super::budgets::{Ledger, PendingRunBounds};
use super::channel::stderr::StderrLog;
use super::clock;
use super::delegate::Delegate;
use super::files::WorkspaceFiles;
use super::fleet_event::{BroadcastBudget, FleetEvent, SlotView};
use super::hooks::Hooks;
use super::reload::{PolicyReader, PolicyReloads};
use super::resource_usage::ResourceUsage;
use super::session::DiskUsageMonitor;
use super::session_subscriptions::SessionSubscriptions;
use super::task_dependencies::TaskDependencies;
use marshal_config::{Config, Pool as PoolConfig, Sandbox, SessionScope};
use marshal_journal::Journal;
use marshal_launch::{Engine, Host};
use marshal_model::limits::{BROADCAST_EVENTS, CONCURRENT_COPIES, CONCURRENT_SPAWNS, POOL_QUEUE};
use marshal_model::{
    PermissionRequestId, PoolName, PoolPhase, RunId, SandboxGap, SessionId, SlotId, TaskSpec,
};
use marshal_policy::Mask;
use marshal_policy::extract::Extractor;
use marshal_proxy::model_proxy::Upstream;
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::uids::SlotUids;
use marshal_store::Store;
use marshal_telemetry::event::task::PoolSampled;
use marshal_telemetry::{PoolMeters, SlotUsage};

/// What a fleet is started with.
#[derive(Debug)]
pub struct Setup {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// The policies of the pools.
    pub policies: Policies,
    /// Reads them again; `None`: they stay as they are.
    pub policy_reader: Option<PolicyReader>,
    /// The extractor of each pool, by the pool's name.
    pub extractors: BTreeMap<String, Arc<Extractor>>,
    /// The state directory, locked.
    pub state: Arc<StateDir>,
    /// The journal, open.
    pub journal: Journal,
    /// The store of workspaces' files, open; `None`: no versions of them are kept.
    pub store: Option<Store>,
    /// Where children run: the permanent spawner.
    pub host: Arc<dyn Host>,
    /// Chance and threads; its default is what a supervisor takes.
    pub ambient: Ambient,
    /// The host uids of the slots, where the supervisor is root.
    pub uids: Option<SlotUids>,
    /// What puts walls up for pools whose launcher is not marshal itself, by the pool's name.
    pub engines: BTreeMap<PoolName, Arc<Engine>>,
    /// This very binary, as a path on the host: what `marshal` as a first word means.
    pub marshal: PathBuf,
    /// The environment that `env.pass` takes from.
    pub environment: BTreeMap<String, String>,
    /// Which sessions of earlier starts its slots go on with.
    pub resume_scope: ResumeScope,
    /// Somebody may look at the permission requests and answer them; else what wants a person is denied.
    pub has_approvers: bool,
    /// Finds the secrets that are taken out of what is kept.
    pub mask: Arc<Mask>,
}

/// What a fleet goes on with of what earlier starts of the supervisor left: which sessions, where a
/// pool says `session = "slot"` and `on_crash = "resume"`, and whether parked slots stay parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeScope {
    /// No session, and its own ones end with it; parked slots are tried again. For one new run.
    None,
    /// The sessions of one run, which it finishes; they end with it. Parked slots stay parked.
    Run(RunId),
    /// All sessions that belong to no run, or to one that is not over; its own sessions are left to
    /// the next start. Parked slots stay parked.
    All,
}

/// What every actor shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    /// The policies of all pools.
    pub(crate) active_policies: ActivePolicies,
    /// What is remembered of reading them again.
    pub(crate) reloads: PolicyReloads,
    pub(crate) state: Arc<StateDir>,
    pub(crate) journal: Journal,
    /// The files of registered workspaces.
    pub(crate) files: WorkspaceFiles,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) ambient: Ambient,
    pub(crate) uids: Option<SlotUids>,
    pub(crate) engines: BTreeMap<PoolName, Arc<Engine>>,
    pub(crate) marshal: PathBuf,
    pub(crate) environment: BTreeMap<String, String>,
    /// Sessions of slots are left to the next start.
    pub(crate) keeps_sessions: bool,
    /// At most so many processes are being started at the same time.
    pub(crate) spawning: Semaphore,
    /// At most so many workspaces are being copied at the same time.
    pub(crate) copying: Semaphore,
    pub(crate) subscribers: broadcast::Sender<FleetEvent>,
    /// Who follows single sessions.
    pub(crate) subscriptions: SessionSubscriptions,
    /// What the notices to watchers hold.
    pub(crate) broadcast_budget: BroadcastBudget,
    pub(crate) slots: SlotTable,
    /// Measures homes and copies.
    pub(crate) disk_usage_monitor: DiskUsageMonitor,
    /// What people are asked.
    pub(crate) approvals: ApprovalRegistry,
    /// There are people to ask beside the clients of conversations.
    pub(crate) has_approvers: bool,
    /// Finds known secrets.
    pub(crate) mask: Arc<Mask>,
    /// What bounds the runs that are about to be taken in.
    pub(crate) run_bounds: PendingRunBounds,
    /// What tasks come after.
    pub(crate) dependencies: Arc<TaskDependencies>,
    /// Who is told what happens.
    pub(crate) hooks: Arc<Hooks>,
}

impl Shared {
    pub(crate) fn new(
        setup: Setup,
        in_force: ActivePolicies,
        slots: SlotTable,
        hooks: Arc<Hooks>,
        files: WorkspaceFiles,
    ) -> Self {
        let scales = DiskUsageMonitor::new(setup.ambient.clone(), setup.state.path().to_owned());
        Self {
            config: setup.config,
            reloads: PolicyReloads::new(setup.policy_reader, &in_force),
            active_policies: in_force,
            state: setup.state,
            journal: setup.journal,
            files,
            host: setup.host,
            ambient: setup.ambient,
            uids: setup.uids,
            engines: setup.engines,
            marshal: setup.marshal,
            environment: setup.environment,
            keeps_sessions: setup.resume_scope == ResumeScope::All,
            spawning: Semaphore::new(CONCURRENT_SPAWNS),
            copying: Semaphore::new(CONCURRENT_COPIES),
            subscribers: broadcast::channel(BROADCAST_EVENTS).0,
            subscriptions: SessionSubscriptions::default(),
            broadcast_budget: BroadcastBudget::default(),
            slots,
            disk_usage_monitor: scales,
            approvals: ApprovalRegistry::default(),
            has_approvers: setup.has_approvers,
            mask: setup.mask,
            run_bounds: PendingRunBounds::default(),
            dependencies: Arc::default(),
            hooks,
        }
    }

    /// Tells everybody who watches. Nobody watching is no error.
    pub(crate) fn notify_subscribers(&self, notice: FleetEvent) {
        let _ = self.subscribers.send(notice);
    }
}

/// What the sessions of one pool share.
#[derive(Debug)]
pub(crate) struct PoolShared {
    pub(crate) config: PoolConfig,
    pub(crate) sandbox: Sandbox,
    /// What judges its requests; it changes while the fleet runs.
    pub(crate) policy: PoolPolicy,
    pub(crate) extractor: Arc<Extractor>,
    /// Finds known secrets.
    pub(crate) mask: Arc<Mask>,
    /// Who may be stricter than the policy.
    pub(crate) delegate: Option<Arc<Delegate>>,
    pub(crate) meters: PoolMeters,
    /// What it spent, and may spend.
    pub(crate) ledger: Arc<Ledger>,
    /// What its routes lead to, in their order.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) ambient: Ambient,
    /// The pool's workspace, its links resolved at the start: an agent that can write it, or
    /// something above it, does not choose what a later task sees.
    pub(crate) workspace: PathBuf,
    /// Tasks that were taken in and are not over.
    pub(crate) tasks: AtomicUsize,
    /// Since when the first of the waiting tasks waits.
    pub(crate) oldest_queued_at: Mutex<Option<Instant>>,
    /// Approvals that wait for a person, with the time of their question.
    pub(crate) pending_approvals: Mutex<BTreeSet<(Instant, PermissionRequestId)>>,
    /// What the newest child's walls lack; `None` before there was one.
    pub(crate) sandbox_gaps: Mutex<Option<Vec<SandboxGap>>>,
    /// Whether its tasks begin, and in how many of its slots.
    pub(crate) phase_and_width: Mutex<(PoolPhase, u16)>,
    /// The number of the pool's first slot in the fleet: slot `i` uses uid `first_slot + i`.
    pub(crate) first_slot: u16,
}

impl PoolShared {
    /// Whether a task's files can belong to its prompt here.
    pub(crate) fn check_prompt_files(&self, spec: &TaskSpec) -> Result<(), SubmitError> {
        let has_files = !(spec.files.is_empty() && spec.embedded_files.is_empty());
        let why = if !self.config.accepts_attachments() {
            "only a prompt to an agent that speaks acp, or by a table with prompt.attached, can have files: name them in the prompt"
        } else if self.config.ssh.is_some() {
            "the workspace is at a far end, and its files are not looked up: name them in the prompt"
        } else {
            return Ok(());
        };
        if !has_files {
            return Ok(());
        }
        Err(SubmitError::Pool {
            task: spec.id.to_string(),
            why: why.to_owned(),
        })
    }

    /// Whether a task can have the policy on top of the pool's that it names.
    pub(crate) fn check_policy_layer(&self, spec: &TaskSpec) -> Result<(), SubmitError> {
        let Some(layer) = &spec.policy_layer else {
            return Ok(());
        };
        let version = self.policy.current();
        let why = if self.config.session == SessionScope::Slot {
            "a task of a pool with session = \"slot\" works in a session that is not its own: leave out policy_layer".to_owned()
        } else if version.for_layer(Some(layer)).is_none() {
            let there: Vec<&str> = version.layered.keys().map(String::as_str).collect();
            format!(
                "there is no policy layer {:?}; {}",
                marshal_model::untrusted::escape_for_display(layer, 40),
                if there.is_empty() {
                    "set layer = true at a [policy.NAME] of the configuration".to_owned()
                } else {
                    format!("the layers are {}", there.join(", "))
                }
            )
        } else {
            return Ok(());
        };
        Err(SubmitError::Pool {
            task: spec.id.to_string(),
            why,
        })
    }

    /// Makes room for more tasks; `false` if there is none.
    pub(crate) fn reserve_tasks(&self, count: usize) -> bool {
        let add = |now: usize| now.checked_add(count).filter(|sum| *sum <= POOL_QUEUE);
        let relaxed = Ordering::Relaxed;
        self.tasks.fetch_update(relaxed, relaxed, add).is_ok()
    }

    /// So many tasks are over.
    pub(crate) fn release_tasks(&self, count: usize) {
        self.tasks.fetch_sub(count, Ordering::Relaxed);
    }

    /// Notes since when the first waiting task waits.
    pub(crate) fn set_oldest_queued(&self, since: Option<Instant>) {
        *self
            .oldest_queued_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// A permission request waits for a person, or no longer does.
    pub(crate) fn set_approval_pending(
        &self,
        since: Instant,
        approval: &PermissionRequestId,
        waits: bool,
    ) {
        let mut approvals = self
            .pending_approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let entry = (since, approval.clone());
        if waits {
            approvals.insert(entry);
        } else {
            approvals.remove(&entry);
        }
    }

    fn oldest_approval_age(&self) -> Duration {
        let approvals = self
            .pending_approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let oldest = approvals.first().map(|(since, _)| *since);
        oldest.map_or(Duration::ZERO, clock::since)
    }

    /// Shows how long the first waiting task has waited.
    pub(crate) fn update_gauges(&self) {
        let since = *self
            .oldest_queued_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        PoolSampled {
            pool: &self.config.name,
            oldest_task: since.map_or(Duration::ZERO, clock::since),
            oldest_request: self.oldest_approval_age(),
        }
        .emit();
    }
}

/// One slot's entry: how it looks now, and its log.
#[derive(Debug)]
struct SlotEntry {
    view: Mutex<SlotView>,
    log: StderrLog,
    usage: Arc<ResourceUsage>,
}

/// The slots as others see them: written by their Pool, read by API, progress and metrics.
#[derive(Debug, Clone)]
pub(crate) struct SlotTable(Arc<BTreeMap<SlotId, SlotEntry>>);

impl SlotTable {
    pub(crate) fn new(slots: impl Iterator<Item = SlotView>) -> Self {
        let entries = slots.map(|view| {
            let entry = SlotEntry {
                log: StderrLog::new(),
                usage: Arc::default(),
                view: Mutex::new(view),
            };
            let slot = entry
                .view
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .slot
                .clone();
            (slot, entry)
        });
        Self(Arc::new(entries.collect()))
    }

    pub(crate) fn update(&self, slot: &SlotId, change: impl FnOnce(&mut SlotView)) {
        if let Some(entry) = self.0.get(slot) {
            change(&mut entry.view.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(crate) fn views(&self) -> Vec<SlotView> {
        let views = self.0.values();
        views
            .map(|entry| {
                entry
                    .view
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone()
            })
            .collect()
    }

    pub(crate) fn of_pool(&self, pool: &PoolName) -> Vec<SlotView> {
        let views = self.views().into_iter();
        views.filter(|view| view.slot.pool == *pool).collect()
    }

    pub(crate) fn has_session(&self, session: &SessionId) -> bool {
        self.0.values().any(|entry| {
            let view = entry.view.lock().unwrap_or_else(PoisonError::into_inner);
            view.session.as_ref() == Some(session)
        })
    }

    /// What is used there; of a slot that does not exist it goes nowhere.
    pub(crate) fn usage(&self, slot: &SlotId) -> Arc<ResourceUsage> {
        let known = self.0.get(slot);
        known.map_or_else(Arc::default, |entry| Arc::clone(&entry.usage))
    }

    pub(crate) fn sample_usage(&self) -> Vec<SlotUsage> {
        let all = self.0.iter();
        all.map(|(slot, entry)| entry.usage.sample(slot)).collect()
    }

    pub(crate) fn log(&self, slot: &SlotId) -> Option<&StderrLog> {
        self.0.get(slot).map(|entry| &entry.log)
    }
}
