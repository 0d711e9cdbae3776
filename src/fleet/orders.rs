//! What people order of a running fleet: how tasks flow in a pool, how many of its slots work, the end
//! of one task, turn or session.
//!
//! Must not know who orders. Flow and width last until the supervisor ends.

use tokio::sync::oneshot;

use super::FleetHandle;
use super::pool::{Order, PoolMsg};
use super::setup::PoolShared;
use crate::model::{PoolFlow, PoolName, RunId, SessionId, TaskId};

/// Why an order is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Nothing of this name is in a slot or a queue of the pool.
    #[error("it is in no slot and no queue now: it has ended, or is not taken up yet")]
    NotHere,
    /// The session waits.
    #[error("the session has no turn now")]
    NoTurn,
    /// The session belongs to a client.
    #[error("the session is a client's conversation: interrupt its turn, or have its client leave")]
    Clients,
    /// Each slot has its uid, its groups and its share of memory from the start on.
    #[error(
        "the pool has {0} slots: give a number from 1 to that, or raise its max_size and start again"
    )]
    Size(u16),
    /// The fleet is stopping.
    #[error("the fleet is stopping")]
    Stopping,
}

/// What came of an order.
pub(crate) type Ordered = Result<(), OrderError>;

impl PoolShared {
    /// How tasks flow.
    pub(crate) fn flow(&self) -> PoolFlow {
        self.flowing().0
    }

    /// How many slots get tasks.
    pub(crate) fn width(&self) -> u16 {
        self.flowing().1
    }

    /// Whether a slot gets tasks.
    pub(crate) fn gives_to(&self, index: usize) -> bool {
        let (flow, width) = self.flowing();
        flow == PoolFlow::Running && index < usize::from(width)
    }

    /// Whether a slot's child has to go when it has nothing to do.
    pub(crate) fn unloads(&self, index: u16) -> bool {
        let (flow, width) = self.flowing();
        flow == PoolFlow::Draining || index >= width
    }

    fn flowing(&self) -> (PoolFlow, u16) {
        *self
            .flow
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn flows(&self, change: impl FnOnce(&mut (PoolFlow, u16))) {
        change(
            &mut self
                .flow
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
    }
}

impl FleetHandle {
    /// Has a pool's tasks begin, or wait.
    ///
    /// # Errors
    /// [`OrderError`]
    pub async fn set_flow(&self, pool: &PoolName, flow: PoolFlow) -> Result<(), OrderError> {
        let entry = self.0.pools.get(pool).ok_or(OrderError::NotHere)?;
        entry.shared.flows(|now| now.0 = flow);
        self.order(pool, Order::Changed).await
    }

    /// Has so many of a pool's slots get tasks: the first ones. Others end what they work.
    ///
    /// # Errors
    /// [`OrderError`]
    pub async fn resize(&self, pool: &PoolName, width: u16) -> Result<(), OrderError> {
        let entry = self.0.pools.get(pool).ok_or(OrderError::NotHere)?;
        let size = entry.shared.config.max_size;
        if !(1..=size).contains(&width) {
            return Err(OrderError::Size(size));
        }
        entry.shared.flows(|now| now.1 = width);
        self.order(pool, Order::Changed).await
    }

    /// Ends one task that waits or is worked; it is still reported.
    ///
    /// # Errors
    /// [`OrderError`]
    pub async fn cancel_task(
        &self,
        pool: &PoolName,
        run: RunId,
        task: TaskId,
    ) -> Result<(), OrderError> {
        self.order(pool, Order::CancelTask { run, task }).await
    }

    /// Ends a session's turn.
    ///
    /// # Errors
    /// [`OrderError`]
    pub async fn interrupt(&self, pool: &PoolName, session: SessionId) -> Result<(), OrderError> {
        self.order(pool, Order::Interrupt(session)).await
    }

    /// Ends a session, its turn first.
    ///
    /// # Errors
    /// [`OrderError`]
    pub async fn stop_session(
        &self,
        pool: &PoolName,
        session: SessionId,
    ) -> Result<(), OrderError> {
        self.order(pool, Order::StopSession(session)).await
    }

    async fn order(&self, pool: &PoolName, order: Order) -> Result<(), OrderError> {
        let entry = self.0.pools.get(pool).ok_or(OrderError::NotHere)?;
        let (done, heard) = oneshot::channel();
        let sent = entry.actor.send_message(PoolMsg::Order { order, done });
        sent.map_err(|_| OrderError::Stopping)?;
        heard.await.unwrap_or(Err(OrderError::Stopping))
    }
}
