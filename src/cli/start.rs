//! Starts a fleet from a checked configuration: the wiring, in the order in which it can fail.
//!
//! Owns what "could not start" means: no child was ever spawned. Must not know what the fleet is
//! used for.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::config_file::Source;
use super::doctor::preflight::{self, PreflightError};
use super::engines::{self, EngineError};
use super::exit::Exit;
use super::policies::{self, extractors};
use super::project::supervisors::Registration;
use super::{file_store, listeners, policy_watch, programs, secrets};
use arc_swap::ArcSwap;
use marshal_config::{Config, ConfigErrors, HookTarget, working_dirs};
use marshal_engine::api::http::Render;
use marshal_engine::api::process_stats;
use marshal_fleet::{Ambient, FleetHandle, Policies, ResumeScope, Setup, StartError};
use marshal_journal::{DiskSpace, Health, Journal, JournalOptions, OpenError, RetentionLimits};
use marshal_launch::Spawner;
use marshal_model::limits;
use marshal_model::{RunId, SessionId};
use marshal_proxy::model_proxy::{Upstream, UpstreamError, WebhookClient};
use marshal_sandbox::state_dir::{StateDir, StateError};
use marshal_sandbox::uids::{SlotUids, Sources, UidError};
use marshal_sandbox::workspace::sweep::{self, SessionLookup, SweepTime};
use marshal_store::StoreError;
use marshal_telemetry::event::process::TaskPanicked;
use marshal_telemetry::{BuildInfo, Exporter, InstallError, Samples, SlotSample, UsageSample};

/// How often histograms are aggregated. Until then the recorder keeps every observation, and there
/// can be a million of them per second.
const UPKEEP: Duration = Duration::from_millis(500);

