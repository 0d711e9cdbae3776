//! From a checked configuration to a running fleet: the wiring, in the order in which it can fail.
//!
//! Owns what "could not start" means (no child was ever spawned). Must not know what is then done
//! with the fleet.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::config_file::Source;
use super::doctor::preflight::{self, PreflightError};
use super::engines::{self, EngineError};
use super::exit::Exit;
use super::policies::{self, extractors};
use super::{file_store, listeners, policy_watch, programs, secrets};
use marshal_config::{Config, ConfigErrors, HookTarget, working_dirs};
use marshal_engine::api::http::Render;
use marshal_engine::api::process_stats;
use marshal_fleet::{Ambient, FleetHandle, ResumeScope, Setup, StartError};
use marshal_journal::{DiskSpace, Health, Journal, JournalOptions, OpenError, RetentionLimits};
use marshal_launch::Spawner;
use marshal_model::limits;
use marshal_model::{RunId, SessionId};
use marshal_proxy::model_proxy::{Upstream, UpstreamError, WebhookClient};
use marshal_sandbox::state_dir::{StateDir, StateError};
use marshal_sandbox::uids::{SlotUids, Sources, UidError};
use marshal_sandbox::workspace::sweep::{self, SessionLookup, SweepTime};
use marshal_store::StoreError;
use marshal_telemetry::{BuildInfo, Exporter, InstallError, SlotSample, UsageSample};

/// How often histograms are folded: until then the recorder keeps every observation, and a flood
/// makes a million a second.
const UPKEEP: Duration = Duration::from_millis(500);

