//! Orders of an operator to a running fleet: pause, drain or resize a pool, and end one task, turn
//! or session.
//!
//! Must not know who the caller is. A pool's phase and width last until the supervisor ends.

use tokio::sync::oneshot;

use crate::FleetHandle;
use crate::messages::PoolMsg;
use crate::pool::OperatorRequest;
use crate::setup::PoolShared;
use marshal_model::{PoolName, PoolPhase, RunId, SessionId, TaskId};

/// Why an order was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// No slot and no queue of the pool has the task or session.
    #[error("it is in no slot and no queue of the pool: it has ended, or is not resumed yet")]
    NotInPool,
    /// The fleet has no such pool.
    #[error("there is no such pool")]
    NoSuchPool,
    /// The session is idle.
    #[error("the session has no turn now")]
    NoTurn,
    /// The session belongs to a client.
    #[error(
        "the session belongs to a client's conversation: interrupt its turn, or close it in the client"
    )]
    OwnedByClient,
    /// The width is not from 1 to `max_size`. A resize cannot exceed `max_size`, because each
    /// slot's uid, control groups and memory share are assigned when the supervisor starts.
    #[error(
        "the pool has {0} slots: give a number from 1 to {0}, or raise max_size and restart the supervisor"
    )]
    InvalidSize(u16),
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// The result of an order.
pub(crate) type OperatorResult = Result<(), OperatorError>;

impl PoolShared {
    /// Whether the pool runs, pauses or drains.
    pub(crate) fn phase(&self) -> PoolPhase {
        self.phase_and_width().0
    }

    /// How many slots receive tasks, counted from the first one.
    pub(crate) fn width(&self) -> u16 {
        self.phase_and_width().1
    }

    /// Whether a slot receives tasks now.
    pub(crate) fn is_slot_enabled(&self, index: usize) -> bool {
        let (phase, width) = self.phase_and_width();
        phase == PoolPhase::Running && index < usize::from(width)
    }

    /// Whether a slot's child must be stopped when it is idle.
    pub(crate) fn must_unload(&self, index: u16) -> bool {
        let (phase, width) = self.phase_and_width();
        phase == PoolPhase::Draining || index >= width
    }

    fn phase_and_width(&self) -> (PoolPhase, u16) {
        *self
            .phase_and_width
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn update_phase_and_width(&self, change: impl FnOnce(&mut (PoolPhase, u16))) {
        change(
            &mut self
                .phase_and_width
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
    }
}

impl FleetHandle {
    /// Sets a pool's phase: whether its tasks begin.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn set_phase(&self, pool: &PoolName, phase: PoolPhase) -> Result<(), OperatorError> {
        let entry = self.0.pools.get(pool).ok_or(OperatorError::NoSuchPool)?;
        entry.shared.update_phase_and_width(|now| now.0 = phase);
        self.send_operator_request(pool, OperatorRequest::PhaseOrWidthChanged)
            .await
    }

    /// Only the first `width` slots of a pool receive tasks from now on. The others finish their
    /// current task.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn resize(&self, pool: &PoolName, width: u16) -> Result<(), OperatorError> {
        let entry = self.0.pools.get(pool).ok_or(OperatorError::NoSuchPool)?;
        let size = entry.shared.config.max_size;
        if !(1..=size).contains(&width) {
            return Err(OperatorError::InvalidSize(size));
        }
        entry.shared.update_phase_and_width(|now| now.1 = width);
        self.send_operator_request(pool, OperatorRequest::PhaseOrWidthChanged)
            .await
    }

    /// Cancels one queued or running task; it is still reported.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn cancel_task(
        &self,
        pool: &PoolName,
        run: RunId,
        task: TaskId,
    ) -> Result<(), OperatorError> {
        self.send_operator_request(pool, OperatorRequest::CancelTask { run, task })
            .await
    }

    /// Interrupts a session's turn.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn interrupt(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(), OperatorError> {
        self.send_operator_request(pool, OperatorRequest::Interrupt(session))
            .await
    }

    /// Cancels a session's turn and ends the session.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn stop_session(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(), OperatorError> {
        self.send_operator_request(pool, OperatorRequest::StopSession(session))
            .await
    }

    async fn send_operator_request(
        &self,
        pool: &PoolName,
        order: OperatorRequest,
    ) -> Result<(), OperatorError> {
        let entry = self.0.pools.get(pool).ok_or(OperatorError::NoSuchPool)?;
        let (done, result) = oneshot::channel();
        let sent = entry.actor.send_message(PoolMsg::Operator { order, done });
        sent.map_err(|_| OperatorError::Stopping)?;
        result.await.unwrap_or(Err(OperatorError::Stopping))
    }
}
