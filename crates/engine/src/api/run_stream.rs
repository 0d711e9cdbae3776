//! One run's stream: every event of its sessions and every report exactly once.
//!
//! A slow subscriber may lose live events, but no stored events and no reports. A [`Ledger`] keeps
//! a run's reports from the fleet's reliable channel, and the journal has the events. A
//! [`RunStream`] joins all of them: live events give the order, ledger and journal the
//! completeness. Must not know who subscribes, or how.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{broadcast, mpsc, watch};

use super::catch_up::{CatchUpStep, Positions};
use super::history::History;
use super::service::Fleet;
use crate::JournalError;
use marshal_fleet::{FleetEvent, TaskReport};
use marshal_model::limits;
use marshal_model::{IdError, RunId, SessionId, SlotId, TaskId};

/// Returns a new run id: unique, and later ones sort after earlier ones.
///
/// # Errors
/// Never fails: a UUID is always a valid id.
pub fn new_run_id() -> Result<RunId, IdError> {
    RunId::new(&uuid::Uuid::now_v7().to_string())
}

/// The reports of one run, kept as long as it is referenced. Bounded by the run's tasks.
#[derive(Debug)]
pub struct Ledger {
    run: RunId,
    total: usize,
    /// The number of reports from before the resume.
    resumed_count: usize,
    reports: Mutex<Vec<Arc<TaskReport>>>,
    state: watch::Sender<LedgerState>,
    /// The live events since before the run was submitted, for its first watcher.
    first_notices: Mutex<Option<broadcast::Receiver<FleetEvent>>>,
}

/// Whether a run is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LedgerState {
    /// Reports may still come.
    Open,
    /// No report will come any more.
    Closed,
}

impl Ledger {
    /// Collects the reports of `run`, which has `total` tasks, from `reports` until that channel
    /// closes. Must be called inside a runtime.
    #[must_use]
    pub fn collect(
        run: RunId,
        total: usize,
        reports: mpsc::Receiver<Arc<TaskReport>>,
    ) -> Arc<Self> {
        Self::resume(run, total, Vec::new(), reports)
    }

    /// Like [`Self::collect`], for a resumed run: every subscriber receives the reports of its
    /// `ended` tasks first.
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
            first_notices: Mutex::new(None),
        });
        tokio::spawn(Arc::clone(&ledger).fill(reports));
        ledger
    }

    /// Keeps live events, subscribed before the run was submitted, for the first watcher. They are
    /// dropped if none comes within [`limits::RUN_WATCH_TIMEOUT`].
    pub fn keep_notices(self: &Arc<Self>, notices: broadcast::Receiver<FleetEvent>) {
        *self.lock_notices() = Some(notices);
        let kept = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(limits::RUN_WATCH_TIMEOUT).await;
            if let Some(ledger) = kept.upgrade() {
                ledger.lock_notices().take();
            }
        });
    }

    fn lock_notices(&self) -> std::sync::MutexGuard<'_, Option<broadcast::Receiver<FleetEvent>>> {
        self.first_notices
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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

    /// Returns the run's id.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the number of the run's tasks.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of tasks that have ended.
    pub fn ended(&self) -> usize {
        self.lock().len()
    }

    /// Whether the run is complete: no more reports will arrive.
    pub fn is_closed(&self) -> bool {
        *self.state.borrow() == LedgerState::Closed
    }

    /// Returns the reports from index `from` on, in the order in which their tasks ended.
    fn since(&self, from: usize) -> Vec<Arc<TaskReport>> {
        self.lock().iter().skip(from).cloned().collect()
    }
}

/// An item of a run's stream.
#[derive(Debug, Clone)]
pub enum RunStreamItem {
    /// A live event; never a task's end.
    Notice(FleetEvent),
    /// A task of the run ended; sent exactly once per task.
    Ended(Arc<TaskReport>),
    /// This number of live events was lost, because the subscriber was slow. Stored events follow
    /// from the journal and no report is lost, but changes of slot states are.
    Lagged(u64),
    /// The stream has ended.
    Complete,
}

