//! A small fleet for the tests of the doors and of the command line: no processes, real channels.
//!
//! A task's prompt says what becomes of it: `done`, `deny`, `hang` (until it is cancelled),
//! `flood N` (N events, then done), `stall` (it is never taken in).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use super::history::{History, Worked};
pub(crate) use super::hostile::hostile;
use super::service::{Continued, Fleet, Refusal, Reports};
pub(crate) use super::session_events_tests::EVIL;
use crate::fleet::PoolView;
use crate::fleet::{
    AnswerError, AnswerOrder, Answered, Conversation, ConversationOrder, ConversationView, LogTail,
    Notice, OpenError, PolicyStatus, Readiness, SlotView, Stop, TaskReport,
};
use crate::journal::StoredQuestion;
use crate::model::{
    AskId, DecidedBy, Decision, Event, EventId, Foreign, PoolName, RunId, SessionId, SlotId,
    SlotState, Stamped, TaskId, TaskOutcome, TaskSpec, Usage, Verdict,
};
use crate::telemetry::sets::ReloadCause;

#[derive(Clone)]
pub(crate) struct FakeFleet(Arc<Inner>);

struct Inner {
    notices: broadcast::Sender<Notice>,
    log: broadcast::Sender<Foreign>,
    runs: Mutex<HashMap<RunId, CancellationToken>>,
    /// What an earlier start left of a run: reports, and tasks that wait.
    pub(crate) left: Mutex<HashMap<RunId, Left>>,
    pub(crate) restarts: AtomicUsize,
    reloads: AtomicUsize,
    pub(crate) stops: Mutex<Vec<Stop>>,
    /// Tasks that hang do not even end when they are cancelled, only when killed.
    pub(crate) stubborn: AtomicBool,
    killed: CancellationToken,
    told: Arc<Told>,
}

/// Reports of tasks that ended, and tasks that wait.
type Left = (Vec<TaskReport>, Vec<TaskSpec>);

pub(crate) fn slot(index: u16) -> SlotId {
    SlotId {
        pool: PoolName::new("demo").expect("name"),
        index,
    }
}

pub(crate) fn spec(id: &str, prompt: &str) -> TaskSpec {
    TaskSpec {
        id: TaskId::new(id).expect("id"),
        prompt: prompt.into(),
        pool: None,
        workspace: None,
        attempts: None,
        check: None,
        files: Vec::new(),
        embed: Vec::new(),
        policy_layer: None,
        priority: 0,
        after: Vec::new(),
    }
}

/// A report with nothing in it but its task's end.
pub(crate) fn report(run: &RunId, task: &TaskId, outcome: TaskOutcome) -> TaskReport {
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
        asked: 0,
        unasked_denied: 0,
        denied_by: Vec::new(),
        usage: Usage::default(),
        took: Duration::from_millis(1200),
        changes: Vec::new(),
        changes_cut: false,
        copy: None,
        bundle: None,
        restarts: 0,
        backoff: Duration::ZERO,
        detail: None,
        answer: Foreign::default(),
    }
}

pub(crate) fn event(slot: &SlotId, session: &SessionId, task: &TaskId, event: Event) -> Notice {
    Notice::Events {
        slot: slot.clone(),
        session: session.clone(),
        task: Some(task.clone()),
        events: Arc::new(vec![Stamped {
            id: EventId { epoch: 1, seq: 1 },
            at_us: 1_700_000_000_000_000,
            event,
        }]),
        pin: None,
    }
}

