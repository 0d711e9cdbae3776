//! The fleet as the interfaces need it, as a trait, so that they can be tested with a small one.
//!
//! Must not know actors or processes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};

use super::history::{History, JournalHistory};
use marshal_fleet::{
    AnswerError, AnswerReceipt, AnswerRequest, Conversation, ConversationRequest, ConversationView,
    FleetEvent, FleetHandle, LogTail, OpenError, OperatorError, Outages, PolicyStatus, PoolView,
    Readiness, ResumeRunError, RunBounds, SlotView, Stop, SubmitError, TaskReport,
};
use marshal_journal::StoredApproval;
use marshal_model::{PermissionRequestId, PoolName, RunId, SessionId, SlotId, TaskId, TaskSpec};
use marshal_telemetry::labels::ReloadCause;

marshal_model::string_enum!(
    /// The kind of a supervisor.
    SupervisorKind {
        /// It accepts tasks from all clients that may connect.
        Daemon = "daemon",
        /// It runs one list of tasks and then exits.
        Run = "run",
        /// It serves conversations until the editor that started it exits.
        Editor = "editor",
    }
);

/// Why tasks were refused. None of them was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The tasks are invalid: a pool does not exist, or there are too many tasks. The submitter
    /// must change them.
    #[error("{0}")]
    Tasks(String),
    /// The queues are full now.
    #[error("{0}")]
    Full(String),
    /// The fleet cannot accept tasks now: its journal is read-only, or it is stopping.
    #[error("{0}")]
    Fleet(String),
}

/// The reports of one run, each exactly once. The channel has room for all of them and closes after
/// the last.
pub type Reports = mpsc::Receiver<Arc<TaskReport>>;

/// A resumed run of an earlier start.
#[derive(Debug)]
pub struct ResumedRun {
    /// All of its tasks, in order.
    pub tasks: Vec<TaskId>,
    /// The reports of ended tasks, in the order of their ends.
    pub ended: Vec<Arc<TaskReport>>,
    /// The channel for the reports of the others.
    pub reports: Reports,
}

