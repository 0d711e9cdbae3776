//! A whole supervisor in this process with all features on: journal on disk, policy, metrics,
//! subscribers. It is built as the command line builds it, in a directory of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marshal_config::{Config, Extractor as ExtractorRef, Launcher, Origin, UidRange};
use marshal_fleet::{
    Ambient, FleetEvent, FleetHandle, LoadedPolicy, ResumeScope, Setup, SlotView, Stop, TaskReport,
};
use marshal_journal::Journal;
use marshal_launch::Spawner;
use marshal_model::{RunId, SlotState, TaskId, TaskSpec, UntrustedText};
use marshal_policy::Policy;
use marshal_policy::extract::{self, Extractor};
use marshal_sandbox::state_dir::StateDir;
use marshal_sandbox::uids::{SlotUids, Sources};
use marshal_telemetry::{BuildInfo, Exporter, PageFormat, Samples, SlotSample};
use tempfile::TempDir;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::agents::Agents;
use crate::load::{Load, Manner};

/// The timeout of each step; when it expires, the run fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The interval between checks of the slots while children start.
const LOOK: Duration = Duration::from_millis(5);

/// The fleet's only pool.
const POOL: &str = "bench";

/// A running supervisor.
pub(crate) struct House {
    pub(crate) fleet: FleetHandle,
    /// The directory, on the same disk as the journal.
    pub(crate) dir: TempDir,
    journal: Journal,
    exporter: Exporter,
    upkeep: JoinHandle<()>,
    subscribers: Vec<JoinHandle<SubscriberCounts>>,
    dialect: &'static str,
}

/// What a subscriber received.
#[derive(Debug, Default)]
pub(crate) struct SubscriberCounts {
    pub(crate) events: u64,
    /// The number of notices that it missed because it was too slow.
    pub(crate) missed: u64,
}

impl House {
    /// Starts a supervisor with a slot for every child of the load.
    pub(crate) async fn open(load: &Load, manner: &Manner) -> Result<Self, Failure> {
        // Not below /tmp, which may be in memory: a sync must cost what it costs on a disk.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let workspace = dir.path().join("workspace");
        std::fs::create_dir(&workspace)?;
        let config = Arc::new(configuration(load, manner, dir.path().to_owned())?);
        let state = StateDir::open(&dir.path().join("state"), &[workspace])?;
        let exporter = Exporter::install(BuildInfo {
            version: "bench",
            revision: "unknown",
            rustc: "unknown",
        })?;
        let journal = Journal::open(state.path())?;
        let is_walled = manner.launcher == Launcher::Unshare;
        let uids = if is_walled && rustix::process::geteuid().is_root() {
            let count = u32::from(config.supervisor.max_children);
            Some(SlotUids::acquire(
                &Sources::host(),
                count,
                [UidRange::Auto],
            )?)
        } else {
            None
        };
        let marshal = PathBuf::from(env!("CARGO_BIN_EXE_marshal"));
        let fleet = FleetHandle::start(Setup {
            resume_scope: ResumeScope::None,
            has_approvers: false,
            policies: policies(&config)?.into(),
            policy_reader: None,
            mask: std::sync::Arc::default(),
            extractors: extractors(&config)?,
            config,
            state: Arc::new(state),
            journal: journal.clone(),
            host: Arc::new(Spawner::with_executable(marshal.clone(), marshal::BUILD)?),
            ambient: Ambient::default(),
            uids,
            engines: std::collections::BTreeMap::new(),
            marshal,
            environment: std::env::vars().collect(),
            store: None,
        })
        .await?;
        let subscribers = (0..manner.subscribers)
            .map(|_| tokio::spawn(listen(fleet.subscribe())))
            .collect();
        let upkeep = tokio::spawn({
            let exporter = exporter.clone();
            async move {
                let mut every = tokio::time::interval(Duration::from_secs(5));
                loop {
                    every.tick().await;
                    exporter.upkeep();
                }
            }
        });
        Ok(Self {
            fleet,
            dir,
            journal,
            exporter,
            upkeep,
            subscribers,
            dialect: manner.dialect.as_str(),
        })
    }

    /// Submits `count` tasks with the same script.
    pub(crate) async fn submit(
        &self,
        count: usize,
        script: &str,
    ) -> Result<mpsc::Receiver<Arc<TaskReport>>, Failure> {
        let task = |number| -> Result<TaskSpec, Failure> {
            Ok(TaskSpec {
                id: TaskId::new(&format!("t{number}"))?,
                prompt: UntrustedText::from(script),
                pool: None,
                workspace: None,
                attempts: None,
                check: None,
                files: Vec::new(),
                embedded_files: Vec::new(),
                policy_layer: None,
                land: None,
                priority: 0,
                depends_on: Vec::new(),
            })
        };
        let tasks = (1..=count).map(task).collect::<Result<_, _>>()?;
        let run = RunId::new(POOL)?;
        Ok(self.fleet.submit(run, POOL, tasks).await?)
    }

