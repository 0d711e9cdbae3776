//! The candidate: the supervisor itself, in this process, with all features on.
//!
//! Children start with their tasks, so a load begins when all of them run. For throughput they are
//! stopped just before their load and continued together.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marshal_fleet::{FleetEvent, TaskReport};
use marshal_model::{Event, SlotId, SlotState, TaskOutcome};
use rustix::process::{Signal, kill_process};
use tokio::sync::{broadcast, mpsc};

use crate::figures::{Cost, Figures, Latency, descriptors, resident_bytes};
use crate::house::{House, PATIENCE, SubscriberCounts};
use crate::load::{Load, Manner};
use crate::{Failure, Side, agents};

/// The side's name in the output.
pub(crate) const NAME: &str = "marshal";

/// How long each agent sleeps before its load, which is the time to stop it in. When it continues,
/// it sleeps for the rest, which is nearly all of it.
const LEAD: Duration = Duration::from_millis(500);

/// The maximum part of an agent's sleep that is over when it is stopped.
const HELD_AFTER: Duration = Duration::from_millis(10);

/// How long the fleet is idle before it is measured.
const SETTLE: Duration = Duration::from_millis(500);

/// A step that lasts until the end of the run.
const FOR_EVER: &str = "sleep 24h";

/// The number of measured writes with a sync. Each has the size of one page of a write-ahead log.
const SYNCS: u32 = 300;
const SYNC_BYTES: usize = 4096;

/// The supervisor with all features on.
pub(crate) struct Full(pub(crate) Manner);

impl Side for Full {
    fn name(&self) -> &str {
        NAME
    }

    fn run(&mut self, load: &Load) -> Result<Figures, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .max_blocking_threads(marshal_model::limits::BLOCKING_THREADS)
            .enable_all()
            .build()?;
        let manner = &self.0;
        runtime.block_on(async {
            match load {
                Load::Kill { kills, .. } => kill(load, manner, *kills).await,
                Load::Idle { .. } => idle(load, manner).await,
                Load::Flood { .. } | Load::Ask { .. } => flow(load, manner).await,
            }
        })
    }
}

async fn flow(load: &Load, manner: &Manner) -> Result<Figures, Failure> {
    let house = House::open(load, manner).await?;
    let prompt = load.prompt().ok_or("a load without a script")?;
    let script = format!("sleep {}ms\n{prompt}", LEAD.as_millis());
    let spawning = Instant::now();
    let mut reports = house.submit(load.children(), &script).await?;
    let agents = house.all_held().await?;
    let spawn_s = spawning.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;

    let cost = if let Load::Ask { .. } = load {
        let cost = Cost::begin();
        agents.go(|child| load.later(child)).await?;
        cost
    } else {
        agents.go(|_| Duration::ZERO).await?;
        tokio::time::sleep(LEAD.saturating_sub(HELD_AFTER)).await;
        Cost::begin()
    };
    let mut latency = Latency::default();
    for _ in 0..load.children() {
        let report = next(&mut reports).await?;
        if report.outcome != TaskOutcome::Done {
            return Err(format!("a task ended {:?}: {:?}", report.outcome, report.detail).into());
        }
        if let Load::Ask { asks: requests, .. } = load {
            if u64::from(report.allowed) != *requests {
                return Err(format!("{} of {requests} asks were allowed", report.allowed).into());
            }
            latency.add_report(report.answer.raw())?;
        }
    }
    let mut figures = Figures::default();
    cost.note(&mut figures, load.events().unwrap_or(0));
    figures.note("spawn_s", spawn_s);
    if let Load::Ask { .. } = load {
        figures.note_latency("ask", &latency);
        figures.note_latency("sync", &syncs(house.dir.path())?);
    }
    note_heard(&mut figures, &house.close().await?);
    Ok(figures)
}