/// Why the fleet could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartFailure {
    /// The configuration cannot be used: a policy or an extractor that it names has errors.
    #[error(transparent)]
    Config(#[from] Box<ConfigErrors>),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The store of workspaces' files cannot be opened.
    #[error("cannot open the store of file versions: {0}")]
    Store(#[from] StoreError),
    /// No user ids are available for the slots.
    #[error(transparent)]
    Uids(#[from] UidError),
    /// The spawner thread cannot be started.
    #[error("cannot start the spawner: {0}")]
    Spawner(#[source] std::io::Error),
    /// The program that builds the sandbox cannot be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// This host lacks what the sandbox needs, or the sandbox cannot be planned.
    #[error(transparent)]
    Sandbox(#[from] PreflightError),
    /// The metrics recorder cannot be installed.
    #[error(transparent)]
    Metrics(#[from] InstallError),
    /// The fleet rejected its setup.
    #[error(transparent)]
    Fleet(#[from] StartError),
}

impl StartFailure {
    /// The exit code for this failure.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Usage,
            _ => Exit::CannotStart,
        }
    }
}

/// A running fleet and its parts.
pub struct RunningFleet {
    /// The fleet.
    pub fleet: FleetHandle,
    /// Its journal; must be closed last.
    pub journal: Journal,
    /// Its state directory, locked.
    pub state: Arc<StateDir>,
    /// Renders `/metrics`.
    pub metrics: Render,
    /// Its entry in the register of supervisors, which goes with it.
    pub(super) registration: Option<Registration>,
}

impl std::fmt::Debug for RunningFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Started({:?})", self.fleet)
    }
}

impl RunningFleet {
    /// Writes everything to disk, and then removes the leftovers of ended sessions: nothing else
    /// cleans up after a session that ended without having been loaded.
    ///
    /// # Errors
    /// The rows that could not be written in time.
    pub async fn close(self) -> Result<(), String> {
        let journal = self.journal.clone();
        let closing = tokio::task::spawn_blocking(move || journal.close(limits::JOURNAL_CLOSE));
        match closing.await {
            Ok(Ok(())) => {}
            Ok(Err(left)) => return Err(left.to_string()),
            Err(error) => return Err(error.to_string()),
        }
        Box::pin(self.fleet.close_versions()).await;
        // The fleet has stopped, but a session that could not be stopped still counts as working.
        let working = ActiveSessions::new(&self.journal, Some(self.fleet));
        sweep_copies(&self.state, SweepTime::Hourly, working).await;
        Ok(())
    }
}

/// Locks the state directory: the supervisor's, or for `local` a separate one below it.
///
/// # Errors
/// [`StateError`], which names the process that has the lock.
pub fn lock_state_dir(config: &Config, path: &Path, local: bool) -> Result<StateDir, StateError> {
    let workspaces: Vec<PathBuf> = config
        .pools
        .iter()
        .flat_map(|pool| working_dirs(pool).map(|(dir, _)| dir.to_owned()))
        // The state must also not be in a directory that every agent of a profile can see.
        .chain(
            config
                .sandboxes
                .values()
                .flat_map(|profile| profile.ro_bind.clone()),
        )
        .chain(programs(config))
        .collect();
    if !local {
        return StateDir::open(path, &workspaces);
    }
    let id = uuid::Uuid::now_v7().to_string();
    let run = RunId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"));
    StateDir::open_local(path, &run, &workspaces)
}

/// The host directories that pools' programs need inside the sandbox.
fn programs(config: &Config) -> impl Iterator<Item = PathBuf> {
    let programs = config.pools.iter().filter_map(|pool| pool.program.as_ref());
    programs.flat_map(|program| program.binds.clone())
}

/// Checks the files that the configuration names: secrets, policies and extractors. Returns the
/// policies.
///
/// # Errors
/// All errors in them.
pub fn check(config: &Config) -> Result<Policies, Box<ConfigErrors>> {
    let mut config = config.clone();
    secrets::read(&mut config, |name| std::env::var_os(name))?;
    let config = &config;
    routes(config)?;
    programs::check(config)?;
    file_store::check(config)?;
    listeners::check(config)?;
    let policies = policies::load_policies(config)?;
    extractors(config)?;
    Ok(policies)
}

/// Prepares each used route and each hook, to find errors such as a CA file without certificates.
fn routes(config: &Config) -> Result<(), Box<ConfigErrors>> {
    let used = config.pools.iter().flat_map(|pool| &pool.routes);
    let mut faults = Vec::new();
    for route in used.filter_map(|port| config.routes.get(&port.name)) {
        if let Err(error) = Upstream::new(route) {
            let key = match &error {
                UpstreamError::Authorities { .. } => "ca",
                UpstreamError::Header(..) => "header",
                UpstreamError::Key(..) | UpstreamError::Tls(..) => "secret",
            };
            faults.push((
                format!("route.{}.{key}", route.name),
                error.to_string(),
                None,
            ));
        }
    }
    for hook in &config.hooks {
        if let HookTarget::Address(to) = &hook.target
            && let Err(error) = WebhookClient::new(&hook.name, to)
        {
            let key = format!("hook.{}.{}", hook.name, error.config_key());
            faults.push((key, error.to_string(), None));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

fn open_journal(config: &Config, state: &Path) -> Result<Journal, OpenError> {
    let wanted = config.supervisor.journal;
    let rules = JournalOptions {
        retention: Some(RetentionLimits {
            age: wanted.keep,
            bytes: wanted.max_size,
        }),
        min_free: wanted.min_free,
    };
    Journal::open_with_options(state, rules, Box::new(DiskSpace::measure))
}

/// Starts the fleet.
///
/// # Errors
/// [`StartFailure`]; no child was started then.
pub async fn start(
    mut config: Config,
    state: StateDir,
    go_on: ResumeScope,
    asks_people: bool,
) -> Result<RunningFleet, StartFailure> {
    secrets::read(&mut config, |name| std::env::var_os(name))?;
    routes(&config)?;
    programs::check(&config)?;
    file_store::check(&config)?;
    listeners::check(&config)?;
    let policies = policies::load_policies(&config)?;
    let extractors = extractors(&config)?;
    raise_descriptor_limit();
    // First: what was counted before is lost.
    let exporter = Exporter::install(BUILD)?;
    count_panics();
    let journal = open_journal(&config, state.path())?;
    let spawner = Spawner::start(crate::BUILD).map_err(StartFailure::Spawner)?;
    let is_walled = preflight::sandboxed_profiles(&config).next().is_some();
    let uids = if is_walled && rustix::process::geteuid().is_root() {
        let count = u32::from(config.supervisor.max_children);
        let ranges = preflight::uid_ranges(&config);
        Some(SlotUids::acquire_after_reserve(
            &Sources::host(),
            count,
            ranges,
        )?)
    } else {
        None
    };
    preflight::check_programs(&config).await?;
    let engines = engines::prepare_engines(&config, &spawner, state.path()).await?;
    preflight::check(&mut config, &spawner, uids.as_ref(), state.path(), &engines).await?;
    let is_daemon = go_on == ResumeScope::All;
    let mask = secrets::mask(&config, |name| std::env::var_os(name));
    let config = Arc::new(config);
    let state = Arc::new(state);
    sweep_copies(
        &state,
        SweepTime::Start,
        ActiveSessions::new(&journal, None),
    )
    .await;
    let setup = Setup {
        config: Arc::clone(&config),
        policies,
        policy_reader: Some(policies::reader(&config)),
        extractors,
        state: Arc::clone(&state),
        journal: journal.clone(),
        store: Box::pin(file_store::open(&config, &state, is_daemon)).await?,
        host: Arc::new(spawner),
        ambient: Ambient::default(),
        uids,
        engines,
        marshal: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
        environment: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        resume_scope: go_on,
        has_approvers: asks_people,
        mask: Arc::new(ArcSwap::from_pointee(mask)),
    };
    let fleet = Box::pin(FleetHandle::start(setup)).await?;
    fleet.end_old_conversations().await;
    tokio::spawn(policy_watch::watch_policies(fleet.clone()));
    let exporter = Arc::new(exporter);
    tokio::spawn(run_maintenance(
        Arc::clone(&exporter),
        journal.clone(),
        Arc::clone(&state),
        fleet.clone(),
    ));
    Ok(RunningFleet {
        metrics: metrics_renderer(exporter, fleet.clone()),
        fleet,
        journal,
        state,
        registration: None,
    })
}

/// The build's version.
const BUILD: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    revision: match option_env!("MARSHAL_REVISION") {
        Some(revision) => revision,
        None => "unknown",
    },
    rustc: match option_env!("MARSHAL_RUSTC") {
        Some(rustc) => rustc,
        None => "unknown",
    },
};

/// Counts panics and logs them, besides what the standard library prints.
fn count_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let failure = info.to_string();
        TaskPanicked {
            task: thread.name().unwrap_or("?"),
            failure: &failure,
        }
        .emit();
        print(info);
    }));
}