    /// Waits until every slot runs its task. Passes each running agent to `found`.
    pub(crate) async fn all_busy(
        &self,
        mut found: impl FnMut(&SlotView) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let since = Instant::now();
        let mut known = BTreeSet::new();
        loop {
            let slots = self.fleet.slots();
            for view in &slots {
                if view.state == SlotState::Parked {
                    return Err(format!("{} is parked: {:?}", view.slot, view.note).into());
                }
                if view.state == SlotState::Busy && !known.contains(&view.slot) {
                    found(view)?;
                    known.insert(view.slot.clone());
                }
            }
            if known.len() == slots.len() {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("{} of {} slots work", known.len(), slots.len()).into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The agents of all slots; each is stopped as soon as it runs.
    pub(crate) async fn all_held(&self) -> Result<Agents, Failure> {
        let mut agents = Agents::default();
        self.all_busy(|view| agents.hold(view.pid.ok_or("a child without a pid")?))
            .await?;
        Ok(agents)
    }

    /// The time that the metrics page takes.
    pub(crate) fn scrape(&self) -> Duration {
        let began = Instant::now();
        let views = self.fleet.slots();
        let slots = views
            .iter()
            .map(|view| SlotSample {
                slot: &view.slot,
                agent: "marshal",
                protocol: self.dialect,
                up: view.up,
                start_time_seconds: view.started_at,
                last_exit_code: view.last_exit_code,
            })
            .collect();
        let samples = Samples {
            slots,
            ..Samples::default()
        };
        let page = self.exporter.render(PageFormat::Prometheus, &samples);
        std::hint::black_box(page);
        began.elapsed()
    }

    /// Ends everything. Returns what the subscribers received.
    pub(crate) async fn close(self) -> Result<Vec<SubscriberCounts>, Failure> {
        self.fleet.stop(Stop::Kill).await;
        self.upkeep.abort();
        drop(self.fleet);
        let mut received = Vec::new();
        for subscriber in self.subscribers {
            received.push(tokio::time::timeout(PATIENCE, subscriber).await??);
        }
        let journal = self.journal;
        tokio::task::spawn_blocking(move || journal.close(PATIENCE)).await??;
        self.dir.close()?;
        Ok(received)
    }
}

/// Receives and inspects every notice, until the fleet has ended.
async fn listen(mut notices: broadcast::Receiver<FleetEvent>) -> SubscriberCounts {
    let mut received = SubscriberCounts::default();
    loop {
        match notices.recv().await {
            Ok(FleetEvent::SessionEvents { events, .. }) => received.events += events.len() as u64,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(missed)) => received.missed += missed,
            Err(broadcast::error::RecvError::Closed) => return received,
        }
    }
}

fn configuration(load: &Load, manner: &Manner, dir: PathBuf) -> Result<Config, Failure> {
    let mut command = load.command(manner.dialect);
    "marshal".clone_into(&mut command[0]);
    let text = format!(
        "[supervisor]\nmax_children = {children}\n\
         [pool.{POOL}]\nsize = {children}\ncommand = {command:?}\ndialect = \"{dialect}\"\n\
         launcher = \"{launcher}\"\npolicy = \"developer\"\n\
         workspace = {{ path = \"workspace\", mode = \"copy\" }}\n\
         restart = {{ budget = 100000, base = \"1ms\", max = \"1ms\" }}\n\
         timeouts = {{ handshake = \"10m\", silence = \"none\" }}\n",
        children = load.children(),
        launcher = manner.launcher.as_str(),
        dialect = manner.dialect.as_str(),
    );
    let origin = Origin {
        file: None,
        dir,
        is_explicit: true,
    };
    Ok(Config::parse(&text, &origin)?)
}

fn policies(config: &Config) -> Result<BTreeMap<String, LoadedPolicy>, Failure> {
    let load = |name: &String| -> Result<_, Failure> {
        let policy = Policy::builtin(name).ok_or("there is no such policy")?;
        let loaded = LoadedPolicy {
            policy: Arc::new(policy),
            sha256: "0".repeat(64),
            files: Vec::new(),
        };
        Ok((name.clone(), loaded))
    };
    config.pools.iter().map(|pool| load(&pool.policy)).collect()
}

fn extractors(config: &Config) -> Result<BTreeMap<String, Arc<Extractor>>, Failure> {
    let mut parsed = BTreeMap::new();
    for pool in &config.pools {
        let text = match &pool.extractor {
            ExtractorRef::BuiltIn(name) => extract::builtin_text(name),
            ExtractorRef::Inline(text) => Some(text.as_str()),
        };
        let extractor = Extractor::parse(text.ok_or("there is no such extractor")?)?;
        parsed.insert(pool.name.to_string(), Arc::new(extractor));
    }
    Ok(parsed)
}
