//! A small fleet for the tests of the doors and of the command line: no processes, real channels.
//!
//! A task's prompt says what becomes of it: `done`, `deny`, `hang` (until its run is cancelled or suspended),
//! `flood N` (N events, then done), `stall` (it is never taken in).

#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::new_without_default,
    reason = "for tests, which fail by panicking"
)]

mod hostile_events;
mod session_events;
mod terminals;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use self::hostile_events::hostile_items;
use super::history::{History, SessionSpan};
use super::service::{Fleet, Refusal, Reports, ResumedRun};
use crate::JournalError;
use marshal_fleet::PoolView;
use marshal_fleet::{
    AnswerError, AnswerReceipt, AnswerRequest, Conversation, ConversationRequest, ConversationView,
    FleetEvent, LogTail, OpenError, Outages, PolicyStatus, Readiness, SlotView, Stop, TaskReport,
};
use marshal_journal::StoredApproval;
use marshal_model::{
    DecidedBy, Decision, Event, EventId, PermissionRequestId, PoolName, RunId, SessionId, SlotId,
    SlotState, StampedEvent, TaskId, TaskOutcome, TaskSpec, UnaskedCalls, UntrustedText, Usage,
    Verdict,
};
use marshal_telemetry::labels::ReloadCause;

/// Sequences that would act on a terminal or mislead its reader.
pub const EVIL: &[&str] = &[
    "\u{1b}]0;title\u{7}",
    "\u{1b}]52;c;cm0gLXJm\u{7}",
    "\u{1b}]8;;http://x\u{1b}\\link",
    "\u{1b}[2J\u{1b}[1;1H",
    "\u{9b}31m\u{9d}0;x\u{9c}",
    "a\r\nb\tc\u{8}\u{7f}\u{0}",
    "\u{202e}txt.exe\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}",
];

#[derive(Clone)]
pub struct FakeFleet(Arc<Inner>);

struct Inner {
    notices: broadcast::Sender<FleetEvent>,
    log: broadcast::Sender<UntrustedText>,
    runs: Mutex<HashMap<RunId, RunTokens>>,
    /// What an earlier start left of a run: reports, and tasks that wait.
    pub left: Mutex<HashMap<RunId, Left>>,
    pub restarts: AtomicUsize,
    reloads: AtomicUsize,
    pub stops: Mutex<Vec<Stop>>,
    /// Tasks that hang do not even end when they are cancelled, only when killed.
    pub stubborn: AtomicBool,
    killed: CancellationToken,
    recorded: Arc<RecordedSessions>,
}

/// Reports of tasks that ended, and tasks that wait.
type Left = (Vec<TaskReport>, Vec<TaskSpec>);

pub fn slot(index: u16) -> SlotId {
    SlotId {
        pool: PoolName::new("demo").expect("name"),
        index,
    }
}

pub fn spec(id: &str, prompt: &str) -> TaskSpec {
    TaskSpec {
        id: TaskId::new(id).expect("id"),
        prompt: prompt.into(),
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
    }
}

/// A report with nothing in it but its task's end.
pub fn report(run: &RunId, task: &TaskId, outcome: TaskOutcome) -> TaskReport {
    TaskReport {
        run: run.clone(),
        task: task.clone(),
        pool: PoolName::new("demo").expect("name"),
        slot: Some(slot(0)),
        session: SessionId::new("s-0").ok(),
        outcome,
        attempts: 1,
        allowed: 0,
        denied: 0,
        approvals: 0,
        unasked: UnaskedCalls::default(),
        denied_by: Vec::new(),
        usage: Usage::default(),
        cost: 0,
        took: Duration::from_millis(1200),
        changes: Vec::new(),
        changes_cut: false,
        copy: None,
        bundle: None,
        repos: Vec::new(),
        branch: None,
        check: None,
        landed: None,
        restarts: 0,
        backoff: Duration::ZERO,
        detail: None,
        answer: UntrustedText::default(),
    }
}

pub fn event(slot: &SlotId, session: &SessionId, task: &TaskId, event: Event) -> FleetEvent {
    FleetEvent::SessionEvents {
        slot: slot.clone(),
        session: session.clone(),
        task: Some(task.clone()),
        events: Arc::new(vec![StampedEvent {
            id: EventId { epoch: 1, seq: 1 },
            at_us: 1_700_000_000_000_000,
            event,
        }]),
        permit: None,
    }
}

