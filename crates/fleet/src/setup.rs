//! The inputs of a fleet, and the state that its actors share.
//!
//! Plain data and handles, built once at the start. Must not decide anything.
//!
//! `ResumeScope` says what a start resumes. `super::FleetHandle::start` first reads the failures
//! and parks of the slots (`slot_history.rs`), then their sessions (`resume_sessions.rs`). Runs are
//! resumed after that (`resume_run.rs`). The configuration is the one of the new start, because the
//! journal keeps only the names of the pools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, broadcast};

use super::active_policies::{ActivePolicies, Policies, PoolPolicy};
use super::ambient::Ambient;
use super::approval_registry::ApprovalRegistry;
use super::budgets::{Ledger, PendingRunBounds};
use super::channel::outside_write::OutsideWrites;
use super::channel::stderr::StderrLog;
use super::delegate::Delegate;
use super::files::WorkspaceFiles;
use super::fleet_event::{BroadcastBudget, FleetEvent, SlotView};
use super::hooks::Hooks;
use super::paused_runs::PausedRuns;
use super::program_record::ProgramRecords;
use super::resource_usage::ResourceUsage;
use super::session::{CloneSetups, DiskUsageMonitor, Landings, ProgramClones, ProtectedRecords};
use super::slot_demand::SlotDemand;
use super::{SubmitError, clock};
use crate::handle::exec::ExecPlaces;
use crate::handle::reload::{PolicyReader, PolicyReloads};
use crate::handle::session_subscriptions::SessionSubscriptions;
use crate::handle::task_dependencies::TaskDependencies;
use marshal_config::{Config, Pool as PoolConfig, Sandbox, SessionScope, WorkspaceMode};
use marshal_journal::Journal;
use marshal_launch::{Engine, Host};
use marshal_model::limits::{BROADCAST_EVENTS, CONCURRENT_COPIES, CONCURRENT_SPAWNS, POOL_QUEUE};
use marshal_model::{
    PermissionRequestId, PoolName, PoolPhase, RunId, SandboxFacts, SandboxGap, SessionId, SlotId,
    TaskSpec,
};
use marshal_policy::Mask;
use marshal_policy::extract::Extractor;
use marshal_proxy::model_proxy::Upstream;
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::uids::SlotUids;
use marshal_sandbox::workspace::Masks;
use marshal_sandbox::workspace::branch::bundle_header::ObjectId;
use marshal_store::Store;
use marshal_telemetry::event::task::PoolSampled;
use marshal_telemetry::labels::ApprovalAge;
use marshal_telemetry::{PoolMeters, PoolSample, SlotUsage};

/// The inputs of [`super::FleetHandle::start`].
#[derive(Debug)]
pub struct Setup {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// The pools' policies.
    pub policies: Policies,
    /// Reloads the policies; `None`: they cannot be reloaded.
    pub policy_reader: Option<PolicyReader>,
    /// The extractor of each pool, by the pool's name.
    pub extractors: BTreeMap<String, Arc<Extractor>>,
    /// The state directory, locked.
    pub state: Arc<StateDir>,
    /// The journal, open.
    pub journal: Journal,
    /// The store of file versions, open; `None`: no versions are kept.
    pub store: Option<Store>,
    /// The permanent spawner, which starts children.
    pub host: Arc<dyn Host>,
    /// Random numbers and blocking threads; the default is the host's.
    pub ambient: Ambient,
    /// The host uids of the slots; `None` if the supervisor is not root.
    pub uids: Option<SlotUids>,
    /// The launchers of pools whose sandbox is not built by marshal itself, by the pool's name.
    pub engines: BTreeMap<PoolName, Arc<Engine>>,
    /// The host path of this binary; it replaces `marshal` as the first word of a command.
    pub marshal: PathBuf,
    /// The environment from which `env.pass` copies variables.
    pub environment: BTreeMap<String, String>,
    /// Which sessions of earlier starts the slots resume.
    pub resume_scope: ResumeScope,
    /// Whether people can see and answer approvals. If not, a request that needs a person is
    /// denied.
    pub has_approvers: bool,
    /// Masks known secrets in everything that is stored.
    pub mask: Arc<ArcSwap<Mask>>,
}

/// What a fleet resumes from earlier starts of the supervisor: which sessions of pools with
/// `session = "slot"` and `on_crash = "resume"`, and whether parked slots stay parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeScope {
    /// No session; sessions of this fleet end with it; parked slots are started again. For one new
    /// run.
    None,
    /// The sessions of one run, which this fleet finishes; they end with it. Parked slots stay
    /// parked.
    Run(RunId),
    /// All sessions without a run or with an unfinished one. Sessions of this fleet are left to the
    /// next start. Parked slots stay parked.
    All,
}