/// A fleet, as its interfaces use it. Clones refer to the same fleet.
pub trait Fleet: Clone + Send + Sync + 'static {
    /// Submits tasks; returns when they are durable. `command` is the journal's word for their
    /// source: `run` or `up`.
    ///
    /// # Errors
    /// [`Refusal`]; then no task was stored.
    fn submit(
        &self,
        run: RunId,
        command: &'static str,
        tasks: Vec<TaskSpec>,
    ) -> impl Future<Output = Result<Reports, Refusal>> + Send;

    /// Sets the limits of a run, before it is submitted or resumed.
    fn set_run_bounds(&self, run: &RunId, bounds: RunBounds);

    /// Resumes a run that an earlier start of the supervisor left unfinished.
    ///
    /// # Errors
    /// [`Refusal::Tasks`] if there is no such run or it is complete; [`Refusal::Full`] if it must
    /// wait. Then nothing was changed.
    fn resume_run(&self, run: RunId) -> impl Future<Output = Result<ResumedRun, Refusal>> + Send;

    /// Subscribes to live events; a slow receiver lags.
    fn subscribe(&self) -> broadcast::Receiver<FleetEvent>;

    /// Returns a reader of the durable past, for subscribers that lagged. Each call returns a new
    /// reader.
    fn history(&self) -> Arc<dyn History>;

    /// Returns the current state of every slot.
    fn slots(&self) -> Vec<SlotView>;

    /// Returns the current state of every pool.
    fn pools(&self) -> Vec<PoolView>;

    /// Stops a slot's child; its next task starts a new one. `false` if there is no such slot.
    fn restart(&self, slot: SlotId) -> impl Future<Output = bool> + Send;

    /// Returns the stderr of a slot's child; `None` if there is no such slot.
    fn logs(&self, slot: &SlotId) -> Option<LogTail>;

    /// Returns the policies of all pools.
    fn policy_status(&self) -> PolicyStatus;

    /// Reloads the policies; either all of them take effect or none does.
    ///
    /// # Errors
    /// What is wrong with them, safe to display.
    fn reload_policies(
        &self,
        cause: ReloadCause,
    ) -> impl Future<Output = Result<usize, String>> + Send;

    /// Returns the digest of the configuration in force.
    fn config_digest(&self) -> String;

    /// Returns whether the fleet accepts work.
    fn readiness(&self) -> Readiness;

    /// Why the journal or the store does nothing, now and at every change.
    fn outages(&self) -> watch::Receiver<Outages>;

    /// Whether a run is paused, because its last tasks were denied.
    fn is_paused(&self, run: &RunId) -> bool;

    /// Starts no further task of a run, and lets its running ones end. The rest is left to
    /// [`Self::resume_run`] of a later start, without reports.
    fn suspend(&self, run: &RunId);

    /// Starts no further task of this run and cancels its running turns; each of its tasks still
    /// gets a report.
    fn cancel(&self, run: &RunId);

    /// Cancels one waiting or running task of a pool; it still gets a report.
    fn cancel_task(
        &self,
        pool: &PoolName,
        run: &RunId,
        task: &TaskId,
    ) -> impl Future<Output = Result<(), OperatorError>> + Send;

    /// Starts nothing any more, and accepts nothing. Running turns may end within `stop.drain`, and
    /// the rest is left to the next start, without reports.
    fn drain(&self);

    /// The longest `stop.drain` of a pool.
    fn drain_time(&self) -> Duration;

    /// Opens a conversation in a free slot of a pool, or loads one.
    ///
    /// # Errors
    /// [`OpenError`]; then nothing was started.
    fn open_conversation(
        &self,
        order: ConversationRequest,
    ) -> impl Future<Output = Result<Conversation, OpenError>> + Send;

    /// Returns a page of the conversations of a pool that can be loaded, after the first `after`.
    ///
    /// # Errors
    /// [`OpenError`]
    fn conversations(
        &self,
        pool: &PoolName,
        after: u32,
    ) -> impl Future<Output = Result<Vec<ConversationView>, OpenError>> + Send;

    /// Ends a conversation for good.
    ///
    /// # Errors
    /// [`OpenError`]
    fn delete_conversation(
        &self,
        pool: &PoolName,
        session: &SessionId,
    ) -> impl Future<Output = Result<(), OpenError>> + Send;

    /// Returns the pending approvals, or the ended ones.
    ///
    /// # Errors
    /// The journal's error.
    fn approvals(
        &self,
        ended: bool,
    ) -> impl Future<Output = Result<Vec<StoredApproval>, String>> + Send;

    /// Returns one approval; `None` if there is none.
    ///
    /// # Errors
    /// The journal's error.
    fn approval(
        &self,
        approval: PermissionRequestId,
    ) -> impl Future<Output = Result<Option<StoredApproval>, String>> + Send;

    /// Returns a counter that grows with each durable change of approvals.
    fn approvals_changed(&self) -> watch::Receiver<u64>;

    /// Waits until everything that was journalled so far is durable, or cannot be.
    fn flush_journal(&self) -> impl Future<Output = ()> + Send;

    /// Answers an approval; returns when the answer is durable.
    ///
    /// # Errors
    /// [`AnswerError`]; then nothing was allowed.
    fn answer(
        &self,
        order: AnswerRequest,
    ) -> impl Future<Output = Result<AnswerReceipt, AnswerError>> + Send;

    /// Stops every child and the fleet. A later call may only be more urgent.
    fn stop(&self, how: Stop) -> impl Future<Output = ()> + Send;
}

impl Fleet for FleetHandle {
    async fn submit(
        &self,
        run: RunId,
        command: &'static str,
        tasks: Vec<TaskSpec>,
    ) -> Result<Reports, Refusal> {
        let submitted = self.submit(run, command, tasks).await;
        submitted.map_err(|error| match error {
            SubmitError::Pool { .. } | SubmitError::TooMany => Refusal::Tasks(error.to_string()),
            _ => Refusal::Fleet(error.to_string()),
        })
    }

