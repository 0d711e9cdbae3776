//! What people order of a running fleet: how tasks flow in a pool, how many of its slots work, the end
//! of one task, turn or session.
//!
//! Must not know who orders. Flow and width last until the supervisor ends.

use tokio::sync::oneshot;

use super::FleetHandle;
use super::pool::{OperatorRequest, PoolMsg};
use super::setup::PoolShared;
use marshal_model::{PoolName, PoolPhase, RunId, SessionId, TaskId};

/// Why an order is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// Nothing of this name is in a slot or a queue of the pool.
    #[error("it is in no slot and no queue now: it has ended, or is not taken up yet")]
    NotInPool,
    /// The session waits.
    #[error("the session has no turn now")]
    NoTurn,
    /// The session belongs to a client.
    #[error("the session is a client's conversation: interrupt its turn, or have its client leave")]
    OwnedByClient,
    /// Each slot has its uid, its groups and its share of memory from the start on.
    #[error(
        "the pool has {0} slots: give a number from 1 to that, or raise its max_size and start again"
    )]
    InvalidSize(u16),
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// What came of an order.
pub(crate) type OperatorResult = Result<(), OperatorError>;

impl PoolShared {
    /// How tasks flow.
    pub(crate) fn phase(&self) -> PoolPhase {
        self.phase_and_width().0
    }

    /// How many slots get tasks.
    pub(crate) fn width(&self) -> u16 {
        self.phase_and_width().1
    }

    /// Whether a slot gets tasks.
    pub(crate) fn is_slot_enabled(&self, index: usize) -> bool {
        let (flow, width) = self.phase_and_width();
        flow == PoolPhase::Running && index < usize::from(width)
    }

    /// Whether a slot's child has to go when it has nothing to do.
    pub(crate) fn must_unload(&self, index: u16) -> bool {
        let (flow, width) = self.phase_and_width();
        flow == PoolPhase::Draining || index >= width
    }

    fn phase_and_width(&self) -> (PoolPhase, u16) {
        *self
            .phase_and_width
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn update_phase(&self, change: impl FnOnce(&mut (PoolPhase, u16))) {
        change(
            &mut self
                .phase_and_width
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
    }
}

impl FleetHandle {
    /// Has a pool's tasks begin, or wait.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn set_phase(&self, pool: &PoolName, flow: PoolPhase) -> Result<(), OperatorError> {
        let entry = self.0.pools.get(pool).ok_or(OperatorError::NotInPool)?;
        entry.shared.update_phase(|now| now.0 = flow);
        self.send_operator_request(pool, OperatorRequest::PhaseChanged)
            .await
    }

    /// Has so many of a pool's slots get tasks: the first ones. Others end what they work.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub async fn resize(&self, pool: &PoolName, width: u16) -> Result<(), OperatorError> {
        let entry = self.0.pools.get(pool).ok_or(OperatorError::NotInPool)?;
        let size = entry.shared.config.max_size;
        if !(1..=size).contains(&width) {
            return Err(OperatorError::InvalidSize(size));
        }
        entry.shared.update_phase(|now| now.1 = width);
        self.send_operator_request(pool, OperatorRequest::PhaseChanged)
            .await
    }

    /// Ends one task that waits or is worked; it is still reported.
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

    /// Ends a session's turn.
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

    /// Ends a session, its turn first.
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
        let entry = self.0.pools.get(pool).ok_or(OperatorError::NotInPool)?;
        let (done, heard) = oneshot::channel();
        let sent = entry.actor.send_message(PoolMsg::Operator { order, done });
        sent.map_err(|_| OperatorError::Stopping)?;
        heard.await.unwrap_or(Err(OperatorError::Stopping))
    }
}