/// State that all actors share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    /// The policies of all pools.
    pub(crate) active_policies: ActivePolicies,
    /// The state of policy reloads.
    pub(crate) reloads: PolicyReloads,
    pub(crate) state: Arc<StateDir>,
    /// The protected files of the workspaces that agents write themselves.
    pub(crate) protected_records: ProtectedRecords,
    /// The bundles that land now.
    pub(crate) landings: Landings,
    /// The clones in which programs work that are no agents.
    pub(crate) program_clones: ProgramClones,
    /// The setups that run now, and that failed.
    pub(crate) clone_setups: CloneSetups,
    /// The programs of agents.
    pub(crate) program_records: Arc<ProgramRecords>,
    pub(crate) journal: Journal,
    /// The digest of the configuration in force; a reload changes it.
    pub(crate) config_digest: Mutex<String>,
    /// What one session may write to the journal, in bytes; a reload may change it.
    pub(crate) session_quota: AtomicU64,
    /// The files of registered workspaces.
    pub(crate) files: WorkspaceFiles,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) ambient: Ambient,
    pub(crate) uids: Option<SlotUids>,
    pub(crate) engines: BTreeMap<PoolName, Arc<Engine>>,
    pub(crate) marshal: PathBuf,
    pub(crate) environment: BTreeMap<String, String>,
    /// Whether sessions of slots are left to the next start instead of ended.
    pub(crate) keeps_sessions: bool,
    /// Limits concurrent process starts to [`CONCURRENT_SPAWNS`].
    pub(crate) spawning: Semaphore,
    /// Limits concurrent workspace copies to [`CONCURRENT_COPIES`].
    pub(crate) copying: Semaphore,
    pub(crate) subscribers: broadcast::Sender<FleetEvent>,
    /// Subscribers of single sessions.
    pub(crate) subscriptions: SessionSubscriptions,
    /// Bounds the bytes of events that subscribers have not read yet.
    pub(crate) broadcast_budget: BroadcastBudget,
    pub(crate) slots: SlotTable,
    /// Measures the sizes of homes and copies.
    pub(crate) disk_usage_monitor: DiskUsageMonitor,
    /// Open approvals and remembered answers.
    pub(crate) approvals: ApprovalRegistry,
    /// Whether people besides the clients of conversations can answer approvals.
    pub(crate) has_approvers: bool,
    /// Masks known secrets; a reload changes it.
    pub(crate) mask: Arc<ArcSwap<Mask>>,
    /// Bounds of runs that are about to be submitted or resumed.
    pub(crate) run_bounds: PendingRunBounds,
    /// Runs that are paused until the policies are loaded again.
    pub(crate) paused_runs: PausedRuns,
    /// Whether nothing is accepted any more, because the supervisor stops.
    is_draining: AtomicBool,
    /// The conversations that a client is deleting; none of them is opened meanwhile.
    pub(crate) deleting: Mutex<BTreeSet<SessionId>>,
    /// Commands of clients in sandboxes.
    pub(crate) exec_places: ExecPlaces,
    /// The tasks that other tasks depend on.
    pub(crate) dependencies: Arc<TaskDependencies>,
    /// Notifies people.
    pub(crate) hooks: Arc<Hooks>,
}

impl Shared {
    /// The conversations that are being deleted.
    pub(crate) fn deleting(&self) -> MutexGuard<'_, BTreeSet<SessionId>> {
        self.deleting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of a new session.
    pub(crate) fn new_session_id(&self) -> SessionId {
        let id = self.ambient.new_id().to_string();
        SessionId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
    }

    /// Accepts nothing any more.
    pub(crate) fn start_draining(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    /// Whether nothing is accepted any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    pub(crate) fn new(
        setup: Setup,
        in_force: ActivePolicies,
        slots: SlotTable,
        hooks: Arc<Hooks>,
        files: WorkspaceFiles,
    ) -> Self {
        let monitor = DiskUsageMonitor::new(setup.ambient.clone(), setup.state.path().to_owned());
        let program_records =
            ProgramRecords::new(setup.state.programs().to_owned(), &setup.marshal);
        let program_records = Arc::new(program_records);
        Self {
            config_digest: Mutex::new(setup.config.digest()),
            session_quota: AtomicU64::new(setup.config.supervisor.journal.session_max),
            config: setup.config,
            reloads: PolicyReloads::new(setup.policy_reader, &in_force),
            active_policies: in_force,
            state: setup.state,
            protected_records: ProtectedRecords::default(),
            landings: Landings::default(),
            program_clones: ProgramClones::default(),
            clone_setups: CloneSetups::default(),
            program_records,
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
            disk_usage_monitor: monitor,
            approvals: ApprovalRegistry::default(),
            has_approvers: setup.has_approvers,
            mask: setup.mask,
            run_bounds: PendingRunBounds::default(),
            paused_runs: PausedRuns::default(),
            is_draining: AtomicBool::new(false),
            deleting: Mutex::default(),
            exec_places: ExecPlaces::default(),
            dependencies: Arc::default(),
            hooks,
        }
    }