/// Why there is no fleet.
#[derive(Debug, thiserror::Error)]
pub enum StartFailure {
    /// The configuration cannot be used: a policy or an extractor that it names is faulty.
    #[error(transparent)]
    Config(#[from] Box<ConfigErrors>),
    /// The state directory cannot be had.
    #[error(transparent)]
    State(#[from] StateError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The store of workspaces' files cannot be opened.
    #[error("the versions of files: {0}")]
    Store(#[from] StoreError),
    /// There are no user ids for the slots.
    #[error(transparent)]
    Uids(#[from] UidError),
    /// The spawner thread cannot be started.
    #[error("the spawner cannot be started: {0}")]
    Spawner(#[source] std::io::Error),
    /// The program that is to build the walls cannot be used.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// This host lacks what the walls need, or they cannot be planned.
    #[error(transparent)]
    Sandbox(#[from] PreflightError),
    /// The metrics recorder cannot be installed.
    #[error(transparent)]
    Metrics(#[from] InstallError),
    /// The parts do not fit together.
    #[error(transparent)]
    Fleet(#[from] StartError),
}

impl StartFailure {
    /// What the program ends with.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Usage,
            _ => Exit::CannotStart,
        }
    }
}

/// A running fleet and what goes with it.
pub struct RunningFleet {
    /// The fleet.
    pub fleet: FleetHandle,
    /// Its journal, to be closed last.
    pub journal: Journal,
    /// Its state directory, held.
    pub state: Arc<StateDir>,
    /// Renders the page of `/metrics`.
    pub metrics: Render,
}

impl std::fmt::Debug for RunningFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Started({:?})", self.fleet)
    }
}

impl RunningFleet {
    /// Makes everything durable, and then removes what the sessions that ended left: one that was
    /// ended without having been loaded has nobody else to do that. Says what could not be made
    /// durable.
    ///
    /// # Errors
    /// The rows that the disk did not take in time.
    pub async fn close(self) -> Result<(), String> {
        let journal = self.journal.clone();
        let closing = tokio::task::spawn_blocking(move || journal.close(limits::JOURNAL_CLOSE));
        match closing.await {
            Ok(Ok(())) => {}
            Ok(Err(left)) => return Err(left.to_string()),
            Err(error) => return Err(error.to_string()),
        }
        Box::pin(self.fleet.close_versions()).await;
        // The fleet has stopped, so nothing works any more; it may still answer that a session
        // does which could not be stopped.
        let working = ActiveSessions::new(&self.journal, Some(self.fleet));
        sweep_copies(&self.state, SweepTime::Hourly, working).await;
        Ok(())
    }
}

/// Takes the state directory: the supervisor's own, or one of this run below it.
///
/// # Errors
/// [`StateError`]; who holds it is named.
pub fn lock_state_dir(config: &Config, path: &Path, local: bool) -> Result<StateDir, StateError> {
    let workspaces: Vec<PathBuf> = config
        .pools
        .iter()
        .flat_map(|pool| working_dirs(pool).map(|(dir, _)| dir.to_owned()))
        // What every agent of a profile sees must not show the state either.
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

/// What pools' programs need to see of this host.
fn programs(config: &Config) -> impl Iterator<Item = PathBuf> {
    let programs = config.pools.iter().filter_map(|pool| pool.program.as_ref());
    programs.flat_map(|program| program.binds.clone())
}

/// Checks what the configuration names: secrets, policies and extractors.
///
/// # Errors
/// Everything that is wrong with them.
pub fn check(config: &Config) -> Result<(), Box<ConfigErrors>> {
    let mut config = config.clone();
    secrets::read(&mut config, |name| std::env::var_os(name))?;
    let config = &config;
    routes(config)?;
    programs::check(config)?;
    file_store::check(config)?;
    listeners::check(config)?;
    policies::load_policies(config)?;
    extractors(config)?;
    Ok(())
}

/// Tries to make each used route and each hook ready: a file of certificate authorities may hold none.
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
/// [`StartFailure`]; nothing runs then.
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
    let mask = Arc::new(secrets::mask(&config, |name| std::env::var_os(name)));
    let config = Arc::new(config);
    let exporter = Exporter::install(BUILD)?;
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
        mask,
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
    })
}

/// What the build was.
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

/// Four descriptors a child: take all that may be had. Children get the profile's own limit.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// The page of `/metrics`.
fn metrics_renderer(exporter: Arc<Exporter>, fleet: FleetHandle) -> Render {
    Arc::new(move || {
        let began = std::time::Instant::now();
        let process = process_stats::read()
            .inspect_err(|error| tracing::debug!(%error, "no figures of this process"))
            .ok();
        fleet.update_gauges();
        let slots = fleet.slots();
        let config = fleet.config();
        let samples: Vec<_> = slots
            .iter()
            .map(|view| {
                let pool = config.pool(view.slot.pool.as_str());
                SlotSample {
                    slot: &view.slot,
                    agent: pool.map_or("", |pool| pool.agent.as_str()),
                    protocol: pool.map_or("", |pool| pool.dialect.word()),
                    up: view.up,
                    start_time_seconds: view.started_at,
                    last_exit_code: view.last_exit_code,
                }
            })
            .collect();
        let page = exporter.render(
            process.as_ref(),
            &samples,
            &UsageSample {
                slots: fleet.slot_usage(),
                host: process_stats::pressure(),
            },
        );
        marshal_telemetry::event::process::ScrapeServed {
            took: began.elapsed(),
        }
        .emit();
        page
    })
}

/// What must be done from time to time, as long as the process lives.
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
    loop {
        tokio::select! {
            _ = upkeep.tick() => exporter.upkeep(),
            _ = sweeping.tick() => {
                fleet.end_old_conversations().await;
                sweep_copies(&state, SweepTime::Hourly, ActiveSessions::new(&journal, Some(fleet.clone()))).await;
                // Beside the rest: a server may take its time.
                let fleet = fleet.clone();
                tokio::spawn(async move {
                    fleet.sweep_versions().await;
                    fleet.clear_leftovers().await;
                });
            }
            changed = health.changed() => {
                let now = health.borrow_and_update().clone();
                if let Health::Corrupt { reason } = &now {
                    // Nothing can be remembered any more, so nothing may go on: the children die
                    // with this process.
                    tracing::error!(reason, "the journal is damaged; ending");
                    std::process::exit(i32::from(Exit::Failures.code()));
                }
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// What a sweep must leave alone: the sessions that work now, and those that a slot may go on
/// with.
struct ActiveSessions {
    journal: Journal,
    fleet: Option<FleetHandle>,
    /// `NoJournal`: they cannot be told, so every session may be one.
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

    /// Reads which sessions are kept. Blocks.
    fn refresh(&mut self) {
        let kept = self.journal.reader().map_err(|error| error.to_string());
        let kept = kept.and_then(|reader| reader.resumable_sessions().map_err(|e| e.to_string()));
        match kept {
            Ok(kept) => self.resumable = Some(kept.into_iter().map(|of| of.session).collect()),
            Err(why) => tracing::warn!(why, "nothing is swept: the kept sessions are not known"),
        }
    }
}

impl SessionLookup for ActiveSessions {
    fn exists(&self, session: &SessionId) -> bool {
        let kept = self.resumable.as_ref();
        kept.is_none_or(|kept| kept.contains(session))
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
                tracing::warn!(%error, "a leftover could not be removed");
            }
            for told in &swept.finished_applies {
                tracing::info!("{told}");
            }
            tracing::debug!(
                copies = swept.copies,
                overlays = swept.overlays,
                homes = swept.homes,
                "swept"
            );
        }
        Err(error) => tracing::warn!(%error, "a sweep failed"),
    }
}

/// The line that says which configuration is in use.
#[must_use]
pub fn describe_source(source: &Source) -> String {
    format!("using {source}")
}