/// What was asked of a run.
#[derive(Debug, Clone, Default)]
struct RunTokens {
    cancelled: CancellationToken,
    suspended: CancellationToken,
}

impl FakeFleet {
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            notices: broadcast::Sender::new(64),
            log: broadcast::Sender::new(8),
            runs: Mutex::default(),
            left: Mutex::default(),
            restarts: AtomicUsize::new(0),
            reloads: AtomicUsize::new(0),
            stops: Mutex::default(),
            stubborn: AtomicBool::new(false),
            killed: CancellationToken::new(),
            recorded: Arc::default(),
        }))
    }

    pub fn be_stubborn(&self) {
        self.0.stubborn.store(true, Ordering::SeqCst);
    }

    pub fn publish(&self, mut notice: FleetEvent) {
        let mut told = self.0.recorded.0.lock().expect("lock");
        match &mut notice {
            FleetEvent::TaskAssigned {
                run,
                task,
                slot,
                session,
                attempt,
            } => {
                let worked = SessionSpan {
                    session: session.clone(),
                    slot: slot.clone(),
                    task: Some(task.clone()),
                    attempt: *attempt,
                    is_ended: false,
                    after_seq: 0,
                    last_seq: 0,
                };
                told.push((Some(run.clone()), worked, Vec::new()));
            }
            FleetEvent::SessionEvents {
                session, events, ..
            } => {
                // Every event gets the place that a journal would give it.
                let known = told.iter_mut().find(|(_, w, _)| w.session == *session);
                if let Some((.., kept)) = known {
                    for event in Arc::make_mut(events) {
                        event.id.seq = kept.len() as u64 + 1;
                        kept.push(event.clone());
                    }
                }
            }
            _ => {}
        }
        drop(told);
        let _ = self.0.notices.send(notice);
    }

    pub fn print(&self, line: &str) {
        let _ = self.0.log.send(line.into());
    }

    pub fn reloads(&self) -> usize {
        self.0.reloads.load(Ordering::SeqCst)
    }

    pub fn restarts(&self) -> usize {
        self.0.restarts.load(Ordering::SeqCst)
    }

    pub fn stops(&self) -> Vec<Stop> {
        self.0.stops.lock().expect("lock").clone()
    }

    async fn work(
        self,
        run: RunId,
        tasks: Vec<TaskSpec>,
        reports: mpsc::Sender<Arc<TaskReport>>,
        tokens: RunTokens,
    ) {
        for (index, task) in tasks.into_iter().enumerate() {
            let at = slot(u16::try_from(index % 4).expect("small"));
            let session = SessionId::new(&format!("s-{run}-{index}")).expect("id");
            if tokens.suspended.is_cancelled() {
                return;
            }
            let skipped = tokens.cancelled.is_cancelled();
            let mut report = report(&run, &task.id, TaskOutcome::Skipped);
            if !skipped {
                self.publish(FleetEvent::TaskAssigned {
                    run: run.clone(),
                    task: task.id.clone(),
                    slot: at.clone(),
                    session: session.clone(),
                    attempt: 1,
                });
                report.slot = Some(at.clone());
                report.session = Some(session.clone());
                self.turn(&task, &at, &session, &tokens, &mut report).await;
            }
            let report = Arc::new(report);
            let _ = reports.send(Arc::clone(&report)).await;
            self.publish(FleetEvent::TaskEnded(report));
        }
    }

    async fn turn(
        &self,
        task: &TaskSpec,
        at: &SlotId,
        session: &SessionId,
        tokens: &RunTokens,
        report: &mut TaskReport,
    ) {
        report.outcome = TaskOutcome::Done;
        match task.prompt.raw().split_once(' ') {
            Some(("flood", number)) => {
                for _ in 0..number.parse().expect("number") {
                    let delta = Event::Text { delta: "x".into() };
                    self.publish(event(at, session, &task.id, delta));
                }
            }
            _ if task.prompt.raw() == "deny" => {
                let verdict = Verdict {
                    request: PermissionRequestId::new("a").expect("id"),
                    decision: Decision::Deny,
                    decided_by: DecidedBy::Policy,
                    rules: vec!["developer:network".to_owned()],
                    reason: "no network".to_owned(),
                };
                self.publish(event(
                    at,
                    session,
                    &task.id,
                    Event::PermissionDecided(verdict),
                ));
                report.outcome = TaskOutcome::Denied;
                report.denied = 1;
                report.denied_by = vec!["developer:network".to_owned()];
            }
            _ if task.prompt.raw() == "hang" => {
                if self.0.stubborn.load(Ordering::SeqCst) {
                    self.0.killed.cancelled().await;
                    report.outcome = TaskOutcome::Lost;
                } else {
                    tokio::select! {
                        () = tokens.cancelled.cancelled() => report.outcome = TaskOutcome::Cancelled,
                        () = tokens.suspended.cancelled() => {}
                    }
                }
            }
            _ => {}
        }
    }
}

