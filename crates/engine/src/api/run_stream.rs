//! One run's stream: every event of its sessions and every report exactly once.
//!
//! Live notices may be lost by a slow watcher; events and reports may not. A [`Diagnostics`] keeps a
//! run's reports from the fleet's reliable channel, the journal has the events, and a
//! [`RunStream`] joins all: order from the notices, completeness from ledger and journal. Must not
//! know who watches, or how it is told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{broadcast, mpsc, watch};

use super::catch_up::{CatchUpStep, Positions};
use super::history::History;
use marshal_fleet::{FleetEvent, TaskReport};
use marshal_model::limits;
use marshal_model::{IdError, RunId, SessionId, SlotId, TaskId};

/// A new run's id: unique, and later ones sort after earlier ones.
///
/// # Errors
/// None in fact: a UUID is always a safe token.
pub fn new_run_id() -> Result<RunId, IdError> {
    RunId::new(&uuid::Uuid::now_v7().to_string())
}

/// The reports of one run, kept until nobody needs them. Bounded by the run's tasks.
#[derive(Debug)]
pub struct Ledger {
    run: RunId,
    total: usize,
    /// So many of the reports were there before the first watcher.
    resumed_count: usize,
    reports: Mutex<Vec<Arc<TaskReport>>>,
    state: watch::Sender<LedgerState>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LedgerState {
    /// Reports may still come.
    Open,
    /// No report will come any more.
    Closed,
}

impl Ledger {
    /// Keeps the reports of `run`, which has `total` tasks, from `reports` until that closes.
    /// Must be called inside a runtime.
    #[must_use]
    pub fn collect(
        run: RunId,
        total: usize,
        reports: mpsc::Receiver<Arc<TaskReport>>,
    ) -> Arc<Self> {
        Self::resume(run, total, Vec::new(), reports)
    }

    /// The same for a run of which so many tasks have `ended`: every watcher is told those first.
    #[must_use]
    pub fn resume(
        run: RunId,
        total: usize,
        ended: Vec<Arc<TaskReport>>,
        reports: mpsc::Receiver<Arc<TaskReport>>,
    ) -> Arc<Self> {
        let ledger = Arc::new(Self {
            run,
            total,
            resumed_count: ended.len(),
            reports: Mutex::new(ended),
            state: watch::Sender::new(LedgerState::Open),
        });
        tokio::spawn(Arc::clone(&ledger).fill(reports));
        ledger
    }