/// One subscriber's position in one run.
#[derive(Debug)]
pub struct RunStream {
    notices: Option<broadcast::Receiver<FleetEvent>>,
    ledger: Arc<Ledger>,
    state: watch::Receiver<LedgerState>,
    filter: Filter,
    /// Tasks whose reports were delivered.
    delivered: HashSet<TaskId>,
    /// The number of ledger entries that were read.
    cursor: usize,
    /// The number of live events that were read since the run was complete.
    drained: usize,
    /// Reports to deliver next.
    due: VecDeque<Arc<TaskReport>>,
    /// The delivered part of each session.
    positions: Positions,
    /// Live events were lost, and the affected sessions are not known yet.
    has_lagged: bool,
    history: Arc<dyn History>,
}

impl RunStream {
    /// Joins the live events, subscribed before the run was submitted, with the run's ledger.
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

    /// Joins a run that was submitted before: with all of its live events if they were kept, else
    /// with the stored events from its beginning if `past` is set.
    #[must_use]
    pub fn join<F: Fleet>(fleet: &F, ledger: Arc<Ledger>, past: bool) -> Self {
        let kept = ledger.lock_notices().take();
        let is_first = kept.is_some();
        let notices = kept.unwrap_or_else(|| fleet.subscribe());
        let mut stream = Self::new(notices, ledger, fleet.history());
        stream.has_lagged = past && !is_first;
        stream
    }

    /// Returns the run's id.
    pub fn run(&self) -> &RunId {
        self.ledger.run()
    }

    /// Returns the number of the run's tasks.
    pub fn total(&self) -> usize {
        self.ledger.total()
    }

    /// Returns the next item. After [`RunStreamItem::Complete`] it is always `Complete`.
    /// Cancel-safe.
    pub async fn next(&mut self) -> RunStreamItem {
        loop {
            // Missed events of a task come before its report.
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
                    // The fleet has ended, so only the ledger can end this wait.
                    let _ = self.state.wait_for(|s| *s == LedgerState::Closed).await;
                }
                continue;
            };
            let received = if self.ledger.is_closed() {
                // Pending live events belong before the end. Other runs may add events faster than
                // this loop reads them, so their number is bounded.
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
                    // Take the available reports: the events of their sessions are durable, and
                    // come before them.
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

    /// Returns the next missed event. Cancel-safe: events that were read and not delivered are read
    /// again.
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
            let events = self
                .read_history(move |history| history.events(&session, after))
                .await
                .unwrap_or_default();
            if let Some(notice) = self.positions.accept_events(events) {
                return Some(notice);
            }
        }
    }

    /// Reads the past on a thread that may block, and logs errors.
    async fn read_history<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn History) -> Result<T, JournalError> + Send + 'static,
    ) -> Option<T> {
        let history = Arc::clone(&self.history);
        let result = tokio::task::spawn_blocking(move || read(history.as_ref())).await;
        match result {
            Ok(Ok(result)) => Some(result),
            Ok(Err(error)) => {
                tracing::warn!(run = %self.ledger.run(), why = error.to_string(), "a watcher misses events");
                None
            }
            Err(_) => None,
        }
    }

    /// Queues all reports of the ledger that were not read yet.
    fn queue_reports(&mut self) {
        let new = self.ledger.since(self.cursor);
        self.cursor += new.len();
        self.due.extend(
            new.into_iter()
                .filter(|r| !self.delivered.contains(&r.task)),
        );
    }
}

/// Selects the live events of a run among those of other runs in the fleet.
#[derive(Debug)]
struct Filter {
    run: RunId,
    /// Sessions that run a task of the run, by slot: a slot runs one at a time.
    working: HashMap<SlotId, SessionId>,
}

impl Filter {
    fn new(run: RunId) -> Self {
        Self {
            run,
            working: HashMap::new(),
        }
    }

    /// Whether the event is delivered. States of all slots are, because they explain why a task
    /// waits.
    fn admits(&mut self, notice: &FleetEvent) -> bool {
        match notice {
            FleetEvent::TaskQueued { run, .. } | FleetEvent::RunPaused { run, .. } => {
                *run == self.run
            }
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
            | FleetEvent::EventsSkipped { slot, session, .. }
            | FleetEvent::ApprovalPending { slot, session, .. } => {
                self.working.get(slot) == Some(session)
            }
            FleetEvent::SlotChanged { .. } | FleetEvent::PoolPaused { .. } => true,
            FleetEvent::TaskEnded(report) => report.run == self.run,
        }
    }

    /// Adds a session of the run.
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