impl FakeFleet {
    /// Leaves a run for [`Fleet::take_up`].
    pub fn leave(&self, run: &RunId, ended: Vec<TaskReport>, waiting: Vec<TaskSpec>) {
        let mut left = self.0.left.lock().expect("lock");
        left.insert(run.clone(), (ended, waiting));
    }
}

/// Everything that the fleet told, as a journal would have it.
#[derive(Debug, Default)]
pub struct RecordedSessions(Mutex<Vec<RecordedSession>>);

/// A session, its run, and its events.
type RecordedSession = (Option<RunId>, SessionSpan, Vec<StampedEvent>);

impl History for RecordedSessions {
    fn sessions(&self, run: &RunId) -> Result<Vec<SessionSpan>, JournalError> {
        let told = self.0.lock().expect("lock");
        let of_run = told.iter().filter(|(item, ..)| item.as_ref() == Some(run));
        let worked = of_run.map(|(_, worked, events)| SessionSpan {
            last_seq: events.last().map_or(0, |event| event.id.seq),
            ..worked.clone()
        });
        Ok(worked.collect())
    }

    fn events(&self, session: &SessionId, after: u64) -> Result<Vec<StampedEvent>, JournalError> {
        let told = self.0.lock().expect("lock");
        let found = told
            .iter()
            .find(|(_, worked, _)| worked.session == *session);
        let events = found.into_iter().flat_map(|(.., events)| events);
        let later = events.filter(|event| event.id.seq > after);
        Ok(later.take(100).cloned().collect())
    }
}

/// Of a journal and a store that never fail.
pub(crate) fn no_outages() -> watch::Receiver<Outages> {
    watch::channel(Outages::default()).1
}

impl Fleet for FakeFleet {
    async fn approvals(&self, _: bool) -> Result<Vec<StoredApproval>, String> {
        Ok(Vec::new())
    }

    async fn approval(&self, _: PermissionRequestId) -> Result<Option<StoredApproval>, String> {
        Ok(None)
    }

    async fn flush_journal(&self) {}