async fn idle(load: &Load, manner: &Manner) -> Result<Figures, Failure> {
    let house = House::open(load, manner).await?;
    let (memory, open) = (resident_bytes()?, descriptors()?);
    let children = load.children() as f64;
    let spawning = Instant::now();
    let _reports = house.submit(load.children(), FOR_EVER).await?;
    house.all_busy(|_| Ok(())).await?;
    let spawn_s = spawning.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let mut figures = Figures::default();
    let cost = Cost::begin();
    tokio::time::sleep(load.watch()).await;
    cost.note(&mut figures, 0);
    let resident = resident_bytes()?;
    figures.note("spawn_s", spawn_s);
    figures.note("rss_bytes", resident);
    figures.note("rss_bytes_per_child", (resident - memory) / children);
    figures.note("descriptors_per_child", (descriptors()? - open) / children);
    let helpers = house.fleet.slots();
    let shares = helpers
        .iter()
        .filter_map(|view| view.pid)
        .map(agents::proportional_bytes);
    let helpers: f64 = shares.sum::<Result<f64, Failure>>()?;
    figures.note("helper_pss_bytes_per_child", helpers / children);
    house.scrape();
    figures.note("scrape_us", house.scrape().as_secs_f64() * 1e6);
    house.close().await?;
    Ok(figures)
}

async fn kill(load: &Load, manner: &Manner, kills: usize) -> Result<Figures, Failure> {
    let house = House::open(load, manner).await?;
    let mut notices = house.fleet.subscribe();
    // An additional task waits for each child that is killed.
    let _reports = house.submit(load.children() + kills, FOR_EVER).await?;
    house.all_busy(|_| Ok(())).await?;
    tokio::time::sleep(SETTLE).await;
    let slots = house.fleet.slots();
    let (mut exit, mut again) = (Latency::default(), Latency::default());
    let cost = Cost::begin();
    for kill in 0..kills {
        let slot = &slots[kill % slots.len()].slot;
        let agent = agents::behind(working(&house, slot).await?)?;
        // Earlier notices are skipped.
        notices = notices.resubscribe();
        let killed = Instant::now();
        kill_process(agent, Signal::KILL)?;
        wait_for(&mut notices, slot, is_exit).await?;
        exit.add(killed.elapsed());
        wait_for(&mut notices, slot, is_ready).await?;
        again.add(killed.elapsed());
    }
    let mut figures = Figures::default();
    cost.note(&mut figures, kills as u64);
    figures.note_latency("exit_known", &exit);
    figures.note_latency("ready_again", &again);
    house.close().await?;
    Ok(figures)
}

async fn next(reports: &mut mpsc::Receiver<Arc<TaskReport>>) -> Result<Arc<TaskReport>, Failure> {
    let report = tokio::time::timeout(PATIENCE, reports.recv()).await?;
    Ok(report.ok_or("the fleet is gone")?)
}

/// The helper of a slot that runs a task.
async fn working(house: &House, slot: &SlotId) -> Result<u32, Failure> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let slots = house.fleet.slots();
        let view = slots.iter().find(|view| view.slot == *slot);
        if let Some((SlotState::Busy, Some(pid))) = view.map(|view| (view.state, view.pid)) {
            return Ok(pid);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err("a slot does not work".into())
}

async fn wait_for(
    notices: &mut broadcast::Receiver<FleetEvent>,
    slot: &SlotId,
    wanted: fn(&FleetEvent, &SlotId) -> bool,
) -> Result<(), Failure> {
    while !wanted(
        &tokio::time::timeout(PATIENCE, notices.recv()).await??,
        slot,
    ) {}
    Ok(())
}

/// Whether the notice reports the durable end of the slot's child.
fn is_exit(notice: &FleetEvent, of: &SlotId) -> bool {
    let FleetEvent::SessionEvents { slot, events, .. } = notice else {
        return false;
    };
    let mut events = events.iter();
    slot == of && events.any(|stamped| matches!(stamped.event, Event::ChildExited { .. }))
}

fn is_ready(notice: &FleetEvent, of: &SlotId) -> bool {
    matches!(notice, FleetEvent::SlotChanged { slot, state: SlotState::Ready, .. } if slot == of)
}

/// The cost of a write and its sync on the journal's disk.
fn syncs(dir: &Path) -> Result<Latency, Failure> {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("sync"))?;
    let page = [0x5a; SYNC_BYTES];
    let mut latency = Latency::default();
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        latency.add(began.elapsed());
    }
    Ok(latency)
}

fn note_heard(figures: &mut Figures, received: &[SubscriberCounts]) {
    let delivered: u64 = received.iter().map(|received| received.events).sum();
    let missed: u64 = received.iter().map(|received| received.missed).sum();
    figures.note("delivered_events", delivered as f64);
    figures.note("missed_notices", missed as f64);
}