    async fn fill(self: Arc<Self>, mut incoming: mpsc::Receiver<Arc<TaskReport>>) {
        let mut ended = self.resumed_count;
        while ended < self.total {
            let Some(report) = incoming.recv().await else {
                break;
            };
            self.lock().push(report);
            ended += 1;
        }
        self.state.send_replace(LedgerState::Closed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<TaskReport>>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// How many tasks the run has.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether no report will come any more.
    pub fn is_closed(&self) -> bool {
        *self.state.borrow() == LedgerState::Closed
    }

    /// Reports from the `from`th on, in the order in which their tasks ended.
    fn since(&self, from: usize) -> Vec<Arc<TaskReport>> {
        self.lock().iter().skip(from).cloned().collect()
    }
}

/// What a run's stream gives.
#[derive(Debug, Clone)]
pub enum RunStreamItem {
    /// Something happened; never a task's end.
    Notice(FleetEvent),
    /// A task of the run ended; each exactly once.
    Ended(Arc<TaskReport>),
    /// So many notices went by, because this watcher was slow. Their events follow, from the
    /// journal, and no report is lost; states of slots are.
    Lagged(u64),
    /// No report will come any more; nothing follows.
    Complete,
}

/// One watcher's place in one run.
#[derive(Debug)]
pub struct RunStream {
    notices: Option<broadcast::Receiver<FleetEvent>>,
    ledger: Arc<Ledger>,
    state: watch::Receiver<LedgerState>,
    filter: Filter,
    /// Reports that were given already.
    delivered: HashSet<TaskId>,
    /// How much of the ledger was looked through.
    cursor: usize,
    /// Notices looked at since the run was complete.
    drained: usize,
    /// Reports that must come next.
    due: VecDeque<Arc<TaskReport>>,
    /// How far each session was given.
    positions: Positions,
    /// Notices were lost, and it is not yet known which sessions are behind.
    has_lagged: bool,
    history: Arc<dyn History>,
}

impl RunStream {
    /// Joins notices, subscribed before the run was submitted, with the run's ledger.
    #[must_use]
    pub fn new(
        notices: broadcast::Receiver<FleetEvent>,
        ledger: Arc<Ledger>,
        history: Arc<dyn History>,
    ) -> Self {
        let before: VecDeque<_> = ledger
            .lock()
            .iter()
            .take(ledger.resumed_count)
            .cloned()
            .collect();
        Self {
            filter: Filter::new(ledger.run().clone()),
            state: ledger.state.subscribe(),
            notices: Some(notices),
            ledger,
            delivered: HashSet::new(),
            cursor: before.len(),
            drained: 0,
            due: before,
            positions: Positions::default(),
            has_lagged: false,
            history,
        }
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        self.ledger.run()
    }

    /// How many tasks the run has.
    pub fn total(&self) -> usize {
        self.ledger.total()
    }

    /// What comes next. After [`Item::Complete`] it is `Complete` for ever. Cancel-safe.
    pub async fn next(&mut self) -> RunStreamItem {
        loop {
            // What was missed comes before the end of its task.
            if let Some(notice) = self.next_missed().await {
                return RunStreamItem::Notice(notice);
            }
            if let Some(report) = self.due.pop_front() {
                if self.delivered.insert(report.task.clone()) {
                    return RunStreamItem::Ended(report);
                }
                continue;
            }
            let Some(notices) = self.notices.as_mut() else {
                if self.ledger.is_closed() {
                    self.queue_reports();
                    if self.due.is_empty() {
                        return RunStreamItem::Complete;
                    }
                } else {
                    // Nothing is live any more; only the ledger can end this wait.
                    let _ = self.state.wait_for(|s| *s == LedgerState::Closed).await;
                }
                continue;
            };
            let received = if self.ledger.is_closed() {
                // The rest of the notices belongs before the end, as far as it is there. Other
                // runs may add to it faster than it is read, so it has an end.
                self.drained += 1;
                if self.drained > limits::BROADCAST_EVENTS {
                    self.has_lagged = true;
                    self.notices = None;
                    continue;
                }
                match notices.try_recv() {
                    Ok(notice) => Ok(notice),
                    Err(broadcast::error::TryRecvError::Lagged(n)) => {
                        Err(broadcast::error::RecvError::Lagged(n))
                    }
                    Err(_) => Err(broadcast::error::RecvError::Closed),
                }
            } else {
                tokio::select! {
                    received = notices.recv() => received,
                    _ = self.state.wait_for(|s| *s == LedgerState::Closed) => continue,
                }
            };
            match received {
                Ok(FleetEvent::TaskEnded(report)) => {
                    if report.run == *self.ledger.run() {
                        self.filter.forget(&report);
                        self.due.push_back(report);
                    }
                }
                Ok(notice) => {
                    if let Some(notice) = self.admit(notice) {
                        return RunStreamItem::Notice(notice);
                    }
                }
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    // The reports that are there now: the events of their sessions are durable,
                    // and come before them.
                    self.queue_reports();
                    self.has_lagged = true;
                    return RunStreamItem::Lagged(missed);
                }
                Err(broadcast::error::RecvError::Closed) => self.notices = None,
            }
        }
    }

    fn admit(&mut self, notice: FleetEvent) -> Option<FleetEvent> {
        if !self.filter.admits(&notice) {
            return None;
        }
        if let FleetEvent::TaskAssigned { session, task, .. } = &notice
            && !self.positions.record_assignment(session, task)
        {
            return None;
        }
        self.positions.filter_live(notice)
    }

    /// The next notice of what was missed. Cancel-safe: what was read and not given is read again.
    async fn next_missed(&mut self) -> Option<FleetEvent> {
        if self.has_lagged {
            let run = self.ledger.run().clone();
            let sessions = self
                .read_history(move |history| history.sessions(&run))
                .await;
            for session in sessions
                .iter()
                .flatten()
                .filter(|session| !session.is_ended)
            {
                self.filter.add_session(&session.slot, &session.session);
            }
            self.positions.record_lag(sessions.unwrap_or_default());
            self.has_lagged = false;
        }
        loop {
            let (session, after) = match self.positions.next_step(self.ledger.run())? {
                CatchUpStep::Notice(notice) => return Some(notice),
                CatchUpStep::Read(session, after) => (session, after),
            };
            let events = self.read_history(move |history| history.events(&session, after));
            let events = events.await.unwrap_or_default();
            if let Some(notice) = self.positions.accept_events(events) {
                return Some(notice);
            }
        }
    }

    /// Reads the past on a thread that may block. What cannot be read is logged.
    async fn read_history<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn History) -> Result<T, String> + Send + 'static,
    ) -> Option<T> {
        let history = Arc::clone(&self.history);
        let found = tokio::task::spawn_blocking(move || read(history.as_ref())).await;
        match found {
            Ok(Ok(found)) => Some(found),
            Ok(Err(why)) => {
                tracing::warn!(run = %self.ledger.run(), why, "a watcher misses events");
                None
            }
            Err(_) => None,
        }
    }

    /// Makes every report due that the ledger has and that was not looked at.
    fn queue_reports(&mut self) {
        let new = self.ledger.since(self.cursor);
        self.cursor += new.len();
        self.due.extend(
            new.into_iter()
                .filter(|r| !self.delivered.contains(&r.task)),
        );
    }
}

/// Which notices concern a run, beside those of other runs in the same fleet.
#[derive(Debug)]
struct Filter {
    run: RunId,
    /// Sessions that work a task of the run, by slot: a slot works one at a time.
    working: HashMap<SlotId, SessionId>,
}

impl Filter {
    fn new(run: RunId) -> Self {
        Self {
            run,
            working: HashMap::new(),
        }
    }

    /// Whether the notice is shown. The states of all slots are: they say why a task waits.
    fn admits(&mut self, notice: &FleetEvent) -> bool {
        match notice {
            FleetEvent::TaskQueued { run, .. } => *run == self.run,
            FleetEvent::TaskAssigned {
                run, slot, session, ..
            } => {
                if *run == self.run {
                    self.working.insert(slot.clone(), session.clone());
                    true
                } else {
                    self.working.remove(slot);
                    false
                }
            }
            FleetEvent::SessionEvents { slot, session, .. }
            | FleetEvent::EventsSkipped { slot, session, .. } => {
                self.working.get(slot) == Some(session)
            }
            FleetEvent::SlotChanged { .. } | FleetEvent::PoolPaused { .. } => true,
            FleetEvent::TaskEnded(report) => report.run == self.run,
        }
    }

    /// A session of the run works there.
    fn add_session(&mut self, slot: &SlotId, session: &SessionId) {
        self.working.insert(slot.clone(), session.clone());
    }

    fn forget(&mut self, report: &TaskReport) {
        if let Some(slot) = &report.slot
            && self.working.get(slot) == report.session.as_ref()
        {
            self.working.remove(slot);
        }
    }
}