    /// Sends an event to all subscribers. It is no error if there are none.
    pub(crate) fn notify_subscribers(&self, event: FleetEvent) {
        let _ = self.subscribers.send(event);
    }
}

/// State that the sessions of one pool share.
#[derive(Debug)]
pub(crate) struct PoolShared {
    pub(crate) config: PoolConfig,
    pub(crate) sandbox: Sandbox,
    /// What a policy can rely on in its sandbox on this host.
    pub(crate) sandbox_facts: SandboxFacts,
    /// The policy that evaluates its requests; a reload changes it.
    pub(crate) policy: PoolPolicy,
    pub(crate) extractor: Arc<Extractor>,
    /// Masks known secrets; a reload changes it.
    pub(crate) mask: Arc<ArcSwap<Mask>>,
    /// What the supervisor writes for agents that see the workspace read-only.
    pub(crate) outside_writes: Option<Arc<OutsideWrites>>,
    /// The files of the workspace that agents do not see.
    pub(crate) workspace_masks: Arc<Masks>,
    /// Held while a push of the pool is searched.
    pub(crate) push_permit: Semaphore,
    /// An external decider that may be stricter than the policy.
    pub(crate) delegate: Option<Arc<Delegate>>,
    pub(crate) meters: PoolMeters,
    /// What the pool has spent, and its budgets.
    pub(crate) ledger: Arc<Ledger>,
    /// The upstreams of its routes, in the order of the routes.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) ambient: Ambient,
    /// The pool's workspace, with its links resolved at the start. Otherwise an agent that can
    /// write the workspace or a parent could redirect a later task by changing a link.
    pub(crate) workspace: PathBuf,
    /// Accepted tasks that have not ended; at most [`POOL_QUEUE`].
    pub(crate) tasks: AtomicUsize,
    /// What waits for a slot, for the chats that have one.
    pub(crate) slot_demand: Arc<SlotDemand>,
    /// When the first queued task was queued; `None` if the queue is empty.
    pub(crate) oldest_queued_at: Mutex<Option<Instant>>,
    /// Pending approvals, by the time at which they were requested.
    pub(crate) pending_approvals: Mutex<BTreeSet<(Instant, PermissionRequestId)>>,
    /// The sandbox layers that the newest child lacks; `None` before the first child.
    pub(crate) sandbox_gaps: Mutex<Option<Vec<SandboxGap>>>,
    /// For each directory, the commit whose uncommitted changes were warned of: one warning is enough.
    pub(crate) warned_uncommitted: Mutex<BTreeMap<PathBuf, ObjectId>>,
    /// What sessions in each directory were last said to lack.
    pub(crate) warned_missing: Mutex<BTreeMap<PathBuf, String>>,
    /// The pool's phase, and how many of its slots receive tasks.
    pub(crate) phase_and_width: Mutex<(PoolPhase, u16)>,
    /// The index of the pool's first slot in the fleet: slot `i` has the uid with index
    /// `first_slot + i`.
    pub(crate) first_slot: u16,
}

impl PoolShared {
    /// Whether this differs from what was last said of the directory: sessions say it once.
    pub(crate) fn is_new_warning(&self, directory: &Path, missing: &str) -> bool {
        let warned = &self.warned_missing;
        let mut warned = warned.lock().unwrap_or_else(PoisonError::into_inner);
        let before = warned.insert(directory.to_owned(), missing.to_owned());
        before.as_deref() != Some(missing)
    }

