//! What the doors need of a fleet, as a trait, so that they can be tested with a small one.
//!
//! Must not know actors or processes.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};

use super::history::{History, JournalHistory};
use marshal_fleet::{
    AnswerError, AnswerReceipt, AnswerRequest, Conversation, ConversationRequest, ConversationView,
    FleetEvent, FleetHandle, LogTail, OpenError, OperatorError, PolicyStatus, PoolView, Readiness,
    ResumeRunError, RunBounds, SlotView, Stop, SubmitError, TaskReport,
};
use marshal_journal::StoredApproval;
use marshal_model::{PermissionRequestId, PoolName, RunId, SlotId, TaskId, TaskSpec};
use marshal_telemetry::labels::ReloadCause;

/// Why tasks were not taken in. Nothing of them was kept then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The tasks are at fault: a pool that does not exist, too many of them. Whoever gave them
    /// must change them.
    #[error("{0}")]
    Tasks(String),
    /// The queues have no room now.
    #[error("{0}")]
    Full(String),
    /// The fleet cannot take tasks in now: its journal is read-only, or it stops.
    #[error("{0}")]
    Fleet(String),
}

/// The reports of one run, each once and none lost; it has room for all of them and closes after
/// the last.
pub type Reports = mpsc::Receiver<Arc<TaskReport>>;

/// A run of an earlier start, which goes on.
#[derive(Debug)]
pub struct ResumedRun {
    /// All of its tasks, in their order.
    pub tasks: Vec<TaskId>,
    /// The reports of those that had ended, in the order of their ends.
    pub ended: Vec<Arc<TaskReport>>,
    /// The reports of the others.
    pub reports: Reports,
}

/// A fleet, as its doors see it. Clones are the same fleet.
pub trait Fleet: Clone + Send + Sync + 'static {
    /// Takes tasks in; returns when they are durable. `command` is the journal's word for who
    /// gave them: `run` or `up`.
    ///
    /// # Errors
    /// [`CommandRefusal`]; none of the tasks was taken in then.
    fn submit(
        &self,
        run: RunId,
        command: &'static str,
        tasks: Vec<TaskSpec>,
    ) -> impl Future<Output = Result<Reports, Refusal>> + Send;

    /// Says what bounds a run, before it is submitted or taken up.
    fn set_run_bounds(&self, run: &RunId, bounds: RunBounds);

    /// Goes on with a run that an earlier start of the supervisor left unfinished.
    ///
    /// # Errors
    /// [`Refusal::Tasks`] if there is no such run, or nothing of it is left; [`Refusal::Full`] if
    /// it must wait; nothing was changed then.
    fn resume_run(&self, run: RunId) -> impl Future<Output = Result<ResumedRun, Refusal>> + Send;

    /// Everything as it happens; a slow receiver lags.
    fn subscribe(&self) -> broadcast::Receiver<FleetEvent>;

    /// What is durable, for watchers that lagged. A reader of its own for each call.
    fn history(&self) -> Arc<dyn History>;

    /// Every slot, as it is now.
    fn slots(&self) -> Vec<SlotView>;

    /// Every pool, as it is now.
    fn pools(&self) -> Vec<PoolView>;

    /// Stops a slot's child; its next work starts a new one. `false` if there is no such slot.
    fn restart(&self, slot: SlotId) -> impl Future<Output = bool> + Send;

    /// The stderr of a slot's child; `None` if there is no such slot.
    fn logs(&self, slot: &SlotId) -> Option<LogTail>;

    /// What judges each pool's requests.
    fn policy_status(&self) -> PolicyStatus;

    /// Reads the policies again; those of all pools come into force, or none.
    ///
    /// # Errors
    /// What is wrong with them, made to be shown.
    fn reload_policies(
        &self,
        cause: ReloadCause,
    ) -> impl Future<Output = Result<usize, String>> + Send;

    /// Whether the fleet can take work.
    fn readiness(&self) -> Readiness;

    /// Begins no further task of this run and cancels its running turns; each of its tasks still
    /// gets its end.
    fn cancel(&self, run: &RunId);

    /// Ends one task of a pool that waits or is worked; it still gets its end.
    fn cancel_task(
        &self,
        pool: &PoolName,
        run: &RunId,
        task: &TaskId,
    ) -> impl Future<Output = Result<(), OperatorError>> + Send;

    /// The same for every run.
    fn cancel_all(&self);

    /// Opens a conversation in a free slot of a pool, or loads one.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was begun then.
    fn open_conversation(
        &self,
        order: ConversationRequest,
    ) -> impl Future<Output = Result<Conversation, OpenError>> + Send;

    /// One page of the conversations of a pool that can be loaded, after so many.
    ///
    /// # Errors
    /// [`OpenError`]
    fn conversations(
        &self,
        pool: &PoolName,
        after: u32,
    ) -> impl Future<Output = Result<Vec<ConversationView>, OpenError>> + Send;

    /// The approvals that wait for people, or those that are over.
    ///
    /// # Errors
    /// What the journal says.
    fn approvals(
        &self,
        over: bool,
    ) -> impl Future<Output = Result<Vec<StoredApproval>, String>> + Send;

    /// One approval; `None` if there is none.
    ///
    /// # Errors
    /// What the journal says.
    fn approval(
        &self,
        approval: PermissionRequestId,
    ) -> impl Future<Output = Result<Option<StoredApproval>, String>> + Send;

    /// A number that grows each time that asks changed and the change is durable.
    fn approvals_changed(&self) -> watch::Receiver<u64>;

    /// Returns when everything that was journalled so far is durable, or cannot be.
    fn flush_journal(&self) -> impl Future<Output = ()> + Send;

    /// Answers an approval; returns when that is durable.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing is allowed then.
    fn answer(
        &self,
        order: AnswerRequest,
    ) -> impl Future<Output = Result<AnswerReceipt, AnswerError>> + Send;

    /// Stops every child and ends the fleet. A second call with [`Stop::Now`] overtakes a first
    /// graceful one.
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

    fn policy_status(&self) -> PolicyStatus {
        self.policy_status()
    }

    async fn reload_policies(&self, cause: ReloadCause) -> Result<usize, String> {
        self.reload_policies(cause).await
    }

    fn readiness(&self) -> Readiness {
        self.readiness()
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

    fn cancel_all(&self) {
        self.cancel_all();
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

    async fn approvals(&self, over: bool) -> Result<Vec<StoredApproval>, String> {
        self.approvals(over).await
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
