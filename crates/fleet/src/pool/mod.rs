//! Pool: N slots that share one agent command, and the tasks that are queued for them.
//!
//! Owns the queue, the slots' states and restart history, and the decision about a task whose
//! attempt ended. Must not know protocols, processes or permission requests.

mod approval_wait;
mod bounds;
mod conversations;
mod drain;
mod ending;
mod operator;
mod queue;
mod rate_limit;
mod session_lifecycle;
mod shares;
mod slot;
mod state;
mod task;

use std::sync::Arc;

use std::collections::{BTreeSet, VecDeque};

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

pub(crate) use conversations::{ConversationMsg, SlotRequest};
pub(crate) use operator::OperatorRequest;
use queue::Queue;
use shares::Shares;
use slot::{RetainedSession, Slot};
use state::PoolState;
pub(crate) use task::{ActiveTask, OpenTasks, PriorAttempts, RunSummary, may_be_sent_again};

use super::clock;
use super::live_actor::{ActorKind, LiveActor};
use super::session::StoredSession;
use super::setup::{PoolShared, Shared};
use super::slot_history::SlotHistory;
use crate::messages::PoolMsg;
use marshal_dialect::lifecycle::pause::Pause;

/// The arguments of a Pool.
pub(crate) struct PoolArgs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    /// The slots' failures and parks from earlier starts, in the order of the slots.
    pub(crate) memory: Vec<SlotHistory>,
    /// Sessions of an earlier start that the slots resume, by slot index.
    pub(crate) stored: Vec<(u16, StoredSession)>,
}

/// The actor; its data is in [`PoolState`].
pub(crate) struct Pool;

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<PoolMsg>,
        args: PoolArgs,
    ) -> Result<PoolState, ActorProcessingErr> {
        let PoolArgs {
            shared,
            pool,
            memory,
            stored,
        } = args;
        let limits = pool.config.rate_limit;
        let shares = Shares::new(pool.config.shares, clock::now());
        let mut memory = memory.into_iter();
        let mut slots: Vec<Slot> = (0..pool.config.max_size)
            .map(|index| Slot::new(&pool.config, index, memory.next().unwrap_or_default()))
            .collect();
        for (index, session) in stored {
            if let Some(slot) = slots.get_mut(usize::from(index)) {
                slot.retained = Some(RetainedSession::Stored(session));
            }
        }
        Ok(PoolState {
            myself,
            _alive: LiveActor::new(ActorKind::Pool),
            shared,
            pool,
            slots,
            queue: Queue::default(),
            shares,
            blocked: Vec::new(),
            pause: Pause::new(limits),
            probe: None,
            must_check_slots: false,
            unloading: BTreeSet::new(),
            slot_requests: VecDeque::new(),
            conversation_count: 0,
            is_draining: false,
            is_interrupted: false,
            stopping: false,
        })
    }

    /// A session ends in the order of messages, although supervision events overtake them: its
    /// last report may still wait.
    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<PoolMsg>,
        event: SupervisionEvent,
        _: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        let (who, why) = match event {
            SupervisionEvent::ActorFailed(who, error) => {
                tracing::error!(%error, "a session failed");
                (who, "the session failed")
            }
            SupervisionEvent::ActorTerminated(who, ..) => {
                (who, "the session ended without a report")
            }
            _ => return Ok(()),
        };
        let who = who.get_id();
        Ok(myself.send_message(PoolMsg::SessionGone { who, why })?)
    }

    async fn handle(
        &self,
        myself: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMsg::Submit(tasks) => state.add_tasks(tasks),
            PoolMsg::DependencyEnded => state.recheck_blocked_tasks(),
            PoolMsg::SlotChanged {
                index,
                session,
                change,
                pid,
            } => state.slot_changed(index, &session, change, pid),
            PoolMsg::SessionGone { who, why } => state.session_lost(who, why),
            PoolMsg::AttemptEnded(attempt) => state.attempt_ended(&attempt),
            PoolMsg::ChildExited {
                index,
                session,
                end,
                idle_session,
            } => state.child_exited(index, &session, &end, &idle_session),
            PoolMsg::SessionClosed {
                index,
                session,
                returned_session,
            } => state.session_closed(index, &session, returned_session),
            PoolMsg::ProbeAnswered { session } => state.probe_answered(&session),
            PoolMsg::ApprovalEnded { expired } => state.approval_ended(expired.as_ref()),
            // `schedule` below does what is needed.
            PoolMsg::PauseEnded | PoolMsg::JobFreed => {}
            PoolMsg::RunLimitReached { run, why, cancels } => {
                state.end_run_tasks(&run, &why, cancels);
            }
            PoolMsg::BackoffEnded { index, round } => state.backoff_ended(index, round),
            PoolMsg::Restart { index, done } => state.restart(index, done),
            PoolMsg::Cancel(run) => state.cancel(&run),
            PoolMsg::Drain => state.drain(),
            PoolMsg::DrainEnded => state.interrupt_turns(),
            PoolMsg::Suspend(run) => state.suspend(&run),
            PoolMsg::Operator { order, done } => state.handle_operator_request(order, done),
            PoolMsg::Conversation(message) => state.handle_conversation_msg(message),
            PoolMsg::Ping(done) => {
                let _ = done.send(());
            }
            PoolMsg::Stop(how) => state.stop(how),
        }
        state.schedule();
        if state.stopping && state.slots.iter().all(Slot::is_free) {
            myself.stop(None);
        }
        Ok(())
    }
}
