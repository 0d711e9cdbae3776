//! One life of a supervisor: the real fleet over the real journal, with a simulated machine and
//! disk. It is disturbed from outside until it ends, or is killed at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use marshal_config::OnCrash;
use marshal_fleet::{
    self, Ambient, FleetEvent, FleetHandle, ResumeRunError, ResumeScope, Setup, Stop, SubmitError,
    TaskReport,
};
use marshal_journal::{Journal, Reader};
use marshal_model::{PoolName, RunId, SlotId, SlotState, TaskId, TaskSpec, UntrustedText};
use marshal_sandbox::state_dir::StateDir;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, sleep};

use crate::sim::disk::{Disk, probe};
use crate::sim::host::Machine;
use crate::sim::ledger::{Ledger, Task};
use crate::sim::random::SeededRandom;
use crate::sim::world::{self, World};

/// No life may take longer, by its own clock.
const LONGEST: Duration = Duration::from_secs(2 * 24 * 3600);

/// Lives once. The last life ends as it should.
pub(crate) fn live(world: &mut World, dice: &mut SeededRandom, is_last: bool) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.event_interval(world.event_interval);
    let runtime = builder.build().expect("a runtime");
    let most = dice.pick(&[5, 30, 100, 400]);
    let crash_after = (!is_last && dice.percent(80)).then(|| dice.between(1, most));
    let number = world.ledger.book().life;
    let dice = SeededRandom::new(world.seed, 10 + u64::from(number));
    let (spent, finished) = runtime.block_on(async {
        marshal_fleet::simulate_stamps(world.wall_us);
        let began = Instant::now();
        world.ledger.begin(crash_after);
        let life = tokio::time::timeout(LONGEST, one(world, dice, is_last));
        let finished = tokio::select! {
            biased;
            () = world.ledger.crash.notified() => false,
            life = life => {
                if life.is_err() {
                    world.ledger.fault(format!("life {} never ends", number + 1));
                }
                life.is_ok()
            }
        };
        (began.elapsed(), finished)
    });
    // A kill: whatever was under way is gone, with the children.
    drop(runtime);
    if !finished {
        world.ledger.saw("killed supervisor");
    }
    world.ledger.end(finished);
    let spent = i64::try_from(spent.as_micros()).expect("within the longest life");
    world.wall_us += spent + 1_000_000;
}

/// What this start is for.
struct Calling {
    go_on: ResumeScope,
    /// Runs that it takes up.
    old: Vec<RunId>,
    /// How many runs of its own it gets.
    new: u64,
    /// Whether all that it took in must have ended in the end.
    is_last: bool,
}

impl Calling {
    /// A daemon takes up everything; a single run is new, or the newest that is unfinished. The
    /// last start of a world leaves nothing.
    fn of(state: &StateDir, is_last: bool, dice: &mut SeededRandom) -> Self {
        let mut unfinished: Vec<_> = Reader::open(state.path())
            .map(|reader| reader.unfinished_runs().expect("the unfinished runs"))
            .unwrap_or_default()
            .into_iter()
            .map(|run| RunId::new(&run.run).expect("an id"))
            .collect();
        let new = dice.pick(&[1, 1, 2]);
        if is_last || dice.percent(50) {
            return Self {
                is_last,
                go_on: ResumeScope::All,
                new: if unfinished.is_empty() {
                    new
                } else {
                    dice.pick(&[0, new])
                },
                old: unfinished,
            };
        }
        match unfinished.pop().filter(|_| dice.percent(60)) {
            Some(newest) => Self {
                is_last,
                go_on: ResumeScope::Run(newest.clone()),
                old: vec![newest],
                new: 0,
            },
            None => Self {
                is_last,
                go_on: ResumeScope::None,
                old: Vec::new(),
                new,
            },
        }
    }
}