    /// Checks that this pool supports a task's attached files.
    pub(crate) fn check_prompt_files(&self, spec: &TaskSpec) -> Result<(), SubmitError> {
        let has_files = !(spec.files.is_empty() && spec.embedded_files.is_empty());
        let why = if !self.config.accepts_attachments() {
            "a prompt can have files only if the agent speaks acp, or if its dialect definition has prompt.attached: name the files in the prompt's text instead"
        } else if self.config.ssh.is_some() {
            "the workspace is on a remote host, and marshal cannot read its files: name the files in the prompt's text instead"
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

    /// Checks that the work of a task of this pool can land on a branch.
    pub(crate) fn check_landing(&self, spec: &TaskSpec) -> Result<(), SubmitError> {
        if spec.land.is_none() {
            return Ok(());
        }
        let why = if self.config.options.session == SessionScope::Slot {
            "a task of a pool with session = \"slot\" works on what earlier tasks left, which would land with it: remove land from the task"
        } else if self.config.workspace.mode == WorkspaceMode::Worktree {
            return Ok(());
        } else {
            "only work in a clone can land on a branch: set workspace.mode = \"worktree\" in the pool, or remove land from the task"
        };
        Err(SubmitError::Pool {
            task: spec.id.to_string(),
            why: why.to_owned(),
        })
    }

    /// Checks that this pool has the policy layer that a task names.
    pub(crate) fn check_policy_layer(&self, spec: &TaskSpec) -> Result<(), SubmitError> {
        let Some(layer) = &spec.policy_layer else {
            return Ok(());
        };
        let version = self.policy.current();
        let why = if self.config.options.session == SessionScope::Slot {
            "a task of a pool with session = \"slot\" shares the slot's session: remove policy_layer from the task".to_owned()
        } else if version.for_layer(Some(layer)).is_none() {
            let there: Vec<&str> = version.layered.keys().map(String::as_str).collect();
            format!(
                "there is no policy layer {:?}; {}",
                marshal_model::untrusted::escape_for_display(layer, 40),
                if there.is_empty() {
                    "set layer = true in a [policy.NAME] table of the configuration".to_owned()
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

    /// Reserves places for `count` tasks; `false` if the queue would exceed [`POOL_QUEUE`].
    pub(crate) fn reserve_tasks(&self, count: usize) -> bool {
        let add = |now: usize| now.checked_add(count).filter(|sum| *sum <= POOL_QUEUE);
        let relaxed = Ordering::Relaxed;
        self.tasks.fetch_update(relaxed, relaxed, add).is_ok()
    }

    /// Returns the places of `count` ended tasks.
    pub(crate) fn release_tasks(&self, count: usize) {
        self.tasks.fetch_sub(count, Ordering::Relaxed);
    }

    /// Sets when the first queued task was queued.
    pub(crate) fn set_oldest_queued(&self, since: Option<Instant>) {
        *self
            .oldest_queued_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Records that an approval is pending, or no longer is.
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

    /// The ages of the approvals that are pending, the oldest first.
    fn approval_ages(&self) -> Vec<Duration> {
        let approvals = self
            .pending_approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        approvals
            .iter()
            .map(|(since, _)| clock::since(*since))
            .collect()
    }

    /// The pool at the moment of a scrape.
    pub(crate) fn sample(&self) -> PoolSample<'_> {
        let mut approvals = [0; ApprovalAge::ALL.len()];
        for age in self.approval_ages() {
            approvals[ApprovalAge::of(age) as usize] += 1;
        }
        PoolSample {
            pool: &self.config.name,
            dollars: self.ledger.dollars(),
            approvals,
        }
    }

    /// Updates the gauges of the oldest queued task and the oldest pending approval.
    pub(crate) fn update_gauges(&self) {
        let since = *self
            .oldest_queued_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        PoolSampled {
            pool: &self.config.name,
            oldest_task: since.map_or(Duration::ZERO, clock::since),
            oldest_request: self.approval_ages().first().copied().unwrap_or_default(),
        }
        .emit();
    }
}

/// One slot's current view, log and resource usage.
#[derive(Debug)]
struct SlotEntry {
    view: Mutex<SlotView>,
    log: StderrLog,
    usage: Arc<ResourceUsage>,
}

/// The views of all slots: written by their Pools, read by the API, progress display and metrics.
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

    pub(crate) fn view(&self, slot: &SlotId) -> Option<SlotView> {
        let entry = self.0.get(slot)?;
        let view = entry.view.lock().unwrap_or_else(PoisonError::into_inner);
        Some(view.clone())
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

    /// The resource usage of a slot. For an unknown slot, a value that nobody reads.
    pub(crate) fn usage(&self, slot: &SlotId) -> Arc<ResourceUsage> {
        let entry = self.0.get(slot);
        entry.map_or_else(Arc::default, |entry| Arc::clone(&entry.usage))
    }

    pub(crate) fn sample_usage(&self) -> Vec<SlotUsage> {
        let all = self.0.iter();
        all.map(|(slot, entry)| entry.usage.sample(slot)).collect()
    }

    pub(crate) fn log(&self, slot: &SlotId) -> Option<&StderrLog> {
        self.0.get(slot).map(|entry| &entry.log)
    }
}