    fn set_run_bounds(&self, run: &RunId, bounds: RunBounds) {
        self.set_run_bounds(run, bounds);
    }

    async fn resume_run(&self, run: RunId) -> Result<ResumedRun, Refusal> {
        let taken = self.resume_run(run).await.map_err(|error| match error {
            ResumeRunError::Submit(SubmitError::TooMany) => Refusal::Full(error.to_string()),
            ResumeRunError::Submit(_) => Refusal::Fleet(error.to_string()),
            _ => Refusal::Tasks(error.to_string()),
        })?;
        Ok(ResumedRun {
            tasks: taken.tasks,
            ended: taken.ended,
            reports: taken.reports,
        })
    }

    fn subscribe(&self) -> broadcast::Receiver<FleetEvent> {
        self.subscribe()
    }

    fn history(&self) -> Arc<dyn History> {
        Arc::new(JournalHistory::new(self.journal().clone()))
    }

    fn slots(&self) -> Vec<SlotView> {
        self.slots()
    }

    fn pools(&self) -> Vec<PoolView> {
        self.pool_views()
    }

    async fn restart(&self, slot: SlotId) -> bool {
        self.restart(slot).await.is_ok()
    }

    fn logs(&self, slot: &SlotId) -> Option<LogTail> {
        self.logs(slot)
    }

    fn config_digest(&self) -> String {
        self.config_digest()
    }

    fn policy_status(&self) -> PolicyStatus {
        self.policy_status()
    }

    async fn reload_policies(&self, cause: ReloadCause) -> Result<usize, String> {
        self.reload_policies(cause).await
    }

    fn readiness(&self) -> Readiness {
        self.readiness()
    }

    fn outages(&self) -> watch::Receiver<Outages> {
        self.outages()
    }

    fn is_paused(&self, run: &RunId) -> bool {
        self.is_paused(run)
    }

    fn suspend(&self, run: &RunId) {
        self.suspend(run);
    }

    fn cancel(&self, run: &RunId) {
        self.cancel(run);
    }

    async fn cancel_task(
        &self,
        pool: &PoolName,
        run: &RunId,
        task: &TaskId,
    ) -> Result<(), OperatorError> {
        self.cancel_task(pool, run.clone(), task.clone()).await
    }

    fn drain(&self) {
        self.drain();
    }

    fn drain_time(&self) -> Duration {
        let pools = self.config().pools.iter();
        pools.map(|pool| pool.drain).max().unwrap_or_default()
    }

    async fn open_conversation(
        &self,
        order: ConversationRequest,
    ) -> Result<Conversation, OpenError> {
        self.open_conversation(order).await
    }

    async fn conversations(
        &self,
        pool: &PoolName,
        after: u32,
    ) -> Result<Vec<ConversationView>, OpenError> {
        self.conversations(pool, after).await
    }

    async fn delete_conversation(
        &self,
        pool: &PoolName,
        session: &SessionId,
    ) -> Result<(), OpenError> {
        self.delete_conversation(pool, session).await
    }

    async fn approvals(&self, ended: bool) -> Result<Vec<StoredApproval>, String> {
        self.approvals(ended).await
    }

    async fn approval(
        &self,
        approval: PermissionRequestId,
    ) -> Result<Option<StoredApproval>, String> {
        self.approval(approval).await
    }

    fn approvals_changed(&self) -> watch::Receiver<u64> {
        self.journal().approvals_changed()
    }

    async fn flush_journal(&self) {
        self.flush_journal().await;
    }

    async fn answer(&self, order: AnswerRequest) -> Result<AnswerReceipt, AnswerError> {
        self.answer_approval(order).await
    }

    async fn stop(&self, how: Stop) {
        self.stop(how).await;
    }
}
