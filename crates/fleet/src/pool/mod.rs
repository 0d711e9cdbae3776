//! Pool: N slots that share one agent command, and the tasks that wait for them.
//!
//! Owns the queue, the slots' states, their restart history and what becomes of a task whose
//! attempt ended. Must not know protocols, processes or permission requests.

mod approval_wait;
mod bounds;
mod conversations;
mod ending;
mod operator;
mod queue;
mod rate_limit;
mod session_lifecycle;
mod slot;
mod state;
mod task;

use std::sync::Arc;

use std::collections::{BTreeSet, VecDeque};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

pub(crate) use conversations::{ConversationMsg, SlotRequest};
pub(crate) use operator::OperatorRequest;
use queue::Queue;
use slot::{RetainedSession, Slot};
use state::PoolState;
pub(crate) use task::{ActiveTask, OpenTasks, PriorAttempts, RunSummary};

use super::channel::ChannelEnd;
use super::operator::OperatorResult;
use super::session::{Attempt, IdleSession, SessionRef, StoredSession};
use super::setup::{PoolShared, Shared};
use super::slot_history::SlotHistory;
use marshal_dialect::lifecycle::pause::Pause;
use marshal_dialect::lifecycle::state::SlotEvent;
use marshal_model::{PermissionRequestId, RunId, SessionId};

/// What a Pool hears.
#[derive(Debug)]
pub(crate) enum PoolMsg {
    /// Tasks, already durable, wait for a slot.
    Submit(Vec<ActiveTask>),
    /// Something that a task may come after has ended.
    DependencyEnded,
    /// A slot's session moved on.
    SlotChanged {
        /// Which slot.
        index: u16,
        /// Which session says so: a late word of an earlier one is no news.
        session: SessionId,
        /// What happened.
        change: SlotEvent,
        /// The process, where one was started.
        pid: Option<u32>,
    },
    /// A session is over.
    AttemptEnded(Box<Attempt>),
    /// A session between tasks lost its child.
    ChildExited {
        /// Which slot.
        index: u16,
        /// Which session.
        session: SessionId,
        /// How the child ended.
        end: Box<ChannelEnd>,
        /// Whether the session could go on.
        idle_session: IdleSession,
    },
    /// A session between tasks is closed.
    SessionClosed {
        /// Which slot.
        index: u16,
        /// Which session.
        session: SessionId,
        /// It could not be prepared before it had a task, and is as it was.
        returned_session: Option<StoredSession>,
    },
    /// The task that tried whether the provider takes requests again got an answer.
    ProbeAnswered {
        /// In which session.
        session: SessionId,
    },
    /// A question that a task may wait for has an answer, or has expired.
    ApprovalEnded {
        /// It has expired.
        expired: Option<PermissionRequestId>,
    },
    /// A pause may be over.
    PauseEnded,
    /// A slot's backoff is over.
    BackoffEnded {
        /// Which slot.
        index: u16,
        /// Which backoff: a restart by hand makes an earlier one void.
        round: u64,
    },
    /// End the slot's child, if one runs, and start afresh; unparks.
    Restart {
        /// Which slot.
        index: u16,
        /// Told when the old child, and its whole tree, are gone.
        done: oneshot::Sender<()>,
    },
    /// Start no new task, cancel running turns: of one run, or of all and for good.
    Cancel(Option<RunId>),
    /// A bound of a run is reached: none of its tasks begins any more.
    RunLimitReached {
        /// Which run.
        run: RunId,
        /// Why, for its tasks that wait.
        why: String,
        /// Those that are worked are cancelled, too.
        cancels: bool,
    },
    /// A task of a run with a bound on how many are worked at once made its place free.
    JobFreed,
    /// A session's actor is gone, with or without a report.
    SessionGone {
        /// Which actor.
        who: SessionRef,
        /// Why, if nothing else was said.
        why: &'static str,
    },
    /// People order something.
    Operator {
        /// What.
        order: OperatorRequest,
        /// Who waits to hear what came of it.
        done: oneshot::Sender<OperatorResult>,
    },
    /// A client wants something of its conversation.
    Conversation(ConversationMsg),
    /// End every child, then the pool.
    Stop {
        /// Without the ladder.
        now: bool,
    },
}

/// What a Pool is started with.
pub(crate) struct PoolArgs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PoolShared>,
    /// What its slots remember, in their order.
    pub(crate) memory: Vec<SlotHistory>,
    /// Sessions that an earlier start of the supervisor left to its slots.
    pub(crate) stored: Vec<(u16, StoredSession)>,
}

/// N slots and a queue.
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
            shared,
            pool,
            slots,
            queue: Queue::default(),
            blocked: Vec::new(),
            pause: Pause::new(limits),
            probe: None,
            has_stopping_sessions: false,
            unloading: BTreeSet::new(),
            slot_requests: VecDeque::new(),
            conversation_count: 0,
            cancelled: false,
            stopping: false,
        })
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
            PoolMsg::AttemptEnded(attempt) => state.attempt_ended(&attempt),
            PoolMsg::ChildExited {
                index,
                session,
                end,
                idle_session: stays,
            } => state.child_exited(index, &session, &end, &stays),
            PoolMsg::SessionClosed {
                index,
                session,
                returned_session: given_back,
            } => state.session_closed(index, &session, given_back),
            PoolMsg::ProbeAnswered { session } => state.probe_answered(&session),
            PoolMsg::ApprovalEnded { expired } => state.approval_ended(expired.as_ref()),
            // What follows is settled below.
            PoolMsg::PauseEnded | PoolMsg::JobFreed => {}
            PoolMsg::RunLimitReached { run, why, cancels } => {
                state.end_run_tasks(&run, &why, cancels);
            }
            PoolMsg::BackoffEnded { index, round } => state.backoff_ended(index, round),
            PoolMsg::Restart { index, done } => state.restart(index, done),
            PoolMsg::Cancel(run) => state.cancel(run.as_ref()),
            PoolMsg::Operator { order, done } => state.handle_operator_request(order, done),
            PoolMsg::Conversation(talk) => state.handle_conversation_msg(talk),
            PoolMsg::Stop { now } => state.stop(now),
            PoolMsg::SessionGone { who, why } => state.session_lost(&who, why),
        }
        state.schedule();
        if state.stopping && state.slots.iter().all(Slot::is_free) {
            myself.stop(None);
        }
        Ok(())
    }
}