/// Raises the limit of open files to the maximum: each child needs four descriptors. Children get
/// the limit of their profile.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// The renderer of `/metrics`.
fn metrics_renderer(exporter: Arc<Exporter>, fleet: FleetHandle) -> Render {
    Arc::new(move |format| {
        let began = std::time::Instant::now();
        let process = process_stats::read()
            .inspect_err(
                |error| tracing::debug!(%error, "cannot read the statistics of this process"),
            )
            .ok();
        let views = fleet.slots();
        let config = fleet.config();
        let slots = views.iter().map(|view| {
            let pool = config.pool(view.slot.pool.as_str());
            SlotSample {
                slot: &view.slot,
                agent: pool.map_or("", |pool| pool.agent.as_str()),
                protocol: pool.map_or("", |pool| pool.dialect.as_str()),
                up: view.up,
                start_time_seconds: view.started_at,
                last_exit_code: view.last_exit_code,
            }
        });
        let samples = Samples {
            process,
            pools: fleet.sample_pools(),
            slots: slots.collect(),
            usage: UsageSample {
                slots: fleet.slot_usage(),
                host: process_stats::pressure(),
            },
        };
        let page = exporter.render(format, &samples);
        marshal_telemetry::event::process::ScrapeServed {
            took: began.elapsed(),
        }
        .emit();
        page
    })
}