async fn one(world: &World, mut dice: SeededRandom, is_last: bool) {
    let state = StateDir::open(
        &world.dir.path().join("state"),
        &[world.dir.path().join("workspace")],
    )
    .expect("the state directory");
    let calling = Calling::of(&state, is_last, &mut dice);
    let short = Arc::new(AtomicBool::new(false));
    let (journal, stepper) =
        Journal::open_stepped(state.path(), probe(&short), world.wall_us).expect("the journal");
    world.ledger.reads(journal.file());
    let (over, is_over) = oneshot::channel();
    let disk = Disk {
        ledger: Arc::clone(&world.ledger),
        journal: journal.clone(),
        stepper,
        short,
        dice: SeededRandom::new(dice.next(), 1),
        wildness: world.wildness,
        twist: world.twist,
    };
    let disk = tokio::spawn(disk.work(is_over));
    let number = world.ledger.book().life;
    let setup = setup(world, state, journal, dice.next(), calling.go_on.clone());
    let fleet = FleetHandle::start(setup).await.expect("a fleet");
    let watching = tokio::spawn(watch(fleet.subscribe(), Arc::clone(&world.ledger)));
    let stage = Stage {
        fleet: &fleet,
        world,
        number,
    };
    stage.play(&mut dice, &calling).await;
    stage.is_still(&calling);
    drop(fleet);
    let _ = over.send(());
    let _ = disk.await;
    let _ = watching.await;
}

/// What a fleet of a world starts with.
pub(crate) fn setup(
    world: &World,
    state: StateDir,
    journal: Journal,
    seed: u64,
    go_on: ResumeScope,
) -> Setup {
    Setup {
        config: Arc::clone(&world.config),
        policies: world::policies().into(),
        policy_reader: None,
        extractors: world::extractors(&world.config),
        state: Arc::new(state),
        journal,
        store: None,
        host: Arc::new(Machine {
            ledger: Arc::clone(&world.ledger),
            seed: world.seed,
            wildness: world.wildness,
            twist: world.twist,
        }),
        ambient: Ambient::seeded(seed),
        uids: None,
        engines: BTreeMap::new(),
        marshal: "/nowhere/marshal".into(),
        environment: BTreeMap::new(),
        resume_scope: go_on,
        has_approvers: false,
        mask: Arc::default(),
    }
}

/// What is done to a fleet.
struct Stage<'w> {
    fleet: &'w FleetHandle,
    world: &'w World,
    number: u32,
}