impl FakeFleet {
    pub(crate) fn new() -> Self {
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
            told: Arc::default(),
        }))
    }

    pub(crate) fn be_stubborn(&self) {
        self.0.stubborn.store(true, Ordering::SeqCst);
    }

    pub(crate) fn tell(&self, mut notice: Notice) {
        let mut told = self.0.told.0.lock().expect("lock");
        match &mut notice {
            Notice::Assigned {
                run,
                task,
                slot,
                session,
                attempt,
            } => {
                let worked = Worked {
                    session: session.clone(),
                    slot: slot.clone(),
                    task: Some(task.clone()),
                    attempt: *attempt,
                    is_over: false,
                    after: 0,
                    last: 0,
                };
                told.push((Some(run.clone()), worked, Vec::new()));
            }
            Notice::Events {
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

    pub(crate) fn print(&self, line: &str) {
        let _ = self.0.log.send(line.into());
    }

    pub(crate) fn reloads(&self) -> usize {
        self.0.reloads.load(Ordering::SeqCst)
    }

    pub(crate) fn restarts(&self) -> usize {
        self.0.restarts.load(Ordering::SeqCst)
    }

    pub(crate) fn stops(&self) -> Vec<Stop> {
        self.0.stops.lock().expect("lock").clone()
    }

    async fn work(
        self,
        run: RunId,
        tasks: Vec<TaskSpec>,
        reports: mpsc::Sender<Arc<TaskReport>>,
        cancelled: CancellationToken,
    ) {
        for (index, task) in tasks.into_iter().enumerate() {
            let at = slot(u16::try_from(index % 4).expect("small"));
            let session = SessionId::new(&format!("s-{run}-{index}")).expect("id");
            let skipped = cancelled.is_cancelled();
            let mut report = report(&run, &task.id, TaskOutcome::Skipped);
            if !skipped {
                self.tell(Notice::Assigned {
                    run: run.clone(),
                    task: task.id.clone(),
                    slot: at.clone(),
                    session: session.clone(),
                    attempt: 1,
                });
                report.slot = Some(at.clone());
                report.session = Some(session.clone());
                self.turn(&task, &at, &session, &cancelled, &mut report)
                    .await;
            }
            let report = Arc::new(report);
            let _ = reports.send(Arc::clone(&report)).await;
            self.tell(Notice::Ended(report));
        }
    }

    async fn turn(
        &self,
        task: &TaskSpec,
        at: &SlotId,
        session: &SessionId,
        cancelled: &CancellationToken,
        report: &mut TaskReport,
    ) {
        report.outcome = TaskOutcome::Done;
        match task.prompt.raw().split_once(' ') {
            Some(("flood", number)) => {
                for _ in 0..number.parse().expect("number") {
                    let delta = Event::Text { delta: "x".into() };
                    self.tell(event(at, session, &task.id, delta));
                }
            }
            _ if task.prompt.raw() == "deny" => {
                let verdict = Verdict {
                    ask: AskId::new("a").expect("id"),
                    decision: Decision::Deny,
                    by: DecidedBy::Policy,
                    rules: vec!["developer:network".to_owned()],
                    reason: "no network".to_owned(),
                };
                self.tell(event(at, session, &task.id, Event::Decided(verdict)));
                report.outcome = TaskOutcome::Denied;
                report.denied = 1;
                report.denied_by = vec!["developer:network".to_owned()];
            }
            _ if task.prompt.raw() == "hang" => {
                if self.0.stubborn.load(Ordering::SeqCst) {
                    self.0.killed.cancelled().await;
                    report.outcome = TaskOutcome::Lost;
                } else {
                    cancelled.cancelled().await;
                    report.outcome = TaskOutcome::Cancelled;
                }
            }
            _ => {}
        }
    }
}

impl FakeFleet {
    /// Leaves a run for [`Fleet::take_up`].
    pub(crate) fn leave(&self, run: &RunId, ended: Vec<TaskReport>, waiting: Vec<TaskSpec>) {
        let mut left = self.0.left.lock().expect("lock");
        left.insert(run.clone(), (ended, waiting));
    }
}

/// Everything that the fleet told, as a journal would have it.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Vec<ToldSession>>);

/// A session, its run, and its events.
type ToldSession = (Option<RunId>, Worked, Vec<Stamped>);

impl History for Told {
    fn sessions(&self, run: &RunId) -> Result<Vec<Worked>, String> {
        let told = self.0.lock().expect("lock");
        let of_run = told.iter().filter(|(of, ..)| of.as_ref() == Some(run));
        let worked = of_run.map(|(_, worked, events)| Worked {
            last: events.last().map_or(0, |event| event.id.seq),
            ..worked.clone()
        });
        Ok(worked.collect())
    }

    fn events(&self, session: &SessionId, after: u64) -> Result<Vec<Stamped>, String> {
        let told = self.0.lock().expect("lock");
        let found = told
            .iter()
            .find(|(_, worked, _)| worked.session == *session);
        let events = found.into_iter().flat_map(|(.., events)| events);
        let later = events.filter(|event| event.id.seq > after);
        Ok(later.take(100).cloned().collect())
    }
}

impl Fleet for FakeFleet {
    async fn questions(&self, _: bool) -> Result<Vec<StoredQuestion>, String> {
        Ok(Vec::new())
    }

    async fn question(&self, _: AskId) -> Result<Option<StoredQuestion>, String> {
        Ok(None)
    }

    async fn settled(&self) {}

    fn asks_changed(&self) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::channel(0).1
    }

    async fn answer(&self, order: AnswerOrder) -> Result<Answered, AnswerError> {
        Err(AnswerError::NoSuchAsk(order.ask))
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
        let cancelled = CancellationToken::new();
        let inner = &self.0;
        let mut runs = inner.runs.lock().expect("lock");
        runs.insert(run.clone(), cancelled.clone());
        for task in &tasks {
            self.tell(Notice::Queued {
                run: run.clone(),
                task: task.id.clone(),
                pool: PoolName::new("demo").expect("name"),
            });
        }
        tokio::spawn(self.clone().work(run, tasks, sender, cancelled));
        Ok(receiver)
    }

    fn bound(&self, _: &RunId, _: crate::fleet::RunBounds) {}

    async fn take_up(&self, run: RunId) -> Result<Continued, Refusal> {
        let left = self.0.left.lock().expect("lock").remove(&run);
        let Some((ended, waiting)) = left else {
            return Err(Refusal::Tasks(format!("there is no run {run}")));
        };
        let of_ended = ended.iter().map(|report| report.task.clone());
        let of_waiting = waiting.iter().map(|spec| spec.id.clone());
        Ok(Continued {
            tasks: of_ended.chain(of_waiting).collect(),
            ended: ended.into_iter().map(Arc::new).collect(),
            reports: self.submit(run, "run", waiting).await?,
        })
    }

    fn watch(&self) -> broadcast::Receiver<Notice> {
        self.0.notices.subscribe()
    }

    fn history(&self) -> Arc<dyn History> {
        Arc::clone(&self.0.told) as Arc<dyn History>
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

    async fn converse(&self, _: ConversationOrder) -> Result<Conversation, OpenError> {
        Err(OpenError::Stopping)
    }

    async fn conversations(
        &self,
        _: &PoolName,
        _: u32,
    ) -> Result<Vec<ConversationView>, OpenError> {
        Ok(Vec::new())
    }

    fn cancel(&self, run: &RunId) {
        if let Some(cancelled) = self.0.runs.lock().expect("lock").get(run) {
            cancelled.cancel();
        }
    }

    async fn cancel_task(
        &self,
        _: &PoolName,
        _: &RunId,
        _: &TaskId,
    ) -> Result<(), crate::fleet::OrderError> {
        Err(crate::fleet::OrderError::NotHere)
    }

    fn cancel_all(&self) {
        for cancelled in self.0.runs.lock().expect("lock").values() {
            cancelled.cancel();
        }
    }

    async fn stop(&self, how: Stop) {
        self.0.stops.lock().expect("lock").push(how);
        if how == Stop::Now {
            self.0.killed.cancel();
        } else if self.0.stubborn.load(Ordering::SeqCst) {
            self.0.killed.cancelled().await;
        }
    }
}