    fn approvals_changed(&self) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::channel(0).1
    }

    async fn answer(&self, order: AnswerRequest) -> Result<AnswerReceipt, AnswerError> {
        Err(AnswerError::NoSuchApproval(order.request_id))
    }

    async fn submit(
        &self,
        run: RunId,
        _command: &'static str,
        tasks: Vec<TaskSpec>,
    ) -> Result<Reports, Refusal> {
        if tasks.iter().any(|task| task.prompt.raw() == "refuse") {
            return Err(Refusal::Fleet("the journal is read-only".to_owned()));
        }
        if tasks.iter().any(|task| task.prompt.raw() == "stall") {
            std::future::pending::<()>().await;
        }
        if tasks.iter().any(|task| task.pool.is_some()) {
            return Err(Refusal::Tasks("there is no such pool".to_owned()));
        }
        let (sender, receiver) = mpsc::channel(tasks.len().max(1));
        let tokens = RunTokens::default();
        let inner = &self.0;
        let mut runs = inner.runs.lock().expect("lock");
        runs.insert(run.clone(), tokens.clone());
        for task in &tasks {
            self.publish(FleetEvent::TaskQueued {
                run: run.clone(),
                task: task.id.clone(),
                pool: PoolName::new("demo").expect("name"),
            });
        }
        tokio::spawn(self.clone().work(run, tasks, sender, tokens));
        Ok(receiver)
    }

    fn set_run_bounds(&self, _: &RunId, _: marshal_fleet::RunBounds) {}

    async fn resume_run(&self, run: RunId) -> Result<ResumedRun, Refusal> {
        let left = self.0.left.lock().expect("lock").remove(&run);
        let Some((ended, waiting)) = left else {
            return Err(Refusal::Tasks(format!("there is no run {run}")));
        };
        let of_ended = ended.iter().map(|report| report.task.clone());
        let of_waiting = waiting.iter().map(|spec| spec.id.clone());
        Ok(ResumedRun {
            tasks: of_ended.chain(of_waiting).collect(),
            ended: ended.into_iter().map(Arc::new).collect(),
            reports: self.submit(run, "run", waiting).await?,
        })
    }

    fn subscribe(&self) -> broadcast::Receiver<FleetEvent> {
        self.0.notices.subscribe()
    }

    fn history(&self) -> Arc<dyn History> {
        Arc::clone(&self.0.recorded) as Arc<dyn History>
    }

    fn pools(&self) -> Vec<PoolView> {
        Vec::new()
    }

    fn slots(&self) -> Vec<SlotView> {
        (0..4)
            .map(|index| SlotView {
                slot: slot(index),
                state: SlotState::Unloaded,
                pid: None,
                session: None,
                task: None,
                note: None,
                started_at: None,
                up: false,
                last_exit_code: None,
                turns: None,
            })
            .collect()
    }

    async fn restart(&self, slot: SlotId) -> bool {
        let there = slot.index < 4;
        self.0
            .restarts
            .fetch_add(usize::from(there), Ordering::SeqCst);
        there
    }

    fn logs(&self, slot: &SlotId) -> Option<LogTail> {
        (slot.index < 4).then(|| LogTail {
            backlog: vec!["first".into(), "second\u{1b}[2J".into()],
            live: self.0.log.subscribe(),
        })
    }

    fn config_digest(&self) -> String {
        "digest".to_owned()
    }

    fn policy_status(&self) -> PolicyStatus {
        PolicyStatus::default()
    }

    async fn reload_policies(&self, _: ReloadCause) -> Result<usize, String> {
        self.0.reloads.fetch_add(1, Ordering::SeqCst);
        Err("line 3: unknown field".to_owned())
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn outages(&self) -> watch::Receiver<Outages> {
        no_outages()
    }

    async fn open_conversation(&self, _: ConversationRequest) -> Result<Conversation, OpenError> {
        Err(OpenError::Stopping)
    }

    async fn conversations(
        &self,
        _: &PoolName,
        _: u32,
    ) -> Result<Vec<ConversationView>, OpenError> {
        Ok(Vec::new())
    }

    async fn delete_conversation(&self, _: &PoolName, of: &SessionId) -> Result<(), OpenError> {
        Err(OpenError::NoSuchSession(of.clone()))
    }

    fn cancel(&self, run: &RunId) {
        if let Some(tokens) = self.0.runs.lock().expect("lock").get(run) {
            tokens.cancelled.cancel();
        }
    }

    fn is_paused(&self, _: &RunId) -> bool {
        false
    }

    fn suspend(&self, run: &RunId) {
        if let Some(tokens) = self.0.runs.lock().expect("lock").get(run) {
            tokens.suspended.cancel();
        }
    }

    async fn cancel_task(
        &self,
        _: &PoolName,
        _: &RunId,
        _: &TaskId,
    ) -> Result<(), marshal_fleet::OperatorError> {
        Err(marshal_fleet::OperatorError::NotInPool)
    }

    fn drain(&self) {
        for tokens in self.0.runs.lock().expect("lock").values() {
            tokens.suspended.cancel();
        }
    }

    fn drain_time(&self) -> Duration {
        Duration::from_secs(30)
    }

    async fn stop(&self, how: Stop) {
        self.0.stops.lock().expect("lock").push(how);
        self.drain();
        if how == Stop::Kill {
            self.0.killed.cancel();
        } else if self.0.stubborn.load(Ordering::SeqCst) {
            self.0.killed.cancelled().await;
        }
    }
}