impl Stage<'_> {
    /// Tasks, disturbances, and the end.
    async fn play(&self, dice: &mut SeededRandom, calling: &Calling) {
        let pools = self.world.config.pools.iter();
        let disturbing = disturb(
            self.fleet.clone(),
            Arc::clone(&self.world.ledger),
            SeededRandom::new(dice.next(), 2),
            pools.map(|pool| (pool.name.clone(), pool.size)).collect(),
            dice.percent(60),
            !calling.is_last,
        );
        let disturbing = tokio::spawn(disturbing);
        let mut readers = Vec::new();
        for run in &calling.old {
            readers.extend(self.take_up(run).await);
        }
        for batch in 0..calling.new {
            readers.extend(self.submit(dice, batch).await);
            sleep(dice.ms(5_000)).await;
        }
        let mut readers: Vec<_> = readers
            .into_iter()
            .map(|reports| tokio::spawn(read(reports, Arc::clone(&self.world.ledger))))
            .collect();
        // Sometimes the end comes before the work is done.
        if !calling.is_last && dice.percent(15) {
            sleep(dice.ms(60_000)).await;
        } else {
            for reader in &mut readers {
                let _ = reader.await;
            }
            readers.clear();
        }
        self.world.ledger.step("stop");
        let how = match dice.between(0, 9) {
            0..=4 => Stop::Drain,
            5..=6 => Stop::Interrupt,
            _ => Stop::Kill,
        };
        self.fleet.stop(how).await;
        disturbing.abort();
        for reader in readers {
            let _ = reader.await;
        }
        self.world.ledger.step("stopped");
    }

    /// Goes on with a run of an earlier life.
    async fn take_up(&self, run: &RunId) -> Option<mpsc::Receiver<Arc<TaskReport>>> {
        let ledger = &self.world.ledger;
        ledger.saw("a run is taken up");
        match self.fleet.resume_run(run.clone()).await {
            Ok(taken) => {
                for task in &taken.tasks {
                    let key = (run.to_string(), task.to_string());
                    let mut book = ledger.book();
                    let task = book.tasks.entry(key).or_default();
                    task.is_sure = true;
                    task.lives.insert(self.number);
                }
                ledger.step(&format!("{run} is taken up"));
                for report in taken.ended {
                    note(&report, ledger);
                }
                Some(taken.reports)
            }
            Err(ResumeRunError::Submit(SubmitError::Stopping)) => None,
            Err(error) => {
                ledger.fault(format!("{run} was not taken up: {error}"));
                None
            }
        }
    }

    async fn submit(
        &self,
        dice: &mut SeededRandom,
        batch: u64,
    ) -> Option<mpsc::Receiver<Arc<TaskReport>>> {
        let run = format!("run-{}-{batch}", self.number);
        let specs = self.specs(dice, &run);
        let mut may_be_taken = false;
        for _ in 0..200 {
            let id = RunId::new(&run).expect("an id");
            match self.fleet.submit(id, "run", specs.clone()).await {
                Ok(reports) => {
                    self.record_accepted(&run, &specs, true);
                    return Some(reports);
                }
                Err(SubmitError::Journal(_) | SubmitError::Stalled) => {
                    self.world.ledger.saw("nothing new is taken");
                    sleep(Duration::from_secs(2)).await;
                }
                Err(SubmitError::Unknown) => {
                    self.world.ledger.saw("the disk does not answer");
                    may_be_taken = true;
                    sleep(Duration::from_secs(2)).await;
                }
                // The run is there already: by the try whose result was unknown.
                Err(SubmitError::Rejected(_)) if may_be_taken => {
                    self.record_accepted(&run, &specs, false);
                    self.wait_for_ends(&run, &specs).await;
                    return None;
                }
                Err(SubmitError::Stopping) => return None,
                Err(error) => {
                    let fault = format!("tasks were refused: {error}");
                    self.world.ledger.fault(fault);
                    return None;
                }
            }
        }
        None
    }

    /// Waits as a client does that has no stream of its run.
    async fn wait_for_ends(&self, run: &str, specs: &[TaskSpec]) {
        let run = RunId::new(run).expect("an id");
        for _ in 0..10_000 {
            let reader = self.fleet.journal().reader().expect("a reader");
            let has_ended = |spec: &TaskSpec| {
                let task = reader.task(&run, &spec.id).expect("rows");
                task.is_some_and(|task| task.outcome.is_some())
            };
            if specs.iter().all(has_ended) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Tasks are accepted: from now on none of them may be lost, and each is reported to a client
    /// that still waits for it.
    fn record_accepted(&self, run: &str, specs: &[TaskSpec], is_followed: bool) {
        let mut book = self.world.ledger.book();
        for spec in specs {
            let key = (run.to_owned(), spec.id.to_string());
            let task = book.tasks.entry(key).or_default();
            task.is_sure = true;
            if is_followed {
                task.lives.insert(self.number);
            }
        }
        drop(book);
        self.world.ledger.step("submitted");
    }

    /// Some tasks, each known to the ledger before anybody takes it in.
    fn specs(&self, dice: &mut SeededRandom, run: &str) -> Vec<TaskSpec> {
        let count = dice.pick(&[1, 2, 3, 3, 5, 9]);
        let mut specs = Vec::new();
        for place in 0..count {
            let at = dice.between(0, self.world.config.pools.len() as u64 - 1);
            let pool = &self.world.config.pools[usize::try_from(at).expect("small")];
            let padding = if dice.percent(2) { 90_000 } else { 0 };
            let id = format!("t{place}");
            let task = Task {
                // The first crash is not counted.
                attempts: u64::from(pool.options.attempts)
                    + u64::from(pool.restart.on_crash == OnCrash::Retry),
                ..Task::default()
            };
            let key = (run.to_owned(), id.clone());
            self.world.ledger.book().tasks.insert(key, task);
            specs.push(TaskSpec {
                id: TaskId::new(&id).expect("an id"),
                prompt: UntrustedText::new(format!("{run}/{id} {}", "p".repeat(padding))),
                pool: Some(pool.name.clone()),
                workspace: None,
                attempts: None,
                check: None,
                files: Vec::new(),
                embedded_files: Vec::new(),
                policy_layer: None,
                land: None,
                priority: 0,
                depends_on: Vec::new(),
            });
        }
        specs
    }

    /// After a stop nothing is left.
    fn is_still(&self, calling: &Calling) {
        let ledger = &self.world.ledger;
        for session in ledger.running_sessions() {
            ledger.fault(format!("a child of session {session} lives after the stop"));
        }
        for view in self.fleet.slots() {
            // A session that the next supervisor may load still needs its home.
            let pool = self.world.config.pool(view.slot.pool.as_str());
            let resumes = pool.is_some_and(|pool| pool.restart.on_crash == OnCrash::Resume);
            let is_kept = resumes && calling.go_on != ResumeScope::None;
            let session = view.session.is_some() && !is_kept;
            if view.pid.is_some() || view.task.is_some() || session || view.up {
                ledger.fault(format!("after the stop a slot looks like this: {view:?}"));
            }
        }
    }
}

/// Takes the reports of a run.
async fn read(mut reports: mpsc::Receiver<Arc<TaskReport>>, ledger: Arc<Ledger>) {
    while let Some(report) = reports.recv().await {
        note(&report, &ledger);
    }
}

fn note(report: &TaskReport, ledger: &Ledger) {
    let key = (report.run.to_string(), report.task.to_string());
    let outcome = report.outcome.as_str();
    let mut book = ledger.book();
    let life = book.life;
    let task = book.tasks.entry(key.clone()).or_default();
    task.reports.push((life, outcome.to_owned()));
    drop(book);
    ledger.saw(outcome);
    ledger.step(&format!("{}/{} is {outcome}", key.0, key.1));
}

/// Sees everything that is shown, and that it may be shown.
async fn watch(mut notices: broadcast::Receiver<FleetEvent>, ledger: Arc<Ledger>) {
    let mut last_of = BTreeMap::new();
    loop {
        let (session, first, last) = match notices.recv().await {
            Ok(FleetEvent::SessionEvents {
                session, events, ..
            }) => match (events.first(), events.last()) {
                (Some(first), Some(last)) => (session, first.id.seq, last.id.seq),
                _ => continue,
            },
            Ok(FleetEvent::EventsSkipped {
                session,
                first,
                last,
                ..
            }) => {
                ledger.saw("events that are not carried");
                (session, first, last)
            }
            Ok(_) => continue,
            Err(RecvError::Lagged(_)) => {
                ledger.saw("a watcher that lags");
                last_of.clear();
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let after = last_of.insert(session.clone(), last);
        ledger.check_shown_events(session.as_str(), first, last, after);
    }
}

/// Cancels, restarts and looks, at any moment.
async fn disturb(
    fleet: FleetHandle,
    ledger: Arc<Ledger>,
    mut dice: SeededRandom,
    pools: Vec<(PoolName, u16)>,
    is_rough: bool,
    may_drain: bool,
) {
    for round in 1_u32.. {
        // Often at first; a silence of hours is not looked at every second.
        let pause = dice.ms(30_000) + Duration::from_millis(1);
        sleep(pause * round.div_ceil(20)).await;
        look(&fleet, &ledger);
        if !is_rough {
            continue;
        }
        match dice.between(0, 30) {
            0..=3 => {
                let at = dice.between(0, pools.len() as u64 - 1);
                let (pool, size) = pools[usize::try_from(at).expect("small")].clone();
                let index = u16::try_from(dice.between(0, u64::from(size) - 1)).expect("small");
                ledger.step(&format!("restart {pool}/{index}"));
                ledger.saw("restarted by hand");
                let slot = SlotId { pool, index };
                let fleet = fleet.clone();
                let (waits, watch) = (dice.percent(50), Arc::clone(&ledger));
                let restarting = tokio::spawn(async move {
                    let _ = fleet.restart(slot).await;
                    watch.step("restarted");
                });
                if waits {
                    let _ = restarting.await;
                }
            }
            4 => {
                let life = ledger.book().life;
                let run = format!("run-{life}-{}", dice.between(0, 1));
                ledger.step(&format!("cancel {run}"));
                ledger.saw("cancelled run");
                fleet.cancel(&RunId::new(&run).expect("an id"));
            }
            5 if may_drain && dice.percent(10) => {
                ledger.step("drain");
                ledger.saw("drained fleet");
                fleet.drain();
            }
            _ => {}
        }
    }
}

/// What must hold at every moment.
fn look(fleet: &FleetHandle, ledger: &Ledger) {
    let views = fleet.slots();
    ledger.print(|| format!("{views:#?}"));
    for session in ledger.running_sessions() {
        let holds = |view: &marshal_fleet::SlotView| {
            view.session
                .as_ref()
                .is_some_and(|id| id.as_str() == session)
        };
        if !views.iter().any(holds) {
            ledger.fault(format!(
                "a child of session {session} runs, and no slot has that session"
            ));
        }
    }
    for view in views {
        let is_odd = view.task.is_some() && view.session.is_none()
            || view.up && view.pid.is_none()
            || view.state == SlotState::Unloaded && view.pid.is_some();
        if is_odd {
            ledger.fault(format!("a slot looks like this: {view:?}"));
        }
    }
}