/// Runs periodic maintenance until the process ends.
async fn run_maintenance(
    exporter: Arc<Exporter>,
    journal: Journal,
    state: Arc<StateDir>,
    fleet: FleetHandle,
) {
    let mut upkeep = tokio::time::interval(UPKEEP);
    let mut sweeping = tokio::time::interval(limits::SWEEP_INTERVAL);
    sweeping.reset();
    let mut health = journal.health();
    let cleared = fleet.clone();
    tokio::spawn(async move { cleared.clear_leftovers().await });
    let asked = fleet.clone();
    tokio::spawn(async move { asked.end_store_outages().await });
    loop {
        tokio::select! {
            _ = upkeep.tick() => exporter.upkeep(),
            _ = sweeping.tick() => {
                fleet.end_old_conversations().await;
                sweep_copies(&state, SweepTime::Hourly, ActiveSessions::new(&journal, Some(fleet.clone()))).await;
                // In the background: the store's server may be slow.
                let fleet = fleet.clone();
                tokio::spawn(async move {
                    fleet.sweep_versions().await;
                    fleet.clear_leftovers().await;
                });
            }
            changed = health.changed() => {
                let now = health.borrow_and_update().clone();
                if let Health::Corrupt { reason } = &now {
                    // Nothing can be recorded any more, so nothing may continue. The children die
                    // with this process.
                    tracing::error!(reason, "the journal is damaged; the supervisor exits");
                    std::process::exit(i32::from(Exit::Failures.code()));
                }
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// The sessions that a sweep must not touch: those that work now, and those that a slot may resume.
struct ActiveSessions {
    journal: Journal,
    fleet: Option<FleetHandle>,
    /// The sessions that a slot may resume; `None` if unknown, so that every session counts.
    resumable: Option<HashSet<SessionId>>,
}

impl ActiveSessions {
    fn new(journal: &Journal, fleet: Option<FleetHandle>) -> Self {
        Self {
            journal: journal.clone(),
            fleet,
            resumable: None,
        }
    }

    /// Reads the resumable sessions from the journal. Blocks.
    fn refresh(&mut self) {
        let reader = self.journal.reader().map_err(|error| error.to_string());
        let rows = reader.and_then(|reader| reader.resumable_sessions().map_err(|e| e.to_string()));
        match rows {
            Ok(rows) => self.resumable = Some(rows.into_iter().map(|row| row.session).collect()),
            Err(why) => tracing::warn!(
                why,
                "cannot read the resumable sessions, so nothing is cleaned up"
            ),
        }
    }
}

impl SessionLookup for ActiveSessions {
    fn exists(&self, session: &SessionId) -> bool {
        let resumable = self.resumable.as_ref();
        resumable.is_none_or(|sessions| sessions.contains(session))
    }

    fn is_working(&self, session: &SessionId) -> bool {
        let fleet = self.fleet.as_ref();
        fleet.is_some_and(|fleet| fleet.is_session_active(session)) || self.exists(session)
    }
}

async fn sweep_copies(state: &Arc<StateDir>, when: SweepTime, mut working: ActiveSessions) {
    let state = Arc::clone(state);
    let swept = tokio::task::spawn_blocking(move || {
        working.refresh();
        sweep::sweep(
            &state,
            when,
            SystemTime::now(),
            limits::COPY_RETENTION,
            &working,
        )
    })
    .await;
    match swept {
        Ok(swept) => {
            for error in &swept.failed {
                tracing::warn!(%error, "a leftover of a session could not be removed");
            }
            for note in &swept.finished_applies {
                tracing::info!("{note}");
            }
            tracing::debug!(
                copies = swept.copies,
                overlays = swept.overlays,
                homes = swept.homes,
                layers = swept.layers,
                "swept"
            );
        }
        Err(error) => tracing::warn!(%error, "the cleanup of ended sessions failed"),
    }
}

/// The line that names the configuration in use.
#[must_use]
pub fn describe_source(source: &Source) -> String {
    format!("using {source}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_telemetry::PageFormat;

    #[test]
    fn a_panic_is_counted() {
        let (recorder, exporter) = Exporter::build(BUILD).expect("a recorder");
        metrics::with_local_recorder(&recorder, || {
            count_panics();
            let panicked = std::panic::catch_unwind(|| panic!("wanted by the test"));
            assert!(panicked.is_err());
        });
        let page = exporter.render(PageFormat::Prometheus, &Samples::default());
        assert!(page.contains("marshal_task_panics_total 1\n"), "{page}");
    }

    /// The revision is of this repository, where there is one.
    #[test]
    fn the_build_is_named() {
        assert!(BUILD.rustc.starts_with("rustc "), "{}", BUILD.rustc);
        if std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(".git")
            .exists()
        {
            let revision = BUILD.revision;
            let is_commit = revision.len() == 12 && revision.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(is_commit, "{revision}");
        }
    }
}
